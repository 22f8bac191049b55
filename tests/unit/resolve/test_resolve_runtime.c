/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/route/runtime.c, preloaded: cudaMalloc and cudaFree of the caller's own runtime, in a
 * process that has two of them, neither in the global scope. */
#include "tests/unit/resolve/probe.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include "tests/unit/cases.h"

int cudaMalloc(void **p, size_t size);
int cudaFree(void *p);
#pragma weak cudaMalloc
#pragma weak cudaFree

enum { NOT_INITIALIZED = 3 };

struct plugin {
    int (*malloc)(void **p, size_t size);
    int (*malloc_elsewhere)(void **p, size_t size);
    int (*free)(void *p);
};

static struct probe *probe;
static struct plugin old, new;

static struct plugin load(const char *name)
{
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        fail_msg("%s", dlerror());
    return (struct plugin){
        (int (*)(void **, size_t))(uintptr_t)dlsym(handle, "plugin_malloc"),
        (int (*)(void **, size_t))(uintptr_t)dlsym(handle, "plugin_malloc_elsewhere"),
        (int (*)(void *))(uintptr_t)dlsym(handle, "plugin_free"),
    };
}

TEST(without_a_runtime_calls_fail)
{
    void *p = &p;
    probe->serve = true;
    errno = 77;
    assert_int_equal(cudaMalloc(&p, 1), NOT_INITIALIZED);
    assert_int_equal(cudaFree(NULL), NOT_INITIALIZED);
    assert_int_equal(errno, 77);
    assert_ptr_equal(p, &p);
    assert_int_equal(probe->served, 0);
    probe->serve = false;
}

typedef int close_fn(void *);

static void *must_find(void *handle, const char *name)
{
    void *found = handle ? dlsym(handle, name) : NULL;
    if (!found)
        abort();
    return found;
}

/* An unused page where the runtime was, so that it is loaded elsewhere next time. */
static void take_place(const void *address)
{
    uintptr_t page = (uintptr_t)address & ~(uintptr_t)4095;
    if (mmap((void *)page, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != (void *)page)
        abort(); /* the runtime is still there */
}

/* As an object with RTLD_DEEPBIND does, which finds the C library's dlclose before ours. Not in the
 * process's first thread: its calls take a reference to the runtime at once. */
static void *unload_past_us(void *unused)
{
    close_fn *c_librarys =
        (close_fn *)(uintptr_t)must_find(dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD), "dlclose");
    for (int i = 0; i < 2; i++) {
        void *p, *handle = dlopen("libplugin11.so", RTLD_NOW | RTLD_LOCAL);
        int (*f)(void **, size_t) =
            (int (*)(void **, size_t))(uintptr_t)must_find(handle, "plugin_malloc");
        const void *runtimes = must_find(handle, "cudaRuntimeGetVersion");
        if (f(&p, 2) != 1102 || f(&p, 3) != 1103)
            abort();
        c_librarys(handle);
        if (i == 0)
            take_place(runtimes);
    }
    return NULL;
}

TEST(a_runtime_that_was_unloaded_past_us_is_not_called)
{
    pthread_t thread = started(unload_past_us, NULL);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

TEST(each_caller_reaches_its_own_runtime)
{
    void *p;
    old = load("libplugin11.so");
    new = load("libplugin12.so");
    for (int again = 0; again < 3; again++) {
        errno = 77;
        assert_int_equal(new.malloc(&p, 5), 1205);
        assert_int_equal(old.malloc(&p, 6), 1106);
        assert_int_equal(old.free(NULL), 1100);
        assert_int_equal(new.free(NULL), 1200);
        assert_int_equal(new.malloc_elsewhere(&p, 7), 1207);
        assert_int_equal(errno, 77);
    }
}

TEST(the_short_cut_serves_new_runtimes_only)
{
    void *p = NULL;
    probe->serve = true;
    /* The short cut serves once the runtime was seen to reach the pool. A failing call does not
     * show that. */
    assert_int_equal(new.malloc(&p, 1), 0);
    assert_int_equal(new.malloc(&p, 5), 1205);
    probe->in_pool = true;
    assert_int_equal(new.malloc(&p, 5), 1205);
    assert_int_equal(new.malloc(&p, 1), 0);
    assert_int_equal(old.malloc(&p, 1), 0);
    assert_int_equal(probe->served, 0);
    assert_int_equal(new.malloc(&p, 5), 0);
    assert_ptr_equal(p, probe);
    assert_int_equal(new.free(p), 0);
    assert_int_equal(probe->served, 2);
    assert_int_equal(old.malloc(&p, 5), 1105);
    assert_int_equal(old.free(p), 1100);
    assert_int_equal(probe->served, 2);
    probe->serve = false;
}

/* The main program has no runtime of its own: some loaded one serves. */
TEST(a_caller_without_a_runtime_gets_a_loaded_one)
{
    void *p;
    int rc = cudaMalloc(&p, 9);
    assert_true(rc == 1109 || rc == 1209);
}

TEST(by_handle_the_runtimes_own_function_is_found)
{
    void *handle = dlopen("libcudart.so.12", RTLD_NOW | RTLD_NOLOAD);
    assert_non_null(handle);
    int (*f)(void **, size_t) = (int (*)(void **, size_t))(uintptr_t)dlsym(handle, "cudaMalloc");
    void *p;
    assert_ptr_not_equal(f, cudaMalloc);
    assert_int_equal(f(&p, 3), 1203);
    assert_non_null(dlsym(RTLD_DEFAULT, "cudaMalloc"));
}

static int find_probe(void **state)
{
    probe = probe_find();
    return probe ? 0 : -1;
}

int main(void)
{
    return play_tests(find_probe, NULL);
}
