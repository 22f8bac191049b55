/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A library that a program loads to learn what time its GPU and its calls of the driver take. CUPTI
 * tells both.
 *
 *   int spent_begin(void)             0, or the code of CUPTI, and nothing is recorded. Counting
 *                                     begins
 *   int spent_end(const char *file)   Recording ends. 0, with a line NAME NUMBER in the file for
 *                                     each figure since the beginning. The code of CUPTI: it did
 *                                     not deliver all records, and no file is made. -1: the file
 *                                     cannot be written
 *
 * The figures: kernels; busy_ns, the time in which the GPU did at least one kernel, copy or memset;
 * dropped, records that CUPTI lost, that have no end, or that cannot be read, and calls without a
 * name or a time; CALL, CALL_ns and CALL_max_ns, the calls of CALL, their time and the longest one,
 * for each call of the driver. A call counts once it has ended. Its time includes that of calls
 * inside it.
 *
 * Work on the GPU comes as CUPTI's activity records, calls by CUPTI's callbacks. CUPTI's activity
 * records of calls leave out what the driver gets inside a call of NVIDIA's runtime. They would
 * show few of the fences that a library in front of the driver records before PyTorch's launches: 9
 * of 273 in a step of bert (work_frugal.py). CUPTI makes each call longer, and some 0.15 us of that
 * are in CALL_ns.
 *
 * One thread calls. CUPTI delivers buffers from that thread and from one of its own, at the same
 * time. `lock` is held while a buffer is counted, and while its figures are cleared or read. With
 * it, CUPTI is asked for the records of a buffer and for names alone, never to deliver buffers.
 * Callbacks come in every thread that calls the driver, and take no lock. A call that ends while
 * the figures are cleared or read may be counted in part.
 */
#include <cupti.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_CALLS 4096 /* numbers of calls of the driver; CUDA 13 has some 800 */
#define BUFFER_BYTES (16 << 20)

struct span {
    uint64_t start_ns, end_ns;
};

struct call {
    _Atomic uint64_t count, ns, max_ns;
};

static const CUpti_ActivityKind kinds[] = {
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET};
#define NUM_KINDS (sizeof kinds / sizeof *kinds)

static struct call calls[MAX_CALLS];
static _Atomic uint64_t begun_ns;      /* calls that began earlier do not count */
static _Atomic uint64_t num_uncounted; /* calls with other numbers, or at an unknown time */
static CUpti_SubscriberHandle subscriber;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all below */
static struct span *spans; /* of work on the GPU, in the order of arrival */
static size_t num_spans, max_spans;
static uint64_t num_kernels, num_dropped;

EXPORT int spent_begin(void);
EXPORT int spent_end(const char *file);

static void CUPTIAPI on_buffer_wanted(uint8_t **buffer, size_t *size_bytes, size_t *most_records)
{
    *size_bytes = BUFFER_BYTES;
    *buffer = aligned_alloc(8, *size_bytes);
    *most_records = 0;
}

/* A forced flush delivers records of work that has not ended. */
static bool has_ended(uint64_t start_ns, uint64_t end_ns)
{
    return end_ns != 0 && end_ns >= start_ns;
}

/* False: the span is dropped. */
static bool count_span(uint64_t start_ns, uint64_t end_ns)
{
    if (!has_ended(start_ns, end_ns)) {
        num_dropped++;
        return false;
    }
    if (num_spans == max_spans) {
        size_t more = max_spans ? 2 * max_spans : 1 << 16;
        struct span *grown = realloc(spans, more * sizeof *spans);
        if (grown == NULL) {
            num_dropped++;
            return false;
        }
        spans = grown;
        max_spans = more;
    }
    spans[num_spans++] = (struct span){start_ns, end_ns};
    return true;
}

/* 0: CUPTI does not tell the time. */
static uint64_t now_ns(void)
{
    uint64_t ns = 0;
    return cuptiGetTimestamp(&ns) == CUPTI_SUCCESS ? ns : 0;
}

static void count_call(struct call *call, uint64_t ns)
{
    uint64_t max_ns = atomic_load_explicit(&call->max_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&call->count, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&call->ns, ns, memory_order_relaxed);
    while (ns > max_ns && !atomic_compare_exchange_weak(&call->max_ns, &max_ns, ns))
        ;
}

/* CUPTI keeps a word for each call from its beginning to its end. The word of a call that began
 * before the callbacks did may be anything, so only a time that makes sense counts. */
static void CUPTIAPI on_call(void *unused, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                             const void *about)
{
    const CUpti_CallbackData *data = about;
    uint64_t *start_ns = data->correlationData, ns = now_ns();
    bool begins = data->callbackSite == CUPTI_API_ENTER;
    (void)unused;
    (void)domain; /* no other one is enabled */
    if (begins)
        *start_ns = ns;
    if (ns == 0)
        atomic_fetch_add_explicit(&num_uncounted, 1, memory_order_relaxed);
    else if (begins || *start_ns < begun_ns || *start_ns > ns)
        return;
    else if (id < MAX_CALLS)
        count_call(&calls[id], ns - *start_ns);
    else
        atomic_fetch_add_explicit(&num_uncounted, 1, memory_order_relaxed);
}

