/* SPDX-License-Identifier: BSD-2-Clause */
/* Processes that disturb the exporter: handles open as ever, and the exporter goes on. */
#include "tests/preload/ipc_peer.h"
#include "tests/preload/observer.h"

#include <dirent.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

/* Another user of the machine sees every socket's name. While blocks are shared, that user sends
 * messages of any length, with descriptors, to all sockets as fast as possible, and keeps
 * connections open. No handle takes long to open, also while the exporter is stopped, and no
 * descriptor is left in the exporter. The other user is a child that gives root up, in a network
 * namespace of the scene's own, so that it reaches no other process. */

enum { NOBODY = 65534, HOSTILES = 3, OPENS = 30, HELD = 64, FDS = 16 };
enum { STOPPED_MS = 1300, LONG_MS = 150, TRIES = 4 };

static const size_t size_bytes = 300 * KIB;

/* As many as a message may want: the lengths around those of real ones are all among them. */
static void send_junk(int from, const struct sockaddr_un *to, socklen_t to_bytes, unsigned round)
{
    static unsigned char junk[1024];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * FDS)];
    } control = {.bytes = {0}};
    struct iovec part = {junk, round % sizeof junk + 1};
    struct msghdr m = {.msg_name = (void *)(uintptr_t)to,
                       .msg_namelen = to_bytes,
                       .msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * FDS);
    for (int i = 0; i < FDS; i++)
        memcpy(CMSG_DATA(c) + (size_t)i * sizeof from, &from, sizeof from);
    if (round % 3)
        m.msg_controllen = 0;
    sendmsg(from, &m, MSG_NOSIGNAL);
}

static int kind; /* of socket: some send messages, some connect */

