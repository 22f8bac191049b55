/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/socket/listener.c: what other processes ask, and what the program sees of it, which is no
 * descriptor. The library's control thread is stood in for. */
#include "shim/socket/listener.h"
#include "tests/unit/messages.h"

#include <poll.h>
#include <sched.h>
#include <semaphore.h>
#include <spawn.h>

static sem_t woken;

static void asked(void)
{
    sem_post(&woken);
}

enum { PATIENCE_MS = 30000 };

static bool is_woken(int wait_ms)
{
    int64_t until_ms = clock_now_ms() + wait_ms;
    while (sem_trywait(&woken) != 0) {
        if (clock_now_ms() > until_ms)
            return false;
        usleep(1000);
    }
    return true;
}

/* Of all threads: the listener's has a table of its own. */
static int count_all_fds(void)
{
    char path[300];
    int count = 0;
    DIR *threads = opendir("/proc/self/task");
    assert_non_null(threads);
    for (const struct dirent *t; (t = readdir(threads));) {
        if (*t->d_name == '.')
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/fd", t->d_name);
        count += (int)entries_of(path);
    }
    closedir(threads);
    return count;
}

/* The listener's thread may not be through with the last message. */
static void expect_fds(int expected)
{
    int count = count_all_fds();
    for (int tries = 0; tries < PATIENCE_MS && count != expected; tries++) {
        usleep(1000);
        count = count_all_fds();
    }
    assert_int_equal(count, expected);
}

static struct socket_token listener;

TEST(the_listener_is_none_of_the_programs_descriptors)
{
    int before = count_fds(), ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    assert_true(listener_open(&listener, asked));
    assert_int_equal(count_fds(), before + 2);
    /* It has not kept the program's either: the pipe ends when the program closes it. */
    close(ends[1]);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    assert_int_equal(read(ends[0], &byte, 1), 0);
    close(ends[0]);
    struct socket_token again;
    assert_true(listener_open(&again, asked));
    assert_memory_equal(&listener, &again, sizeof listener);
    assert_true(listener_is_ours(&listener));
    again = drawn();
    assert_false(listener_is_ours(&again));
    pid_t child = fork();
    if (child == 0)
        _exit(listener_is_ours(&listener));
    assert_int_equal(child_status(child), 0);
}

static struct ticket_question about(uint64_t serial)
{
    return (struct ticket_question){
        .ticket = {.magic = TICKET_MAGIC, .token = listener, .serial = serial}};
}

/* A question is heard and answered; on a loaded machine the queue may be full at first. */
static void expect_answer(size_t num_fds)
{
    struct ticket_question question = about(7), heard;
    struct ticket_answer answer = {.kind = TICKET_CHUNKS, .count = num_fds, .offset_bytes = 9}, got;
    uint64_t number;
    int code, reply, fds[TICKET_BATCH] = {0};
    while ((code = socket_ask(&question, &reply)) == EAGAIN)
        usleep(1000);
    assert_int_equal(code, 0);
    assert_true(is_woken(PATIENCE_MS));
    assert_true(listener_next(&heard, &number));
    assert_true(heard.ticket.serial == 7);
    listener_answer(number, &answer, fds, num_fds);
    assert_int_equal(ticket_receive(reply, &got, fds, PATIENCE_MS), SOCKET_GOT);
    assert_true(got.offset_bytes == 9);
    socket_close_all(fds, num_fds);
    assert_int_equal(ticket_receive(reply, &got, fds, PATIENCE_MS), SOCKET_DROPPED);
    close(reply);
}

/* Once the listener's thread is through with the messages of earlier tests: it takes one after the
 * other, and has closed the reply to one that came after them. */
static int count_settled_fds(void)
{
    expect_answer(0);
    return count_all_fds();
}

