/* SPDX-License-Identifier: BSD-2-Clause */
/* Submission: the unfinished work and the vector clock that come before the next command of a
 * stream. stream_api.c exports the functions. */
#include "tests/sim/stream.h"

#include "tests/sim/alloc.h"
#include "tests/sim/api.h"
#include "tests/sim/capture.h"
#include "tests/sim/clock.h"
#include "tests/sim/context.h"
#include "tests/sim/handles.h"
#include "tests/sim/hazard.h"
#include "tests/sim/hostcall.h"
#include "tests/sim/thread.h"

#define MAGIC 0x53545245u
#define QUEUE_DEPTH 1024u /* unfinished work of a context before a submission blocks */

struct vector stream_host_clock;

static struct handles streams = {.size = sizeof(struct CUstream_st)};

static uint64_t last_id;

/* A slot may be used again when the host has seen all work of its last stream complete. */
static struct slot {
    uint64_t seq;
    bool used;
} *slots;
static unsigned slot_count;

static unsigned slot_take(uint64_t *seq)
{
    unsigned i = 0;
    while (i < slot_count && (slots[i].used || vector_get(&stream_host_clock, i) < slots[i].seq))
        i++;
    if (i == slot_count) {
        slots = never_null(realloc(slots, ++slot_count * sizeof *slots));
        slots[i] = (struct slot){0};
    }
    slots[i].used = true;
    *seq = slots[i].seq;
    return i;
}

CUstream stream_create(CUcontext context, enum stream_kind kind)
{
    CUstream stream = handles_take(&streams);
    struct vector clock = stream->clock;
    clock.length = 0;
    *stream = (struct CUstream_st){
        .magic = MAGIC, .kind = kind, .context = context, .id = ++last_id, .clock = clock};
    stream->slot = slot_take(&stream->seq);
    stream->next = context->streams;
    context->streams = stream;
    return stream;
}

void stream_destroy(CUstream stream)
{
    CUcontext context = stream->context;
    CUstream *link = &context->streams;
    capture_forget_stream(stream);
    stream_frontier(stream);
    vector_join(&context->orphan_clock, &stream->clock);
    if (!work_done(stream->tail)) {
        struct work *join = work_create(context, &(struct command){.kind = COMMAND_MARKER});
        work_after(join, context->orphans);
        work_after(join, stream->tail);
        work_submit(join);
        work_release(context->orphans);
        context->orphans = join;
    }
    work_assign(&stream->tail, NULL);
    slots[stream->slot].seq = stream->seq;
    slots[stream->slot].used = false;
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    stream->magic = 0;
    handles_give(&streams, stream);
}

CUresult stream_resolve(CUstream handle, CUstream *out)
{
    if (handle == NULL || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
        CUcontext context = thread_current();
        CUresult rc = context_usable(context);
        if (rc == CUDA_SUCCESS && handle == CU_STREAM_PER_THREAD && context->green != NULL)
            return CUDA_ERROR_INVALID_HANDLE; /* seen: green contexts have none */
        if (rc == CUDA_SUCCESS && handle == CU_STREAM_PER_THREAD)
            return thread_stream(context, out);
        if (rc == CUDA_SUCCESS)
            *out = context->legacy;
        return rc;
    }
    REFUSE((uintptr_t)handle < 4096 || handle->magic != MAGIC, INVALID_HANDLE);
    *out = handle;
    return context_usable(handle->context);
}

/* Brings the stream's clock up to date with all work that its next work comes after. Makes the
 * unfinished part of it predecessors of `target`; without a target it counts this part and
 * remembers one. */
struct gathering {
    struct work *target; /* or NULL */
    struct work *one;
    unsigned count;
};

static void gather_one(struct gathering *gathering, struct work *before)
{
    if (gathering->target != NULL)
        work_after(gathering->target, before);
    if (work_done(before) || before == gathering->one)
        return;
    gathering->one = before;
    gathering->count++;
}

