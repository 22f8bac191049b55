/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/trace/stack.c: call paths are what the C library's own unwinder finds, or shorter. */
#include "shim/trace/cfi.h"
#include "shim/trace/stack.h"

#include <execinfo.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

#include "tests/unit/cases.h"
#include "tests/unit/chain.h"

enum { FRAMES = 256, OWN_STACK_BYTES = 256 << 10 };

static unsigned most_frames = STACK_FRAMES_MOST;
static __thread volatile unsigned found; /* of the last walk */
static __thread uint64_t at[STACK_FRAMES_MOST];
static int num_learned;

enum cfi_found __real_cfi_find(uintptr_t address, struct cfi_rule *out);
enum cfi_found __wrap_cfi_find(uintptr_t address, struct cfi_rule *out);
enum cfi_found __wrap_cfi_find(uintptr_t address, struct cfi_rule *out)
{
    __atomic_add_fetch(&num_learned, 1, __ATOMIC_RELAXED);
    return __real_cfi_find(address, out);
}

static __attribute__((noinline)) void walk(void)
{
    found = stack_walk(__builtin_return_address(0), most_frames, (struct stack_code){0}, at);
}

/* The path is the same as the C library's, as far as it goes. */
static __attribute__((noinline)) void compare(void)
{
    void *all[FRAMES];
    int count = backtrace(all, FRAMES), first = 0;
    found = stack_walk(__builtin_return_address(0), most_frames, (struct stack_code){0}, at);
    while (first < count && all[first] != __builtin_return_address(0))
        first++;
    assert_true(first < count);
    assert_true(found <= (unsigned)(count - first));
    for (unsigned i = 0; i < found; i++)
        if (at[i] != (uintptr_t)all[first + (int)i])
            fail_msg("frame %u is not %p", i, all[first + (int)i]);
    __asm__ volatile("");
}

TEST(all_frames_of_a_chain_are_found)
{
    for (int depth = 0; depth < 40; depth += 13) {
        chain_without(compare, depth);
        assert_true(found >= (unsigned)(CHAIN_FRAMES + depth));
        chain_with_frame_pointers(compare, depth);
        assert_true(found >= (unsigned)(CHAIN_FRAMES + depth));
    }
}

TEST(no_more_frames_than_asked_for)
{
    for (most_frames = 1; most_frames < 12; most_frames++) {
        chain_without(compare, 3);
        assert_int_equal(found, most_frames);
    }
    most_frames = STACK_FRAMES_MOST;
}

static __attribute__((noinline)) int learned_in_a_chain(void)
{
    int before = num_learned;
    chain_without(compare, 9);
    return num_learned - before;
}

static __attribute__((noinline)) void walk_up_to_a_library(void)
{
    unsigned all = stack_walk(__builtin_return_address(0), 64, (struct stack_code){0}, at);
    uintptr_t last = (uintptr_t)at[all - 1];
    found = stack_walk(__builtin_return_address(0), 64, (struct stack_code){last, last + 1}, at);
    assert_int_equal(found, all - 1);
}

TEST(frames_of_code_that_is_not_wanted_end_the_path)
{
    chain_without(walk_up_to_a_library, 1);
    assert_true(found >= CHAIN_FRAMES);
}

TEST(known_rules_are_not_learned_anew)
{
    int (*volatile learned)(void) = learned_in_a_chain;
    for (volatile int i = 0; i < 3; i++) {
        int number = learned();
        if (i)
            assert_true(i == 1 ? number == 0 : number > CHAIN_FRAMES);
        if (i)
            stack_forget();
    }
}

TEST(a_caller_that_is_not_there_has_no_path)
{
    assert_int_equal(stack_walk((void *)(uintptr_t)0x1234, 8, (struct stack_code){0}, at), 0);
    assert_int_equal(stack_walk(NULL, 8, (struct stack_code){0}, at), 0);
}

static jmp_buf away;

static __attribute__((noinline, noreturn)) void walk_and_leave(void)
{
    compare();
    longjmp(away, 1);
}

/* Its last instruction is a call: the return address is the next function's. */
static __attribute__((noinline, noreturn)) void never_returns(void)
{
    char room[200];
    __asm__ volatile("" ::"r"(room) : "memory");
    walk_and_leave();
}

TEST(the_caller_may_end_with_its_call)
{
    found = 0;
    if (!setjmp(away))
        never_returns();
    assert_true(found > 3);
}

/* Frames whose return address is no code, or code that no call stands before: the stack is broken
 * above, and its addresses are not told. */
static __attribute__((noinline)) void broken(uintptr_t address)
{
    uintptr_t *frame = __builtin_frame_address(0);
    uintptr_t good = __atomic_exchange_n(&frame[1], address, __ATOMIC_RELAXED);
    walk();
    __atomic_store_n(&frame[1], good, __ATOMIC_RELAXED);
    assert_int_equal(found, 1);
}

