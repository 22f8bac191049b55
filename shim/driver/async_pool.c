/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See async_pool.h, also for the argument; the numbers below are those of its steps. The lock
 * guards the rows, and is held over no driver call.
 */
#include "shim/driver/async_pool.h"

#include "pool/bits.h"
#include "pool/spin.h"
#include "shim/driver/call_scope.h"
#include "shim/driver/device.h"
#include "shim/process/clock.h"
#include "shim/process/state.h"
#include "shim/stats/counters.h"

#include <pthread.h>

/* The first DEVICES_MAX rows are the devices' default pools, with the graphs' memory. */
enum { ROWS = DEVICES_MAX + ASYNC_POOLS_MAX };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct driver_pool {
    CUmemoryPool pool; /* NULL: none; the default ones are asked for each time */
    CUdevice device;
    unsigned takers;
    bool leaving; /* a thread destroys the pool */
    /* The control thread's: what was idle at each look since `since_ns` (0: no look yet). */
    uint64_t least_idle_bytes, since_ns;
} rows[ROWS];
static _Atomic int rows_used = DEVICES_MAX; /* behind them no row was ever used */
static unsigned enders[DEVICES_MAX];        /* threads that may end the device's primary context */
static unsigned num_enders[DEVICES_MAX];    /* how many there were so far */
static _Atomic uint64_t returned_bytes[DEVICES_MAX];
static _Atomic uint64_t returned_ns[DEVICES_MAX]; /* the last time; 0: never */
static struct async_stats latest[DEVICES_MAX];

/* From a failure of the driver to async_pool_release. */
#define LATELY_NS (100 * MS_NS)

static bool is_default(const struct driver_pool *r)
{
    return r < rows + DEVICES_MAX;
}

static CUdevice device_of(const struct driver_pool *r)
{
    return is_default(r) ? (CUdevice)(r - rows) : r->device;
}

/* Lock held. */
static bool row_is_of(const struct driver_pool *r, CUdevice device)
{
    return (is_default(r) || r->pool) && (device < 0 || device_of(r) == device);
}

/* Step 1. Finds the next row of the device, from *i on. NULL: there is no more. */
static struct driver_pool *take_next(CUdevice device, int *i)
{
    struct driver_pool *found = NULL;
    pthread_mutex_lock(&lock);
    for (; *i < rows_used && !found && !enders[device]; ++*i)
        if (row_is_of(&rows[*i], device) && !rows[*i].leaving) {
            found = &rows[*i];
            found->takers++;
        }
    pthread_mutex_unlock(&lock);
    return found;
}

static void put_driver_pool(struct driver_pool *r)
{
    pthread_mutex_lock(&lock);
    r->takers--;
    pthread_mutex_unlock(&lock);
}

/* Lock held, and let go meanwhile. Steps 2 and 4. */
static void await_takers(const struct driver_pool *r)
{
    for (unsigned turn = 0; r->takers && !call_scope_depth; turn++) {
        pthread_mutex_unlock(&lock);
        spin_pause(turn);
        pthread_mutex_lock(&lock);
    }
}

static bool is_on_device(const CUmemPoolProps *props)
{
    return !state_is_off() && props && props->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
           props->location.id >= 0 && props->location.id < DEVICES_MAX;
}

/* Lock held. Differs from a mark of before if a thread may have ended the context since. */
static unsigned enders_mark(CUdevice device)
{
    return num_enders[device] - enders[device];
}

unsigned async_pool_make_begins(const CUmemPoolProps *props)
{
    unsigned mark = 0;
    if (!is_on_device(props))
        return mark;
    pthread_mutex_lock(&lock);
    mark = enders_mark(props->location.id);
    pthread_mutex_unlock(&lock);
    return mark;
}

void async_pool_made(CUmemoryPool pool, const CUmemPoolProps *props, unsigned mark)
{
    if (!is_on_device(props))
        return;
    CUdevice device = props->location.id;
    pthread_mutex_lock(&lock);
    int i = DEVICES_MAX;
    while (i < rows_used && (rows[i].pool || rows[i].takers))
        i++;
    if (i < ROWS && num_enders[device] == mark) {
        rows[i] = (struct driver_pool){.pool = pool, .device = device};
        rows_used = i < rows_used ? rows_used : i + 1;
    }
    pthread_mutex_unlock(&lock);
}

/* Lock held. */
static struct driver_pool *find_driver_pool(CUmemoryPool pool, bool leaving)
{
    for (int i = DEVICES_MAX; i < rows_used && pool; i++)
        if (rows[i].pool == pool && rows[i].leaving == leaving)
            return &rows[i];
    return NULL;
}

void async_pool_destroy_begins(CUmemoryPool pool)
{
    if (state_is_off()) /* step 5 */
        return;
    pthread_mutex_lock(&lock);
    struct driver_pool *r = find_driver_pool(pool, false);
    if (r) {
        r->leaving = true;
        await_takers(r);
    }
    pthread_mutex_unlock(&lock);
}