static void gather(CUstream stream, struct gathering *gathering)
{
    CUcontext context = stream->context;
    vector_join(&stream->clock, &stream_host_clock);
    vector_join(&stream->clock, &context->gate_clock);
    gather_one(gathering, stream->tail);
    gather_one(gathering, context->gate);
    if (context->parent != NULL) {
        vector_join(&stream->clock, &context->parent->gate_clock);
        gather_one(gathering, context->parent->gate);
    }
    if (stream->kind == STREAM_NON_BLOCKING)
        return;
    if (stream->kind != STREAM_LEGACY) {
        vector_join(&stream->clock, &context->legacy->clock);
        gather_one(gathering, context->legacy->tail);
        return;
    }
    vector_join(&stream->clock, &context->orphan_clock);
    gather_one(gathering, context->orphans);
    for (CUstream other = context->streams; other != NULL; other = other->next) {
        if (other->kind == STREAM_NON_BLOCKING || other == stream)
            continue;
        vector_join(&stream->clock, &other->clock);
        gather_one(gathering, other->tail);
    }
}

static uint64_t max_seq(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* A launch with programmatic stream serialization may start before the kernels in front of it end,
 * back to the last kernel without that attribute. So it is not ordered behind them. A copy, a fill
 * or a host function in between orders it, and so does a wait of the whole context. Events of its
 * own stream do not (seen on an H100). */
static void check_hazards(CUstream stream, const struct command *command)
{
    uint64_t before = vector_get(&stream->clock, stream->slot);
    if (command->kind == COMMAND_KERNEL && command->launch.early && stream->chained) {
        uint64_t seq = max_seq(stream->chain_seq, vector_get(&stream_host_clock, stream->slot));
        seq = max_seq(seq, vector_get(&stream->context->gate_clock, stream->slot));
        vector_set(&stream->clock, stream->slot, seq);
    } else if (command->kind != COMMAND_MARKER) {
        stream->chained = command->kind == COMMAND_KERNEL;
        stream->chain_seq = before;
    }
    hazard_command(stream, command);
    vector_set(&stream->clock, stream->slot,
               max_seq(before, vector_get(&stream->clock, stream->slot)));
}

struct work *stream_enqueue(CUstream stream, const struct command *command, struct work **after,
                            size_t after_count)
{
    struct work *work = work_create(stream->context, command);
    struct gathering gathering = {.target = work};
    gather(stream, &gathering);
    for (size_t i = 0; i < after_count; i++)
        work_after(work, after[i]);
    check_hazards(stream, command);
    if (command->kind == COMMAND_HOST_FUNCTION)
        hostcall_expect();
    work_assign(&stream->tail, work);
    work_submit(work);
    return work;
}

struct work *stream_enqueue_node(CUstream stream, const struct command *command,
                                 struct work **after, size_t after_count)
{
    struct work *work = work_create(stream->context, command);
    for (size_t i = 0; i < after_count; i++)
        work_after(work, after[i]);
    stream->chained = false;
    hazard_command(stream, command);
    if (command->kind == COMMAND_HOST_FUNCTION)
        hostcall_expect();
    work_submit(work);
    return work;
}

struct work *stream_frontier(CUstream stream)
{
    struct gathering gathering = {0};
    gather(stream, &gathering);
    if (gathering.count <= 1)
        return gathering.one;
    struct work *join = stream_enqueue(stream, &(struct command){.kind = COMMAND_MARKER}, NULL, 0);
    work_release(join); /* the stream's tail holds it */
    return join;
}

void stream_order(CUstream stream, struct work *before, const struct vector *clock)
{
    vector_join(&stream->clock, clock);
    if (!work_done(before))
        work_release(stream_enqueue(stream, &(struct command){.kind = COMMAND_MARKER}, &before, 1));
}

CUresult stream_submit(CUstream stream, const struct command *command)
{
    CUcontext context = stream->context;
    if (stream->capture != NULL)
        return capture_add(stream, command);
    TRY(capture_implicit(stream));
    /* A full queue blocks the host. But it may grow behind work that waits for the host. */
    while (context->pending >= QUEUE_DEPTH && clock_step())
        ;
    work_release(stream_enqueue(stream, command, NULL, 0));
    return CUDA_SUCCESS;
}

CUresult stream_wait_work(struct work *last, struct vector *seen, CUcontext context)
{
    CUresult rc = clock_wait(last);
    work_release(last);
    if (rc == CUDA_SUCCESS)
        vector_join(&stream_host_clock, seen);
    vector_finish(seen);
    return rc != CUDA_SUCCESS ? rc : context->error;
}

CUresult stream_wait(CUstream stream)
{
    struct work *last = work_retain(stream_frontier(stream));
    struct vector seen = {0};
    vector_copy(&seen, &stream->clock);
    return stream_wait_work(last, &seen, stream->context);
}
