/* SPDX-License-Identifier: BSD-2-Clause */
/* A shared-memory table with a row for each process. The row of a process that is gone is free, so
 * a crash gives its memory back, as with a real driver. No lock: each row has one writer. It is the
 * process itself, or, while that is locked, the one that takes its checkpoint. */
#include "tests/sim/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tests/sim/config.h"
#include "tests/sim/device.h"

#define PROCESSES_MAX 128

struct row {
    _Atomic int process;
    _Atomic int state; /* CUprocessState; 0: it runs */
    _Atomic int calls; /* of the driver, under way */
    _Atomic uint64_t used_bytes[DEVICES_MAX], saved_bytes[DEVICES_MAX];
};

static struct row *rows, *mine;
static __thread bool inside;

static bool gone(int process)
{
    return process == 0 || (kill(process, 0) != 0 && errno == ESRCH);
}

void shared_look(void)
{
    if (config.shared == NULL || rows != NULL)
        return;
    char name[128];
    snprintf(name, sizeof name, "/simulated-gpu-%s", config.shared);
    int fd = shm_open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, PROCESSES_MAX * sizeof *rows) != 0) {
        fprintf(stderr, "sim: SIM_SHARED: cannot open %s\n", name);
        if (fd >= 0)
            close(fd);
        return;
    }
    void *at = mmap(NULL, PROCESSES_MAX * sizeof *rows, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED)
        rows = at;
}

void shared_open(void)
{
    bool first = rows == NULL;
    shared_look();
    if (!first || rows == NULL)
        return;
    for (int i = 0; i < PROCESSES_MAX && mine == NULL; i++) {
        int process = atomic_load(&rows[i].process);
        if (gone(process) && atomic_compare_exchange_strong(&rows[i].process, &process, getpid()))
            mine = &rows[i];
    }
    for (int device = 0; mine != NULL && device < DEVICES_MAX; device++)
        atomic_store(&mine->used_bytes[device], 0);
    if (mine != NULL) {
        atomic_store(&mine->state, 0);
        atomic_store(&mine->calls, 0);
    }
}

void shared_publish(int device, uint64_t bytes)
{
    if (mine != NULL)
        atomic_store(&mine->used_bytes[device], bytes);
}

uint64_t shared_others(int device)
{
    uint64_t sum = 0;
    for (int i = 0; rows != NULL && i < PROCESSES_MAX; i++) {
        uint64_t used = atomic_load(&rows[i].used_bytes[device]);
        if (&rows[i] != mine && used > 0 && !gone(atomic_load(&rows[i].process)))
            sum += used;
    }
    return sum;
}

int shared_next(int row, int device, int *process, uint64_t *bytes)
{
    for (; rows != NULL && row < PROCESSES_MAX; row++) {
        *process = atomic_load(&rows[row].process);
        *bytes = atomic_load(&rows[row].used_bytes[device]);
        if (*bytes > 0 && !gone(*process))
            return row;
    }
    return -1;
}

static void pause_ms(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* The count rises before the look at the state, and a locker changes the state before it looks at
 * the count. */
void shared_call_begins(void)
{
    if (mine == NULL || inside)
        return;
    for (;;) {
        atomic_fetch_add(&mine->calls, 1);
        if (atomic_load(&mine->state) == 0)
            break;
        atomic_fetch_sub(&mine->calls, 1);
        pause_ms();
    }
    inside = true;
}

void shared_call_ends(void)
{
    if (!inside)
        return;
    inside = false;
    atomic_fetch_sub(&mine->calls, 1);
}

int shared_find(int process)
{
    for (int i = 0; rows != NULL && process > 0 && i < PROCESSES_MAX; i++)
        if (atomic_load(&rows[i].process) == process && !gone(process))
            return i;
    return -1;
}

int shared_state(int row)
{
    return atomic_load(&rows[row].state);
}

int shared_own_state(void)
{
    return mine != NULL ? atomic_load(&mine->state) : 0;
}

bool shared_change(int row, int from, int to)
{
    return atomic_compare_exchange_strong(&rows[row].state, &from, to);
}

bool shared_is_quiet(int row)
{
    return atomic_load(&rows[row].calls) == 0;
}

void shared_save(int row)
{
    for (int device = 0; device < DEVICES_MAX; device++)
        atomic_store(&rows[row].saved_bytes[device],
                     atomic_exchange(&rows[row].used_bytes[device], 0));
}

bool shared_restore(int row, uint64_t capacity_bytes)
{
    for (int device = 0; device < DEVICES_MAX; device++) {
        uint64_t sum = atomic_load(&rows[row].saved_bytes[device]);
        for (int i = 0; i < PROCESSES_MAX; i++)
            if (i != row && !gone(atomic_load(&rows[i].process)))
                sum += atomic_load(&rows[i].used_bytes[device]);
        if (sum > capacity_bytes)
            return false;
    }
    for (int device = 0; device < DEVICES_MAX; device++)
        atomic_store(&rows[row].used_bytes[device], atomic_load(&rows[row].saved_bytes[device]));
    return true;
}
