/* SPDX-License-Identifier: BSD-2-Clause */
/* cuGetProcAddress: variants by version and default stream, both generations of the function
 * itself, and the whole query list of a runtime. */
#include "tests/sim/fixture.h"

#include <dlfcn.h>

#define LEGACY CU_GET_PROC_ADDRESS_LEGACY_STREAM
#define PER_THREAD CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
#define UNKNOWN CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
#define TOO_OLD CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
#define REFUSED 99 /* the call fails */

static void *driver;

static const struct {
    const char *name;
    int version;
    cuuint64_t flags;
    int status;
    const char *found;
} questions[] = {
    {"cuMemAlloc", 2000, 0, 0, "cuMemAlloc"},
    {"cuMemAlloc", 3010, 0, 0, "cuMemAlloc"},
    {"cuMemAlloc", 3020, 0, 0, "cuMemAlloc_v2"},
    {"cuMemAlloc", 12000, PER_THREAD, 0, "cuMemAlloc_v2"},
    {"cuMemAllocAsync", 11020, 0, 0, "cuMemAllocAsync"},
    {"cuMemAllocAsync", 11020, LEGACY, 0, "cuMemAllocAsync"},
    {"cuMemAllocAsync", 11020, PER_THREAD, 0, "cuMemAllocAsync_ptsz"},
    {"cuMemAllocAsync", 11010, 0, TOO_OLD, NULL},
    {"cuMemcpyHtoD", 7000, PER_THREAD, 0, "cuMemcpyHtoD_v2_ptds"},
    {"cuMemcpyHtoD", 3020, PER_THREAD, 0, "cuMemcpyHtoD_v2"}, /* before there were such variants */
    {"cuStreamBeginCapture", 10000, 0, 0, "cuStreamBeginCapture"},
    {"cuStreamBeginCapture", 10010, PER_THREAD, 0, "cuStreamBeginCapture_v2_ptsz"},
    {"cuStreamGetCaptureInfo", 11030, 0, 0, "cuStreamGetCaptureInfo_v2"},
    {"cuStreamGetCaptureInfo", 12030, PER_THREAD, 0, "cuStreamGetCaptureInfo_v3_ptsz"},
    {"cuCtxCreate", 11040, 0, 0, "cuCtxCreate_v3"},
    {"cuCtxCreate", 13000, 0, 0, "cuCtxCreate_v4"},
    {"cuDevicePrimaryCtxRelease", 7000, 0, 0, "cuDevicePrimaryCtxRelease"},
    {"cuDevicePrimaryCtxRelease", 11000, 0, 0, "cuDevicePrimaryCtxRelease_v2"},
    {"cuGetProcAddress", 11030, 0, 0, "cuGetProcAddress"},
    {"cuGetProcAddress", 12000, 0, 0, "cuGetProcAddress_v2"},
    {"cuCtxRecordEvent", 12050, 0, 0, "cuCtxRecordEvent"},
    {"cuCtxRecordEvent", 12040, 0, TOO_OLD, NULL},
    {"cuStreamWaitValue32", 8000, 0, 0, "cuStreamWaitValue32"},
    {"cuStreamWaitValue32", 11070, PER_THREAD, 0, "cuStreamWaitValue32_v2_ptsz"},
    {"", 0, 0, UNKNOWN, NULL},
    {"cuNoSuchThing", 12000, 0, UNKNOWN, NULL},
    {"cuMemAlloc_v2", 12000, 0, UNKNOWN, NULL}, /* base names only */
    {"cuMemCreate", 9000, 0, TOO_OLD, NULL},
    {"cuMemCreate", 13010, 0, REFUSED, NULL},
    {"cuMemCreate", 12000, 64, REFUSED, NULL},
    {"cuMemCreate", 12000, LEGACY | PER_THREAD, REFUSED, NULL},
    {NULL, 12000, 0, REFUSED, NULL},
};

