/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The wrappers that only look at the driver's answer, and count some of them: kinds of memory that
 * are the driver's business. No state of its own, no lock.
 */
#include "shim/entry/answer.h"
#include "shim/stats/counters.h"
#include "shim/driver/hooks.h"

/* Other libraries patch the first bytes of allocation functions (UCX does, to see them) and know
 * few instructions. A saved register makes five bytes of pushes and moves before anything else. */
#if defined(__x86_64__)
#define LONG_PROLOGUE() __asm__ volatile("" ::: "rbx")
#else
#define LONG_PROLOGUE() ((void)0)
#endif

#define HOOK_COUNTED(symbol, pfn, params, args, counter, devices)                                  \
    CUresult symbol params                                                                         \
    {                                                                                              \
        LONG_PROLOGUE();                                                                           \
        CUresult rc = answer_##symbol args;                                                        \
        if (rc == CUDA_SUCCESS)                                                                    \
            counter_add(COUNTER_##counter, 1);                                                     \
        return rc;                                                                                 \
    }
#define HOOK_PASSED(symbol, pfn, params, args, devices)                                            \
    CUresult symbol params                                                                         \
    {                                                                                              \
        return answer_##symbol args;                                                               \
    }
#include "shim/driver/hooks.def"