TEST(questions_are_kept_in_their_order)
{
    struct ticket_question question, heard;
    struct ticket_answer answer = {.count = 1}, got;
    uint64_t number;
    int replies[5], fds[TICKET_BATCH] = {0}, before = count_settled_fds();
    assert_false(listener_next(&heard, &number));
    for (uint64_t i = 0; i < 5; i++) {
        question = about(i);
        assert_int_equal(socket_ask(&question, &replies[i]), 0);
        assert_true(is_woken(PATIENCE_MS));
    }
    for (uint64_t i = 0; i < 5; i++) {
        assert_true(listener_next(&heard, &number));
        assert_true(heard.ticket.serial == i);
        answer.offset_bytes = i;
        listener_answer(number, &answer, fds, 1);
        listener_answer(number, &answer, fds, 1); /* then no process waits any more */
    }
    assert_false(listener_next(&heard, &number));
    for (uint64_t i = 0; i < 5; i++) {
        assert_int_equal(ticket_receive(replies[i], &got, fds, PATIENCE_MS), SOCKET_GOT);
        assert_true(got.offset_bytes == i);
        close(fds[0]);
        assert_int_equal(ticket_receive(replies[i], &got, fds, PATIENCE_MS), SOCKET_DROPPED);
        close(replies[i]);
    }
    expect_fds(before);
}

static int ask_as(void *question)
{
    int reply;
    return socket_ask(question, &reply);
}

/* He has been given a handle, and still is not heard. */
TEST(questions_of_other_users_are_not_heard)
{
    struct ticket_question question = about(1), heard;
    uint64_t number;
    int before = count_settled_fds();
    if (geteuid() != 0)
        skip();
    int rc = as_nobody(ask_as, &question);
    if (rc == 99)
        skip();
    assert_int_equal(rc, 0);
    assert_false(is_woken(300));
    assert_false(listener_next(&heard, &number));
    expect_fds(before);
}

/* Without the secret nothing gets as far as the listener's queue, which holds ten messages or some
 * hundred. */
TEST(messages_without_the_secret_do_not_fill_the_queue)
{
    struct ticket_question question = about(1);
    union {
        struct ticket_question question;
        char bytes[512];
    } junk = {.question = question};
    int from = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    for (unsigned i = 0; i < 5000; i++) {
        question.ticket.token.secret[i % 8] ^= (unsigned char)(i % 255 + 1);
        assert_int_equal(send_raw(from, &listener, &question, sizeof question, i % 3),
                         sizeof question);
        question = about(1);
        if (i % sizeof junk != sizeof question && i % sizeof junk != sizeof(struct socket_relay))
            assert_true(send_raw(from, &listener, &junk, i % sizeof junk, 0) >= 0);
    }
    close(from);
    assert_false(is_woken(50));
}

TEST(too_many_questions_are_dropped_and_the_askers_told)
{
    enum { ASKED = 100 };
    struct ticket_question question, heard;
    struct ticket_answer answer = {.count = 0}, got;
    uint64_t number;
    int kept = 0, dropped = 0, answered = 0, replies[ASKED], fds[TICKET_BATCH],
        before = count_settled_fds();
    for (int i = 0; i < ASKED; i++) {
        question = about(i);
        while (socket_ask(&question, &replies[i]) == EAGAIN)
            sched_yield();
    }
    for (; kept < 64; kept++)
        assert_true(is_woken(PATIENCE_MS));
    assert_false(is_woken(100));
    /* Once an answer has arrived, there is room for the next, however late its thread ran. */
    while (listener_next(&heard, &number)) {
        listener_answer(number, &answer, NULL, 0);
        struct pollfd arrives = {.fd = replies[heard.ticket.serial], .events = POLLIN};
        assert_int_equal(poll(&arrives, 1, PATIENCE_MS), 1);
    }
    for (int i = 0; i < ASKED; i++) {
        enum socket_got how = ticket_receive(replies[i], &got, fds, PATIENCE_MS);
        answered += how == SOCKET_GOT;
        dropped += how == SOCKET_DROPPED;
        close(replies[i]);
    }
    assert_int_equal(answered, 64);
    assert_int_equal(dropped, ASKED - 64);
    expect_fds(before);
    expect_answer(0);
}