static void attack(const char *name, int type, unsigned *round)
{
    static int held[HELD];
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    socklen_t to_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
    memcpy(to.sun_path + 1, name, strlen(name));
    if (type == SOCK_DGRAM) {
        struct timeval patience = {.tv_usec = 20000};
        int from = socket(AF_UNIX, SOCK_DGRAM, 0);
        setsockopt(from, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        for (int i = 0; i < 200; i++)
            send_junk(from, &to, to_bytes, ++*round);
        close(from);
    } else {
        int *slot = &held[++*round % HELD];
        if (*slot)
            close(*slot);
        *slot = socket(AF_UNIX, type | SOCK_NONBLOCK, 0);
        connect(*slot, (struct sockaddr *)&to, to_bytes);
    }
}

/* Every name of the namespace, again and again. */
static int be_hostile(int from, int to)
{
    unsigned round = 0, type;
    char line[512], name[128];
    REQUIRE(setgid(NOBODY));
    REQUIRE(setuid(NOBODY));
    scene_watchdog(120);
    EXPECT(read(from, line, 1) == 1);
    fcntl(from, F_SETFL, O_NONBLOCK);
    while (read(from, line, 1) < 0) {
        FILE *list = fopen("/proc/net/unix", "r");
        while (list && fgets(line, sizeof line, list))
            if (sscanf(line, "%*s %*s %*s %*s %x %*s %*s @%107s", &type, name) == 2 &&
                (int)type == kind)
                attack(name, kind, &round);
        if (list)
            fclose(list);
    }
    return to < 0;
}

static uint64_t now_ms(void)
{
    return scene_now_ns() / MS_NS;
}

/* Descriptors of all threads: some may have a table of their own. */
static int count_all_fds(void)
{
    char path[300];
    int count = 0;
    DIR *threads = opendir("/proc/self/task");
    for (const struct dirent *t; threads && (t = readdir(threads));) {
        snprintf(path, sizeof path, "/proc/self/task/%s/fd", t->d_name);
        DIR *fds = *t->d_name == '.' ? NULL : opendir(path);
        while (fds && readdir(fds))
            count++;
        if (fds)
            closedir(fds);
    }
    if (threads)
        closedir(threads);
    return count;
}

/* How many are more than `enough`. The control thread closes those of an answer after it has sent
 * the answer, so the importer may have the block before. */
static int count_left_fds(int enough)
{
    int count = count_all_fds();
    for (uint64_t start_ms = now_ms(); count > enough && now_ms() - start_ms < 10000;) {
        scene_sleep_ms(1);
        count = count_all_fds();
    }
    return count > enough ? count - enough : 0;
}

static struct ipc_peer importer;

static int open_once(struct ipc_message m)
{
    struct ipc_message opened = ipc_peer_do(&importer, m);
    int wrong = opened.rc != 0 || opened.wrong != 0;
    opened.order = IPC_CLOSE;
    return wrong + (opened.rc == 0 && ipc_peer_do(&importer, opened).rc != 0);
}

/* A child stops this process, gives the importer its order, and lets this process go on later. */
static int open_while_stopped(struct ipc_message m)
{
    pid_t child = scene_fork();
    if (child == 0) {
        kill(getppid(), SIGSTOP);
        ssize_t sent = write(importer.to, &m, sizeof m);
        scene_sleep_ms(STOPPED_MS);
        kill(getppid(), SIGCONT);
        _exit(sent != sizeof m);
    }
    EXPECT(read(importer.from, &m, sizeof m) == sizeof m);
    scene_wait(child);
    int wrong = m.rc != 0 || m.wrong != 0;
    m.order = IPC_CLOSE;
    return wrong + (m.rc == 0 && ipc_peer_do(&importer, m).rc != 0);
}

/* The first time he begins, the second time he ends. */
static void signal_hostile(const struct ipc_peer *hostile)
{
    EXPECT(write(hostile->to, "", 1) == 1);
}

static int another_user_hinders_nobody(void)
{
    struct ipc_message m = {.order = IPC_OPEN, .size_bytes = size_bytes, .byte = 7};
    uint64_t slowest_ms = 0;
    int wrong = 0, late = OPENS;
    if (geteuid() != 0 || unshare(CLONE_NEWNET) != 0)
        scene_skip("only root has another user's child");
    scene_watchdog(120);
    importer = ipc_peer_fork();
    struct ipc_peer hostile[HOSTILES];
    for (int i = 0; i < HOSTILES; i++) {
        kind = i < HOSTILES - 1 ? SOCK_DGRAM : SOCK_SEQPACKET;
        hostile[i] = ipc_peer_fork_work(be_hostile);
    }
    scene_start(1, 120);
    ipc_share(&m.handle, size_bytes, m.byte);
    wrong += open_once(m);
    int before = count_all_fds();
    for (int i = 0; i < HOSTILES - 1; i++)
        signal_hostile(&hostile[i]);
    scene_sleep_ms(50);
    /* One or two may wait for the processor; while others keep it busy, more may. */
    for (int tries = 0; tries < TRIES && late > 2; tries++) {
        late = 0;
        for (int i = 0; i < OPENS; i++) {
            uint64_t start_ms = now_ms();
            wrong += open_once(m);
            uint64_t took_ms = now_ms() - start_ms;
            slowest_ms = took_ms > slowest_ms ? took_ms : slowest_ms;
            late += took_ms > LONG_MS;
        }
    }
    if (late > 2)
        printf("%d of %d opens took long, the slowest %llu ms\n", late, OPENS,
               (unsigned long long)slowest_ms);
    printf("%d wrong\n", wrong);
    signal_hostile(&hostile[HOSTILES - 1]);
    printf("%d wrong while the exporter was stopped\n", open_while_stopped(m));
    int left = count_left_fds(before + 4);
    printf("%d descriptors left\n", left);
    for (int i = 0; i < HOSTILES; i++) {
        signal_hostile(&hostile[i]);
        printf("hostile ended with %d\n", ipc_peer_join(&hostile[i]));
    }
    printf("importer ended with %d\n", ipc_peer_end(&importer));
    return 0;
}

/* A process of the same user, with a handle, asks for the block again and again and takes no
 * answer. The exporter goes on: it gives memory back at a signal as soon as without that process,
 * and another process opens the same handle. Questions have the format of shim/share/ticket.h.
 * Bare there is no process to ask. */

enum { IDLE = 8, BACK_MS = 10000 };

struct loan_request {
    unsigned char handle[64]; /* a number, 8 bytes of the listener's name, 8 of its secret, .. */
    uint64_t done_bytes;
};

static int send_question(const struct loan_request *q, int reply)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof reply)];
    } control = {.bytes = {0}};
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_usec = 20000};
    struct iovec part = {(void *)(uintptr_t)q, sizeof *q};
    char *end = to.sun_path + 1 + sprintf(to.sun_path + 1, "gpucache-");
    for (int i = 8; i < 16; i++)
        end += sprintf(end, "%02x", q->handle[i]);
    struct msghdr m = {.msg_name = &to,
                       .msg_namelen = (socklen_t)(end - (char *)&to),
                       .msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    *c = (struct cmsghdr){
        .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof reply)};
    memcpy(CMSG_DATA(c), &reply, sizeof reply);
    int from = socket(AF_UNIX, SOCK_DGRAM, 0);
    setsockopt(from, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    bool sent = sendmsg(from, &m, MSG_NOSIGNAL) == sizeof *q;
    close(from);
    return sent;
}

