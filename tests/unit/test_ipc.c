/* SPDX-License-Identifier: BSD-2-Clause
 *
 * shim/socket/ and shim/share/ticket.c: what goes between two processes, and what the program sees
 * of it, which is no descriptor. The library's control thread and log are stood in for.
 */
#include "shim/process/log.h"
#include "shim/share/ticket.h"
#include "shim/socket/listener.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <semaphore.h>
#include <spawn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static sem_t woken;

static void asked(void)
{
    sem_post(&woken);
}

bool log_wants(enum log_level level)
{
    return false;
}

void log_line(enum log_level level, const char *format, ...)
{
}

static bool is_woken(int wait_ms)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += wait_ms / 1000;
    t.tv_nsec += wait_ms % 1000 * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return sem_timedwait(&woken, &t) == 0;
}

static int count_fds(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    assert_non_null(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static struct socket_token drawn(void)
{
    struct socket_token token;
    assert_true(socket_token_draw(&token));
    return token;
}

/* Runs f in a child of another user, if this one may; its result. */
static int as_nobody(int (*f)(void *), void *arg)
{
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(setuid(65534) == 0 ? f(arg) : 99);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
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
        DIR *fds = opendir(path);
        assert_non_null(fds);
        while (readdir(fds))
            count++;
        closedir(fds);
    }
    closedir(threads);
    return count;
}

/* The same once the listener's thread is through with the messages of earlier tests: the count did
 * not change for 60 ms. */
static int count_settled_fds(void)
{
    int count = count_all_fds();
    for (int same = 0; same < 3; same++) {
        usleep(20000);
        int now = count_all_fds();
        if (now != count)
            same = -1;
        count = now;
    }
    return count;
}

/* The listener's thread may not be through with the last message. */
static void expect_fds(int expected)
{
    int count = count_all_fds();
    for (int tries = 0; tries < 2000 && count != expected; tries++) {
        usleep(1000);
        count = count_all_fds();
    }
    assert_int_equal(count, expected);
}

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* One end has the credentials of what comes in. */
struct pair {
    int importer, exporter;
};

static struct pair connected(void)
{
    int ends[2], on = 1;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    assert_int_equal(setsockopt(ends[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on), 0);
    return (struct pair){ends[0], ends[1]};
}

static void disconnect(struct pair p)
{
    socket_close(p.importer);
    socket_close(p.exporter);
}

static void descriptors_arrive_as_their_own(void **state)
{
    int before = count_fds();
    struct pair p = connected();
    struct ticket_answer sent = {.kind = TICKET_CHUNKS, .count = TICKET_BATCH}, got;
    int fds[TICKET_BATCH], there[TICKET_BATCH], ends[2];
    assert_int_equal(pipe(ends), 0);
    for (int i = 0; i < TICKET_BATCH; i++)
        fds[i] = ends[1];
    assert_true(socket_answer(p.exporter, &sent, fds, TICKET_BATCH));
    assert_int_equal(ticket_receive(p.importer, &got, there, 1000), SOCKET_GOT);
    assert_memory_equal(&sent, &got, sizeof sent);
    close(ends[1]);
    for (int i = 0; i < TICKET_BATCH; i++) {
        assert_true(fcntl(there[i], F_GETFD) & FD_CLOEXEC);
        assert_int_equal(write(there[i], "x", 1), 1);
        close(there[i]);
    }
    close(ends[0]);
    disconnect(p);
    assert_int_equal(count_fds(), before);
}

/* Any bytes with any descriptors, as another program may send them. */
static ssize_t send_raw(int fd, const struct socket_token *to, const void *bytes, size_t size_bytes,
                        size_t num_fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * 256)];
    } control = {.bytes = {0}};
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct iovec part = {(void *)(uintptr_t)bytes, size_bytes};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    if (to) {
        char *end = at.sun_path + 1 + sprintf(at.sun_path + 1, "gpucache-");
        for (size_t i = 0; i < sizeof to->name; i++)
            end += sprintf(end, "%02x", to->name[i]);
        m.msg_name = &at;
        m.msg_namelen = (socklen_t)(end - (char *)&at);
    }
    if (num_fds) {
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE(num_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
                              .cmsg_len = CMSG_LEN(num_fds * sizeof(int))};
    }
    return sendmsg(fd, &m, MSG_NOSIGNAL);
}

