/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See submitter.h, whose steps the numbers below are.
 */
#include "shim/context/submitter.h"

#include <errno.h>
#include <pthread.h>

static struct submitter submitters[SUBMITTERS_MAX];
/* No thread has ever had a record from here on. Raised before a thread takes one. */
static atomic_size_t submitters_end;
static atomic_bool missed;
__thread struct submitter *submitter_mine __attribute__((tls_model("initial-exec")));
static _Atomic uint64_t names = 1;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool key_made;

static void leave_record(struct submitter *s)
{
    s->depth = 0;
    atomic_store(&s->stream, SUBMITTER_IDLE);
    atomic_store(&s->taken, false);
}

/* A signal handler may have taken a record while the thread took one. Then the thread has two. */
static void leave_records(void *record)
{
    struct submitter *s = record, *latest = submitter_mine;
    submitter_mine = NULL;
    if (latest && latest != s)
        leave_record(latest);
    leave_record(s);
}

static void make_submitter_key(void)
{
    key_made = pthread_key_create(&key, leave_records) == 0;
}

/* A walk over the records ends at submitters_end. So it is raised before the record is taken, and
 * so before its first mark. */
static bool claim(size_t i)
{
    for (size_t end = atomic_load(&submitters_end); end <= i;)
        if (atomic_compare_exchange_weak(&submitters_end, &end, i + 1))
            break;
    return !atomic_exchange(&submitters[i].taken, true);
}

static struct submitter *find_free(void)
{
    for (size_t i = 0; i < SUBMITTERS_MAX; i++)
        if (!atomic_load_explicit(&submitters[i].taken, memory_order_relaxed) && claim(i))
            return &submitters[i];
    return NULL;
}

static struct submitter *take_submitter(void)
{
    pthread_once(&key_once, make_submitter_key);
    struct submitter *s = key_made ? find_free() : NULL;
    if (!s)
        return NULL;
    atomic_store(&s->stream, SUBMITTER_IDLE);
    if (pthread_setspecific(key, s)) {
        leave_record(s);
        return NULL;
    }
    s->per_thread = atomic_fetch_add(&names, 1) << 3 | 7;
    return s;
}

struct submitter *submitter_take(void)
{
    if (atomic_load_explicit(&missed, memory_order_relaxed))
        return NULL;
    int saved_errno = errno;
    submitter_mine = take_submitter();
    if (!submitter_mine)
        atomic_store(&missed, true); /* step 5 */
    errno = saved_errno;
    return submitter_mine;
}

/* Of a record that nobody has, the mark is IDLE, or 0 if nobody ever had it. */
static uint64_t mark_of(size_t i)
{
    return atomic_load(&submitters[i].taken) ? atomic_load(&submitters[i].stream) : SUBMITTER_IDLE;
}

bool submitters_are_idle(void)
{
    size_t end = atomic_load(&submitters_end);
    for (size_t i = 0; i < end; i++)
        if (mark_of(i) != SUBMITTER_IDLE)
            return false;
    return true;
}

bool submitters_have_other(uint64_t stream)
{
    size_t end = atomic_load(&submitters_end);
    for (size_t i = 0; i < end; i++) {
        uint64_t mark = mark_of(i);
        if (mark != SUBMITTER_IDLE && mark != SUBMITTER_NO_WORK && mark != stream)
            return true;
    }
    return false;
}

bool submitters_are_missed(void)
{
    return atomic_load(&missed);
}

uint64_t submitters_uses(void)
{
    uint64_t sum = 0;
    size_t end = atomic_load(&submitters_end);
    for (size_t i = 0; i < end; i++)
        sum += atomic_load_explicit(&submitters[i].uses, memory_order_relaxed);
    return sum;
}
