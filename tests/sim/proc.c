/* SPDX-License-Identifier: BSD-2-Clause */
/* cuGetProcAddress finds the address for a name, a version and a default stream in variants.def. */
#include <string.h>

#include "tests/sim/api.h"
#include "tests/sim/config.h"
#include "tests/sim/proc.h"

static const struct proc_row rows[FUNCTION_COUNT] = {
#define FUNCTION(symbol, base, since, flags, cost_ns, mib_ns)                                      \
    {#base, since, flags, (void (*)(void))symbol},
#include "tests/sim/variants.def"
};

/* Functions that this configuration's driver does not have. */
static bool missing(enum function function)
{
    return !config.ctx_events && (function == FN_cuCtxRecordEvent || function == FN_cuCtxWaitEvent);
}

/* What the caller asked for, and the best answer so far. */
struct search {
    const char *name;
    int version;
    bool per_thread;
    bool exists;
    const struct proc_row *best;
};

static void consider(struct search *search, const struct proc_row *row)
{
    bool per_thread = row->flags & PER_THREAD;
    const struct proc_row *best = search->best;
    if (strcmp(row->base, search->name) != 0 || (per_thread && !search->per_thread) ||
        row->since > (int)config.driver_version)
        return;
    search->exists = true;
    if (row->since > search->version)
        return;
    /* The default stream that was asked for counts more than a newer variant of the other. */
    if (best == NULL || (per_thread && !(best->flags & PER_THREAD)) ||
        (per_thread == (bool)(best->flags & PER_THREAD) && row->since > best->since))
        search->best = row;
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
    struct search search = {.name = name,
                            .version = version,
                            .per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM};
    for (enum function i = 0; i < FUNCTION_COUNT; i++)
        if (!missing(i))
            consider(&search, &rows[i]);
    for (const struct proc_row *row = proc_unsimulated; row->base != NULL; row++)
        consider(&search, row);
    *out = NULL;
    if (search.best != NULL)
        memcpy(out, &search.best->address, sizeof *out);
    if (status != NULL)
        *status = search.best != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
                  : search.exists     ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                      : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}

API(cuGetProcAddress, (const char *name, void **out, int version, cuuint64_t flags),
    look_up(name, out, version, flags, NULL))
API(cuGetProcAddress_v2,
    (const char *name, void **out, int version, cuuint64_t flags,
     CUdriverProcAddressQueryResult *status),
    look_up(name, out, version, flags, status))
/* The tables that it gives out are private: the simulator has none. */
API(cuGetExportTable, (const void **out, const CUuuid *id),
    out == NULL || id == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_FOUND)
