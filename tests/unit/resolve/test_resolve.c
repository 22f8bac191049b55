/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/route/resolve.c, hooks.c and submit.c in a process of their own, preloaded, with a driver
 * that says which of its functions was called. The tests run in order: first without the driver,
 * then with it. With RESOLVE_ALIASES in the environment, cuGetProcAddress of that driver answers
 * with other addresses than dlsym. RESOLVE_LIBCUDA is another name to open the driver by. */
#include "pool/pool.h"
#include "shim/context/stream_watch.h"
#include "tests/unit/resolve/probe.h"

#include <dlfcn.h>

#include "tests/unit/cases.h"

#pragma weak cuMemAlloc_v2
#pragma weak cuLaunchKernel
#pragma weak cuGetProcAddress_v2

typedef CUresult any_fn(void *, void *, void *, void *, void *, void *, void *, void *, void *,
                        void *, void *);
typedef CUresult cuGetProcAddress_v2_fn(const char *, void **, int, cuuint64_t,
                                        CUdriverProcAddressQueryResult *);
typedef void *dlsym_fn(void *, const char *);

static struct probe *probe;
static struct driver *driver;
static void *libcuda;
static dlsym_fn *native; /* the C library's own */

/* Declares a function of the driver as a program looks it up. */
#define LOOKUP(type, variable, name) type variable = (type)(uintptr_t)dlsym(libcuda, name)

static void *driver_symbol(const char *name)
{
    return native(libcuda, name);
}

/* A structure of more than 16 bytes is passed by its address on aarch64. One function has one: the
 * frame of an EGL stream, its second argument. */
