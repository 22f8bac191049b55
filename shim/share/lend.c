/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See lend.h.
 */
#include "shim/share/lend.h"

#include "pool/bits.h"
#include "shim/context/context.h"
#include "shim/control/flush.h"
#include "shim/control/publish.h"
#include "shim/control/thread.h"
#include "shim/driver/async_pool.h"
#include "shim/driver/call_scope.h"
#include "shim/driver/capture.h"
#include "shim/driver/closed.h"
#include "shim/driver/device.h"
#include "shim/option/in_force.h"
#include "shim/page/page.h"
#include "shim/process/cancel.h"
#include "shim/process/clock.h"
#include "shim/process/kernel.h"
#include "shim/process/log.h"
#include "shim/process/own_thread.h"
#include "shim/process/state.h"
#include "shim/process/text.h"
#include "shim/share/neighbour.h"
#include "shim/share/neighbour_use.h"
#include "shim/stats/counters.h"
#include "shim/trace/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>

#define MS UINT64_C(1000000)
/* The least that is asked for. A question takes as long as the driver takes for some 64 MiB.
 * Without this least, a program that grows in small pieces would ask for each piece. */
#define LEAST_BYTES (UINT64_C(64) << 20)
/* A question within this time of the last reply that gave memory asks for at least all that came
 * since the run began. So a program that grows in small pieces asks as often as the logarithm of
 * its growth. */
#define RUN_NS (1000 * MS)
/* .. up to this part of the GPU: a neighbour gives so much back in some 80 ms at worst (2 MiB
 * handles, H200). */
#define RUN_SHIFT 4
/* Requests on their way to the driver in other processes end within this time as a rule. */
#define LAST_PAUSE_NS (5 * MS)
/* Where no program waits: how often a device's neighbours are asked, and how many at a time. */
#define BACKGROUND_NS (1000 * MS)
#define BACKGROUND_MAX 8
/* How long the control thread looks whether memory that it gave away is taken again, and how often.
 */
#define REGROWTH_NS (1000 * MS)
#define REGROWTH_STEP_NS (50 * MS)

bool lend_is_on(void)
{
    return state_is_on() && in_force()->share_ns;
}

/* Where pages are, and which one is the process's own. A process that only allocates may have none
 * yet. False: pages are not wanted.
 *
 * A neighbour without a page is not asked. It has none for some 0.2 ms from its first allocation
 * on, more on a loaded machine. We do not wait for the page, because the neighbour has freed little
 * in that time. Any process with CUDA might be such a neighbour, so each failing request would
 * wait. */
struct place {
    const char *folder;
    char default_folder[64];
    struct page_id self;
};

static bool find_folder(struct place *p)
{
    const struct option_dir *dir = &in_force()->dir;
    struct stat st;
    p->folder = *page_folder() ? page_folder() : dir->path;
    if (dir->none || !page_id_self(&p->self))
        return false;
    for (unsigned i = 0; !*p->folder; i++) {
        if (!page_dir_default(i, p->default_folder, sizeof p->default_folder))
            return false;
        if (!kernel_fstatat(AT_FDCWD, p->default_folder, &st, AT_SYMLINK_NOFOLLOW))
            p->folder = p->default_folder;
    }
    return true;
}

struct query {
    CUdevice device;
    struct device_uuid uuid;
    uint64_t free_bytes, total_bytes; /* 0: not known */
};

static void query_device(void *arg)
{
    struct query *q = arg;
    CUdevice current;
    size_t free_bytes = 0, total_bytes = 0;
    device_uuid(q->device, &q->uuid);
    if (real.cuCtxGetDevice(&current) == CUDA_SUCCESS && current == q->device &&
        atomic_load_explicit(&real.cuMemGetInfo_v2,
                             memory_order_relaxed)(&free_bytes, &total_bytes) == CUDA_SUCCESS) {
        q->free_bytes = free_bytes;
        q->total_bytes = total_bytes;
    }
}