/* Of the same user, with a handle, and with a socket that takes nothing. */
TEST(an_asker_that_takes_no_answer_delays_none)
{
    struct ticket_question question = about(1), heard;
    struct ticket_answer answer = {.kind = TICKET_CHUNKS, .count = TICKET_BATCH};
    struct pair full = connected();
    int fds[TICKET_BATCH] = {0}, before = count_settled_fds();
    uint64_t number;
    int64_t start_ms, took_ms = 0;
    while (socket_answer(full.exporter, &answer, NULL, 0))
        ;
    for (int i = 0; i < 50; i++) {
        assert_int_equal(socket_put(&listener, &question, sizeof question, &full.exporter, 1), 0);
        assert_true(is_woken(PATIENCE_MS));
        assert_true(listener_next(&heard, &number));
        start_ms = clock_now_ms();
        listener_answer(number, &answer, fds, TICKET_BATCH);
        took_ms += clock_now_ms() - start_ms;
    }
    assert_true(took_ms < 5000);
    expect_answer(TICKET_BATCH); /* the listener is as ready as before */
    expect_fds(before);
    disconnect(full);
}

/* Of the same user, with a handle: everything but a question. */
static int send_nonsense(void *unused)
{
    union {
        struct ticket_question question;
        struct socket_relay relay;
        unsigned char bytes[1024];
    } m;
    uint64_t random = 1;
    int from = socket(AF_UNIX, SOCK_DGRAM, 0);
    for (int i = 0; i < 3000; i++) {
        for (size_t at = 0; at < sizeof m; at++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            m.bytes[at] = (unsigned char)(random >> 40);
        }
        random = random * 6364136223846793005u + 1442695040888963407u;
        size_t num_fds = (random >> 33) % 4 ? (random >> 36) % 40 : (random >> 36) % 250;
        size_t size_bytes = i % 3 == 0   ? sizeof m.question
                            : i % 3 == 1 ? sizeof m.relay
                                         : (random >> 48) % sizeof m;
        if (size_bytes == sizeof m.question && num_fds == 1)
            num_fds = 0;
        m.relay.head.token = listener;
        m.relay.number = i % 200;
        send_raw(from, &listener, &m, size_bytes, num_fds);
    }
    close(from);
    return 0;
}

TEST(nonsense_leaves_no_descriptor_and_disturbs_nobody)
{
    struct ticket_question question = about(7), heard;
    struct ticket_answer answer = {.count = 0, .offset_bytes = 9}, got;
    uint64_t number;
    int reply, fds[TICKET_BATCH], status, before = count_settled_fds();
    assert_int_equal(socket_ask(&question, &reply), 0);
    assert_true(is_woken(PATIENCE_MS));
    /* A program of its own. Forks of a process with a second descriptor table were seen to end by
     * SIGSEGV before their first instruction, on a loaded machine (Linux 6.18). */
    char token[2 * sizeof listener + 1];
    for (size_t i = 0; i < sizeof listener; i++)
        sprintf(token + 2 * i, "%02x", ((const unsigned char *)&listener)[i]);
    pid_t child;
    char name[] = "test_ipc", *const words[] = {name, token, NULL};
    assert_int_equal(posix_spawn(&child, "/proc/self/exe", NULL, NULL, words, environ), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    send_nonsense(NULL); /* this process's relays are its own, whatever they hold */
    assert_true(listener_next(&heard, &number));
    listener_answer(number, &answer, NULL, 0);
    enum socket_got how = ticket_receive(reply, &got, fds, PATIENCE_MS);
    assert_true(how == SOCKET_GOT || how == SOCKET_BROKEN || how == SOCKET_DROPPED);
    close(reply);
    assert_false(listener_next(&heard, &number));
    expect_answer(0);
    expect_fds(before);
}

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof listener; i++)
        sscanf(argv[1] + 2 * i, "%2hhx", (unsigned char *)&listener + i);
    if (argc > 1)
        return send_nonsense(NULL);
    sem_init(&woken, 0, 0);
    return play_tests(NULL, NULL);
}
