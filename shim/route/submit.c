/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The wrappers of everything in shim/driver/submit.def. They tell the pool that work is about to be
 * submitted, if the pool wants to know, make the call, and look at the driver's answer. No state
 * but the driver's functions, no lock.
 *
 * The wrappers do so only while the pool asks for it (pool_watch, pool/pool.h). From the first pool
 * on they look at the driver's answer (shim/entry/answer.h); before it a wrapper is a compare, a
 * branch and a jump, with the caller's arguments where they were.
 */
#include "shim/context/stream_watch.h"

#include "pool/pool.h"
#include "shim/entry/answer.h"
#include "shim/share/peer.h"

#include <stdatomic.h>

/* The caller may pass NULL where the driver expects a structure: the refusal is the driver's. */
#define SUBMIT_CONFIG_STREAM(config) ((config) ? (config)->hStream : NULL)
#define SUBMIT_CONFIG_FLAGS(config) flags_of(config)
#define SUBMIT_CONFIG(config) (seen == SUBMIT_IN_TURN ? wait_turn(config, &turn) : (config))

/* Programmatic serialisation: unless it is 0, the kernel may start early. */
#define ATTRIBUTE_SERIALIZATION 6
#define ATTRIBUTES_MAX 24

static unsigned flags_of(const CUlaunchConfig *config)
{
    unsigned flags = SUBMIT_FLAG_KERNEL;
    if (!config)
        return flags;
    if (config->numAttrs > ATTRIBUTES_MAX || (config->numAttrs && !config->attrs))
        return flags | SUBMIT_FLAG_ATTRS;
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttribute *a = &config->attrs[i];
        if ((unsigned)a->id == ATTRIBUTE_SERIALIZATION)
            flags |= a->value.programmaticStreamSerializationAllowed ? SUBMIT_FLAG_EARLY : 0;
        else if (!stream_watch_keeps_order(a->id))
            flags |= SUBMIT_FLAG_ATTRS;
    }
    return flags;
}

/* The launch without its leave to start early. Natively nothing is left for it to overlap either:
 * the free that stands between it and the kernels before it has waited for them. */
struct turn {
    CUlaunchConfig config;
    CUlaunchAttribute attributes[ATTRIBUTES_MAX];
};

static const CUlaunchConfig *wait_turn(const CUlaunchConfig *config, struct turn *turn)
{
    turn->config = *config;
    turn->config.attrs = turn->attributes;
    for (unsigned i = 0; i < config->numAttrs; i++) {
        turn->attributes[i] = config->attrs[i];
        if ((unsigned)config->attrs[i].id == ATTRIBUTE_SERIALIZATION)
            turn->attributes[i].value.programmaticStreamSerializationAllowed = 0;
    }
    return &turn->config;
}

/* The wrapper proper. Compilers load and store again the arguments that lie on the stack (five of a
 * kernel launch's eleven) even for a call that leaves them where they are; hence assembler. Flags
 * and scratch registers are free at a function's entry. The tail jump leaves the shadow stack
 * balanced. */
#if defined(__x86_64__)
#define SUBMIT_ENTRY(symbol)                                                                       \
    "    cmpl $0, pool_watch(%rip)\n"                                                              \
    "    jne slow_" symbol "\n"                                                                    \
    "    jmp *real_" symbol "(%rip)\n"
#elif defined(__aarch64__)
#define SUBMIT_ENTRY(symbol)                                                                       \
    "    hint #34\n" /* bti c */                                                                   \
    "    adrp x16, pool_watch\n"                                                                   \
    "    ldr w16, [x16, #:lo12:pool_watch]\n"                                                      \
    "    cbnz w16, 1f\n"                                                                           \
    "    adrp x16, real_" symbol "\n"                                                              \
    "    ldr x16, [x16, #:lo12:real_" symbol "]\n"                                                 \
    "    br x16\n"                                                                                 \
    "1:  b slow_" symbol "\n"
#else
#error "the wrappers of work submission are written for x86-64 and aarch64"
#endif

#define SUBMIT(symbol, pfn, params, args, stream, flags)                                           \
    __asm__(".pushsection .text\n"                                                                 \
            ".balign 16\n"                                                                         \
            ".globl " #symbol "\n"                                                                 \
            ".type " #symbol ", %function\n"                                                       \
            ".hidden pool_watch\n" #symbol ":\n"                                                   \
            ".cfi_startproc\n" SUBMIT_ENTRY(#symbol) ".cfi_endproc\n"                              \
            ".size " #symbol ", . - " #symbol "\n"                                                 \
            ".popsection\n");
#include "shim/driver/submit.def"

static enum submit_seen enter(CUstream stream, unsigned flags)
{
    bool is_wanted = hooks_init() && atomic_load_explicit(&pool_watch, memory_order_relaxed) & ~POOL_WATCH_ANSWERS;
    return is_wanted ? stream_watch_note(stream, flags) : SUBMIT_UNSEEN;
}

/* What cannot be made again as a whole needs memory of no device. */
static uint64_t devices_of(CUstream stream, unsigned flags)
{
    if (flags & (SUBMIT_FLAG_PARTS | SUBMIT_FLAG_MANY))
        return ANSWER_NOWHERE;
    return flags & SUBMIT_FLAG_ANYWHERE ? ANSWER_ANYWHERE : answer_stream(stream);
}

/* The way through the pool, for who looks at the answers, and through the search for the driver at
 * the first call of all. A submission for which there was no memory is over for the pool before
 * idle memory goes back, and is noted anew when it is made again: frees that came meanwhile lie
 * before it, as for any other one. */
#define SUBMIT(symbol, pfn, params, args, stream, flags)                                           \
    CUresult slow_##symbol params __attribute__((used, visibility("hidden")));                     \
    CUresult slow_##symbol params                                                                  \
    {                                                                                              \
        struct turn turn __attribute__((unused)); /* for SUBMIT_CONFIG */                          \
        CUresult rc;                                                                               \
        unsigned step = 0;                                                                         \
        do {                                                                                       \
            unsigned watch = atomic_load_explicit(&pool_watch, memory_order_relaxed);              \
            enum submit_seen seen =                                                                \
                watch == POOL_WATCH_ANSWERS ? SUBMIT_UNSEEN : enter(stream, flags);                \
            pfn driver_fn = atomic_load_explicit(&real_##symbol, memory_order_relaxed);            \
            rc = driver_fn != slow_##symbol ? driver_fn args : CUDA_ERROR_NOT_INITIALIZED;         \
            if (rc == CUDA_ERROR_INVALID_VALUE && ((flags)&SUBMIT_FLAG_COPY) && peer_grant_missing())       \
                rc = driver_fn args;                                                               \
            if (seen != SUBMIT_UNSEEN)                                                             \
                stream_watch_done(rc == CUDA_SUCCESS);                                                   \
        } while (answer_tells(rc) && answer_note(rc) &&                                            \
                 answer_release(devices_of(stream, flags), &step));                                \
        return rc;                                                                                 \
    }
#include "shim/driver/submit.def"