/* While the driver is closed (shim/driver/closed.h) the record of a context knows the device. */
static bool query_uuid(struct query *q)
{
    if (!call_scope_run(NULL, query_device, q))
        FOR_EACH_CONTEXT(c) {
            if (c->device == q->device)
                q->uuid = c->uuid;
        }
    return *q->uuid.text;
}

/* What came to each device lately. Two threads may overwrite each other's sum: it sizes questions
 * only. */
static struct {
    _Atomic uint64_t bytes, at_ns;
} run_of[DEVICES_MAX];

static uint64_t run_bytes(CUdevice device)
{
    uint64_t passed_ns = clock_now_ns() - atomic_load(&run_of[device].at_ns);
    return passed_ns < RUN_NS ? atomic_load(&run_of[device].bytes) : 0;
}

static void run_note(CUdevice device, uint64_t got_bytes)
{
    atomic_store(&run_of[device].bytes, run_bytes(device) + got_bytes);
    atomic_store(&run_of[device].at_ns, clock_now_ns());
}

/* What the device lacks for so many bytes. If enough is free and the call failed all the same, the
 * free memory is in the wrong places, or other processes take it first. Then the thread asks for
 * all of `bytes`. */
static uint64_t wanted(const struct query *q, uint64_t bytes)
{
    if (!bytes)
        return UINT64_MAX;
    uint64_t missing_bytes = bytes > q->free_bytes ? bytes - q->free_bytes : bytes;
    uint64_t run = min_u64(run_bytes(q->device), q->total_bytes >> RUN_SHIFT);
    return max_u64(missing_bytes, max_u64(run, LEAST_BYTES));
}

/* The time in which neighbours parked does not count. */
static void put_off_deadline(struct lend_attempt *attempt, uint64_t parked_ns)
{
    if (parked_ns)
        attempt->deadline_ns = min_u64(control_after(attempt->deadline_ns, parked_ns),
                                       max_u64(attempt->deadline_ns, attempt->park_until_ns));
}

/* Asks neighbours on the device until one gives something. *some: there was one to ask. */
static bool ask_device(CUdevice device, uint64_t bytes, struct lend_attempt *attempt, bool *some)
{
    struct query q = {.device = device};
    struct place place;
    if (!find_folder(&place) || !query_uuid(&q))
        return false;
    struct neighbour_wish wish = {.folder = place.folder,
                                  .self = &place.self,
                                  .uuid = q.uuid.bytes,
                                  .uuid_text = q.uuid.text,
                                  .bytes = wanted(&q, bytes),
                                  .park_until_ns = attempt->park_until_ns,
                                  .waits = true};
    while (clock_now_ns() < attempt->deadline_ns) {
        struct neighbour_reply reply;
        wish.until_ns = attempt->deadline_ns;
        enum neighbour_answer answer = neighbour_ask(&wish, in_force()->share_ns, &reply);
        put_off_deadline(attempt, reply.parked_ns);
        switch (answer) {
        case NEIGHBOUR_GAVE:
            counter_add(COUNTER_BORROWED_BYTES, reply.bytes);
            run_note(device, reply.bytes);
            log_debug("device %d was full: another process gave back %s MiB", device,
                      text_fixed(reply.bytes, 1 << 20, 1).text);
            return true;
        case NEIGHBOUR_NONE:
            return false;
        case NEIGHBOUR_NOTHING:
        case NEIGHBOUR_BUSY:
        case NEIGHBOUR_GONE:
        case NEIGHBOUR_ASKED:
            *some = true;
            break;
        }
    }
    return false;
}

/* From now on the request has no more than GPUCACHE_SHARE, and the time that parks take. */
static void start_deadline(struct lend_attempt *attempt)
{
    attempt->deadline_ns = control_after(clock_now_ns(), in_force()->share_ns);
    attempt->park_until_ns = control_after(attempt->deadline_ns, PAGE_PARK_MS * MS);
}