/* Whether it is answered if the answer is taken. */
static bool is_answered(const struct loan_request *q)
{
    char answer[4096];
    int ends[2];
    struct timeval patience = {.tv_sec = 5};
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
    setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    bool answered = send_question(q, ends[1]);
    close(ends[1]);
    answered = answered && read(ends[0], answer, sizeof answer) > 64;
    close(ends[0]);
    return answered;
}

static int be_greedy(int from, int to)
{
    struct loan_request q = {.done_bytes = 0};
    int ends[2];
    char byte = 0;
    scene_watchdog(120);
    EXPECT(read(from, q.handle, sizeof q.handle) == sizeof q.handle);
    if (scene_preloaded())
        EXPECT(is_answered(&q));
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, ends));
    while (send(ends[1], &q, sizeof q, MSG_NOSIGNAL) > 0)
        ;
    fcntl(from, F_SETFL, O_NONBLOCK);
    for (unsigned asked = 0; read(from, &byte, 1) < 0; asked++) {
        if (asked == 100)
            EXPECT(write(to, &byte, 1) == 1);
        if (!send_question(&q, ends[1]))
            scene_sleep_ms(1);
    }
    return 0;
}

static int a_process_that_takes_no_answer_holds_nobody_up(void)
{
    struct ipc_message m = {.order = IPC_OPEN, .size_bytes = size_bytes, .byte = 9};
    uint64_t idle[IDLE];
    struct observer observer;
    char byte = 0;
    scene_watchdog(120);
    observer_start(&observer);
    struct ipc_peer taker = ipc_peer_fork(), greedy = ipc_peer_fork_work(be_greedy);
    scene_start(1, 120);
    ipc_share(&m.handle, size_bytes, m.byte);
    EXPECT(write(greedy.to, &m.handle, sizeof m.handle) == sizeof m.handle);
    EXPECT(read(greedy.from, &byte, 1) == 1);
    for (int round = 0; round < 3; round++) {
        NEW_BLOCKS(idle, IDLE, 64 * MIB);
        size_t full = observer_free_bytes(&observer), want = full + (IDLE * 64 - 32) * MIB;
        FREE_ALL(idle, IDLE);
        uint64_t start_ms = now_ms();
        if (scene_preloaded())
            REQUIRE(raise(SIGUSR1));
        while (observer_free_bytes(&observer) < want && now_ms() - start_ms < 30000)
            scene_sleep_ms(1);
        uint64_t took_ms = now_ms() - start_ms;
        if (took_ms > BACK_MS)
            printf("memory is back after %llu ms\n", (unsigned long long)took_ms);
        struct ipc_message opened = ipc_peer_do(&taker, m);
        printf("opened %d, %zu wrong", opened.rc, opened.wrong);
        opened.order = IPC_CLOSE;
        printf(", closed %d\n", ipc_peer_do(&taker, opened).rc);
    }
    EXPECT(write(greedy.to, &byte, 1) == 1);
    printf("greedy ended with %d\n", ipc_peer_join(&greedy));
    printf("taker ended with %d\n", ipc_peer_end(&taker));
    observer_stop(&observer);
    return 0;
}

SCENE_ACTS(ACT(another_user_hinders_nobody), ACT(a_process_that_takes_no_answer_holds_nobody_up))