/* Another pool may have got the handle by now, in a row of its own. */
void async_pool_destroy_over(CUmemoryPool pool, bool done)
{
    if (state_is_off())
        return;
    pthread_mutex_lock(&lock);
    struct driver_pool *r = find_driver_pool(pool, true);
    if (r) {
        r->pool = done ? NULL : pool;
        r->leaving = false;
    }
    pthread_mutex_unlock(&lock);
}

/* Lock held. */
static void count_device_ender(CUdevice device, unsigned by)
{
    for (CUdevice i = 0; i < DEVICES_MAX; i++)
        if (device < 0 || device == i) {
            enders[i] += by;
            num_enders[i] += by == 1;
        }
}

void async_pool_context_begins(CUdevice device)
{
    if (state_is_off() || device >= DEVICES_MAX)
        return;
    pthread_mutex_lock(&lock);
    count_device_ender(device, 1);
    for (int i = 0; i < rows_used; i++)
        if (row_is_of(&rows[i], device))
            await_takers(&rows[i]);
    pthread_mutex_unlock(&lock);
}

/* A bit for each device on which the program has made pools. */
static uint64_t devices_of_rows(CUdevice device)
{
    uint64_t devices = 0;
    pthread_mutex_lock(&lock);
    for (int i = DEVICES_MAX; i < rows_used; i++)
        if (row_is_of(&rows[i], device))
            devices |= device_bit(rows[i].device);
    pthread_mutex_unlock(&lock);
    return devices;
}

void async_pool_context_over(CUdevice device)
{
    uint64_t ended = 0;
    if (state_is_off() || device >= DEVICES_MAX)
        return;
    uint64_t devices = devices_of_rows(device);
    for (CUdevice i = 0; i < DEVICES_MAX; i++)
        if ((devices & device_bit(i)) && !device_primary_is_active(i))
            ended |= device_bit(i);
    pthread_mutex_lock(&lock);
    for (int i = DEVICES_MAX; i < rows_used; i++)
        if (rows[i].pool && (ended & device_bit(rows[i].device)))
            rows[i].pool = NULL;
    count_device_ender(device, -1u);
    pthread_mutex_unlock(&lock);
}

bool async_pool_any(void)
{
    return counter_get(COUNTER_ASYNC) || rows_used > DEVICES_MAX;
}

/* A stream, or a pool, of a device can be used while a context of another one is current. So the
 * driver is asked which devices the program has open. */
uint64_t async_pool_devices(void)
{
    static _Atomic uint64_t latest_devices;
    struct call_scope scope;
    int count = 0;
    if (async_pool_any() && call_scope_begin(&scope)) {
        uint64_t devices = devices_of_rows(-1);
        if (!counter_get(COUNTER_ASYNC) || real.cuDeviceGetCount(&count) != CUDA_SUCCESS)
            count = 0;
        for (CUdevice i = 0; i < count && i < DEVICES_MAX; i++)
            devices |= device_primary_is_active(i) ? device_bit(i) : 0;
        call_scope_end(&scope);
        atomic_store(&latest_devices, devices);
    }
    return atomic_load(&latest_devices);
}

uint64_t async_pool_returned_devices(void)
{
    uint64_t devices = 0;
    for (CUdevice i = 0; i < DEVICES_MAX; i++)
        devices |= atomic_load(&returned_bytes[i]) ? device_bit(i) : 0;
    return devices;
}

/* In a call scope. NULL: there is none, or the program has made no stream-ordered allocation. */
static CUmemoryPool pool_of(const struct driver_pool *r)
{
    CUmemoryPool pool = NULL;
    if (!is_default(r))
        return r->pool;
    if (!counter_get(COUNTER_ASYNC) ||
        real.cuDeviceGetDefaultMemPool(&pool, device_of(r)) != CUDA_SUCCESS)
        return NULL;
    return pool;
}

struct memory {
    uint64_t reserved_bytes, idle_bytes;
};

static struct memory memory_of(uint64_t reserved, uint64_t used)
{
    return (struct memory){reserved, reserved > used ? reserved - used : 0};
}

static struct memory pool_memory(CUmemoryPool pool)
{
    cuuint64_t reserved = 0, used = 0;
    if (!pool || !real.cuMemPoolGetAttribute ||
        real.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) ||
        real.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used))
        return (struct memory){0};
    return memory_of(reserved, used);
}

static struct memory graph_memory(CUdevice device)
{
    cuuint64_t reserved = 0, used = 0;
    if (!counter_get(COUNTER_ASYNC) || !real.cuDeviceGetGraphMemAttribute ||
        !device_primary_is_active(device) ||
        real.cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                          &reserved) ||
        real.cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used))
        return (struct memory){0};
    return memory_of(reserved, used);
}

static uint64_t less(struct memory before, struct memory after)
{
    return before.reserved_bytes > after.reserved_bytes
               ? before.reserved_bytes - after.reserved_bytes
               : 0;
}

/* What is to be left, and what may still go. */
struct share {
    uint64_t keep_bytes, most_bytes;
};

