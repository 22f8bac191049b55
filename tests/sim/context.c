/* SPDX-License-Identifier: BSD-2-Clause */
/* Life and death of contexts, and waiting for all of their work. Exports: context_api.c, primary.c.
 */
#include "tests/sim/context.h"

#include <stdlib.h>
#include <string.h>

#include "tests/sim/capture.h"
#include "tests/sim/clock.h"
#include "tests/sim/config.h"
#include "tests/sim/device.h"
#include "tests/sim/memory.h"
#include "tests/sim/module.h"

#define MAGIC 0x43545854u

static _Atomic(CUcontext) contexts;
static uint64_t last_id;

CUcontext context_blank(int device)
{
    CUcontext context = calloc(1, sizeof *context);
    if (context == NULL)
        abort();
    context->magic = MAGIC;
    context->device = device;
    context->next = atomic_load(&contexts);
    atomic_store(&contexts, context);
    return context;
}

CUresult context_revive(CUcontext context)
{
    if (!device_take(context->device, config.context_bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->alive = true;
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

CUcontext context_create(int device)
{
    CUcontext context = context_blank(device);
    return context_revive(context) == CUDA_SUCCESS ? context : NULL;
}

void context_destroy(CUcontext context)
{
    context_wait(context);
    for (CUcontext part = atomic_load(&contexts); part != NULL; part = part->next)
        if (part->parent == context && part->alive)
            context_destroy(part);
    capture_forget_context(context);
    while (context->streams != NULL)
        stream_destroy(context->streams);
    memory_free_context(context);
    module_unload_context(context);
    work_assign(&context->gate, NULL);
    work_assign(&context->orphans, NULL);
    vector_finish(&context->gate_clock);
    vector_finish(&context->orphan_clock);
    context->legacy = NULL;
    context->alive = false;
    device_give(context->device, config.context_bytes + context->object_bytes);
    context->object_bytes = 0;
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

bool context_known(CUcontext context)
{
    for (CUcontext c = atomic_load(&contexts); c != NULL; c = c->next)
        if (c == context)
            return true;
    return false;
}

bool context_is(CUcontext context, uint64_t id)
{
    return context->alive && context->id == id;
}

CUresult context_usable(CUcontext context)
{
    if (context == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    return context->alive ? context->error : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

void context_fail(CUcontext context, CUresult error)
{
    if (context->error == CUDA_SUCCESS)
        context->error = error;
}

/* Adds one more piece of work to what a frontier waits for. */
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
    /* The context, and the green contexts in it. */
    for (CUcontext part = atomic_load(&contexts); part != NULL; part = part->next) {
        if (part != context && (part->parent != context || !part->alive))
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
    CUresult rc = clock_wait(last);
    work_release(last);
    if (rc == CUDA_SUCCESS)
        vector_join(&stream_host_clock, &seen);
    vector_finish(&seen);
    return rc != CUDA_SUCCESS ? rc : context->error;
}

CUresult context_wait_device(int device)
{
    CUresult rc = CUDA_SUCCESS;
    for (CUcontext context = atomic_load(&contexts); context != NULL; context = context->next) {
        if (!context->alive || context->device != device)
            continue;
        CUresult one = context_wait(context);
        if (one == CUDA_ERROR_LAUNCH_TIMEOUT)
            rc = one;
    }
    return rc;
}

void context_each(void (*each)(CUcontext context, void *data), void *data)
{
    for (CUcontext context = atomic_load(&contexts); context != NULL; context = context->next)
        if (context->alive)
            each(context, data);
}
