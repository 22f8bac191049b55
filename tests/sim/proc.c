/* SPDX-License-Identifier: BSD-2-Clause */
/* cuGetProcAddress: name, version and default-stream flavour to address, from functions.def. */
#include <string.h>

#include "tests/sim/api.h"
#include "tests/sim/config.h"

static const struct row {
    const char *base;
    int since;
    unsigned flags;
    void (*address)(void);
} rows[FUNCTION_COUNT] = {
#define FUNCTION(symbol, base, since, flags, cost_ns, mib_ns)                                      \
    {#base, since, flags, (void (*)(void))symbol},
#include "tests/sim/functions.def"
#undef FUNCTION
};

/* Functions that this configuration's driver does not have. */
static bool missing(enum function function)
{
    if (rows[function].since > (int)config.driver_version)
        return true;
    return !config.ctx_events && (function == FN_cuCtxRecordEvent || function == FN_cuCtxWaitEvent);
}

static CUresult look_up(const char *name, void **out, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *status)
{
    const cuuint64_t known =
        CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    config_read();
    if (name == NULL || out == NULL || (flags & ~known) != 0 || flags == known ||
        version > (int)config.driver_version)
        return CUDA_ERROR_INVALID_VALUE;
    const struct row *best = NULL;
    bool exists = false;
    for (enum function i = 0; i < FUNCTION_COUNT; i++) {
        const struct row *row = &rows[i];
        bool per_thread = row->flags & PER_THREAD;
        if (strcmp(row->base, name) != 0 || missing(i) ||
            (per_thread && !(flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)))
            continue;
        exists = true;
        if (row->since > version)
            continue;
        /* The flavour that was asked for comes before a newer one of the other. */
        if (best == NULL || (per_thread && !(best->flags & PER_THREAD)) ||
            (per_thread == (bool)(best->flags & PER_THREAD) && row->since > best->since))
            best = row;
    }
    *out = NULL;
    if (best != NULL)
        memcpy(out, &best->address, sizeof *out);
    if (status != NULL)
        *status = best != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
                  : exists     ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                               : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}

API(cuGetProcAddress, (const char *name, void **out, int version, cuuint64_t flags),
    look_up(name, out, version, flags, NULL))
API(cuGetProcAddress_v2,
    (const char *name, void **out, int version, cuuint64_t flags,
     CUdriverProcAddressQueryResult *status),
    look_up(name, out, version, flags, status))
/* The tables behind it are private: there are none. */
API(cuGetExportTable, (const void **out, const CUuuid *id),
    out == NULL || id == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_FOUND)