static void what_does_not_match_is_refused_and_leaves_nothing(void **state)
{
    int before = count_fds(), there[TICKET_BATCH];
    struct pair p = connected();
    struct ticket_answer sent = {.count = 2}, got;
    char longer[sizeof sent + 1] = {0};
    for (size_t fds = 0; fds < 250; fds += fds < 4 ? 1 : 41) {
        sent.count = fds == 1 ? 2 : 1;
        assert_int_equal(send_raw(p.exporter, NULL, &sent, sizeof sent, fds), sizeof sent);
        assert_int_equal(ticket_receive(p.importer, &got, there, 1000), SOCKET_BROKEN);
    }
    assert_int_equal(send_raw(p.exporter, NULL, longer, sizeof longer, 2), sizeof longer);
    assert_int_equal(ticket_receive(p.importer, &got, there, 1000), SOCKET_BROKEN);
    assert_int_equal(send_raw(p.exporter, NULL, &sent, sizeof sent - 1, 1), sizeof sent - 1);
    assert_int_equal(ticket_receive(p.importer, &got, there, 1000), SOCKET_BROKEN);
    assert_int_equal(ticket_receive(p.importer, &got, there, 0), SOCKET_LATE);
    sent.count = 0;
    assert_true(socket_answer(p.exporter, &sent, NULL, 0));
    assert_int_equal(ticket_receive(p.importer, &got, there, 1000), SOCKET_GOT);
    socket_close(p.exporter);
    /* Nobody is there. */
    assert_int_equal(ticket_receive(p.importer, &got, there, 1000), SOCKET_DROPPED);
    assert_false(socket_answer(p.importer, &sent, NULL, 0));
    socket_close(p.importer);
    assert_int_equal(count_fds(), before);
}

static void a_full_table_of_descriptors_is_an_error(void **state)
{
    int before = count_fds(), there[TICKET_BATCH], fds[8] = {0};
    struct pair p = connected();
    struct rlimit limit, low;
    struct ticket_answer sent = {.count = 8}, got;
    assert_true(socket_answer(p.exporter, &sent, fds, 8));
    getrlimit(RLIMIT_NOFILE, &limit);
    low = limit;
    int next = dup(0);
    close(next);
    low.rlim_cur = (rlim_t)next + 3;
    setrlimit(RLIMIT_NOFILE, &low);
    enum socket_got received = ticket_receive(p.importer, &got, there, 1000);
    setrlimit(RLIMIT_NOFILE, &limit);
    assert_int_equal(received, SOCKET_BROKEN);
    disconnect(p);
    assert_int_equal(count_fds(), before);
}

/* As in a sandbox that forbids to wait: with no descriptor allowed, poll() fails. Asking again
 * would fail too. */
static void who_may_not_wait_is_told_so(void **state)
{
    struct pair p = connected();
    struct rlimit before, none;
    struct ticket_answer got;
    int there[TICKET_BATCH];
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    enum socket_got received = ticket_receive(p.importer, &got, there, 1000);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(received, SOCKET_BROKEN);
    disconnect(p);
}

static void nobody_answers_for_who_is_gone(void **state)
{
    struct ticket_question question = {.ticket = {.magic = TICKET_MAGIC, .token = drawn()}};
    int before = count_fds(), reply;
    assert_int_equal(socket_ask(&question, &reply), ECONNREFUSED);
    assert_int_equal(reply, -1);
    assert_int_equal(count_fds(), before);
}

static int answer_as(void *fd)
{
    struct ticket_answer answer = {.count = 0};
    return !socket_answer(*(int *)fd, &answer, NULL, 0);
}

static void answers_of_other_users_are_refused(void **state)
{
    struct ticket_answer got;
    int there[TICKET_BATCH];
    if (geteuid() != 0)
        skip();
    struct pair p = connected();
    int rc = as_nobody(answer_as, &p.exporter);
    if (rc == 99)
        skip();
    assert_int_equal(rc, 0);
    assert_int_equal(ticket_receive(p.importer, &got, there, 1000), SOCKET_FOREIGN);
    disconnect(p);
}

