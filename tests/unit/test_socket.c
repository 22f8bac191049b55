/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/socket/socket.c and shim/share/ticket.c: what goes over a pair of sockets. */
#include "tests/unit/messages.h"

TEST(descriptors_arrive_as_their_own)
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

TEST(what_does_not_match_is_refused_and_leaves_nothing)
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

TEST(a_full_table_of_descriptors_is_an_error)
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
TEST(a_process_that_may_not_wait_is_told_so)
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

TEST(nobody_answers_for_who_is_gone)
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

TEST(answers_of_other_users_are_refused)
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

TEST(a_spoilt_ticket_shows)
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

PLAY_TESTS
