/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See ipc_door.h. One lock for the state of the door and the questions; it is held over no call of the
 * kernel's that waits, and none of the driver's. Sockets for answers belong to the thread at the
 * door.
 */
#include "shim/share/ipc_door.h"

#include "shim/process/kernel.h"
#include "shim/process/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE 2
#endif

/* An importer whose question is dropped asks again. */
enum { QUESTIONS_MAX = 64 };
/* At least the questions that wait and the one that is being answered. */
enum { REPLIES_MAX = 2 * QUESTIONS_MAX };
/* Thread-local storage of the program's libraries comes out of it. */
#define STACK_BYTES (512 * 1024)
/* The least number of the door's descriptor in a table that is the program's: above what programs
 * count on, below what would make the table grow, or select() fail. */
#define SHARED_FD_MIN 960
/* How long the control thread tries to hand an answer on. The thread at the door takes it as soon
 * as it runs. */
#define HAND_ON_TRIES 40
#define HAND_ON_NS 50000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static enum { CLOSED, OPENING, OPEN, BROKEN } door;
static pid_t owner;
static struct ipc_token token_now;
static void (*question_waits)(void);
static struct waiting {
    struct ipc_question question;
    uint64_t number;
} questions[QUESTIONS_MAX];
static unsigned first, count;
/* Of the thread at the door alone. */
static struct reply {
    uint64_t number; /* 0: none */
    int fd;
} replies[REPLIES_MAX];
static uint64_t last_number;
/* The door's descriptor and what it is, where the table is the program's. */
static atomic_int shared_fd = -1;
static ino_t shared_ino;

/* The number that a name of /proc/thread-self/fd is, or -1. atoi and its kin would need the newest
 * C library that the building machine knows. */
static int number_of(const char *name)
{
    int number = 0;
    if (!*name)
        return -1;
    for (; *name; name++)
        if (*name < '0' || *name > '9' || __builtin_mul_overflow(number, 10, &number) ||
            __builtin_add_overflow(number, *name - '0', &number))
            return -1;
    return number;
}

/* Descriptors of the program's must not stay open in a copy of its table: a pipe would never end. */
static bool close_all(void)
{
    DIR *folder = opendir("/proc/thread-self/fd");
    if (!folder)
        return false;
    for (const struct dirent *entry; (entry = readdir(folder));) {
        int fd = number_of(entry->d_name);
        if (fd >= 0 && fd != dirfd(folder))
            close(fd);
    }
    closedir(folder);
    return true;
}

enum table { TABLE_OWN, TABLE_SHARED, TABLE_SPOILT };

/* Leaves the table of descriptors to the other threads and goes on with an empty one, where the
 * kernel allows that. */
static enum table leave_descriptors(void)
{
    if (syscall(SYS_close_range, 0u, UINT_MAX, CLOSE_RANGE_UNSHARE) == 0)
        return TABLE_OWN;
    if (unshare(CLONE_FILES) != 0) /* before Linux 5.9 */
        return TABLE_SHARED;
    return close_all() ? TABLE_OWN : TABLE_SPOILT;
}

/* The inode's number of a socket is nobody else's while it is open. */
static bool is_shared_door(int fd)
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
        fd = low; /* so few are allowed */
    if (fd < 0 || kernel_fstat(fd, &st) != 0)
        return fd;
    shared_ino = st.st_ino;
    atomic_store(&shared_fd, fd);
    return fd;
}

/* In a table that is the program's, the program may have closed the door and opened something else
 * under its number, which is not touched. Between this look and the next call about a microsecond
 * passes, in which that can still happen. A call that waits goes on with the door that it began
 * with. */
static int look_after(enum table table, int fd)
{
    if (table == TABLE_OWN || is_shared_door(fd))
        return fd;
    return share(ipc_wire_door(&token_now));
}

