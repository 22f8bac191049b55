/* SPDX-License-Identifier: BSD-2-Clause */
/* The frame around every exported function: state of the driver, the one big lock, call counts,
 * faults, costs. Each export is one line: API(name, parameters, body), where body runs under the
 * lock. */
#ifndef SIM_API_H
#define SIM_API_H

#include "tests/sim/driver.h"

enum function_flag {
    BARE = 0,
    ANYTIME = 1 << 0,    /* legal before cuInit and in a forked child */
    PER_THREAD = 1 << 1, /* the variant for --default-stream per-thread */
    CURRENT = 1 << 2,    /* needs a current context that is alive and has no sticky error */
};

enum function {
#define FUNCTION(symbol, base, since, flags, cost_ns, mib_ns) FN_##symbol,
#define UNSIMULATED(symbol, base, since, flags)
#include "tests/sim/variants.def"
#undef FUNCTION
#undef UNSIMULATED
    FUNCTION_COUNT
};

/* Counts the call, applies faults and costs, checks state. On CUDA_SUCCESS the lock is held. */
CUresult api_enter(enum function function);
/* Releases the lock; returns result. */
CUresult api_leave(CUresult result);

/* As api_enter and api_leave, for calls that touch only the calling thread's own state: no lock. */
CUresult api_touch(enum function function);

#define API(symbol, params, body)                                                                  \
    CUresult CUDAAPI symbol params                                                                 \
    {                                                                                              \
        CUresult entered = api_enter(FN_##symbol);                                                 \
        return entered == CUDA_SUCCESS ? api_leave(body) : entered;                                \
    }

#define API_UNLOCKED(symbol, params, body)                                                         \
    CUresult CUDAAPI symbol params                                                                 \
    {                                                                                              \
        CUresult entered = api_touch(FN_##symbol);                                                 \
        return entered == CUDA_SUCCESS ? (body) : entered;                                         \
    }

/* Argument checks as rows in front of an API's body: NEEDS(condition, error) NEEDS(..) body. The
 * first condition that does not hold gives its error. */
#define NEEDS(condition, error) !(condition) ? CUDA_ERROR_##error:
#define NEEDS_DEVICE(device) NEEDS(device_valid(device), INVALID_DEVICE)
/* The body of an API that only stores an answer. */
#define GIVE(out, value) (*(out) = (value), CUDA_SUCCESS)

/* Both variants of a function with a default stream. In body, STREAM(h) is h, or the variant's
 * default stream when h is NULL; `standard` is that default stream. */
#define API_VARIANT(symbol, default_stream, params, body)                                          \
    CUresult CUDAAPI symbol params                                                                 \
    {                                                                                              \
        const CUstream standard = default_stream;                                                  \
        (void)standard;                                                                            \
        CUresult entered = api_enter(FN_##symbol);                                                 \
        return entered == CUDA_SUCCESS ? api_leave(body) : entered;                                \
    }
#define API_BOTH(legacy, per_thread, params, body)                                                 \
    API_VARIANT(legacy, CU_STREAM_LEGACY, params, body)                                            \
    API_VARIANT(per_thread, CU_STREAM_PER_THREAD, params, body)
#define STREAM(h) ((h) != NULL ? (h) : standard)

/* The lock, for what is not an API call. */
void api_lock(void);
void api_unlock(void);
/* Gives the lock up for a while of real time (at most wait_us), or until api_wake. Lock held. */
void api_sleep(unsigned wait_us);
void api_wake(void);

CUresult api_init(unsigned flags);
/* In this process, be it over by now. */
bool api_used(void);

const char *api_name(enum function function);
/* FUNCTION_COUNT when there is no such symbol. */
enum function api_by_name(const char *symbol);
uint64_t api_calls(enum function function);
/* Extra virtual time of a call whose price depends on a size. Lock held. */
void api_charge_size(enum function function, uint64_t size_bytes);
void api_set_cost(enum function function, uint64_t cost_ns);

#endif
