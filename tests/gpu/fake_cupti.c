/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The few functions of CUPTI that spent.c calls, for spent_test.py, which says what they deliver.
 * Types and numbers are those of the real headers. There is no GPU, and no call is made.
 *
 *   fake_reset        everything as at the beginning; waits for the thread
 *   fake_work         a kernel, copy or memset
 *   fake_time         what CUPTI tells the caller's thread from here on; each call changes it
 *   fake_enter        a call of the driver begins, by its name or by its number
 *   fake_leave        the latest call that has begun and not ended ends
 *   fake_calls        threads make so many calls each at the same time, and as many without a name
 *   fake_spoilt       a record that CUPTI cannot read
 *   fake_lose         records that CUPTI counts as lost
 *   fake_repeat       the caller's buffer comes so many times
 *   fake_fail         the nth call of a function fails
 *   fake_enabled      how many kinds are recorded now; 100 more while calls are watched
 *   fake_overlaps     how often a buffer was read while another one was
 *
 * A record is delivered once, by the next forced flush while its kind is enabled. Those with
 * by_thread come in a buffer of their own, from another thread. The flush ends while that thread is
 * reading its first record, which takes SLOW_NS. Each forced flush makes a call of the driver. The
 * word of a call whose beginning nobody has watched is no time.
 */
#include <cupti.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SLOW_NS 100000000L
#define MAX_RECORDS 4096
#define MAX_KINDS 256
#define MAX_DEPTH 8
#define MAX_THREADS 16
#define NO_TIME UINT64_MAX
#define NAMELESS 5000
#define LENGTH(array) (sizeof(array) / sizeof *(array))

struct entry {
    CUpti_ActivityKind kind;
    uint64_t start_ns, end_ns;
};

/* A call that has begun. */
struct open_call {
    uint32_t id;
    uint64_t word; /* CUPTI's, for the callbacks */
};

struct queue {
    struct entry entries[MAX_RECORDS];
    size_t length;
};

union record {
    CUpti_Activity any;
    CUpti_ActivityKernel9 kernel;
    CUpti_ActivityMemcpy5 copy;
    CUpti_ActivityMemset4 set;
};

static const struct {
    uint32_t id;
    const char *name;
} names[] = {
    {CUPTI_DRIVER_TRACE_CBID_cuMemMap, "cuMemMap"},
    {CUPTI_DRIVER_TRACE_CBID_cuCtxGetCurrent, "cuCtxGetCurrent"},
    {CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, "cuLaunchKernel"},
};

static CUpti_BuffersCallbackRequestFunc wanted;
static CUpti_BuffersCallbackCompleteFunc full;
static bool enabled[MAX_KINDS];
static struct queue queues[2]; /* of the caller, of the thread */
static atomic_size_t num_lost;
static int num_buffers;
static atomic_int num_readers, num_overlaps;
static const char *failing; /* the function that fails, after so many calls */
static int calls_until_failure;
static pthread_t thread;
static bool thread_runs;
static sem_t thread_reads;
static _Thread_local bool is_thread;
static CUpti_CallbackFunc on_call; /* NULL: nobody has subscribed */
static bool calls_enabled;
static struct open_call open_calls[MAX_DEPTH]; /* of the caller */
static size_t depth;
static _Thread_local uint64_t now_ns = 1;

void fake_reset(void);
void fake_work(int kind, uint64_t start_ns, uint64_t end_ns, int by_thread);
void fake_time(uint64_t ns);
void fake_enter(const char *name, uint64_t start_ns);
void fake_leave(uint64_t end_ns);
void fake_calls(size_t num_threads, size_t times);
void fake_spoilt(void);
void fake_lose(size_t count);
void fake_repeat(int times);
void fake_fail(const char *function, int nth);
int fake_enabled(void);
int fake_overlaps(void);

static void join(void)
{
    if (thread_runs)
        pthread_join(thread, NULL);
    thread_runs = false;
}

void fake_reset(void)
{
    join();
    wanted = NULL;
    full = NULL;
    memset(enabled, 0, sizeof enabled);
    memset(queues, 0, sizeof queues);
    num_lost = 0;
    num_buffers = 1;
    num_overlaps = 0;
    failing = NULL;
    on_call = NULL;
    calls_enabled = false;
    depth = 0;
    now_ns = 1;
}

