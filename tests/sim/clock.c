/* SPDX-License-Identifier: BSD-2-Clause */
/* A discrete-event scheduler. A heap holds running work by its end. A list holds work that ends
 * when the program sets a flag or a host function returns. */
#include "tests/sim/clock.h"

#include <stdio.h>
#include <time.h>

#include "tests/sim/alloc.h"
#include "tests/sim/api.h"
#include "tests/sim/config.h"
#include "tests/sim/context.h"
#include "tests/sim/hostcall.h"
#include "tests/sim/work.h"

static _Atomic uint64_t now_ns = 1000;
static struct work **heap;
static size_t heap_count, heap_capacity;
static struct work *polling;
static _Thread_local uint64_t debt_ns;

uint64_t clock_now_ns(void)
{
    return atomic_load_explicit(&now_ns, memory_order_relaxed);
}

void clock_charge(uint64_t ns)
{
    if (ns == 0)
        return;
    atomic_fetch_add_explicit(&now_ns, ns, memory_order_relaxed);
    if (config.realtime)
        debt_ns += ns;
}

static bool before(const struct work *a, const struct work *b)
{
    return a->end_ns != b->end_ns ? a->end_ns < b->end_ns : a->number < b->number;
}

static void heap_push(struct work *work)
{
    if (heap_count == heap_capacity) {
        heap_capacity = heap_capacity * 2 + 64;
        heap = never_null(realloc(heap, heap_capacity * sizeof *heap));
    }
    size_t i = heap_count++;
    for (; i > 0 && before(work, heap[(i - 1) / 2]); i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = work;
}

static struct work *heap_pop(void)
{
    struct work *first = heap[0], *last = heap[--heap_count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < heap_count; i = child) {
        if (child + 1 < heap_count && before(heap[child + 1], heap[child]))
            child++;
        if (!before(heap[child], last))
            break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return first;
}

void clock_start(struct work *work)
{
    if (command_condition(&work->command)) {
        work->state = WORK_POLLING;
        work->next = polling;
        polling = work;
    } else if (work->command.kind == COMMAND_HOST_FUNCTION) {
        work->state = WORK_CALLING;
        hostcall_queue(work);
    } else {
        work->state = WORK_RUNNING;
        work->end_ns = work->earliest_ns + command_duration_ns(&work->command);
        heap_push(work);
    }
}

/* Completes polling work whose condition has come true. */
static bool look(void)
{
    bool any = false;
    for (struct work **link = &polling; *link != NULL;) {
        struct work *work = *link;
        if (!command_holds(&work->command, work->context)) {
            link = &work->next;
            continue;
        }
        *link = work->next;
        uint64_t now = clock_now_ns();
        work_complete(work, now > work->earliest_ns ? now : work->earliest_ns);
        any = true;
        link = &polling; /* completion may have started other polling work */
    }
    return any;
}

void clock_run(void)
{
    look();
    while (heap_count > 0 && heap[0]->end_ns <= clock_now_ns()) {
        struct work *work = heap_pop();
        work_complete(work, work->end_ns);
    }
}

void clock_poll(void)
{
    clock_charge(config.poll_ns);
    clock_run();
}

bool clock_step(void)
{
    if (look())
        return true;
    if (heap_count == 0)
        return false;
    struct work *work = heap_pop();
    uint64_t now = clock_now_ns();
    if (work->end_ns > now)
        clock_charge(work->end_ns - now);
    work_complete(work, work->end_ns);
    return true;
}

static uint64_t real_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

CUresult clock_wait(struct work *work)
{
    work_retain(work);
    uint64_t since_ns = 0;
    while (!work_done(work)) {
        if (clock_step()) {
            since_ns = 0;
            continue;
        }
        if (since_ns == 0)
            since_ns = real_ns();
        if (real_ns() - since_ns > config.hang_s * 1000000000u) {
            fprintf(stderr, "sim: deadlock: the host waits for %s, which waits for the host\n",
                    command_name(&work->command));
            context_fail(work->context, CUDA_ERROR_LAUNCH_TIMEOUT);
            work_release(work);
            return CUDA_ERROR_LAUNCH_TIMEOUT;
        }
        api_sleep(200);
    }
    work_release(work);
    return CUDA_SUCCESS;
}

uint64_t clock_take_debt(void)
{
    uint64_t debt = debt_ns;
    debt_ns = 0;
    return debt;
}

void clock_pay(uint64_t ns)
{
    uint64_t until = real_ns() + ns;
    if (ns > 100000) {
        struct timespec ts = {.tv_sec = (time_t)((ns - 60000) / 1000000000u),
                              .tv_nsec = (long)((ns - 60000) % 1000000000u)};
        nanosleep(&ts, NULL);
    }
    while (real_ns() < until)
        ;
}