TEST(a_broken_stack_ends_the_path)
{
#if defined(__x86_64__)
    static char data[64];
    broken(1);
    broken(UINTPTR_MAX);
    broken((uintptr_t)data);
    broken((uintptr_t)state);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    /* Its first byte is behind no call; but a sanitizer ends the function before it with one. */
    broken((uintptr_t)broken);
#endif
    broken((uintptr_t)1 << 62);
#else
    skip();
#endif
}

static void *in_a_thread(void *arg)
{
    chain_without(compare, 5);
    bool all = found >= CHAIN_FRAMES + 5;
    chain_with_frame_pointers(compare, 5);
    return all && found >= CHAIN_FRAMES + 5 ? arg : NULL;
}

TEST(threads_have_bounds_of_their_own)
{
    pthread_t all[4];
    pthread_attr_t attr;
    void *done;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, OWN_STACK_BYTES);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 4; i++)
            assert_int_equal(pthread_create(&all[i], &attr, in_a_thread, all), 0);
        for (int i = 0; i < 4; i++) {
            pthread_join(all[i], &done);
            assert_ptr_equal(done, all);
        }
    }
    pthread_attr_destroy(&attr);
}

static void *own_stack(void)
{
    void *made =
        mmap(NULL, OWN_STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(made, MAP_FAILED);
    return made;
}

static void on_signal(int number)
{
    chain_without(walk, 1);
}

TEST(a_signal_on_a_stack_of_its_own_has_no_path)
{
    stack_t other = {.ss_sp = own_stack(), .ss_size = OWN_STACK_BYTES}, before;
    struct sigaction act = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK}, old;
    sigaltstack(&other, &before);
    sigaction(SIGUSR2, &act, &old);
    found = 99;
    raise(SIGUSR2);
    assert_int_equal(found, 0);
    sigaltstack(&before, NULL);
    /* On the thread's own stack it goes up to the signal's frame. */
    act.sa_flags = 0;
    sigaction(SIGUSR2, &act, NULL);
    raise(SIGUSR2);
    assert_true(found >= CHAIN_FRAMES);
    sigaction(SIGUSR2, &old, NULL);
    munmap(other.ss_sp, OWN_STACK_BYTES);
}

static ucontext_t here, there;

static void coroutine(void)
{
    chain_without(walk, 1);
    unsigned first = found;
    swapcontext(&there, &here);
    chain_with_frame_pointers(walk, 1);
    found += first;
    swapcontext(&there, &here);
}

TEST(a_coroutine_has_no_path)
{
    void *stack = own_stack();
    chain_without(compare, 1); /* the thread's bounds are known */
    for (int i = 0; i < 2; i++) {
        if (!i) {
            getcontext(&there);
            there.uc_stack.ss_sp = stack;
            there.uc_stack.ss_size = OWN_STACK_BYTES;
            there.uc_link = NULL;
            makecontext(&there, coroutine, 0);
        }
        found = 99;
        swapcontext(&here, &there);
        assert_int_equal(found, 0);
        chain_without(compare, 1);
        assert_true(found > CHAIN_FRAMES);
        found = 0;
    }
    munmap(stack, OWN_STACK_BYTES);
}

static void *ends_in_a_chain(void *arg)
{
    chain_without(compare, 3);
    pthread_cancel(pthread_self());
    chain_without(compare, 3);
    chain_without(pthread_testcancel, 3);
    return NULL;
}

TEST(a_cancelled_thread_leaves_nothing)
{
#if defined(__SANITIZE_ADDRESS__)
    skip(); /* the sanitizer does not see that a cancelled thread's frames are gone */
#endif
    for (int i = 0; i < 20; i++) {
        void *result;
        pthread_t thread = started(ends_in_a_chain, NULL);
        pthread_join(thread, &result);
        assert_ptr_equal(result, PTHREAD_CANCELED);
    }
    chain_with_frame_pointers(compare, 7);
}

static void *walk_on(void *over)
{
    while (!__atomic_load_n((bool *)over, __ATOMIC_RELAXED))
        in_a_thread(over);
    return NULL;
}

TEST(rules_are_forgotten_beside_walks)
{
    pthread_t all[3];
    bool over = false;
    struct timespec pause = {.tv_nsec = 200000};
    for (int i = 0; i < 3; i++)
        pthread_create(&all[i], NULL, walk_on, &over);
    for (int i = 0; i < 500; i++) {
        stack_forget();
        nanosleep(&pause, NULL);
    }
    __atomic_store_n(&over, true, __ATOMIC_RELAXED);
    for (int i = 0; i < 3; i++)
        pthread_join(all[i], NULL);
}

#if defined(__x86_64__)
PLAY_TESTS
#else
int main(void)
{
    return 77; /* a path is the caller alone */
}
#endif
