/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See reservation.h. One table for the process, in no order, because it is short. If host memory is
 * short a range is not recorded, and the program may free it or map memory there. A mutex orders
 * the threads that change the table or the retired ranges. It is not held over a driver call.
 *
 * A thread that asks takes no lock, because programs ask about each pointer that they pass on:
 * 1. `changes` is odd while the table changes. A thread that asks looks again unless `changes` was
 *    even and stayed the same.
 * 2. What the thread reads is atomic. A change is written with release order behind the odd number.
 *    So whoever reads any of it sees that `changes` is another.
 * 3. Parts of the table are never freed.
 *
 * A reservation_create that fails waits for retired ranges that other threads destroy:
 * 4. Who destroys one is inside the driver, or takes the mutex. It waits for nobody here. So the
 *    wait ends, however long the driver takes.
 * 5. The caller may be a signal handler in a thread that destroys. Then that range does not go
 *    before the caller returns. While such a handler waits, the ranges of its thread are held, and
 *    nobody waits for a held range. Each range counts as held once, also beside a second handler.
 * 6. So handlers in several such threads do not wait for each other in a circle: of those, the one
 *    that comes last finds all ranges held, and does not wait. Its thread goes on, and the others
 *    get what it destroys. All counts change under the mutex, so one of them does come last.
 * 7. A range may go for ever: its thread left a handler by longjmp, or this is a child of clone or
 *    _Fork, which has no such thread. (In other forked children the library is off.) So nobody
 *    waits once ranges have been on their way for AWAIT_NS without a break. A range that goes for
 *    ever costs that once.
 */
#include "shim/driver/reservation.h"

#include "pool/spin.h"
#include "shim/process/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define AWAIT_NS (10 * SEC_NS) /* as long as the exit waits for a call scope */

enum { PART_RANGES = 63 };

struct reserved_range {
    _Atomic CUdeviceptr addr;
    _Atomic size_t size_bytes;
};

