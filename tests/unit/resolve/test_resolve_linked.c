/* SPDX-License-Identifier: BSD-2-Clause */
/* A program that is linked to the driver and to a runtime. Our exports come first, and each call
 * reaches what it would reach without us. RTLD_DEFAULT and the program's own handle give the same
 * as the linker. With an argument the first call of all is a submission; without, all threads make
 * their first call at the same time. */
#include "tests/unit/resolve/probe.h"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

int cudaMalloc(void **p, size_t size);
int cudaFree(void *p);

enum { NUM_THREADS = 8, NUM_CALLS = 2000 };

static pthread_barrier_t barrier;

static void *first_call(void *arg)
{
    CUdeviceptr p;
    bool *ok = arg;
    *ok = true;
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < NUM_CALLS; i++) {
        if ((int)cuMemAlloc_v2(&p, 1) != DRIVER_ANSWER + HOOK_cuMemAlloc_v2 ||
            (int)cuMemcpyDtoD_v2(1, 2, 3) != DRIVER_ANSWER + HOOK_cuMemcpyDtoD_v2)
            *ok = false;
        if (dlsym(RTLD_DEFAULT, "cuMemFree_v2") != (void *)(uintptr_t)cuMemFree_v2)
            *ok = false;
    }
    return NULL;
}

static void all_threads_first_calls_reach_the_driver(void **state)
{
    pthread_t threads[NUM_THREADS];
    bool ok[NUM_THREADS];
    pthread_barrier_init(&barrier, NULL, NUM_THREADS);
    for (int i = 0; i < NUM_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, first_call, &ok[i]), 0);
    for (int i = 0; i < NUM_THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_true(ok[i]);
    }
    assert_int_equal(driver_probe()->calls[HOOK_cuMemAlloc_v2], NUM_THREADS * NUM_CALLS);
    assert_int_equal(driver_probe()->calls[HOOK_cuMemcpyDtoD_v2], NUM_THREADS * NUM_CALLS);
}

static void the_first_call_of_all_may_be_a_submission(void **state)
{
    dlerror();
    assert_int_equal(cuMemcpyDtoD_v2(1, 2, 3), DRIVER_ANSWER + HOOK_cuMemcpyDtoD_v2);
    assert_null(dlerror());
}

static void the_linked_runtime_is_reached(void **state)
{
    void *p;
    for (int again = 0; again < 2; again++) {
        assert_int_equal(cudaMalloc(&p, 5), 1205);
        assert_int_equal(cudaFree(NULL), 1200);
    }
}

/* This library comes after the driver in the order of loading: nothing of it is next. */
static void next_of_a_later_library_is_not_ours(void **state)
{
    void *plugin = dlopen("libplugin11.so", RTLD_NOW | RTLD_LOCAL);
    assert_non_null(plugin);
    void *(*next)(const char *) = (void *(*)(const char *))(uintptr_t)dlsym(plugin, "plugin_next");
    assert_null(next("cuMemAlloc_v2"));
}

static void the_program_sees_the_wrappers_everywhere(void **state)
{
    struct probe *probe = probe_find();
    assert_non_null(probe);
    void *wrapper = (void *)(uintptr_t)probe->table[HOOK_cuMemAlloc_v2].wrapper;
    assert_ptr_equal((void *)(uintptr_t)cuMemAlloc_v2, wrapper);
    assert_ptr_equal(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"), wrapper);
    assert_ptr_equal(dlsym(dlopen(NULL, RTLD_LAZY), "cuMemAlloc_v2"), wrapper);
    void *pfn;
    assert_int_equal(cuGetProcAddress_v2("cuMemAlloc", &pfn, 3020, 0, NULL), CUDA_SUCCESS);
    assert_ptr_equal(pfn, wrapper);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        argc > 1 ? (struct CMUnitTest)cmocka_unit_test(the_first_call_of_all_may_be_a_submission)
                 : (struct CMUnitTest)cmocka_unit_test(all_threads_first_calls_reach_the_driver),
        cmocka_unit_test(the_linked_runtime_is_reached),
        cmocka_unit_test(next_of_a_later_library_is_not_ours),
        cmocka_unit_test(the_program_sees_the_wrappers_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