static void count_record(CUpti_Activity *record)
{
    switch (record->kind) {
    /* Newer forms of these records only have more behind. */
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        CUpti_ActivityKernel9 *kernel = (void *)record;
        num_kernels += count_span(kernel->start, kernel->end);
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
        CUpti_ActivityMemcpy5 *copy = (void *)record;
        count_span(copy->start, copy->end);
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
        CUpti_ActivityMemset4 *set = (void *)record;
        count_span(set->start, set->end);
        break;
    }
    default:
        break;
    }
}

static void CUPTIAPI on_buffer_full(CUcontext context, uint32_t stream, uint8_t *buffer,
                                    size_t size_bytes, size_t valid_bytes)
{
    CUpti_Activity *record = NULL;
    size_t dropped = 0;
    (void)size_bytes;
    CUptiResult rc = cuptiActivityGetNumDroppedRecords(context, stream, &dropped);
    pthread_mutex_lock(&lock);
    num_dropped += rc == CUPTI_SUCCESS ? dropped : 1;
    while ((rc = cuptiActivityGetNextRecord(buffer, valid_bytes, &record)) == CUPTI_SUCCESS)
        count_record(record);
    if (rc != CUPTI_ERROR_MAX_LIMIT_REACHED) /* the rest of the buffer is not counted */
        num_dropped++;
    pthread_mutex_unlock(&lock);
    free(buffer);
}

static void disable_kinds(size_t first_kinds)
{
    for (size_t i = 0; i < first_kinds; i++)
        cuptiActivityDisable(kinds[i]);
}

/* Clears the counts of calls, and begins to count. */
static CUptiResult watch_calls(void)
{
    uint64_t ns = 0;
    memset(calls, 0, sizeof calls);
    atomic_store(&num_uncounted, 0);
    CUptiResult rc = cuptiGetTimestamp(&ns);
    atomic_store(&begun_ns, ns);
    if (rc == CUPTI_SUCCESS)
        rc = cuptiSubscribe(&subscriber, on_call, NULL);
    if (rc != CUPTI_SUCCESS)
        return rc;
    rc = cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API);
    if (rc != CUPTI_SUCCESS)
        cuptiUnsubscribe(subscriber);
    return rc;
}

int spent_begin(void)
{
    size_t enabled = 0;
    CUptiResult rc = cuptiActivityRegisterCallbacks(on_buffer_wanted, on_buffer_full);
    while (rc == CUPTI_SUCCESS && enabled < NUM_KINDS) {
        rc = cuptiActivityEnable(kinds[enabled]);
        enabled += rc == CUPTI_SUCCESS;
    }
    if (rc == CUPTI_SUCCESS)
        rc = cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    /* What went before was not recorded. A buffer that CUPTI's thread has not begun to count may
     * come after this: it has what other threads have done since the kinds were enabled. */
    pthread_mutex_lock(&lock);
    num_spans = num_kernels = num_dropped = 0;
    pthread_mutex_unlock(&lock);
    if (rc == CUPTI_SUCCESS)
        rc = watch_calls();
    if (rc != CUPTI_SUCCESS)
        disable_kinds(enabled);
    return (int)rc;
}

static int by_start(const void *a, const void *b)
{
    const struct span *left = a, *right = b;
    return (left->start_ns > right->start_ns) - (left->start_ns < right->start_ns);
}

static uint64_t busy_ns(void)
{
    uint64_t ns = 0, until_ns = 0;
    if (num_spans != 0)
        qsort(spans, num_spans, sizeof *spans, by_start);
    for (size_t i = 0; i < num_spans; i++) {
        uint64_t start_ns = spans[i].start_ns > until_ns ? spans[i].start_ns : until_ns;
        if (spans[i].end_ns > start_ns) {
            ns += spans[i].end_ns - start_ns;
            until_ns = spans[i].end_ns;
        }
    }
    return ns;
}

/* Calls without a name are dropped, so that no time is missing unnoticed. */
static void write_calls(FILE *out)
{
    num_dropped += num_uncounted;
    for (uint32_t id = 0; id < MAX_CALLS; id++) {
        const char *name = NULL;
        const struct call *call = &calls[id];
        if (call->count == 0)
            continue;
        if (cuptiGetCallbackName(CUPTI_CB_DOMAIN_DRIVER_API, id, &name) != CUPTI_SUCCESS ||
            name == NULL) {
            num_dropped += call->count;
            continue;
        }
        fprintf(out, "%s %" PRIu64 "\n%s_ns %" PRIu64 "\n%s_max_ns %" PRIu64 "\n", name,
                call->count, name, call->ns, name, call->max_ns);
    }
}

int spent_end(const char *file)
{
    cuptiUnsubscribe(subscriber);
    CUptiResult rc = cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    disable_kinds(NUM_KINDS);
    if (rc != CUPTI_SUCCESS)
        return (int)rc;
    FILE *out = fopen(file, "w");
    if (out == NULL)
        return -1;
    pthread_mutex_lock(&lock);
    fprintf(out, "kernels %" PRIu64 "\nbusy_ns %" PRIu64 "\n", num_kernels, busy_ns());
    write_calls(out);
    fprintf(out, "dropped %" PRIu64 "\n", num_dropped);
    pthread_mutex_unlock(&lock);
    bool written = !ferror(out);
    return fclose(out) == 0 && written ? 0 : -1;
}