static struct socket_token listener;

static void the_listener_is_none_of_the_programs_descriptors(void **state)
{
    int before = count_fds(), ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    assert_true(listener_open(&listener, asked));
    assert_int_equal(count_fds(), before + 2);
    /* Nor has it kept the program's: the pipe ends when the program says so. */
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
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static struct ticket_question about(uint64_t serial)
{
    return (struct ticket_question){
        .ticket = {.magic = TICKET_MAGIC, .token = listener, .serial = serial}};
}

static void questions_are_kept_in_their_order(void **state)
{
    struct ticket_question question, heard;
    struct ticket_answer answer = {.count = 1}, got;
    uint64_t number;
    int replies[5], fds[TICKET_BATCH] = {0}, before = count_settled_fds();
    assert_false(listener_next(&heard, &number));
    for (uint64_t i = 0; i < 5; i++) {
        question = about(i);
        assert_int_equal(socket_ask(&question, &replies[i]), 0);
        assert_true(is_woken(5000));
    }
    for (uint64_t i = 0; i < 5; i++) {
        assert_true(listener_next(&heard, &number));
        assert_true(heard.ticket.serial == i);
        answer.offset_bytes = i;
        listener_answer(number, &answer, fds, 1);
        listener_answer(number, &answer, fds, 1); /* once answered, there is nobody any more */
    }
    assert_false(listener_next(&heard, &number));
    for (uint64_t i = 0; i < 5; i++) {
        assert_int_equal(ticket_receive(replies[i], &got, fds, 5000), SOCKET_GOT);
        assert_true(got.offset_bytes == i);
        close(fds[0]);
        assert_int_equal(ticket_receive(replies[i], &got, fds, 5000), SOCKET_DROPPED);
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
static void questions_of_other_users_are_not_heard(void **state)
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
static void who_has_no_handle_does_not_fill_the_door(void **state)
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

static void too_many_questions_are_dropped_and_the_askers_told(void **state)
{
    enum { ASKED = 100 };
    struct ticket_question question = about(1), heard;
    struct ticket_answer answer = {.count = 0}, got;
    uint64_t number;
    int kept = 0, dropped = 0, answered = 0, replies[ASKED], fds[TICKET_BATCH],
        before = count_settled_fds();
    for (int i = 0; i < ASKED; i++)
        while (socket_ask(&question, &replies[i]) == EAGAIN)
            sched_yield();
    for (; kept < 64; kept++)
        assert_true(is_woken(5000));
    assert_false(is_woken(100));
    /* An answer is lost if the listener's thread does not run for two milliseconds. */
    for (; listener_next(&heard, &number); usleep(1000))
        listener_answer(number, &answer, NULL, 0);
    for (int i = 0; i < ASKED; i++) {
        enum socket_got how = ticket_receive(replies[i], &got, fds, 5000);
        answered += how == SOCKET_GOT;
        dropped += how == SOCKET_DROPPED;
        close(replies[i]);
    }
    assert_int_equal(answered, 64);
    assert_int_equal(dropped, ASKED - 64);
    expect_fds(before);
    int reply;
    assert_int_equal(socket_ask(&question, &reply), 0);
    assert_true(is_woken(5000));
    assert_true(listener_next(&heard, &number));
    listener_answer(number, &answer, NULL, 0);
    assert_int_equal(ticket_receive(reply, &got, fds, 5000), SOCKET_GOT);
    close(reply);
}

/* Of the same user, with a handle, and with a socket that takes nothing. */
static void who_takes_no_answer_makes_nobody_wait(void **state)
{
    struct ticket_question question = about(1), heard;
    struct ticket_answer answer = {.kind = TICKET_CHUNKS, .count = TICKET_BATCH};
    struct pair full = connected();
    int fds[TICKET_BATCH] = {0}, before = count_settled_fds();
    uint64_t number, start_ms, took_ms = 0;
    while (socket_answer(full.exporter, &answer, NULL, 0))
        ;
    for (int i = 0; i < 50; i++) {
        assert_int_equal(socket_put(&listener, &question, sizeof question, &full.exporter, 1), 0);
        assert_true(is_woken(5000));
        assert_true(listener_next(&heard, &number));
        start_ms = now_ms();
        listener_answer(number, &answer, fds, TICKET_BATCH);
        took_ms += now_ms() - start_ms;
    }
    assert_true(took_ms < 1000);
    /* The listener is as ready as before. */
    int reply;
    assert_int_equal(socket_ask(&question, &reply), 0);
    assert_true(is_woken(5000));
    assert_true(listener_next(&heard, &number));
    listener_answer(number, &answer, fds, TICKET_BATCH);
    struct ticket_answer got;
    assert_int_equal(ticket_receive(reply, &got, fds, 5000), SOCKET_GOT);
    socket_close_all(fds, TICKET_BATCH);
    close(reply);
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

static void nonsense_leaves_no_descriptor_and_disturbs_nobody(void **state)
{
    struct ticket_question question = about(7), heard;
    struct ticket_answer answer = {.count = 0, .offset_bytes = 9}, got;
    uint64_t number;
    int reply, fds[TICKET_BATCH], status, before = count_settled_fds();
    assert_int_equal(socket_ask(&question, &reply), 0);
    assert_true(is_woken(5000));
    /* A program of its own: forks of a process with a second descriptor table were seen to end by
     * SIGSEGV on a loaded machine, before their first instruction (Linux 6.18). */
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
    enum socket_got how = ticket_receive(reply, &got, fds, 5000);
    assert_true(how == SOCKET_GOT || how == SOCKET_BROKEN || how == SOCKET_DROPPED);
    close(reply);
    assert_false(listener_next(&heard, &number));
    assert_int_equal(socket_ask(&question, &reply), 0);
    assert_true(is_woken(5000));
    assert_true(listener_next(&heard, &number));
    assert_true(heard.ticket.serial == 7);
    listener_answer(number, &answer, NULL, 0);
    assert_int_equal(ticket_receive(reply, &got, fds, 5000), SOCKET_GOT);
    assert_true(got.offset_bytes == 9);
    close(reply);
    expect_fds(before);
}

static void a_spoilt_ticket_shows(void **state)
{
    struct ticket ticket = {
        .magic = TICKET_MAGIC, .token = drawn(), .addr = 0x7f0000000000, .serial = 9};
    uint64_t sum = ticket_check(&ticket);
    unsigned char *bytes = (unsigned char *)&ticket;
    for (size_t i = 0; i < offsetof(struct ticket, check); i++) {
        bytes[i] ^= 0x10;
        assert_true(ticket_check(&ticket) != sum);
        bytes[i] ^= 0x10;
    }
}

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof listener; i++)
        sscanf(argv[1] + 2 * i, "%2hhx", (unsigned char *)&listener + i);
    if (argc > 1)
        return send_nonsense(NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptors_arrive_as_their_own),
        cmocka_unit_test(what_does_not_match_is_refused_and_leaves_nothing),
        cmocka_unit_test(a_full_table_of_descriptors_is_an_error),
        cmocka_unit_test(who_may_not_wait_is_told_so),
        cmocka_unit_test(nobody_answers_for_who_is_gone),
        cmocka_unit_test(answers_of_other_users_are_refused),
        cmocka_unit_test(the_listener_is_none_of_the_programs_descriptors),
        cmocka_unit_test(questions_are_kept_in_their_order),
        cmocka_unit_test(questions_of_other_users_are_not_heard),
        cmocka_unit_test(who_has_no_handle_does_not_fill_the_door),
        cmocka_unit_test(too_many_questions_are_dropped_and_the_askers_told),
        cmocka_unit_test(who_takes_no_answer_makes_nobody_wait),
        cmocka_unit_test(nonsense_leaves_no_descriptor_and_disturbs_nobody),
        cmocka_unit_test(a_spoilt_ticket_shows),
    };
    sem_init(&woken, 0, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