static CUresult call(void *address)
{
    any_fn *f = (any_fn *)(uintptr_t)address;
#ifdef __aarch64__
    static char frame[1024];
#else
    void *frame = NULL;
#endif
    return f(NULL, frame, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
}

static bool is_resolver(int id)
{
    return id == HOOK_cuGetProcAddress || id == HOOK_cuGetProcAddress_v2;
}

/* The look-up fails with the message that the C library's own gives. */
static void fails_as_natively(void *handle, const char *name)
{
    char expected[512];
    assert_null(native(handle, name));
    snprintf(expected, sizeof expected, "%s", dlerror());
    assert_null(dlsym(handle, name));
    assert_string_equal(dlerror(), expected);
}

TEST(without_a_driver_no_name_of_it_is_found)
{
    dlerror();
    assert_null(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
    assert_non_null(strstr(dlerror(), "undefined symbol: cuMemAlloc_v2"));
    assert_null(dlsym(dlopen(NULL, RTLD_LAZY), "cuLaunchKernel"));
    assert_non_null(strstr(dlerror(), "undefined symbol: cuLaunchKernel"));
    assert_null(dlsym(RTLD_DEFAULT, "cudaMalloc"));
    assert_non_null(dlsym(RTLD_DEFAULT, "malloc"));
}

TEST(without_a_driver_wrappers_say_not_initialized)
{
    CUdeviceptr p;
    void *pfn;
    errno = 77;
    assert_int_equal(cuMemAlloc_v2(&p, 1), CUDA_ERROR_NOT_INITIALIZED);
    assert_int_equal(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL),
                     CUDA_ERROR_NOT_INITIALIZED);
    assert_int_equal(cuGetProcAddress_v2("cuMemAlloc", &pfn, 12000, 0, NULL),
                     CUDA_ERROR_NOT_INITIALIZED);
    assert_int_equal(errno, 77);
}

TEST(a_driver_that_looks_itself_up_while_it_loads_gets_an_answer)
{
    const char *name = getenv("RESOLVE_LIBCUDA");
    libcuda = dlopen(name ? name : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    assert_non_null(libcuda);
    driver = ((struct driver * (*)(void))(uintptr_t)dlsym(libcuda, "driver_probe"))();
    driver->aliases = getenv("RESOLVE_ALIASES") != NULL;
    if (getenv("RESOLVE_QUIET_DRIVER"))
        return;
    assert_ptr_equal(driver->found_by_constructor, probe->table[HOOK_cuMemAlloc_v2].wrapper);
    assert_int_equal(call(driver->found_by_constructor), DRIVER_ANSWER + HOOK_cuMemAlloc_v2);
    assert_int_equal(driver->calls[HOOK_cuMemAlloc_v2], 1);
}

TEST(by_handle_each_wrapped_name_gives_its_wrapper_which_reaches_its_function)
{
    for (int id = 0; id < NUM_HOOKS; id++) {
        const char *name = probe->table[id].name;
        assert_non_null(driver_symbol(name));
        errno = 77;
        void *found = dlsym(libcuda, name);
        assert_int_equal(errno, 77);
        assert_ptr_equal(found, probe->table[id].wrapper);
        assert_ptr_not_equal(found, driver_symbol(name));
        if (is_resolver(id))
            continue;
        unsigned before = driver->calls[id];
        assert_int_equal(call(found), DRIVER_ANSWER + id);
        assert_int_equal(driver->calls[id], before + 1);
    }
    assert_true(probe->calls[HOOK_cuMemFree_v2] > 0);
}

TEST(names_that_are_not_wrapped_are_the_drivers_own)
{
    static const char *const names[] = {"cuDriverGetVersion", "cuMemAlloc", "driver_probe"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_non_null(dlsym(libcuda, names[i]));
        assert_ptr_equal(dlsym(libcuda, names[i]), driver_symbol(names[i]));
    }
}

TEST(a_failing_lookup_fails_as_natively)
{
    static const char *const names[] = {
        "cudnnCreate", "cublasCreate_v2", "curl_easy_init", "cu", "", "cuMemAlloc_v9"};
    void *libm = dlopen("libm.so.6", RTLD_NOW);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        fails_as_natively(libcuda, names[i]);
    /* A wrapped name in a library that has no such function. */
    fails_as_natively(libm, "cuMemAlloc_v2");
}

TEST(another_librarys_function_of_the_same_name_stays)
{
    void *other = dlopen("libother.so", RTLD_NOW | RTLD_LOCAL);
    assert_non_null(other);
    void *found = dlsym(other, "cuMemAlloc_v2");
    assert_non_null(found);
    assert_ptr_equal(found, native(other, "cuMemAlloc_v2"));
    assert_int_equal(call(found), 4242);
}

TEST(a_successful_lookup_leaves_no_message)
{
    dlerror();
    assert_non_null(dlsym(libcuda, "cuMemAlloc_v2"));
    assert_null(dlerror());
}

TEST(next_and_default_are_the_callers_own)
{
    void *plugin = dlopen("libplugin12.so", RTLD_NOW | RTLD_LOCAL);
    assert_non_null(plugin);
    void *(*next)(const char *) = (void *(*)(const char *))(uintptr_t)dlsym(plugin, "plugin_next");
    void *(*any)(const char *) =
        (void *(*)(const char *))(uintptr_t)dlsym(plugin, "plugin_default");
    for (int again = 0; again < 2; again++) {
        int (*f)(void) = (int (*)(void))(uintptr_t)next("next_of_plugin");
        assert_non_null(f);
        assert_int_equal(f(), 2);
        f = (int (*)(void))(uintptr_t)any("only_in_dependency");
        assert_non_null(f);
        assert_int_equal(f(), 3);
        assert_null(any("ompt_start_tool"));
        assert_null(next("cuMemAlloc_v2"));
    }
    assert_null(dlsym(RTLD_DEFAULT, "only_in_dependency"));
}

/* PFN_<base>_v<version>[_ptds|_ptsz], taken apart */
static void query_of(int id, char *base, int *version, cuuint64_t *flags)
{
    strcpy(base, probe->table[id].pfn + strlen("PFN_"));
    char *p = base + strlen(base);
    do
        p--;
    while (strncmp(p, "_v", 2) != 0 || p[2] < '0' || p[2] > '9');
    *version = atoi(p + 2);
    *flags = strstr(p, "_pt") ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
    *p = '\0';
}

TEST(get_proc_address_gives_the_wrapper_of_what_the_driver_answers)
{
    LOOKUP(PFN_cuGetProcAddress_v12000, v2, "cuGetProcAddress_v2");
    LOOKUP(PFN_cuGetProcAddress_v11030, v1, "cuGetProcAddress");
    for (int id = 0; id < NUM_HOOKS; id++) {
        char base[128];
        int version;
        cuuint64_t flags;
        query_of(id, base, &version, &flags);
        CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)99;
        void *pfn = NULL;
        assert_int_equal(v2(base, &pfn, version, flags, &status), CUDA_SUCCESS);
        assert_ptr_equal(pfn, probe->table[id].wrapper);
        assert_int_equal(status, CU_GET_PROC_ADDRESS_SUCCESS);
        pfn = NULL;
        assert_int_equal(v1(base, &pfn, version, flags), CUDA_SUCCESS);
        assert_ptr_equal(pfn, probe->table[id].wrapper);
        assert_int_equal(v2(base, &pfn, version, flags, NULL), CUDA_SUCCESS);
        if (!is_resolver(id))
            assert_int_equal(call(pfn), DRIVER_ANSWER + id);
    }
}

TEST(get_proc_address_leaves_other_answers_alone)
{
    LOOKUP(PFN_cuGetProcAddress_v12000, get, "cuGetProcAddress_v2");
    CUdriverProcAddressQueryResult status;
    void *pfn;

    /* The 32-bit ABI: same base name, not wrapped. */
    assert_int_equal(get("cuMemAlloc", &pfn, 2000, 0, &status), CUDA_SUCCESS);
    assert_ptr_equal(pfn, driver_symbol("cuMemAlloc"));
    assert_int_equal(get("cuDriverGetVersion", &pfn, 13000, 0, &status), CUDA_SUCCESS);
    assert_ptr_equal(pfn, driver_symbol("cuDriverGetVersion"));

    pfn = &pfn;
    assert_int_equal(get("", &pfn, 0, 0, &status), CUDA_SUCCESS);
    assert_null(pfn);
    assert_int_equal(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    pfn = &pfn;
    assert_int_equal(get("cuMemAlloc", &pfn, 99000, 0, &status), CUDA_ERROR_INVALID_VALUE);
    assert_ptr_equal(pfn, &pfn);

    LOOKUP(PFN_cuGetProcAddress_v11030, v1, "cuGetProcAddress");
    assert_int_equal(v1("cuNoSuchFunction", &pfn, 12000, 0), CUDA_ERROR_NOT_FOUND);
    assert_null(pfn);
}

TEST(get_proc_address_gives_itself)
{
    LOOKUP(PFN_cuGetProcAddress_v12000, get, "cuGetProcAddress_v2");
    void *pfn;
    assert_int_equal(get("cuGetProcAddress", &pfn, 11030, 0, NULL), CUDA_SUCCESS);
    assert_ptr_equal(pfn, probe->table[HOOK_cuGetProcAddress].wrapper);
    assert_int_equal(get("cuGetProcAddress", &pfn, 12000, 0, NULL), CUDA_SUCCESS);
    assert_ptr_equal(pfn, probe->table[HOOK_cuGetProcAddress_v2].wrapper);
}

TEST(linked_calls_reach_the_driver_too)
{
    CUdeviceptr p;
    assert_int_equal(cuMemAlloc_v2(&p, 1), DRIVER_ANSWER + HOOK_cuMemAlloc_v2);
}

static void launch(PFN_cuLaunchKernel_v4000 f)
{
    static void *params[1], *extra[1];
    memset(driver->launch, 0, sizeof driver->launch);
    assert_int_equal(f((CUfunction)0x11, 2, 3, 4, 5, 6, 7, 8, (CUstream)0x99, params, extra),
                     DRIVER_ANSWER + HOOK_cuLaunchKernel);
    const uintptr_t expected[11] = {
        0x11, 2, 3, 4, 5, 6, 7, 8, 0x99, (uintptr_t)params, (uintptr_t)extra};
    assert_memory_equal(driver->launch, expected, sizeof expected);
}

TEST(submissions_are_noted_while_the_pool_watches)
{
    LOOKUP(PFN_cuLaunchKernel_v4000, f, "cuLaunchKernel");
    probe->notes = 0;
    launch(f);
    assert_int_equal(probe->notes, 0);

    atomic_store(probe->watch, 1);
    unsigned done = probe->done;
    launch(f);
    assert_int_equal(probe->notes, 1);
    assert_int_equal(probe->done, done + 1);
    assert_ptr_equal(probe->note_stream, 0x99);
    assert_int_equal(probe->note_flags, SUBMIT_FLAG_KERNEL);

    LOOKUP(PFN_cuLaunchKernelEx_v11060_ptsz, ex, "cuLaunchKernelEx_ptsz");
    CUlaunchAttribute attributes[2] = {
        {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION},
        {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION}};
    CUlaunchConfig config = {.hStream = (CUstream)0x55, .attrs = attributes, .numAttrs = 2};
    ex(&config, NULL, NULL, NULL);
    assert_int_equal(probe->note_flags, SUBMIT_FLAG_PTSZ | SUBMIT_FLAG_KERNEL);
    attributes[1].value.programmaticStreamSerializationAllowed = 1;
    ex(&config, NULL, NULL, NULL);
    assert_ptr_equal(probe->note_stream, 0x55);
    assert_int_equal(probe->note_flags, SUBMIT_FLAG_PTSZ | SUBMIT_FLAG_KERNEL | SUBMIT_FLAG_EARLY);
    assert_int_equal(ex(NULL, NULL, NULL, NULL), DRIVER_ANSWER + HOOK_cuLaunchKernelEx_ptsz);
    assert_ptr_equal(probe->note_stream, SUBMITTER_OTHER); /* its own, and it has no record */
    assert_int_equal(probe->note_flags, SUBMIT_FLAG_PTSZ | SUBMIT_FLAG_KERNEL);
    attributes[0].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT;
    ex(&config, NULL, NULL, NULL);
    assert_true(probe->note_flags & SUBMIT_FLAG_ATTRS);
    attributes[0].id = (CUlaunchAttributeID)63;
    ex(&config, NULL, NULL, NULL);
    assert_true(probe->note_flags & SUBMIT_FLAG_ATTRS);

    call(dlsym(libcuda, "cuMemcpyDtoH_v2"));
    assert_int_equal(probe->note_flags, SUBMIT_FLAG_COPY);
    call(dlsym(libcuda, "cuMemcpyDtoH_v2_ptds"));
    assert_int_equal(probe->note_flags, SUBMIT_FLAG_PTSZ | SUBMIT_FLAG_COPY);
    call(dlsym(libcuda, "cuLaunchCooperativeKernelMultiDevice"));
    assert_int_equal(probe->note_flags, SUBMIT_FLAG_MANY);
    atomic_store(probe->watch, 0);
}

TEST(an_early_launch_waits_its_turn_when_told_to)
{
    LOOKUP(PFN_cuLaunchKernelEx_v11060_ptsz, ex, "cuLaunchKernelEx_ptsz");
    CUlaunchAttribute attributes[3] = {
        {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION},
        {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION},
        {.id = CU_LAUNCH_ATTRIBUTE_PRIORITY}};
    CUlaunchConfig config = {.hStream = (CUstream)0x55, .attrs = attributes, .numAttrs = 3};
    attributes[1].value.programmaticStreamSerializationAllowed = 1;
    atomic_store(probe->watch, 1);
    ex(&config, NULL, NULL, NULL);
    assert_ptr_equal(driver->given, &config);
    assert_int_equal(driver->given_early, 1);

    probe->note_answer = SUBMIT_IN_TURN;
    assert_int_equal(ex(&config, NULL, NULL, NULL), DRIVER_ANSWER + HOOK_cuLaunchKernelEx_ptsz);
    assert_ptr_not_equal(driver->given, &config);
    assert_int_equal(driver->given_early, 0);
    assert_int_equal(driver->given_attributes, 3);
    assert_int_equal(attributes[1].value.programmaticStreamSerializationAllowed, 1);
    probe->note_answer = SUBMIT_SEEN;
    atomic_store(probe->watch, 0);
}

TEST(a_frame_of_an_egl_stream_arrives_whole)
{
    void *found = dlsym(libcuda, "cuEGLStreamProducerPresentFrame");
    PFN_cuEGLStreamProducerPresentFrame_v7000 present =
        (PFN_cuEGLStreamProducerPresentFrame_v7000)(uintptr_t)found;
    CUeglStreamConnection connection = NULL;
    CUeglFrame frame = {.plane = {&frame, NULL, &connection}};
    CUstream stream = (CUstream)0x77;
    for (unsigned i = 0; i < 9; i++)
        frame.format[i] = 100 + i;
    for (unsigned watch = 0; watch <= 1; watch++) {
        atomic_store(probe->watch, watch);
        memset(&driver->presented, 0, sizeof driver->presented);
        probe->notes = 0;
        assert_int_equal(present(&connection, frame, &stream),
                         DRIVER_ANSWER + HOOK_cuEGLStreamProducerPresentFrame);
        assert_int_equal(probe->notes, watch);
        assert_ptr_equal(driver->presented_on, &connection);
        assert_memory_equal(driver->presented.plane, frame.plane, sizeof frame.plane);
        assert_memory_equal(driver->presented.format, frame.format, sizeof frame.format);
    }
    assert_ptr_equal(probe->note_stream, 0x77);
    assert_int_equal(present(&connection, frame, NULL),
                     DRIVER_ANSWER + HOOK_cuEGLStreamProducerPresentFrame);
    assert_null(probe->note_stream);
    atomic_store(probe->watch, 0);
}

TEST(every_submission_is_noted)
{
    atomic_store(probe->watch, 1);
#define SUBMIT(symbol, pfn, params, args, stream, flags)                                           \
    probe->notes = 0;                                                                              \
    call(dlsym(libcuda, #symbol));                                                                 \
    assert_int_equal(probe->notes, 1);
#include "shim/driver/submit.def"
    atomic_store(probe->watch, 0);
}

/* Refused twice, a call that is made again once gives the driver's own error. */
static void check_retry(const char *symbol, enum hook_id id, bool again)
{
    probe->release = true;
    for (unsigned refusals = 1; refusals <= 2; refusals++) {
        unsigned before = driver->calls[id];
        driver->refusals = refusals;
        CUresult rc = (CUresult)call(dlsym(libcuda, symbol));
        if (rc != (again && refusals == 1 ? DRIVER_ANSWER + (CUresult)id
                                          : CUDA_ERROR_OUT_OF_MEMORY) ||
            driver->calls[id] - before != (again ? 2u : 1u))
            fail_msg("%s refused %u times: %d after %u calls", symbol, refusals, (int)rc,
                     driver->calls[id] - before);
    }
    driver->refusals = 1;
    probe->release = false;
    if (call(dlsym(libcuda, symbol)) != CUDA_ERROR_OUT_OF_MEMORY)
        fail_msg("%s: an error without memory to give back is not the driver's", symbol);
    driver->refusals = 0;
}

TEST(a_call_without_memory_is_made_again_once_some_went_back)
{
#define HOOK_COUNTED(symbol, pfn, params, args, counter, devices)                                  \
    check_retry(#symbol, HOOK_##symbol, true);
#define HOOK_PASSED(symbol, pfn, params, args, devices) check_retry(#symbol, HOOK_##symbol, true);
#define HOOK_NAMES(symbol, pfn, params, args, devices) check_retry(#symbol, HOOK_##symbol, true);
#define HOOK_RELEASED(symbol, pfn, params, args, named) check_retry(#symbol, HOOK_##symbol, true);
#include "shim/driver/hooks.def"
    /* Once the pool watches submissions, and once only the answers are looked at. */
    for (unsigned watch = 1; watch <= POOL_WATCH_ERRORS; watch *= POOL_WATCH_ERRORS) {
        atomic_store(probe->watch, watch);
        unsigned notes = probe->notes, done = probe->done;
#define SUBMIT(symbol, pfn, params, args, stream, flags) check_retry(#symbol, HOOK_##symbol, true);
#include "shim/driver/submit.def"
        assert_int_equal(probe->notes - notes, probe->done - done);
        assert_true((probe->notes == notes) == (watch == POOL_WATCH_ERRORS));
    }
    atomic_store(probe->watch, 0);
}

static int find_all(void **state)
{
    probe = probe_find();
    native = (dlsym_fn *)(uintptr_t)dlvsym(RTLD_DEFAULT, "dlsym", NATIVE_DLSYM_VERSION);
    return probe && native && native != dlsym ? 0 : -1;
}

/* Old functions by a new version are none, wrapped or not. */
TEST(a_function_newer_than_the_tables_ends_the_single_stream)
{
    static const struct {
        const char *name;
        int version;
        bool newer;
    } asked[] = {
        {"cuMemAlloc", 14050, false},         {"cuDriverGetVersion", 13000, false},
        {"cuDriverGetVersion", 14010, false}, {"cuNoSuchThing", 14050, false},
        {"cuDriverGetNews", 13050, false},    {"cuDriverGetNews", 14010, true},
        {"cuDriverGetVersion", 14020, true},
    };
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        unsigned before = probe->left_single;
        void *pfn = NULL;
        LOOKUP(cuGetProcAddress_v2_fn *, by_name, "cuGetProcAddress_v2");
        assert_int_equal(by_name(asked[i].name, &pfn, asked[i].version, 0, NULL), CUDA_SUCCESS);
        if ((probe->left_single != before) != asked[i].newer)
            fail_msg("%s %d", asked[i].name, asked[i].version);
    }
}

int main(void)
{
    return play_tests(find_all, NULL);
}
