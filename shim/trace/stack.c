/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See stack.h.
 */
#include "shim/trace/stack.h"

#include "shim/process/cancel.h"
#include "shim/trace/cfi.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

enum { SET_BITS = 10, SETS = 1 << SET_BITS, WAYS = 4, OWN_FRAMES_MOST = 24 };

/* A rule in a word: 38 bits of the address's hash, whose other 10 bits are the set; then of struct
 * cfi_rule rbp_words (6 bits), cfa_words (17 bits), and the bits below. The hash of 48 bits is one
 * to one. The word 0: the place is free. CFA words 0: the path ends here, or behind this address.
 */
enum { TAG_BITS = 38, TAG_SHIFT = 26, RBP_SHIFT = 20, RBP_MASK = 0x3f, CFA_BYTES = 0xffff8 };
enum { FROM_RBP = 1, LOSES_RBP = 2, BEHIND_CALL = 4 };
#define ADDRESS_BITS 48
#define HASH_FACTOR UINT64_C(0x9e3779b97f4b) /* odd */
#define TAG(hash) ((hash) & ((UINT64_C(1) << TAG_BITS) - 1))
_Static_assert(TAG_BITS + SET_BITS == ADDRESS_BITS && TAG_BITS + TAG_SHIFT == 64 &&
                   CFI_WORDS_MOST * 8 <= CFA_BYTES && CFI_RBP_MOST <= RBP_MASK,
               "a rule fits");

static _Atomic uint64_t rules[SETS][WAYS];
static atomic_bool has_rules;

/* The thread's stack. high 0: not asked yet. low UINTPTR_MAX: it is not known. */
static __thread struct {
    uintptr_t low, high;
} bounds __attribute__((tls_model("initial-exec")));

/* Where the thread goes on behind a call, and the registers there. */
struct frame {
    uintptr_t pc, sp, fp;
    bool has_fp;
};

static __attribute__((noinline, cold)) void ask_bounds(void)
{
    int saved_errno = errno, cancel = cancel_forbid();
    pthread_attr_t attr;
    void *low;
    size_t size_bytes;
    bounds.low = bounds.high = UINTPTR_MAX;
    if (pthread_getattr_np(pthread_self(), &attr) == 0) {
        if (pthread_attr_getstack(&attr, &low, &size_bytes) == 0) {
            bounds.low = (uintptr_t)low;
            bounds.high = (uintptr_t)low + size_bytes;
        }
        pthread_attr_destroy(&attr);
    }
    cancel_allow(cancel);
    errno = saved_errno;
}

static __attribute__((noinline, cold)) uint64_t learn(uintptr_t address, uint64_t hash)
{
    struct cfi_rule rule = {0};
    uint64_t word = TAG(hash) << TAG_SHIFT;
    if (address >> ADDRESS_BITS)
        return 0;
    enum cfi_found found = cfi_find(address, &rule);
    if (found != CFI_NO_CALL)
        word |= BEHIND_CALL;
    if (found == CFI_RULE)
        word |= (uint64_t)rule.rbp_words << RBP_SHIFT | (uint64_t)rule.cfa_words * 8 |
                (rule.is_from_rbp ? FROM_RBP : 0) | (rule.loses_rbp ? LOSES_RBP : 0);
    _Atomic uint64_t *set = rules[hash >> TAG_BITS];
    unsigned way = 0;
    while (way < WAYS && atomic_load_explicit(&set[way], memory_order_relaxed))
        way++;
    if (way == WAYS) /* any but the first: those that count most came early */
        way = 1 + TAG(hash) % (WAYS - 1);
    atomic_store(&has_rules, true);
    atomic_store_explicit(&set[way], word, memory_order_relaxed);
    return word;
}

static inline uint64_t rule_of(uintptr_t address)
{
    uint64_t hash = address * HASH_FACTOR & ((UINT64_C(1) << ADDRESS_BITS) - 1);
    for (unsigned way = 0; way < WAYS && !(address >> ADDRESS_BITS); way++) {
        uint64_t word = atomic_load_explicit(&rules[hash >> TAG_BITS][way], memory_order_relaxed);
        if (__builtin_expect(word >> TAG_SHIFT == TAG(hash) && word, 1))
            return word;
    }
    return learn(address, hash);
}

void stack_forget(void)
{
    if (!atomic_load(&has_rules))
        return;
    for (size_t i = 0; i < SETS * WAYS; i++)
        atomic_store_explicit(&rules[i / WAYS][i % WAYS], 0, memory_order_relaxed);
}

/* Other threads' stores to the stack, and the sanitizers' marks there, are no matter of a walk: it
 * reads what calls have saved. */
#define READS_FRAMES __attribute__((no_sanitize("address", "thread")))
#define WORD_AT(address) (*(const uintptr_t *)(address))

/* To the caller, by the rule of f->pc. False: the path ends here. */
READS_FRAMES static inline bool leave_frame(struct frame *f, uint64_t rule, uintptr_t high)
{
#if defined(__x86_64__)
    uintptr_t size_bytes = rule & CFA_BYTES, cfa = f->sp + size_bytes;
    uintptr_t down_bytes = (rule >> RBP_SHIFT & RBP_MASK) * 8;
    if (rule & FROM_RBP) {
        cfa = f->fp + size_bytes;
        if (!f->has_fp || cfa % 8 || cfa < f->sp + 8)
            return false;
    }
    if (!size_bytes || cfa > high || down_bytes > cfa - f->sp)
        return false;
    if (rule & LOSES_RBP)
        f->has_fp = false;
    if (down_bytes)
        f->fp = WORD_AT(cfa - down_bytes);
    f->pc = WORD_AT(cfa - 8);
    f->sp = cfa;
    return true;
#else
    (void)f;
    (void)high;
    (void)rule;
    return false;
#endif
}

READS_FRAMES __attribute__((noinline)) unsigned stack_walk(const void *caller, unsigned most,
                                                           struct stack_code until, uint64_t *out)
{
    const uintptr_t *own = __builtin_frame_address(0);
    struct frame f = {own[1], (uintptr_t)(own + 2), own[0], true};
    unsigned passed = 0, count = 0;
    if (__builtin_expect(!bounds.high, 0))
        ask_bounds();
    uintptr_t high = bounds.high;
    if ((uintptr_t)own < bounds.low || f.sp >= high)
        return 0;
    while (f.pc != (uintptr_t)caller)
        if (passed++ == OWN_FRAMES_MOST || !leave_frame(&f, rule_of(f.pc), high))
            return 0;
    for (bool more = true; more && count < most;) {
        uint64_t rule = rule_of(f.pc);
        if (!(rule & BEHIND_CALL) || (f.pc >= until.start && f.pc < until.end))
            break;
        out[count++] = f.pc;
        more = leave_frame(&f, rule, high);
    }
    return count;
}
