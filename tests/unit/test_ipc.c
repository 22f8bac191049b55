/* SPDX-License-Identifier: BSD-2-Clause
 *
 * shim/ipc_wire.c, shim/ipc_door.c: what goes between two processes, and what the program sees of it,
 * which is no descriptor. The library's control thread and log are stood in for.
 */
#include "shim/control.h"
#include "shim/ipc_door.h"
#include "shim/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static sem_t woken;

void control_wake(void)
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

static struct ipc_token drawn(void)
{
    struct ipc_token token;
    assert_true(ipc_token_draw(&token));
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

/* The two ends of a connection. */
struct pair {
    int importer, exporter;
};

static struct pair connected(void)
{
    struct ipc_token token = drawn();
    int listener = ipc_wire_listen(&token);
    assert_true(listener >= 0);
    assert_false(ipc_wire_wait(listener, 0));
    int exporter = ipc_wire_connect(&token);
    assert_true(exporter >= 0);
    assert_true(ipc_wire_wait(listener, 1000));
    int importer = ipc_wire_accept(listener);
    assert_true(importer >= 0);
    assert_true(fcntl(importer, F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl(exporter, F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl(listener, F_GETFD) & FD_CLOEXEC);
    ipc_wire_close(listener);
    return (struct pair){importer, exporter};
}

static void disconnect(struct pair p)
{
    ipc_wire_close(p.importer);
    ipc_wire_close(p.exporter);
}

static void descriptors_arrive_as_their_own(void **state)
{
    int before = count_fds();
    struct pair p = connected();
    struct ipc_batch sent = {.count = IPC_BATCH}, got;
    int fds[IPC_BATCH], there[IPC_BATCH], ends[2];
    assert_int_equal(pipe(ends), 0);
    for (int i = 0; i < IPC_BATCH; i++)
        fds[i] = ends[1];
    assert_true(ipc_wire_send(p.exporter, &sent, sizeof sent, fds, IPC_BATCH));
    assert_true(ipc_wire_receive(p.importer, &got, sizeof got, there, IPC_BATCH));
    assert_memory_equal(&sent, &got, sizeof sent);
    close(ends[1]);
    for (int i = 0; i < IPC_BATCH; i++) {
        assert_true(fcntl(there[i], F_GETFD) & FD_CLOEXEC);
        assert_int_equal(write(there[i], "x", 1), 1);
        close(there[i]);
    }
    close(ends[0]);
    disconnect(p);
    assert_int_equal(count_fds(), before);
}

static void what_does_not_match_is_refused_and_leaves_nothing(void **state)
{
    int before = count_fds(), there[4];
    struct pair p = connected();
    int fds[] = {0, 1, 2};
    char text[8] = "seven";
    assert_true(ipc_wire_send(p.exporter, text, 8, fds, 3));
    assert_false(ipc_wire_receive(p.importer, text, 8, there, 2)); /* more descriptors than expected */
    assert_true(ipc_wire_send(p.exporter, text, 8, fds, 1));
    assert_false(ipc_wire_receive(p.importer, text, 8, there, 2)); /* fewer */
    assert_true(ipc_wire_send(p.exporter, text, 8, fds, 2));
    assert_false(ipc_wire_receive(p.importer, text, 4, there, 2)); /* a longer message */
    assert_true(ipc_wire_send(p.exporter, text, 4, fds, 2));
    assert_false(ipc_wire_receive(p.importer, text, 8, there, 2)); /* a shorter one */
    assert_true(ipc_wire_send(p.exporter, text, 8, NULL, 0));
    assert_true(ipc_wire_receive(p.importer, text, 8, NULL, 0));
    ipc_wire_close(p.exporter);
    assert_false(ipc_wire_receive(p.importer, text, 8, NULL, 0)); /* nobody there */
    assert_false(ipc_wire_send(p.importer, text, 8, NULL, 0));
    ipc_wire_close(p.importer);
    assert_int_equal(count_fds(), before);
}

static void a_full_table_of_descriptors_is_an_error(void **state)
{
    int before = count_fds(), there[8], fds[8] = {0};
    struct pair p = connected();
    struct rlimit limit, low;
    char text[8] = "seven";
    assert_true(ipc_wire_send(p.exporter, text, 8, fds, 8));
    getrlimit(RLIMIT_NOFILE, &limit);
    low = limit;
    int next = dup(0);
    close(next);
    low.rlim_cur = (rlim_t)next + 3;
    setrlimit(RLIMIT_NOFILE, &low);
    bool received = ipc_wire_receive(p.importer, text, 8, there, 8);
    setrlimit(RLIMIT_NOFILE, &limit);
    assert_false(received);
    disconnect(p);
    assert_int_equal(count_fds(), before);
}

static void nobody_answers_for_who_is_gone(void **state)
{
    struct ipc_question question = {.reply = drawn()};
    struct ipc_token nobody = drawn();
    assert_int_equal(ipc_wire_ask(&nobody, &question), ECONNREFUSED);
    assert_int_equal(ipc_wire_connect(&nobody), -1);
}

static int connect_as(void *token)
{
    return ipc_wire_connect(token) >= 0;
}

static void connections_of_other_users_are_refused(void **state)
{
    if (geteuid() != 0)
        skip();
    struct ipc_token token = drawn();
    int listener = ipc_wire_listen(&token);
    /* The other one does not trust us, we do not trust him. */
    int rc = as_nobody(connect_as, &token);
    if (rc == 99)
        skip();
    assert_true(ipc_wire_wait(listener, 1000));
    assert_int_equal(ipc_wire_accept(listener), -1);
    ipc_wire_close(listener);
}

static struct ipc_token door;

static void the_door_is_none_of_the_programs_descriptors(void **state)
{
    int before = count_fds(), ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    assert_true(ipc_door_open(&door));
    assert_int_equal(count_fds(), before + 2);
    /* Nor has it kept the program's: the pipe ends when the program says so. */
    close(ends[1]);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    assert_int_equal(read(ends[0], &byte, 1), 0);
    close(ends[0]);
    struct ipc_token again;
    assert_true(ipc_door_open(&again));
    assert_memory_equal(&door, &again, sizeof door);
    assert_true(ipc_door_is_ours(&door));
    again = drawn();
    assert_false(ipc_door_is_ours(&again));
    pid_t child = fork();
    if (child == 0)
        _exit(ipc_door_is_ours(&door));
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void questions_are_kept_in_their_order(void **state)
{
    struct ipc_question question = {.ticket = {.magic = IPC_MAGIC}}, heard;
    assert_false(ipc_door_next(&heard));
    for (uint64_t i = 0; i < 5; i++) {
        question.ticket.serial = i;
        assert_int_equal(ipc_wire_ask(&door, &question), 0);
        assert_true(is_woken(5000));
    }
    for (uint64_t i = 0; i < 5; i++) {
        assert_true(ipc_door_next(&heard));
        assert_true(heard.ticket.serial == i);
    }
    assert_false(ipc_door_next(&heard));
}

static int ask_as(void *question)
{
    return ipc_wire_ask(&door, question);
}

static void questions_of_other_users_are_not_heard(void **state)
{
    struct ipc_question question = {.ticket = {.magic = IPC_MAGIC}}, heard;
    if (geteuid() != 0)
        skip();
    int rc = as_nobody(ask_as, &question);
    if (rc == 99)
        skip();
    assert_int_equal(rc, 0);
    assert_false(is_woken(300));
    assert_false(ipc_door_next(&heard));
}

static void too_many_questions_are_forgotten(void **state)
{
    struct ipc_question question = {.ticket = {.magic = IPC_MAGIC}}, heard;
    int kept = 0;
    for (int i = 0; i < 100; i++) {
        assert_int_equal(ipc_wire_ask(&door, &question), 0);
        assert_true(is_woken(5000));
    }
    while (ipc_door_next(&heard))
        kept++;
    assert_in_range(kept, 32, 99);
    assert_int_equal(ipc_wire_ask(&door, &question), 0);
    assert_true(is_woken(5000));
    assert_true(ipc_door_next(&heard));
}

static void a_spoilt_ticket_shows(void **state)
{
    struct ipc_ticket ticket = {.magic = IPC_MAGIC, .token = drawn(), .addr = 0x7f0000000000, .serial = 9};
    uint64_t sum = ipc_ticket_check(&ticket);
    unsigned char *bytes = (unsigned char *)&ticket;
    for (size_t i = 0; i < offsetof(struct ipc_ticket, check); i++) {
        bytes[i] ^= 0x10;
        assert_true(ipc_ticket_check(&ticket) != sum);
        bytes[i] ^= 0x10;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptors_arrive_as_their_own),
        cmocka_unit_test(what_does_not_match_is_refused_and_leaves_nothing),
        cmocka_unit_test(a_full_table_of_descriptors_is_an_error),
        cmocka_unit_test(nobody_answers_for_who_is_gone),
        cmocka_unit_test(connections_of_other_users_are_refused),
        cmocka_unit_test(the_door_is_none_of_the_programs_descriptors),
        cmocka_unit_test(questions_are_kept_in_their_order),
        cmocka_unit_test(questions_of_other_users_are_not_heard),
        cmocka_unit_test(too_many_questions_are_forgotten),
        cmocka_unit_test(a_spoilt_ticket_shows),
    };
    sem_init(&woken, 0, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