void fake_work(int kind, uint64_t start_ns, uint64_t end_ns, int by_thread)
{
    struct queue *queue = &queues[by_thread != 0];
    if (queue->length == MAX_RECORDS)
        abort();
    queue->entries[queue->length++] =
        (struct entry){.kind = (CUpti_ActivityKind)kind, .start_ns = start_ns, .end_ns = end_ns};
}

static void call_back(struct open_call *call, CUpti_ApiCallbackSite site, uint64_t time_ns)
{
    CUpti_CallbackData data = {.callbackSite = site, .correlationData = &call->word};
    now_ns = time_ns;
    if (on_call != NULL && calls_enabled)
        on_call(NULL, CUPTI_CB_DOMAIN_DRIVER_API, call->id, &data);
}

void fake_time(uint64_t ns)
{
    now_ns = ns;
}

void fake_enter(const char *name, uint64_t start_ns)
{
    if (depth == MAX_DEPTH)
        abort();
    struct open_call *call = &open_calls[depth++];
    *call = (struct open_call){.id = (uint32_t)atoi(name), .word = NO_TIME};
    for (size_t i = 0; i < LENGTH(names); i++)
        if (!strcmp(names[i].name, name))
            call->id = names[i].id;
    call_back(call, CUPTI_API_ENTER, start_ns);
}

void fake_leave(uint64_t end_ns)
{
    if (depth == 0)
        abort();
    call_back(&open_calls[--depth], CUPTI_API_EXIT, end_ns);
}

static void call_once(uint32_t id, uint64_t ns)
{
    struct open_call call = {.id = id, .word = NO_TIME};
    call_back(&call, CUPTI_API_ENTER, 1);
    call_back(&call, CUPTI_API_EXIT, 1 + ns);
}

/* The nth call takes n ns. */
static void *call_often(void *times)
{
    for (uint64_t n = 1; n <= *(size_t *)times; n++) {
        call_once(CUPTI_DRIVER_TRACE_CBID_cuMemMap, n);
        call_once(NAMELESS, n);
    }
    return NULL;
}

void fake_calls(size_t num_threads, size_t times)
{
    pthread_t callers[MAX_THREADS];
    if (num_threads > MAX_THREADS)
        abort();
    for (size_t i = 0; i < num_threads; i++)
        if (pthread_create(&callers[i], NULL, call_often, &times) != 0)
            abort();
    for (size_t i = 0; i < num_threads; i++)
        pthread_join(callers[i], NULL);
}

void fake_spoilt(void)
{
    fake_work(CUPTI_ACTIVITY_KIND_INVALID, 0, 0, 0);
}

void fake_lose(size_t count)
{
    num_lost = count;
}

void fake_repeat(int times)
{
    num_buffers = times;
}

void fake_fail(const char *function, int nth)
{
    failing = function;
    calls_until_failure = nth;
}

int fake_enabled(void)
{
    int number = on_call != NULL ? 100 : 0;
    for (size_t i = 0; i < MAX_KINDS; i++)
        number += enabled[i];
    return number;
}

int fake_overlaps(void)
{
    return num_overlaps;
}

static bool fails(const char *function)
{
    return failing != NULL && !strcmp(failing, function) && --calls_until_failure == 0;
}

static union record record_of(const struct entry *entry)
{
    union record record;
    memset(&record, 0, sizeof record);
    record.any.kind = entry->kind;
    switch (entry->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
        record.kernel.start = entry->start_ns;
        record.kernel.end = entry->end_ns;
        break;
    case CUPTI_ACTIVITY_KIND_MEMCPY:
        record.copy.start = entry->start_ns;
        record.copy.end = entry->end_ns;
        break;
    case CUPTI_ACTIVITY_KIND_MEMSET:
        record.set.start = entry->start_ns;
        record.set.end = entry->end_ns;
        break;
    default:
        break;
    }
    return record;
}

/* One buffer with the records of the queue that are to be delivered. */
static void deliver(struct queue *queue)
{
    uint8_t *buffer = NULL;
    size_t size_bytes = 0, max_records = 0, used_bytes = 0;
    wanted(&buffer, &size_bytes, &max_records);
    for (size_t i = 0; i < queue->length; i++) {
        const struct entry *entry = &queue->entries[i];
        if (entry->kind != CUPTI_ACTIVITY_KIND_INVALID && !enabled[entry->kind])
            continue;
        union record record = record_of(entry);
        if (buffer == NULL || used_bytes + sizeof record > size_bytes)
            abort();
        memcpy(buffer + used_bytes, &record, sizeof record);
        used_bytes += sizeof record;
    }
    if (is_thread) /* before the flush ends: more records may come */
        queue->length = 0;
    full(NULL, 0, buffer, size_bytes, used_bytes);
}