/* True: the request may find memory now. *came: a neighbour gave some. */
static bool ask_devices(uint64_t devices, uint64_t bytes, struct lend_attempt *attempt, bool *came)
{
    int count = 0;
    bool some = attempt->deadline_ns;
    if (!some)
        start_deadline(attempt);
    if (closed_is_now())
        count = DEVICES_MAX;
    else if (real.cuDeviceGetCount(&count) != CUDA_SUCCESS)
        return false;
    for (CUdevice device = 0; device < count && device < DEVICES_MAX && !*came; device++)
        *came = (device_bit(device) & devices) && ask_device(device, bytes, attempt, &some);
    if (*came)
        return true;
    /* A neighbour may have been at it itself, with its memory on its way back to the driver. */
    attempt->last_try = true;
    if (some)
        clock_sleep(LAST_PAUSE_NS);
    return some;
}

bool lend_ask(uint64_t devices, uint64_t bytes, struct lend_attempt *attempt)
{
    if (!devices || !lend_is_on() || attempt->last_try)
        return false;
    int saved_errno = errno, cancel = cancel_forbid();
    bool came = false, again = ask_devices(devices, bytes, attempt, &came);
    TRACE(LEND_ASK, .a = bytes, .b = came);
    cancel_allow(cancel);
    errno = saved_errno;
    return again;
}

void lend_look(CUdevice device, uint64_t since_ns, struct neighbour_needs *out)
{
    struct query q = {.device = device};
    struct place place;
    *out = (struct neighbour_needs){0};
    if (find_folder(&place) && query_uuid(&q))
        neighbour_use_needs(place.folder, &place.self, q.uuid.bytes, since_ns, out);
}

size_t lend_list(const struct device_uuid *uuid, struct neighbour_held *out, size_t most,
                 uint64_t *all_bytes)
{
    struct place place;
    if (all_bytes)
        *all_bytes = 0;
    return *uuid->text && find_folder(&place)
               ? neighbour_use_list(place.folder, &place.self, uuid->bytes, out, most, all_bytes)
               : 0;
}

void lend_flush(int pid, uint64_t wait_ns)
{
    struct place place;
    int saved_errno = errno;
    if (find_folder(&place)) {
        uint64_t bytes =
            neighbour_flush(place.folder, &place.self, pid, control_after(clock_now_ns(), wait_ns));
        log_debug("process %d is to be locked: it gave back %s MiB", pid,
                  text_fixed(bytes, 1 << 20, 1).text);
    }
    errno = saved_errno;
}

/* On the control thread. */
static void ask_in_background(CUdevice device, uint64_t bytes)
{
    static uint64_t asked_ns[DEVICES_MAX];
    struct query q = {.device = device};
    struct place place;
    uint64_t now_ns = clock_now_ns();
    struct neighbour_reply reply;
    if (!lend_is_on() || device < 0 || device >= DEVICES_MAX ||
        (asked_ns[device] && now_ns - asked_ns[device] < BACKGROUND_NS))
        return;
    asked_ns[device] = now_ns;
    if (!find_folder(&place) || !query_uuid(&q))
        return;
    struct neighbour_wish wish = {.folder = place.folder,
                                  .self = &place.self,
                                  .uuid = q.uuid.bytes,
                                  .uuid_text = q.uuid.text,
                                  .until_ns = now_ns};
    for (int i = 0; i < BACKGROUND_MAX && bytes; i++) {
        wish.bytes = bytes;
        enum neighbour_answer answer = neighbour_ask(&wish, BACKGROUND_NS, &reply);
        if (answer == NEIGHBOUR_NONE)
            break;
        if (answer == NEIGHBOUR_ASKED)
            bytes -= min_u64(bytes, reply.bytes);
    }
}

/* Other contexts of the process come first, and the driver's own pools: their memory costs no
 * question. */
static bool ask_for_pool(CUdevice device, uint64_t bytes, struct lend_attempt *attempt)
{
    bool first = !attempt->deadline_ns;
    if (first && (lend_is_on() ? context_release(device_bit(device), POOL_RELEASE_IDLE)
                               : async_pool_release(device))) {
        start_deadline(attempt);
        return true;
    }
    return lend_ask(device_bit(device), bytes, attempt);
}

