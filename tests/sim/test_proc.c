/* SPDX-License-Identifier: BSD-2-Clause */
/* cuGetProcAddress: variants by version and default stream, both generations of the function
 * itself, and the whole query list of a runtime. */
#include "tests/sim/fixture.h"

#include <dlfcn.h>
#include <stdbool.h>

#define LEGACY CU_GET_PROC_ADDRESS_LEGACY_STREAM
#define PER_THREAD CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM

static void *symbol(const char *name)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    assert_non_null(driver);
    void *address = dlsym(driver, name);
    assert_non_null(address);
    dlclose(driver);
    return address;
}

static void expect(const char *name, int version, cuuint64_t flags, const char *wanted)
{
    void *found = (void *)1;
    CUdriverProcAddressQueryResult status = 99;
    OK(cuGetProcAddress(name, &found, version, flags, &status));
    if (found != (wanted != NULL ? symbol(wanted) : NULL))
        fail_msg("%s %d %d is not %s", name, version, (int)flags,
                 wanted != NULL ? wanted : "missing");
    if (wanted != NULL)
        assert_int_equal(status, CU_GET_PROC_ADDRESS_SUCCESS);
    else
        assert_true(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND ||
                    status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

static void version_and_flag_choose_the_variant(void **state)
{
    expect("cuMemAlloc", 2000, 0, "cuMemAlloc");
    expect("cuMemAlloc", 3010, 0, "cuMemAlloc");
    expect("cuMemAlloc", 3020, 0, "cuMemAlloc_v2");
    expect("cuMemAlloc", 12000, 0, "cuMemAlloc_v2");
    expect("cuMemAlloc", 12000, PER_THREAD, "cuMemAlloc_v2");
    expect("cuMemFree", 3020, 0, "cuMemFree_v2");
    expect("cuMemAllocAsync", 11020, 0, "cuMemAllocAsync");
    expect("cuMemAllocAsync", 11020, LEGACY, "cuMemAllocAsync");
    expect("cuMemAllocAsync", 11020, PER_THREAD, "cuMemAllocAsync_ptsz");
    expect("cuMemAllocAsync", 11010, 0, NULL);
    expect("cuMemcpyHtoD", 3020, 0, "cuMemcpyHtoD_v2");
    expect("cuMemcpyHtoD", 7000, PER_THREAD, "cuMemcpyHtoD_v2_ptds");
    expect("cuMemcpyHtoD", 3020, PER_THREAD,
           "cuMemcpyHtoD_v2"); /* before there were such variants */
    expect("cuStreamBeginCapture", 10000, 0, "cuStreamBeginCapture");
    expect("cuStreamBeginCapture", 10010, PER_THREAD, "cuStreamBeginCapture_v2_ptsz");
    expect("cuStreamGetCaptureInfo", 11030, 0, "cuStreamGetCaptureInfo_v2");
    expect("cuStreamGetCaptureInfo", 12030, PER_THREAD, "cuStreamGetCaptureInfo_v3_ptsz");
    expect("cuCtxCreate", 3020, 0, "cuCtxCreate_v2");
    expect("cuCtxCreate", 11040, 0, "cuCtxCreate_v3");
    expect("cuCtxCreate", 13000, 0, "cuCtxCreate_v4");
    expect("cuCtxGetDevice", 12090, 0, "cuCtxGetDevice");
    expect("cuCtxGetDevice", 13000, 0, "cuCtxGetDevice_v2");
    expect("cuCtxSynchronize", 2000, 0, "cuCtxSynchronize");
    expect("cuCtxSynchronize", 13000, 0, "cuCtxSynchronize_v2");
    expect("cuDevicePrimaryCtxRelease", 7000, 0, "cuDevicePrimaryCtxRelease");
    expect("cuDevicePrimaryCtxRelease", 11000, 0, "cuDevicePrimaryCtxRelease_v2");
    expect("cuGetProcAddress", 11030, 0, "cuGetProcAddress");
    expect("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2");
    expect("cuCtxRecordEvent", 12050, 0, "cuCtxRecordEvent");
    expect("cuCtxRecordEvent", 12040, 0, NULL);
    expect("cuGraphInstantiate", 10000, 0, "cuGraphInstantiate");
    expect("cuGraphInstantiate", 11000, 0, "cuGraphInstantiate_v2");
    expect("cuStreamWaitValue32", 8000, 0, "cuStreamWaitValue32");
    expect("cuStreamWaitValue32", 11070, PER_THREAD, "cuStreamWaitValue32_v2_ptsz");
}

static void the_reason_of_a_miss_is_told(void **state)
{
    void *found;
    CUdriverProcAddressQueryResult status;
    OK(cuGetProcAddress("", &found, 0, 0, &status));
    assert_null(found);
    assert_int_equal(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    OK(cuGetProcAddress("cuNoSuchThing", &found, 12000, 0, &status));
    assert_null(found);
    assert_int_equal(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    OK(cuGetProcAddress("cuMemAlloc_v2", &found, 12000, 0, &status)); /* base names only */
    assert_null(found);
    OK(cuGetProcAddress("cuMemCreate", &found, 9000, 0, &status));
    assert_null(found);
    assert_int_equal(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    OK(cuGetProcAddress("cuMemCreate", &found, 9000, 0, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress("cuMemCreate", &found, 13010, 0, &status));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress("cuMemCreate", &found, 12000, 64, &status));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress("cuMemCreate", NULL, 12000, 0, &status));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress(NULL, &found, 12000, 0, &status));
}

static void the_first_generation_takes_four_arguments(void **state)
{
    CUresult (*first)(const char *, void **, int, cuuint64_t);
    void *address = symbol("cuGetProcAddress"), *found = NULL;
    memcpy(&first, &address, sizeof first);
    OK(first("cuMemFree", &found, 3020, 0));
    assert_ptr_equal(found, symbol("cuMemFree_v2"));
}

static void not_simulated(void *function)
{
    CUresult (*call)(void);
    memcpy(&call, &function, sizeof call);
    GIVES(CUDA_ERROR_NOT_SUPPORTED, call());
}

static bool simulated(const char *name)
{
    return simCallCount(name) != UINT64_MAX;
}

/* What the runtimes of every release ask for at start. Each answer is a variant of that name and
 * default stream, and none is newer than what was asked for. */
static void the_query_lists_of_runtimes_are_answered(void **state)
{
    static const struct {
        const char *name;
        int version, flags;
    } entries[] = {
#define ENTRY(name, version, flags, first, last) {#name, version, flags},
#include "tests/sim/cudart/entries.def"
    };
    int count = 0;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        void *found = NULL;
        CUdriverProcAddressQueryResult status;
        Dl_info info;
        if (entries[i].version > 13000) {
            GIVES(CUDA_ERROR_INVALID_VALUE,
                  cuGetProcAddress(entries[i].name, &found, entries[i].version, 0, &status));
            continue;
        }
        OK(cuGetProcAddress(entries[i].name, &found, entries[i].version,
                            (cuuint64_t)entries[i].flags, &status));
        /* A slip of the releases 12.0 to 12.2: the driver does not know this name either. */
        int slip = strcmp(entries[i].name, "cuGraphInstantiateWithParams_ptsz") == 0;
        if ((found == NULL) != slip)
            fail_msg("%s %d %d", entries[i].name, entries[i].version, entries[i].flags);
        assert_int_equal(status,
                         slip ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND : CU_GET_PROC_ADDRESS_SUCCESS);
        if (slip)
            continue;
        size_t length = strlen(entries[i].name);
        if (dladdr(found, &info) == 0 || info.dli_saddr != found) {
            not_simulated(found);
            continue;
        }
        const char *rest = info.dli_sname + length;
        assert_memory_equal(info.dli_sname, entries[i].name, length);
        assert_true(*rest == '\0' || *rest == '_');
        int per_thread = strstr(rest, "_ptsz") != NULL || strstr(rest, "_ptds") != NULL;
        assert_int_equal(per_thread, entries[i].flags == PER_THREAD);
        if (simulated(info.dli_sname))
            count++;
        else
            not_simulated(found);
    }
    assert_true(count >= 120);
}

/* Each variant is a function of its own. */
static void functions_that_are_not_simulated_say_so(void **state)
{
    static const struct {
        int version;
        unsigned flags;
    } variants[] = {{3020, 0}, {7000, PER_THREAD}};
    void *found[3];
    for (int i = 0; i < 2; i++)
        OK(cuGetProcAddress("cuGLMapBufferObject", &found[i], variants[i].version,
                            variants[i].flags, NULL));
    OK(cuGetProcAddress("cuGLMapBufferObject", &found[2], 13000, 0, NULL));
    not_simulated(found[0]);
    assert_ptr_not_equal(found[0], found[1]);
    assert_ptr_equal(found[0], found[2]);
    OK(cuGetProcAddress("cuGraphAddNode", &found[0], 12020, 0, NULL));
    OK(cuGetProcAddress("cuGraphAddNode", &found[1], 12030, 0, NULL));
    assert_ptr_not_equal(found[0], found[1]);
    OK(cuGetProcAddress("cuGraphAddNode", &found[0], 12010, 0, NULL));
    assert_null(found[0]);
}

static void private_tables_do_not_exist(void **state)
{
    const void *table = NULL;
    CUuuid id = {{1, 2, 3}};
    GIVES(CUDA_ERROR_NOT_FOUND, cuGetExportTable(&table, &id));
    assert_null(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(version_and_flag_choose_the_variant),
        TEST(the_reason_of_a_miss_is_told),
        TEST(the_first_generation_takes_four_arguments),
        TEST(the_query_lists_of_runtimes_are_answered),
        TEST(functions_that_are_not_simulated_say_so),
        TEST(private_tables_do_not_exist),
    };
    return RUN(tests);
}