static void *deliver_by_thread(void *queue)
{
    is_thread = true;
    deliver(queue);
    return NULL;
}

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                           CUpti_BuffersCallbackCompleteFunc complete)
{
    if (fails("cuptiActivityRegisterCallbacks"))
        return CUPTI_ERROR_UNKNOWN;
    wanted = request;
    full = complete;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind)
{
    if (fails("cuptiActivityEnable"))
        return CUPTI_ERROR_UNKNOWN;
    enabled[kind] = true;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind)
{
    enabled[kind] = false;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityFlushAll(uint32_t flag)
{
    if (fails("cuptiActivityFlushAll") || full == NULL)
        return CUPTI_ERROR_UNKNOWN;
    join();
    if (flag != CUPTI_ACTIVITY_FLAG_FLUSH_FORCED)
        return CUPTI_SUCCESS;
    call_once(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, 0);
    if (queues[1].length != 0) {
        sem_init(&thread_reads, 0, 0);
        if (pthread_create(&thread, NULL, deliver_by_thread, &queues[1]) != 0)
            abort();
        thread_runs = true;
        sem_wait(&thread_reads);
    }
    for (int i = 0; queues[0].length != 0 && i < num_buffers; i++)
        deliver(&queues[0]);
    queues[0].length = 0;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid_bytes, CUpti_Activity **record)
{
    size_t at_bytes = 0;
    if (*record != NULL)
        at_bytes = (size_t)((uint8_t *)*record - buffer) + sizeof(union record);
    else if (atomic_fetch_add(&num_readers, 1) != 0)
        num_overlaps++;
    if (*record == NULL && is_thread) {
        sem_post(&thread_reads);
        nanosleep(&(struct timespec){.tv_nsec = SLOW_NS}, NULL);
    }
    CUpti_Activity *next = (CUpti_Activity *)(void *)(buffer + at_bytes);
    if (at_bytes >= valid_bytes || next->kind == CUPTI_ACTIVITY_KIND_INVALID) {
        num_readers--;
        return at_bytes >= valid_bytes ? CUPTI_ERROR_MAX_LIMIT_REACHED : CUPTI_ERROR_INVALID_KIND;
    }
    *record = next;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *dropped)
{
    (void)context;
    (void)stream;
    if (fails("cuptiActivityGetNumDroppedRecords"))
        return CUPTI_ERROR_UNKNOWN;
    *dropped = atomic_exchange(&num_lost, 0);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t id, const char **name)
{
    for (size_t i = 0; i < LENGTH(names); i++)
        if (domain == CUPTI_CB_DOMAIN_DRIVER_API && names[i].id == id) {
            *name = names[i].name;
            return CUPTI_SUCCESS;
        }
    return CUPTI_ERROR_INVALID_PARAMETER;
}

CUptiResult cuptiGetTimestamp(uint64_t *time_ns)
{
    if (fails("cuptiGetTimestamp"))
        return CUPTI_ERROR_UNKNOWN;
    *time_ns = now_ns;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *subscriber, CUpti_CallbackFunc callback,
                           void *data)
{
    (void)data;
    if (fails("cuptiSubscribe"))
        return CUPTI_ERROR_UNKNOWN;
    if (on_call != NULL)
        return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    *subscriber = (CUpti_SubscriberHandle)(void *)names;
    on_call = callback;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle subscriber)
{
    if (subscriber != (CUpti_SubscriberHandle)(void *)names)
        return CUPTI_ERROR_INVALID_PARAMETER;
    on_call = NULL;
    calls_enabled = false;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiEnableDomain(uint32_t enable, CUpti_SubscriberHandle subscriber,
                              CUpti_CallbackDomain domain)
{
    if (fails("cuptiEnableDomain") || on_call == NULL)
        return CUPTI_ERROR_UNKNOWN;
    if (subscriber != (CUpti_SubscriberHandle)(void *)names)
        return CUPTI_ERROR_INVALID_PARAMETER;
    calls_enabled = enable && domain == CUPTI_CB_DOMAIN_DRIVER_API;
    return CUPTI_SUCCESS;
}