static void set_state(int state)
{
    pthread_mutex_lock(&lock);
    door = state;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* False: there are too many. */
static bool keep(const struct ipc_question *question, uint64_t number)
{
    pthread_mutex_lock(&lock);
    bool kept = count < QUESTIONS_MAX;
    if (kept)
        questions[(first + count++) % QUESTIONS_MAX] = (struct waiting){*question, number};
    pthread_mutex_unlock(&lock);
    return kept;
}

static void admit_question(const struct ipc_visitor *v)
{
    struct reply *r = &replies[(last_number + 1) % REPLIES_MAX];
    if (!keep(&v->question, last_number + 1)) {
        ipc_wire_close_apart(v->fds, v->num_fds);
        return;
    }
    if (r->number)
        ipc_wire_close_apart(&r->fd, 1); /* its answer was lost */
    *r = (struct reply){++last_number, v->fds[0]};
    question_waits();
}

static void run_errand(const struct ipc_visitor *v)
{
    struct reply *r = &replies[v->errand.number % REPLIES_MAX];
    if (r->number && r->number == v->errand.number) {
        ipc_wire_answer(r->fd, &v->errand.answer, v->fds, v->num_fds);
        ipc_wire_close_apart(&r->fd, 1);
        r->number = 0;
    }
    ipc_wire_close_apart(v->fds, v->num_fds);
}

static void *wait_at_door(void *unused)
{
    struct ipc_visitor visitor;
    enum table table = leave_descriptors();
    int fd = table == TABLE_SPOILT ? -1 : ipc_wire_door(&token_now);
    if (table == TABLE_SHARED)
        fd = share(fd);
    set_state(fd >= 0 ? OPEN : BROKEN);
    while (fd >= 0) {
        if (!ipc_wire_hear(fd, &token_now, &visitor)) {
            if (table == TABLE_OWN || is_shared_door(fd))
                break;
        } else if (visitor.own) {
            run_errand(&visitor);
        } else {
            admit_question(&visitor);
        }
        fd = look_after(table, fd);
    }
    set_state(BROKEN);
    return NULL;
}

static bool start_thread(void)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, before;
    if (pthread_attr_init(&attr))
        return false;
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool made = pthread_create(&thread, &attr, wait_at_door, NULL) == 0;
    if (made)
        pthread_setname_np(thread, "gpucache-ipc");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return made;
}

bool ipc_door_open(struct ipc_token *token, void (*asked)(void))
{
    pthread_mutex_lock(&lock);
    if (door == CLOSED) {
        door = OPENING;
        owner = getpid();
        question_waits = asked;
        if (!ipc_token_draw(&token_now) || !start_thread())
            door = BROKEN;
    }
    while (door == OPENING)
        pthread_cond_wait(&changed, &lock);
    bool open = door == OPEN;
    *token = token_now;
    pthread_mutex_unlock(&lock);
    if (!open)
        log_once(LOG_LEVEL_WARN, "the program shares memory by legacy IPC, but no socket for it could be "
                                 "made: run it with GPUCACHE_BACKING=segment");
    return open;
}

bool ipc_door_is_ours(const struct ipc_token *token)
{
    pthread_mutex_lock(&lock);
    bool ours = door != CLOSED && owner == getpid() && memcmp(token, &token_now, sizeof *token) == 0;
    pthread_mutex_unlock(&lock);
    return ours;
}

bool ipc_door_next(struct ipc_question *question, uint64_t *number)
{
    pthread_mutex_lock(&lock);
    bool any = count > 0;
    if (any) {
        *question = questions[first].question;
        *number = questions[first].number;
        first = (first + 1) % QUESTIONS_MAX;
        count--;
    }
    pthread_mutex_unlock(&lock);
    return any;
}

/* The thread at the door has the socket of the process that asked. It gets descriptors of the
 * program's table by a message only. Its queue may be full for a moment, or the door may be a new
 * one. The tries end after 2 ms: that is all that other processes can cost the calling thread. */
void ipc_door_answer(uint64_t number, const struct ipc_answer *answer, const int *fds,
                     size_t num_fds)
{
    struct ipc_errand errand = {IPC_MAGIC, token_now, number, *answer};
    for (int tries = 0; tries < HAND_ON_TRIES; tries++) {
        int failed = ipc_wire_put(&token_now, &errand, sizeof errand, fds, num_fds);
        if (failed != EAGAIN && failed != ECONNREFUSED)
            return;
        nanosleep(&(struct timespec){.tv_nsec = HAND_ON_NS}, NULL);
    }
}

void ipc_door_forget(void)
{
    int fd = atomic_exchange(&shared_fd, -1);
    if (is_shared_door(fd))
        close(fd);
}