static uint64_t trim_pool(CUmemoryPool pool, struct share *s)
{
    struct memory m = pool_memory(pool);
    uint64_t kept = min_u64(m.idle_bytes, s->keep_bytes);
    uint64_t goes = min_u64(m.idle_bytes - kept, s->most_bytes), back = 0;
    s->keep_bytes -= kept;
    if (goes && real.cuMemPoolTrimTo &&
        real.cuMemPoolTrimTo(pool, m.reserved_bytes - goes) == CUDA_SUCCESS)
        back = less(m, pool_memory(pool));
    s->most_bytes -= min_u64(back, s->most_bytes);
    return back;
}

static uint64_t trim_graphs(CUdevice device, struct share *s)
{
    struct memory m = graph_memory(device);
    if (m.idle_bytes <= s->keep_bytes || !s->most_bytes || !real.cuDeviceGraphMemTrim ||
        real.cuDeviceGraphMemTrim(device) != CUDA_SUCCESS)
        return 0;
    return less(m, graph_memory(device));
}

static void count_returned(CUdevice device, uint64_t back)
{
    if (!back)
        return;
    atomic_fetch_add(&returned_bytes[device], back);
    atomic_store(&returned_ns[device], clock_now_ns());
}

uint64_t async_pool_trim(CUdevice device, uint64_t keep_bytes, uint64_t most_bytes)
{
    struct share s = {keep_bytes, most_bytes};
    struct call_scope scope;
    struct driver_pool *r;
    uint64_t back = 0;
    if (device < 0 || device >= DEVICES_MAX || !async_pool_any() || !call_scope_begin(&scope))
        return 0;
    for (int i = 0; (r = take_next(device, &i));) {
        back += trim_pool(pool_of(r), &s);
        put_driver_pool(r);
    }
    int i = device; /* graphs come last; the default pool's row stands for them */
    if ((r = take_next(device, &i))) {
        if (is_default(r))
            back += trim_graphs(device, &s);
        put_driver_pool(r);
    }
    call_scope_end(&scope);
    count_returned(device, back);
    return back;
}

/* Another thread may have given back what there was, after the driver failed here. */
bool async_pool_release(CUdevice device)
{
    if (async_pool_trim(device, 0, UINT64_MAX))
        return true;
    uint64_t last_ns = device >= 0 && device < DEVICES_MAX ? atomic_load(&returned_ns[device]) : 0;
    return last_ns && clock_now_ns() - last_ns < LATELY_NS;
}

/* What was idle throughout goes. The program may have used it meanwhile and freed it again between
 * two looks. */
static uint64_t expire(struct driver_pool *r, uint64_t timeout_ns, uint64_t now_ns)
{
    CUmemoryPool pool = pool_of(r);
    uint64_t idle = pool_memory(pool).idle_bytes, back = 0;
    r->least_idle_bytes = r->since_ns ? min_u64(r->least_idle_bytes, idle) : idle;
    r->since_ns = r->since_ns ? r->since_ns : now_ns;
    if (now_ns - r->since_ns < timeout_ns)
        return 0;
    if (r->least_idle_bytes)
        back = trim_pool(pool, &(struct share){0, r->least_idle_bytes});
    r->since_ns = now_ns;
    r->least_idle_bytes = idle - min_u64(idle, back);
    return back;
}

uint64_t async_pool_expire(CUdevice device, uint64_t timeout_ns)
{
    uint64_t now_ns = clock_now_ns(), back = 0;
    struct call_scope scope;
    struct driver_pool *r;
    if (device < 0 || device >= DEVICES_MAX || !async_pool_any() || !call_scope_begin(&scope))
        return 0;
    for (int i = 0; (r = take_next(device, &i));) {
        back += expire(r, timeout_ns, now_ns);
        put_driver_pool(r);
    }
    call_scope_end(&scope);
    count_returned(device, back);
    return back;
}

static void add_memory(struct async_stats *sum, struct memory m)
{
    sum->async_reserved_bytes += m.reserved_bytes;
    sum->async_idle_bytes += m.idle_bytes;
}

void async_pool_stats(CUdevice device, struct async_stats *out)
{
    struct async_stats sum = {0};
    struct call_scope scope;
    struct driver_pool *r;
    *out = sum;
    if (device < 0 || device >= DEVICES_MAX || !async_pool_any())
        return;
    if (call_scope_begin(&scope)) {
        for (int i = 0; (r = take_next(device, &i));) {
            add_memory(&sum, pool_memory(pool_of(r)));
            if (is_default(r))
                add_memory(&sum, graph_memory(device));
            put_driver_pool(r);
        }
        call_scope_end(&scope);
        pthread_mutex_lock(&lock);
        latest[device] = sum;
        pthread_mutex_unlock(&lock);
    }
    pthread_mutex_lock(&lock);
    *out = latest[device];
    pthread_mutex_unlock(&lock);
    out->async_returned_bytes = atomic_load(&returned_bytes[device]);
}