/* Takes no part in allocations: the thread looks at figures that the pools keep anyway. */
static uint64_t run_regrowth(uint64_t now_ns)
{
    bool more = false;
    struct pool_stats stats;
    FOR_EACH_CONTEXT(c) {
        uint64_t returned_ns = atomic_load(&c->returned_ns);
        if (!returned_ns || atomic_load(&c->regrown_ns) || now_ns - returned_ns > REGROWTH_NS)
            continue;
        more = true;
        pool_stats(c->pool, &stats);
        if (stats.num_device_alloc == c->lent_growths)
            continue;
        atomic_store(&c->regrown_ns, now_ns);
        publish_soon();
    }
    return more ? control_after(now_ns, REGROWTH_STEP_NS) : DUTY_NEVER;
}

static struct duty at_regrowth = {.run = run_regrowth, .due_ns = DUTY_NEVER};

static uint64_t give_pool(struct context *c, uint64_t bytes, uint64_t wait_ns)
{
    struct pool_stats stats;
    struct pool_trim trim = {.most_bytes = bytes, .wait_ns = wait_ns};
    uint64_t back = pool_trim(c->pool, &trim);
    if (back) {
        pool_stats(c->pool, &stats);
        c->lent_growths = stats.num_device_alloc;
        atomic_store(&c->regrown_ns, 0);
        atomic_store(&c->returned_ns, clock_now_ns());
    }
    return back;
}

/* *device: of the GPU; -1: no pool is there, of ours or the driver's. */
static uint64_t give(const char *uuid, uint64_t bytes, uint64_t wait_ns, int *device)
{
    uint64_t back = 0;
    bool may_give = own_visit_begin();
    FOR_EACH_CONTEXT(c)
        if (!strcasecmp(c->uuid.text, uuid)) {
            *device = c->device;
            if (may_give && back < bytes)
                back += give_pool(c, bytes - back, wait_ns);
        }
    if (*device < 0)
        *device = context_find_device(uuid);
    if (may_give && *device >= 0 && back < bytes)
        back += async_pool_trim(*device, 0, bytes - back);
    if (may_give)
        own_visit_end();
    return back;
}

static void count_given(uint64_t back)
{
    if (!back)
        return;
    counter_add(COUNTER_LENT_BYTES, back);
    TRACE(LEND_GIVE, .a = back);
    control_due(&at_regrowth, control_after(clock_now_ns(), REGROWTH_STEP_NS));
    publish_soon();
}

/* First what is idle already. Then what the program freed behind work, and what the frameworks of
 * the process cache. A wait would break a capture. */
uint64_t lend_give(const char *uuid, uint64_t bytes, uint64_t wait_ns, struct gpu_wait *t,
                   bool *found)
{
    int device = -1;
    uint64_t back = give(uuid, bytes, 0, &device);
    *found = device >= 0;
    *t = (struct gpu_wait){.device = device};
    if (*found && back < bytes && wait_ns && !capture_open()) {
        uint64_t question = flush_ask_frameworks();
        uint64_t first_ns = gpu_wait_begin(t, device, wait_ns);
        gpu_wait_await_answer(t, question, min_u64(wait_ns, FRAMEWORK_WAIT_NS));
        back += give(uuid, bytes - back, first_ns, &device);
    }
    counter_add(COUNTER_LEND_GIVEN, back > 0);
    count_given(back);
    return back;
}

uint64_t lend_give_rest(const char *uuid, uint64_t bytes, const struct gpu_wait *t, bool last)
{
    struct framework_result ignored[NUM_FRAMEWORKS];
    const struct empty_cache all = {.device = t->device};
    int device = -1;
    uint64_t back = capture_open() ? 0 : give(uuid, bytes, 0, &device);
    count_given(back);
    if (last && back < bytes)
        flush_takes_answer(&all, t->question, ignored);
    return back;
}

void lend_given(uint64_t bytes)
{
    count_given(bytes);
}

void lend_start(void)
{
    static const struct device_lender lender = {.ask = ask_for_pool,
                                                .ask_in_background = ask_in_background};
    device_set_lender(&lender);
}