TEST(version_and_flag_choose_the_variant)
{
    CUresult (*first)(const char *, void **, int, cuuint64_t);
    void *found = dlsym(driver, "cuGetProcAddress");
    memcpy(&first, &found, sizeof first);
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) {
        const char *name = questions[i].name, *wanted = questions[i].found;
        CUdriverProcAddressQueryResult status = REFUSED;
        found = NULL;
        CUresult rc =
            cuGetProcAddress(name, &found, questions[i].version, questions[i].flags, &status);
        if ((rc != CUDA_SUCCESS) != (questions[i].status == REFUSED) ||
            (int)status != questions[i].status ||
            found != (wanted != NULL ? dlsym(driver, wanted) : NULL))
            fail_msg("question %zu, %s: %d, status %d", i, name, (int)rc, (int)status);
        found = NULL;
        assert_int_equal(first(name, &found, questions[i].version, questions[i].flags), rc);
        assert_ptr_equal(found, wanted != NULL ? dlsym(driver, wanted) : NULL);
    }
    BAD(cuGetProcAddress("cuMemCreate", NULL, 12000, 0, NULL));
    OK(cuGetProcAddress("cuMemCreate", &found, 12000, 0, NULL));
}

static void not_simulated(void *function)
{
    CUresult (*call)(void);
    memcpy(&call, &function, sizeof call);
    GIVES(CUDA_ERROR_NOT_SUPPORTED, call());
}

/* What the runtimes of every release ask for at start. Each answer is a variant of that name and
 * default stream, and none is newer than what was asked for. */
TEST(the_query_lists_of_runtimes_are_answered)
{
    static const struct {
        const char *name;
        int version, flags;
    } entries[] = {
#define ENTRY(name, version, flags, first, last) {#name, version, flags},
#include "tests/sim/entries.def"
    };
    int count = 0;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        const char *name = entries[i].name;
        /* A slip of the releases 12.0 to 12.2: the driver does not know this name either. */
        int slip = strcmp(name, "cuGraphInstantiateWithParams_ptsz") == 0;
        void *found = NULL;
        CUdriverProcAddressQueryResult status;
        Dl_info info;
        CUresult rc = cuGetProcAddress(name, &found, entries[i].version,
                                       (cuuint64_t)entries[i].flags, &status);
        if (entries[i].version > 13000) {
            assert_int_equal(rc, CUDA_ERROR_INVALID_VALUE);
            continue;
        }
        if (rc != CUDA_SUCCESS || (found == NULL) != slip || (int)status != (slip ? UNKNOWN : 0))
            fail_msg("%s %d %d", name, entries[i].version, entries[i].flags);
        if (slip)
            continue;
        if (dladdr(found, &info) == 0 || info.dli_saddr != found) {
            not_simulated(found);
            continue;
        }
        const char *rest = info.dli_sname + strlen(name);
        assert_memory_equal(info.dli_sname, name, strlen(name));
        assert_true(*rest == '\0' || *rest == '_');
        int per_thread = strstr(rest, "_ptsz") != NULL || strstr(rest, "_ptds") != NULL;
        assert_int_equal(per_thread, entries[i].flags == PER_THREAD);
        if (simCallCount(info.dli_sname) == UINT64_MAX)
            not_simulated(found);
        else
            count++;
    }
    assert_true(count >= 120);
}

static void *look_up(const char *name, int version, cuuint64_t flags)
{
    void *found = NULL;
    OK(cuGetProcAddress(name, &found, version, flags, NULL));
    return found;
}

/* Each variant is a function of its own. Private tables do not exist. */
TEST(functions_that_are_not_simulated_say_so)
{
    const void *table = NULL;
    CUuuid id = {{1, 2, 3}};
    void *plain = look_up("cuGLMapBufferObject", 3020, 0);
    not_simulated(plain);
    assert_ptr_not_equal(plain, look_up("cuGLMapBufferObject", 7000, PER_THREAD));
    assert_ptr_equal(plain, look_up("cuGLMapBufferObject", 13000, 0));
    assert_ptr_not_equal(look_up("cuGraphAddNode", 12020, 0), look_up("cuGraphAddNode", 12030, 0));
    assert_null(look_up("cuGraphAddNode", 12010, 0));
    GIVES(CUDA_ERROR_NOT_FOUND, cuGetExportTable(&table, &id));
    assert_null(table);
}

int main(void)
{
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return driver == NULL ? 1 : play_tests(fixture_start, NULL);
}