struct part {
    struct reserved_range ranges[PART_RANGES];
    _Atomic(struct part *) next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct part first;
static _Atomic size_t num_ranges;
static _Atomic unsigned changes;

static void change_begins(void)
{
    pthread_mutex_lock(&lock);
    atomic_store_explicit(&changes, changes + 1, memory_order_relaxed);
}

static void change_ends(void)
{
    atomic_store_explicit(&changes, changes + 1, memory_order_release);
    pthread_mutex_unlock(&lock);
}

/* The place of a range, by its number; NULL: the table is not that long. */
static struct reserved_range *place_at(size_t number)
{
    struct part *part = &first;
    for (; part && number >= PART_RANGES; number -= PART_RANGES)
        part = atomic_load_explicit(&part->next, memory_order_acquire);
    return part ? &part->ranges[number] : NULL;
}

static void write_range(struct reserved_range *r, CUdeviceptr addr, size_t size_bytes)
{
    atomic_store_explicit(&r->addr, addr, memory_order_release);
    atomic_store_explicit(&r->size_bytes, size_bytes, memory_order_release);
}

static void record(CUdeviceptr addr, size_t size_bytes)
{
    change_begins();
    struct reserved_range *r = place_at(num_ranges);
    if (!r) {
        struct part *more = calloc(1, sizeof *more), *last = &first;
        while (last->next)
            last = last->next;
        atomic_store_explicit(&last->next, more, memory_order_release);
        r = more ? &more->ranges[0] : NULL;
    }
    if (r) {
        write_range(r, addr, size_bytes);
        atomic_store_explicit(&num_ranges, num_ranges + 1, memory_order_release);
    }
    change_ends();
}

static void forget_range(CUdeviceptr addr)
{
    change_begins();
    for (size_t i = 0; i < num_ranges; i++) {
        struct reserved_range *r = place_at(i);
        if (r->addr != addr)
            continue;
        const struct reserved_range *last = place_at(num_ranges - 1);
        write_range(r, last->addr, last->size_bytes);
        atomic_store_explicit(&num_ranges, num_ranges - 1, memory_order_release);
        break;
    }
    change_ends();
}

struct retired {
    CUdeviceptr addr;
    size_t size_bytes;
};

/* The oldest first. And how many of them are on their way to the driver, how many of these are held
 * (step 5), and how many were on their way. The lock protects all. */
static struct retired retired[RESERVATIONS_RETIRED];
static unsigned num_retired, num_going, num_held, num_gone;
static uint64_t began_ns; /* since when there always was one that is on its way and not held */

/* Of num_going and num_held, those of the calling thread. */
static __thread unsigned going_here __attribute__((tls_model("initial-exec")));
static __thread unsigned held_here __attribute__((tls_model("initial-exec")));

/* Lock held; destroy_retired follows. */
static struct retired take_retired(void)
{
    struct retired oldest = retired[0];
    num_retired--;
    if (num_going == num_held)
        began_ns = clock_now_ns();
    num_going++;
    going_here++;
    memmove(retired, retired + 1, num_retired * sizeof retired[0]);
    return oldest;
}

static void destroy_retired(struct retired r)
{
    reservation_destroy(r.addr, r.size_bytes);
    pthread_mutex_lock(&lock);
    num_going--;
    going_here--;
    num_gone++;
    pthread_mutex_unlock(&lock);
}

static unsigned count_gone(void)
{
    pthread_mutex_lock(&lock);
    unsigned gone = num_gone;
    pthread_mutex_unlock(&lock);
    return gone;
}

/* Lock held, but for the pauses. Steps 4 to 7. */
static void await_going(unsigned gone)
{
    unsigned held = going_here - held_here;
    num_held += held;
    held_here += held;
    for (unsigned turn = 0;
         num_gone == gone && num_going > num_held && clock_now_ns() < began_ns + AWAIT_NS; turn++) {
        pthread_mutex_unlock(&lock);
        spin_pause(turn);
        pthread_mutex_lock(&lock);
    }
    num_held -= held;
    held_here -= held;
    if (held)
        began_ns = clock_now_ns();
}

/* After a call that failed. gone: count_gone before it. False: no range has gone since, and there
 * is none. */
static bool make_room(unsigned gone)
{
    struct retired oldest = {0};
    pthread_mutex_lock(&lock);
    await_going(gone);
    bool some = num_gone != gone, takes = !some && num_retired;
    if (takes)
        oldest = take_retired();
    pthread_mutex_unlock(&lock);
    if (takes)
        destroy_retired(oldest);
    return some || takes;
}

CUresult reservation_create(CUdeviceptr *addr, size_t size_bytes, size_t align_bytes)
{
    CUresult rc;
    unsigned gone;
    do {
        gone = count_gone();
        rc = real.cuMemAddressReserve(addr, size_bytes, align_bytes, 0, 0);
    } while (rc != CUDA_SUCCESS && make_room(gone));
    if (rc == CUDA_SUCCESS)
        record(*addr, size_bytes);
    return rc;
}

void reservation_destroy(CUdeviceptr addr, size_t size_bytes)
{
    forget_range(addr); /* first: from then on the program may get these addresses */
    real.cuMemAddressFree(addr, size_bytes);
}

void reservation_retire(CUdeviceptr addr, size_t size_bytes)
{
    struct retired oldest = {0};
    pthread_mutex_lock(&lock);
    bool takes = num_retired == RESERVATIONS_RETIRED;
    if (takes)
        oldest = take_retired();
    retired[num_retired++] = (struct retired){addr, size_bytes};
    pthread_mutex_unlock(&lock);
    if (takes)
        destroy_retired(oldest);
}

static bool meets(const struct reserved_range *r, CUdeviceptr addr, size_t size_bytes)
{
    CUdeviceptr start = atomic_load_explicit(&r->addr, memory_order_acquire);
    size_t bytes = atomic_load_explicit(&r->size_bytes, memory_order_acquire);
    return addr < start ? start - addr < size_bytes : addr - start < bytes;
}

/* The table may change meanwhile. */
static bool look_up(CUdeviceptr addr, size_t size_bytes)
{
    size_t left = atomic_load_explicit(&num_ranges, memory_order_acquire);
    for (const struct part *part = &first; part && left;
         part = atomic_load_explicit(&part->next, memory_order_acquire))
        for (size_t i = 0; i < PART_RANGES && left; i++, left--)
            if (meets(&part->ranges[i], addr, size_bytes))
                return true;
    return false;
}

bool reservation_covers(CUdeviceptr addr, size_t size_bytes)
{
    for (unsigned turn = 0;; turn++) {
        unsigned before = atomic_load_explicit(&changes, memory_order_acquire);
        bool covers = look_up(addr, size_bytes);
        if (before % 2 == 0 && atomic_load_explicit(&changes, memory_order_relaxed) == before)
            return covers;
        spin_pause(turn);
    }
}
