/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See ipc_door.h. One lock for the state of the door and the questions; it is held over no call of the
 * kernel's that waits, and none of the driver's.
 */
#include "shim/ipc_door.h"

#include "shim/control.h"
#include "shim/log.h"

#include <dirent.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE 2
#endif

/* An importer that gets no answer asks again, so a question may be lost. */
enum { QUESTIONS_MAX = 64 };
/* Thread-local storage of the program's libraries comes out of it. */
#define STACK_BYTES (512 * 1024)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static enum { CLOSED, OPENING, OPEN, BROKEN } door;
static pid_t owner;
static struct ipc_token token_now;
static struct ipc_question questions[QUESTIONS_MAX];
static unsigned first, count;

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

/* Leaves the table of descriptors to the others and goes on with an empty one. */
static bool leave_descriptors(void)
{
    if (syscall(SYS_close_range, 0u, UINT_MAX, CLOSE_RANGE_UNSHARE) == 0)
        return true;
    return unshare(CLONE_FILES) == 0 && close_all(); /* before Linux 5.9 */
}

static void set_state(int state)
{
    pthread_mutex_lock(&lock);
    door = state;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void keep(const struct ipc_question *question)
{
    pthread_mutex_lock(&lock);
    if (count < QUESTIONS_MAX)
        questions[(first + count++) % QUESTIONS_MAX] = *question;
    pthread_mutex_unlock(&lock);
    control_wake();
}

static void *wait_at_door(void *unused)
{
    struct ipc_question question;
    int fd = leave_descriptors() ? ipc_wire_door(&token_now) : -1;
    set_state(fd >= 0 ? OPEN : BROKEN);
    while (fd >= 0 && ipc_wire_hear(fd, &question))
        keep(&question);
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

bool ipc_door_open(struct ipc_token *token)
{
    pthread_mutex_lock(&lock);
    if (door == CLOSED) {
        door = OPENING;
        owner = getpid();
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

bool ipc_door_next(struct ipc_question *question)
{
    pthread_mutex_lock(&lock);
    bool any = count > 0;
    if (any) {
        *question = questions[first];
        first = (first + 1) % QUESTIONS_MAX;
        count--;
    }
    pthread_mutex_unlock(&lock);
    return any;
}
