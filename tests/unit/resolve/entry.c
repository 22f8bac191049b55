/* SPDX-License-Identifier: BSD-2-Clause */
/* What the resolver needs of the rest of the library, made to be looked at. Wrappers count and pass
 * on. A pool watches, and a short cut serves, when told to. */
#include "pool/pool.h"
#include "shim/context/stream_watch.h"
#include "shim/control/flush.h"
#include "shim/control/thread.h"
#include "shim/driver/call_scope.h"
#include "shim/entry/alloc.h"
#include "shim/entry/current.h"
#include "shim/entry/free.h"
#include "shim/entry/oom.h"
#include "shim/entry/retry.h"
#include "shim/park/gate.h"
#include "shim/park/whole.h"
#include "shim/process/state.h"
#include "shim/share/peer.h"
#include "shim/trace/beside.h"
#include "shim/trace/trace.h"
#include "tests/unit/resolve/probe.h"

_Atomic unsigned pool_watch __attribute__((visibility("hidden")));

static struct probe probe = {.table = hook_table, .watch = &pool_watch, .note_answer = SUBMIT_SEEN};

SHIM_EXPORT struct probe *resolve_probe(void)
{
    return &probe;
}

/* It has started already. */
_Atomic int state_now __attribute__((visibility("hidden"))) = STATE_ON;

/* Wrappers of waits count. */
atomic_int call_scope_program_waits;

/* Wrappers of imports set it. */
atomic_bool whole_shares;

struct context *current_context(void)
{
    return NULL;
}

/* There is no control thread, nor is one to be made. */
atomic_bool control_started = true;

void control_make_thread(void)
{
}

void control_due(struct duty *duty, uint64_t due_ns)
{
}

void flush_limits_changed(void)
{
}

bool peer_grant_missing(void)
{
    return false;
}

/* Submissions are wrapped whether answers are looked at or not. A call that is out of memory gets
 * some once. */
bool retry_note_error(CUresult rc)
{
    return rc == CUDA_ERROR_OUT_OF_MEMORY;
}

bool retry_release(uint64_t devices, struct retry_steps *steps)
{
    probe.released = devices;
    return probe.release && !steps->step++;
}

void retry_note_again(CUresult rc, const struct retry_steps *steps)
{
}

#define NOWHERE(name, type)                                                                        \
    uint64_t name(type asked)                                                                      \
    {                                                                                              \
        return DEVICES_NONE;                                                                       \
    }
NOWHERE(devices_context, CUcontext)
NOWHERE(devices_peers, CUcontext)
NOWHERE(devices_stream, CUstream)
NOWHERE(devices_green, CUgreenCtx)
NOWHERE(devices_location, const CUmemLocation *)
NOWHERE(devices_physical, const CUmemAllocationProp *)
NOWHERE(devices_handle, CUmemGenericAllocationHandle)
NOWHERE(devices_pool, CUmemoryPool)

uint64_t devices_current(void)
{
    return DEVICES_NONE;
}

uint64_t devices_access(const CUmemAccessDesc *desc, size_t count)
{
    return DEVICES_NONE;
}

void submission_end(bool taken)
{
    probe.done++;
}

enum submit_seen submission_begin(struct submitter *s, uint64_t name, unsigned watch,
                                  unsigned flags)
{
    probe.notes++;
    probe.note_stream = (CUstream)(uintptr_t)name;
    probe.note_flags = flags;
    return (enum submit_seen)probe.note_answer;
}

/* No thread has a record, and the gate is open. */
__thread struct submitter *submitter_mine __attribute__((tls_model("initial-exec")));

struct submitter *submitter_take(void)
{
    return NULL;
}

CUresult gate_arrive(void)
{
    return CUDA_SUCCESS;
}

CUresult gate_use_begin(struct gate_use *use)
{
    return CUDA_SUCCESS;
}

void gate_use_end(const struct gate_use *use)
{
}

CUresult gate_ask_begin(struct gate_use *use, uint64_t addr)
{
    return CUDA_SUCCESS;
}

void stream_watch_note_unseen(void)
{
    probe.left_single++;
}

__thread const void *trace_asker __attribute__((tls_model("initial-exec")));
_Atomic uint32_t trace_now;

void stack_forget(void)
{
}

void trace_note_call(enum trace_kind kind, const struct trace_event *event)
{
}

void trace_note(enum trace_kind kind, const struct trace_event *event)
{
}

void trace_note_beside(enum trace_kind kind, const struct trace_event *event, uint64_t mapped_bytes)
{
}

void oom_note(CUresult rc, uint64_t size_bytes, const void *caller, uint64_t took_ns, bool by_limit)
{
}

bool entry_runtime_malloc(void **p, size_t size_bytes, const void *caller)
{
    if (probe.serve) {
        *p = &probe;
        probe.served++;
    }
    return probe.serve;
}

enum entry_freed entry_runtime_free(void *p, const void *caller)
{
    if (probe.serve)
        probe.served++;
    return probe.serve;
}

bool entry_in_pool(const void *p)
{
    return probe.in_pool;
}

#define PASS_ON(symbol, params, args)                                                              \
    CUresult symbol params                                                                         \
    {                                                                                              \
        probe.calls[HOOK_##symbol]++;                                                              \
        return real.symbol args;                                                                   \
    }
#define HOOK(symbol, pfn, params, args, group) PASS_ON(symbol, params, args)
#define HOOK_ASKED(symbol, pfn, params, args, group, devices) PASS_ON(symbol, params, args)
#include "shim/driver/hooks.def"
