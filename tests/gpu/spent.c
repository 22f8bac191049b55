/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A library that a program loads to learn what time its GPU and its calls of the driver take. It
 * has them from CUPTI's activity records.
 *
 *   int spent_begin(void)             0, or the code of CUPTI. Counting begins
 *   int spent_end(const char *file)   0, or -1: the file cannot be written. Leaves there a line
 *                                     NAME NUMBER for each figure since the beginning
 *
 * The figures: kernels; busy_ns, the time in which the GPU did at least one kernel, copy or memset;
 * dropped, records that CUPTI lost; CALL and CALL_ns, the calls of CALL and their time, for each
 * call of the driver that is not made by NVIDIA's runtime, and for the runtime's cudaMalloc and
 * cudaFree. Recording adds some 0.1 us to each call. One thread calls, CUPTI's thread delivers.
 */
#include <cupti.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_CALLS 4096 /* numbers of calls in one domain; CUDA 13 has some 800 */
#define BUFFER_BYTES (16 << 20)

struct span {
    uint64_t start_ns, end_ns;
};

struct call {
    uint64_t count, ns;
};

static const CUpti_ActivityKind kinds[] = {
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET,
    CUPTI_ACTIVITY_KIND_DRIVER, CUPTI_ACTIVITY_KIND_RUNTIME};
#define NUM_KINDS (sizeof kinds / sizeof *kinds)

static struct call driver_calls[MAX_CALLS], runtime_calls[MAX_CALLS];
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

static void note_span(uint64_t start_ns, uint64_t end_ns)
{
    if (num_spans == max_spans) {
        size_t more = max_spans ? 2 * max_spans : 1 << 16;
        struct span *grown = realloc(spans, more * sizeof *spans);
        if (grown == NULL) {
            num_dropped++;
            return;
        }
        spans = grown;
        max_spans = more;
    }
    spans[num_spans++] = (struct span){start_ns, end_ns};
}

static void note_call(struct call *calls, const CUpti_ActivityAPI *call)
{
    if (call->cbid >= MAX_CALLS) {
        num_dropped++;
        return;
    }
    calls[call->cbid].count++;
    calls[call->cbid].ns += call->end - call->start;
}

static void note(CUpti_Activity *record)
{
    switch (record->kind) {
    /* Newer forms of these records only have more behind. */
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        CUpti_ActivityKernel9 *kernel = (void *)record;
        num_kernels++;
        note_span(kernel->start, kernel->end);
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
        CUpti_ActivityMemcpy5 *copy = (void *)record;
        note_span(copy->start, copy->end);
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
        CUpti_ActivityMemset4 *set = (void *)record;
        note_span(set->start, set->end);
        break;
    }
    case CUPTI_ACTIVITY_KIND_DRIVER:
        note_call(driver_calls, (void *)record);
        break;
    case CUPTI_ACTIVITY_KIND_RUNTIME:
        note_call(runtime_calls, (void *)record);
        break;
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
    while (cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS)
        note(record);
    if (cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS)
        num_dropped += dropped;
    free(buffer);
}

int spent_begin(void)
{
    CUptiResult rc = cuptiActivityRegisterCallbacks(on_buffer_wanted, on_buffer_full);
    for (size_t i = 0; rc == CUPTI_SUCCESS && i < NUM_KINDS; i++)
        rc = cuptiActivityEnable(kinds[i]);
    if (rc == CUPTI_SUCCESS)
        rc = cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    memset(driver_calls, 0, sizeof driver_calls);
    memset(runtime_calls, 0, sizeof runtime_calls);
    num_spans = num_kernels = num_dropped = 0;
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

/* CUPTI names a call with the version of its interface behind an underscore (cudaMalloc_v3020), or
 * without one. */
static bool is_call(const char *name, const char *wanted)
{
    size_t length = strlen(wanted);
    return !strncmp(name, wanted, length) && (name[length] == '\0' || name[length] == '_');
}

static void write_calls(FILE *out, CUpti_CallbackDomain domain, const struct call *calls)
{
    for (uint32_t id = 0; id < MAX_CALLS; id++) {
        const char *name = NULL;
        if (!calls[id].count || cuptiGetCallbackName(domain, id, &name) != CUPTI_SUCCESS)
            continue;
        if (domain == CUPTI_CB_DOMAIN_RUNTIME_API) {
            if (is_call(name, "cudaMalloc"))
                name = "cudaMalloc";
            else if (is_call(name, "cudaFree"))
                name = "cudaFree";
            else
                continue;
        }
        fprintf(out, "%s %" PRIu64 "\n%s_ns %" PRIu64 "\n", name, calls[id].count, name,
                calls[id].ns);
    }
}

int spent_end(const char *file)
{
    cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    for (size_t i = 0; i < NUM_KINDS; i++)
        cuptiActivityDisable(kinds[i]);
    FILE *out = fopen(file, "w");
    if (out == NULL)
        return -1;
    fprintf(out, "kernels %" PRIu64 "\nbusy_ns %" PRIu64 "\n", num_kernels, busy_ns());
    write_calls(out, CUPTI_CB_DOMAIN_DRIVER_API, driver_calls);
    write_calls(out, CUPTI_CB_DOMAIN_RUNTIME_API, runtime_calls);
    fprintf(out, "dropped %" PRIu64 "\n", num_dropped);
    return fclose(out) == 0 ? 0 : -1;
}
