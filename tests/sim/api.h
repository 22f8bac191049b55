/* SPDX-License-Identifier: BSD-2-Clause */
/* The frame around every exported function: the state of the driver, the one lock, call counts,
 * faults and costs. API(name, parameters, body) exports a function whose body runs under the
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
#include "tests/sim/variants.def"
    FUNCTION_COUNT
};

/* Counts the call, applies faults and costs, and checks the state. If it returns CUDA_SUCCESS, the
 * caller holds the lock. */
CUresult api_enter(enum function function);
/* Releases the lock and returns result. */
CUresult api_leave(CUresult result);

/* As api_enter, for calls that touch only the calling thread's own state. It returns without the
 * lock. */
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

/* Exports both variants of a function with a default stream. In body, STREAM(h) is h, or the
 * variant's default stream if h is NULL; `standard` is that default stream. */
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

/* The same for what is done on one stream. In body, `on` is the stream that handle names; where it
 * names none, the call gives that error. For stream.h. */
#define API_STREAM_VARIANT(symbol, default_stream, params, handle, body)                           \
    CUresult CUDAAPI symbol params                                                                 \
    {                                                                                              \
        const CUstream standard = default_stream;                                                  \
        (void)standard;                                                                            \
        CUstream on;                                                                               \
        CUresult rc = api_enter(FN_##symbol);                                                      \
        if (rc != CUDA_SUCCESS)                                                                    \
            return rc;                                                                             \
        rc = stream_resolve(handle, &on);                                                          \
        return api_leave(rc == CUDA_SUCCESS ? (body) : rc);                                        \
    }
#define API_STREAM(legacy, per_thread, params, handle, body)                                       \
    API_STREAM_VARIANT(legacy, CU_STREAM_LEGACY, params, handle, body)                             \
    API_STREAM_VARIANT(per_thread, CU_STREAM_PER_THREAD, params, handle, body)

/* The lock, for code outside of API calls. */
void api_lock(void);
void api_unlock(void);
/* Gives the lock up for at most wait_us of real time, or until api_wake. The caller holds the
 * lock. */
void api_sleep(unsigned wait_us);
void api_wake(void);

/* The driver was initialised in this process, even if it has ended since. */
bool api_used(void);

const char *api_name(enum function function);
/* Returns FUNCTION_COUNT if no function has this symbol. */
enum function api_by_name(const char *symbol);
uint64_t api_calls(enum function function);
/* Calls of the function wait at their beginning, without the lock; how many do at present. */
void api_hold(enum function function, bool on);
unsigned api_held(void);
/* Charges the extra virtual time of a call whose cost depends on a size. The caller holds the
 * lock. */
void api_charge_size(enum function function, uint64_t size_bytes);

#endif
