/* SPDX-License-Identifier: BSD-2-Clause */
/* Contexts: creation, end, and waiting for all of their work. context_api.c and primary.c export
 * the functions. */
#include "tests/sim/context.h"

#include <stdlib.h>

#include "tests/sim/capture.h"
#include "tests/sim/clock.h"
#include "tests/sim/config.h"
#include "tests/sim/device.h"
#include "tests/sim/memory.h"
#include "tests/sim/mempool.h"
#include "tests/sim/module.h"

/* All structs that were ever made, in slabs; each slab is twice as long as the one before. The list
 * holds live contexts only, because a program may make and end any number of them. */
#define SLABS_MAX 32
#define SLAB_LENGTH(i) ((size_t)64 << (i))

static CUcontext slabs[SLABS_MAX];
static _Atomic size_t context_count;
static CUcontext contexts;
static CUcontext spare; /* ended ones whose handles are given out again */
static uint64_t last_id;

CUcontext context_blank(int device)
{
    size_t index = atomic_load(&context_count);
    unsigned slab = 0;
    for (; index >= SLAB_LENGTH(slab); slab++)
        index -= SLAB_LENGTH(slab);
    if (slabs[slab] == NULL && (slabs[slab] = calloc(SLAB_LENGTH(slab), sizeof **slabs)) == NULL)
        abort();
    slabs[slab][index].device = device;
    atomic_fetch_add(&context_count, 1); /* last: threads without the lock read the slabs by it */
    return &slabs[slab][index];
}

bool context_known(CUcontext context)
{
    size_t left = atomic_load(&context_count);
    for (unsigned i = 0; left > 0; i++) {
        size_t length = left < SLAB_LENGTH(i) ? left : SLAB_LENGTH(i);
        uintptr_t offset = (uintptr_t)context - (uintptr_t)slabs[i];
        if (offset < length * sizeof *context)
            return offset % sizeof *context == 0;
        left -= length;
    }
    return false;
}

CUresult context_revive(CUcontext context)
{
    REFUSE(!device_take(context->device, config.context_bytes), OUT_OF_MEMORY);
    context->alive = true;
    context->next = contexts;
    contexts = context;
    context->uses = 1;
    context->id = ++last_id;
    context->error = CUDA_SUCCESS;
    context->peers = 0;
    context->launched = false;
    context->limits[CU_LIMIT_STACK_SIZE] = 1024;
    context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 7 * MIB;
    context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 * MIB;
    context->legacy = stream_create(context, STREAM_LEGACY);
    return CUDA_SUCCESS;
}

static CUcontext take_spare(int device)
{
    CUcontext *link = &spare, context;
    while (*link != NULL && (*link)->device != device && config.context_reuse < 2)
        link = &(*link)->next;
    if ((context = *link) != NULL) {
        *link = context->next;
        context->device = device;
    }
    return context;
}

CUcontext context_create(int device)
{
    CUcontext context = take_spare(device);
    if (context == NULL)
        context = context_blank(device);
    return context_revive(context) == CUDA_SUCCESS ? context : NULL;
}

void context_destroy(CUcontext context)
{
    context_wait(context);
    for (CUcontext part = contexts, next; part != NULL; part = next) {
        next = part->next;
        if (part->parent == context && part->alive)
            context_destroy(part);
    }
    if (!context->alive)
        return; /* another thread ended it: a wait gives up the lock */
    capture_forget_context(context);
    while (context->streams != NULL)
        stream_destroy(context->streams);
    memory_free_context(context);
    if (context->primary)
        mempool_device_ends(context->device);
    module_unload_context(context);
    work_assign(&context->gate, NULL);
    work_assign(&context->orphans, NULL);
    vector_finish(&context->gate_clock);
    vector_finish(&context->orphan_clock);
    context->legacy = NULL;
    context->alive = false;
    CUcontext *link = &contexts;
    while (*link != context)
        link = &(*link)->next;
    *link = context->next;
    device_give(context->device, config.context_bytes + context->object_bytes);
    context->object_bytes = 0;
    if (config.context_reuse && !context->primary && context->parent == NULL) {
        context->next = spare;
        spare = context;
    }
}

bool context_take(CUcontext context, uint64_t bytes)
{
    if (bytes > 0 && !device_take(context->device, bytes))
        return false;
    context->object_bytes += bytes;
    return true;
}

void context_give(CUcontext context, uint64_t bytes)
{
    if (bytes > context->object_bytes)
        bytes = context->object_bytes;
    device_give(context->device, bytes);
    context->object_bytes -= bytes;
}

bool context_is(CUcontext context, uint64_t id)
{
    return context->alive && context->id == id;
}

CUresult context_usable(CUcontext context)
{
    REFUSE(context == NULL, INVALID_CONTEXT);
    return context->alive ? context->error : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

void context_fail(CUcontext context, CUresult error)
{
    if (context->error == CUDA_SUCCESS)
        context->error = error;
}

/* Adds a piece of work to what a frontier waits for. */
static void gather(CUcontext context, struct work *pending, struct work **one, struct work **join)
{
    if (work_done(pending) || pending == *one)
        return;
    if (*one == NULL) {
        *one = pending;
        return;
    }
    if (*join == NULL) {
        *join = work_create(context, &(struct command){.kind = COMMAND_MARKER});
        work_after(*join, *one);
    }
    work_after(*join, pending);
}

struct work *context_frontier(CUcontext context, struct vector *clock)
{
    struct work *one = NULL, *join = NULL;
    vector_join(clock, &stream_host_clock);
    /* The context itself and its green contexts. */
    for (CUcontext part = contexts; part != NULL; part = part->next) {
        if (part != context && part->parent != context)
            continue;
        vector_join(clock, &part->gate_clock);
        vector_join(clock, &part->orphan_clock);
        gather(context, part->gate, &one, &join);
        gather(context, part->orphans, &one, &join);
        for (CUstream stream = part->streams; stream != NULL; stream = stream->next) {
            vector_join(clock, &stream->clock);
            gather(context, stream->tail, &one, &join);
        }
    }
    if (join == NULL)
        return work_retain(one);
    work_submit(join);
    return join;
}

CUresult context_wait(CUcontext context)
{
    struct vector seen = {0};
    struct work *last = context_frontier(context, &seen);
    return stream_wait_work(last, &seen, context);
}

CUresult context_wait_device(int device)
{
    CUresult rc = CUDA_SUCCESS;
    for (CUcontext context = contexts; context != NULL; context = context->next) {
        if (!context->alive || context->device != device) /* it may have ended in a wait */
            continue;
        CUresult one = context_wait(context);
        if (one == CUDA_ERROR_LAUNCH_TIMEOUT)
            rc = one;
    }
    return rc;
}

void context_each(void (*each)(CUcontext context, void *data), void *data)
{
    for (CUcontext context = contexts; context != NULL; context = context->next)
        each(context, data);
}
