/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A minimal profiler. The driver loads it by CUDA_INJECTION64_PATH. It counts a process's driver
 * calls, kernels and memory operations by CUPTI, and writes the counts to INJECTED_FILE at exit.
 */
#include <cupti.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int InitializeInjection(void);

static _Atomic unsigned long num_calls, num_kernels, num_memsets, num_memory;

static void CUPTIAPI on_call(void *context, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                             const void *data)
{
    const CUpti_CallbackData *call = data;
    num_calls += call->callbackSite == CUPTI_API_ENTER;
}

static void CUPTIAPI on_buffer_wanted(uint8_t **buffer, size_t *size_bytes, size_t *most_records)
{
    *size_bytes = 1 << 20;
    *buffer = aligned_alloc(8, *size_bytes);
    *most_records = 0;
}

static void CUPTIAPI on_buffer_full(CUcontext context, uint32_t stream, uint8_t *buffer,
                                    size_t size_bytes, size_t valid_bytes)
{
    CUpti_Activity *record = NULL;
    while (cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
        num_kernels += record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
        num_memsets += record->kind == CUPTI_ACTIVITY_KIND_MEMSET;
        num_memory += record->kind == CUPTI_ACTIVITY_KIND_MEMORY2;
    }
    free(buffer);
}

static void write_counts(void)
{
    const char *path = getenv("INJECTED_FILE");
    cuptiActivityFlushAll(1);
    FILE *file = path != NULL ? fopen(path, "w") : NULL;
    if (file == NULL)
        return;
    fprintf(file, "calls %lu\nkernels %lu\nmemsets %lu\nmemory %lu\n", num_calls, num_kernels,
            num_memsets, num_memory);
    fclose(file);
}

int InitializeInjection(void)
{
    static CUpti_SubscriberHandle subscriber;
    CUptiResult rc = cuptiSubscribe(&subscriber, on_call, NULL);
    if (rc == CUPTI_SUCCESS)
        rc = cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API);
    if (rc == CUPTI_SUCCESS)
        rc = cuptiActivityRegisterCallbacks(on_buffer_wanted, on_buffer_full);
    if (rc == CUPTI_SUCCESS)
        rc = cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    if (rc == CUPTI_SUCCESS)
        rc = cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET);
    if (rc == CUPTI_SUCCESS)
        rc = cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMORY2);
    if (rc != CUPTI_SUCCESS)
        fprintf(stderr, "CUPTI answers %d\n", (int)rc);
    else
        atexit(write_counts);
    return 1;
}
