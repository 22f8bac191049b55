/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The wrappers of all rows of shim/driver/submit.def. They read the word pool_watch (pool/pool.h).
 * 1. While it is 0, a wrapper is a compare, a branch and a jump to the driver. The caller's
 *    arguments stay in place.
 * 2. Once the process has a pool or an imported block, the word has POOL_WATCH_ERRORS. Then the
 *    wrapper marks the thread's record (shim/context/submitter.h) until the driver has answered,
 *    and looks at the answer (shim/entry/retry.h).
 * 3. While the word has POOL_WATCH_GATE behind the mark, the thread takes the mark back and waits
 *    (shim/park/gate.h).
 * 4. While the word has other bits, a pool needs to know of submissions. Then the wrapper also
 *    calls submission_begin before the driver.
 * No state but the slots of the driver's functions, no lock of this file.
 */
#include "shim/context/stream_watch.h"

#include "pool/pool.h"
#include "shim/entry/retry.h"
#include "shim/park/gate.h"
#include "shim/process/state.h"
#include "shim/share/peer.h"

#include <stdatomic.h>

/* The caller may pass NULL for the structure. The wrapper then leaves the refusal to the driver. */
#define SUBMIT_CONFIG_STREAM(config) ((config) ? (config)->hStream : NULL)
#define SUBMIT_CONFIG_FLAGS(config) flags_of(config)
#define SUBMIT_CONFIG(config) (seen == SUBMIT_IN_TURN ? wait_turn(config, &turn) : (config))

/* Programmatic stream serialization: unless its value is 0, the kernel may start early. */
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

/* A launch that may not start early. Without us it would not overlap the kernels before it either:
 * the program called cudaFree between them, and natively that call waits for those kernels. */
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

/* The wrapper, in assembler. Compilers load and store the arguments on the stack (five of a kernel
 * launch's eleven) even for a tail call that keeps them in place. At its entry a function may
 * change flags and scratch registers. The tail jump leaves the shadow stack balanced. */
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
                                                     ".size " #symbol ", . - " #symbol "\n"        \
                                                     ".popsection\n");
#include "shim/driver/submit.def"

/* The way of a launch while the word has POOL_WATCH_ERRORS alone. Nobody has to know the stream.
 * True: marked, and the word is still so. */
static inline bool mark_at_once(void)
{
    struct submitter *s = submitter_mine;
    if (unlikely(!s))
        return false;
    submitter_mark(s, SUBMITTER_OTHER);
    if (likely(atomic_load(&pool_watch) == POOL_WATCH_ERRORS))
        return true;
    submitter_unmark(s);
    return false;
}

/* rc: an error that the program gets instead of the driver's answer. Two words in one register. */
struct entered {
    enum submit_seen seen;
    CUresult rc;
};

/* Any other way, and a thread's first submission. */
static struct entered enter(CUstream stream, unsigned flags)
{
    unsigned watch;
    if (!hooks_init() || !atomic_load(&pool_watch) || !state_is_on())
        return (struct entered){SUBMIT_UNSEEN, CUDA_SUCCESS};
    struct submitter *s = submitter_find();
    uint64_t name = submission_name(s, stream, flags);
    CUresult rc = gate_enter(s, name, &watch);
    if (rc != CUDA_SUCCESS)
        return (struct entered){SUBMIT_UNSEEN, rc};
    if (watch & ~POOL_WATCH_ERRORS)
        return (struct entered){submission_begin(s, name, watch, flags), CUDA_SUCCESS};
    return (struct entered){s ? SUBMIT_MARKED : SUBMIT_UNSEEN, CUDA_SUCCESS};
}

/* The devices whose idle memory may help the submission. No device for a submission of several
 * parts: some parts may be submitted already, so the wrapper does not repeat it. */
static uint64_t devices_of(CUstream stream, unsigned flags)
{
    if (flags & (SUBMIT_FLAG_PARTS | SUBMIT_FLAG_MANY))
        return DEVICES_NONE;
    return flags & SUBMIT_FLAG_ANYWHERE ? DEVICES_ALL : devices_stream(stream);
}

/* The slow half of a wrapper. It runs while pool_watch is not 0, and at the first call, when it
 * looks for the driver. If the driver has no memory for a submission:
 * 1. The wrapper ends the mark of the submission. So nobody waits for this thread in step 2.
 * 2. It gives idle memory back to the driver.
 * 3. It notes the submission again and repeats it. So frees since 1 precede it, as they precede any
 *    other submission. */
#define SUBMIT(symbol, pfn, params, args, stream, flags)                                           \
    CUresult slow_##symbol params __attribute__((used, visibility("hidden")));                     \
    CUresult slow_##symbol params                                                                  \
    {                                                                                              \
        struct turn turn __attribute__((unused)); /* for SUBMIT_CONFIG */                          \
        CUresult rc;                                                                               \
        struct retry_steps steps = {0};                                                            \
        do {                                                                                       \
            unsigned watch = atomic_load_explicit(&pool_watch, memory_order_relaxed);              \
            enum submit_seen seen = SUBMIT_MARKED;                                                 \
            if (watch != POOL_WATCH_ERRORS || !mark_at_once()) {                                   \
                struct entered entered = enter(stream, flags);                                     \
                if (entered.rc != CUDA_SUCCESS)                                                    \
                    return entered.rc;                                                             \
                seen = entered.seen;                                                               \
            }                                                                                      \
            pfn driver_fn = atomic_load_explicit(&real_##symbol, memory_order_relaxed);            \
            rc = driver_fn != slow_##symbol ? driver_fn args : CUDA_ERROR_NOT_INITIALIZED;         \
            if (rc == CUDA_ERROR_INVALID_VALUE && ((flags) & SUBMIT_FLAG_COPY) &&                  \
                peer_grant_missing())                                                              \
                rc = driver_fn args;                                                               \
            if (seen == SUBMIT_MARKED)                                                             \
                submitter_unmark(submitter_mine);                                                  \
            else if (seen != SUBMIT_UNSEEN)                                                        \
                submission_end(rc == CUDA_SUCCESS);                                                \
        } while (retry_is_error(rc) && retry_note_error(rc) &&                                     \
                 retry_release(devices_of(stream, flags), &steps));                                \
        return rc;                                                                                 \
    }
#include "shim/driver/submit.def"
