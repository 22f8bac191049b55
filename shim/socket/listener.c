/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See listener.h. One lock guards the listener's state and the questions. No thread holds it over a
 * call of the kernel's that waits, or over a call of the driver's. The sockets for answers belong
 * to the listener's thread.
 */
#include "shim/socket/listener.h"

#include "shim/process/clock.h"
#include "shim/process/descriptors.h"
#include "shim/process/kernel.h"
#include "shim/process/own_thread.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* An importer asks again if its question is dropped. */
enum { QUESTIONS_MAX = 64 };
/* At least the questions that wait and the one that is being answered. */
enum { REPLIES_MAX = 2 * QUESTIONS_MAX };
#define STACK_BYTES (512 * 1024)
/* The least number of the socket's descriptor in the program's table. It is above the numbers that
 * programs count on. It is below those that would make the table grow or select() fail. */
#define SHARED_FD_MIN 960
/* How often, and how far apart, the control thread tries to relay an answer. The listener's thread
 * takes the answer as soon as it runs. */
#define RELAY_TRIES 40
#define RELAY_PAUSE_NS 50000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static enum { CLOSED, OPENING, OPEN, BROKEN } listener;
static pid_t owner;
static struct socket_token token_now;
static void (*question_waits)(void);
static struct kept_question {
    struct socket_question question;
    uint64_t number;
} questions[QUESTIONS_MAX];
static unsigned first, count;
/* Of the listener's thread alone. */
static struct open_reply {
    uint64_t number; /* 0: none */
    int fd;
} replies[REPLIES_MAX];
static uint64_t last_number;
/* The socket's descriptor and its inode, if the table is the program's. */
static atomic_int shared_fd = -1;
static ino_t shared_ino;

/* While the socket is open, no other file has its inode number. */
static bool is_shared_socket(int fd)
{
    struct stat st;
    return fd >= 0 && kernel_fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode) && st.st_ino == shared_ino;
}

static int share(int low)
{
    struct stat st;
    int fd = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, SHARED_FD_MIN);
    if (fd >= 0)
        close(low);
    else
        fd = low; /* the limit allows no higher number */
    if (fd < 0 || kernel_fstat(fd, &st) != 0)
        return fd;
    shared_ino = st.st_ino;
    atomic_store(&shared_fd, fd);
    return fd;
}

/* The program may have closed the socket in its table, and opened another file under the same
 * number. We leave that file alone. About a microsecond passes between this look and the next call,
 * in which the program can still do that. A call that waits goes on with the socket that it began
 * with. */
static int look_after(enum descriptors table, int fd)
{
    if (table == DESCRIPTORS_OWN || is_shared_socket(fd))
        return fd;
    return share(socket_open(&token_now));
}

static void set_state(int state)
{
    pthread_mutex_lock(&lock);
    listener = state;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* False: too many wait. */
static bool keep_question(const struct socket_question *question, uint64_t number)
{
    pthread_mutex_lock(&lock);
    bool kept = count < QUESTIONS_MAX;
    if (kept)
        questions[(first + count++) % QUESTIONS_MAX] = (struct kept_question){*question, number};
    pthread_mutex_unlock(&lock);
    return kept;
}

static void admit_question(const struct socket_message *m)
{
    struct open_reply *r = &replies[(last_number + 1) % REPLIES_MAX];
    if (!keep_question(&m->question, last_number + 1)) {
        socket_close_apart(m->fds, m->num_fds);
        return;
    }
    if (r->number)
        socket_close_apart(&r->fd, 1); /* its answer was lost */
    *r = (struct open_reply){++last_number, m->fds[0]};
    question_waits();
}

static void relay_answer(const struct socket_message *m)
{
    struct open_reply *r = &replies[m->relay.number % REPLIES_MAX];
    if (r->number && r->number == m->relay.number) {
        socket_answer(r->fd, m->relay.answer, m->fds, m->num_fds);
        socket_close_apart(&r->fd, 1);
        r->number = 0;
    }
    socket_close_apart(m->fds, m->num_fds);
}

static void listen_and_relay(void)
{
    struct socket_message message;
    enum descriptors table = descriptors_leave();
    int fd = table == DESCRIPTORS_SPOILT ? -1 : socket_open(&token_now);
    if (table == DESCRIPTORS_SHARED)
        fd = share(fd);
    set_state(fd >= 0 ? OPEN : BROKEN);
    while (fd >= 0) {
        if (!socket_hear(fd, &token_now, &message)) {
            if (table == DESCRIPTORS_OWN || is_shared_socket(fd))
                break;
        } else if (message.own) {
            relay_answer(&message);
        } else {
            admit_question(&message);
        }
        fd = look_after(table, fd);
    }
    set_state(BROKEN);
}

bool listener_open(struct socket_token *token, void (*asked)(void))
{
    static const struct own_thread thread = {"gpucache-ipc", STACK_BYTES, listen_and_relay};
    pthread_mutex_lock(&lock);
    if (listener == CLOSED) {
        listener = OPENING;
        owner = getpid();
        question_waits = asked;
        if (!socket_token_draw(&token_now) || !own_thread_start(&thread))
            listener = BROKEN;
    }
    while (listener == OPENING)
        pthread_cond_wait(&changed, &lock);
    bool open = listener == OPEN;
    *token = token_now;
    pthread_mutex_unlock(&lock);
    return open;
}

bool listener_is_ours(const struct socket_token *token)
{
    pthread_mutex_lock(&lock);
    bool ours =
        listener != CLOSED && owner == getpid() && memcmp(token, &token_now, sizeof *token) == 0;
    pthread_mutex_unlock(&lock);
    return ours;
}

bool listener_next(void *question, uint64_t *number)
{
    pthread_mutex_lock(&lock);
    bool any = count > 0;
    if (any) {
        memcpy(question, &questions[first].question, sizeof questions[first].question);
        *number = questions[first].number;
        first = (first + 1) % QUESTIONS_MAX;
        count--;
    }
    pthread_mutex_unlock(&lock);
    return any;
}

/* The listener's thread has the socket of the process that asked. It has a table of its own, so it
 * gets descriptors of the program's table only in a message. Its queue may be full for a moment, or
 * its socket may be a new one. The tries end after 2 ms: other processes can cost the calling
 * thread no more. */
void listener_answer(uint64_t number, const void *answer, const int *fds, size_t num_fds)
{
    struct socket_relay relay = {.head.token = token_now, .number = number};
    memcpy(relay.answer, answer, sizeof relay.answer);
    for (int tries = 0; tries < RELAY_TRIES; tries++) {
        int failed = socket_put(&token_now, &relay, sizeof relay, fds, num_fds);
        if (failed != EAGAIN && failed != ECONNREFUSED)
            return;
        clock_sleep(RELAY_PAUSE_NS);
    }
}

void listener_forget(void)
{
    int fd = atomic_exchange(&shared_fd, -1);
    if (is_shared_socket(fd))
        close(fd);
}
