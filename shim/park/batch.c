/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See batch.h.
 */
#include "shim/park/batch.h"

#include "shim/park/park.h"

#include <stdio.h>

enum { PARTS_MAX = 4096 };

static const struct store *store;
static struct copy_part parts[PARTS_MAX];
static struct copy_job job;
static uint64_t added_bytes;
static CUresult code;
static char *why;

void batch_begin(const struct store *s, enum copy_way way, bool (*goes_on)(void), char *out)
{
    store = s;
    job = (struct copy_job){.way = way,
                            .parts = parts,
                            .goes_on = goes_on,
                            .awaited = way == COPY_BACK,
                            .in_file = s->folder[0]};
    added_bytes = 0;
    code = CUDA_SUCCESS;
    why = out;
}

void batch_clear(void)
{
    job.num_parts = 0;
    added_bytes = 0;
}

bool batch_run(void)
{
    if (!job.num_parts)
        return true;
    enum copy_end end = copy_run(&job, &code);
    batch_clear();
    if (end == COPY_STOPPED)
        snprintf(why, PARK_WHY_BYTES, "the program used the GPU meanwhile");
    else if (end == COPY_FAILED && code == CUDA_ERROR_OPERATING_SYSTEM && store->folder[0])
        snprintf(why, PARK_WHY_BYTES, "the file in %.160s cannot be written", store->folder);
    else if (end == COPY_FAILED)
        snprintf(why, PARK_WHY_BYTES, "a copy failed with the driver's error %d", code);
    return end == COPY_DONE;
}

bool batch_add(uint64_t addr, uint64_t size_bytes, uint64_t offset)
{
    parts[job.num_parts++] =
        (struct copy_part){.addr = addr, .size_bytes = size_bytes, .host = store->bytes + offset};
    added_bytes += size_bytes;
    return (job.num_parts < PARTS_MAX && added_bytes < BATCH_BYTES) || batch_run();
}

CUresult batch_code(void)
{
    return code;
}
