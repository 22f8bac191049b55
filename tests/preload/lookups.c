/* SPDX-License-Identifier: BSD-2-Clause */
/* Every way to ask for a symbol, and the answer: found or not, the status, and the error text of a
 * failing look-up. Different ways give the same function. It prints no addresses. */
#include "tests/preload/scene.h"

static void *driver;

static const char *found(const void *symbol)
{
    return symbol != NULL ? "found" : "missing";
}

static void ask_handle(const char *name)
{
    dlerror();
    const void *symbol = dlsym(driver, name);
    const char *error = dlerror();
    /* What the text says after the object's name, which is a path. */
    const char *words = error != NULL ? strstr(error, ": ") : NULL;
    printf("dlsym %s: %s%s\n", name, found(symbol), words != NULL ? words : "");
}

static void ask_driver(const char *name, int version, cuuint64_t flags)
{
    CUresult (*lookup)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
    CUresult (*old_lookup)(const char *, void **, int, cuuint64_t);
    void *symbol = dlsym(driver, "cuGetProcAddress_v2");
    memcpy(&lookup, &symbol, sizeof lookup);
    symbol = dlsym(driver, "cuGetProcAddress");
    memcpy(&old_lookup, &symbol, sizeof old_lookup);

    CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)77;
    void *by_new = NULL, *by_old = NULL, *by_no_status = NULL;
    int rc = (int)lookup(name, &by_new, version, flags, &status);
    int old_rc = (int)old_lookup(name, &by_old, version, flags);
    int no_status_rc = (int)lookup(name, &by_no_status, version, flags, NULL);
    printf("\"%s\" %d flags %d: %d %s status %d; old %d %s; no status %d; %s\n", name, version,
           (int)flags, rc, found(by_new), (int)status, old_rc, found(by_old), no_status_rc,
           by_new == by_old && by_new == by_no_status ? "one function" : "several functions");
}

static void same_function(const char *export, const char *name, int version, cuuint64_t flags)
{
    CUdriverProcAddressQueryResult status;
    void *looked_up = NULL;
    const void *exported = dlsym(driver, export);
    if (cuGetProcAddress_v2(name, &looked_up, version, flags, &status) != CUDA_SUCCESS)
        looked_up = NULL;
    printf("%s is %s %d: %s\n", export, name, version, exported == looked_up ? "yes" : "no");
}

int main(void)
{
    static const char *const foreign[] = {
        "cudnnCreate",
        "cublasCreate_v2",
        "curl_easy_init",
        "cufftPlan1d",
        "cuNoSuchThing",
        "cuMemAlloc_v9",
        "cu",
        "",
    };
    scene_watchdog(60);
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    EXPECT(driver != NULL);
    if (cuInit(0) == CUDA_ERROR_NO_DEVICE)
        scene_skip("no device");

    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        ask_handle(foreign[i]);
    ask_handle("cuInit");
    ask_handle("cuMemAlloc_v2");
    ask_handle("cuMemFree_v2");

    ask_driver("", 0, 0);
    ask_driver("cuMemAlloc", 2000, 0);
    ask_driver("cuMemAlloc", 3010, 0);
    ask_driver("cuMemAlloc", 3020, 0);
    ask_driver("cuMemAlloc", 12000, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
    ask_driver("cuMemAlloc", 99000, 0);
    ask_driver("cuMemAlloc_v2", 12000, 0);
    ask_driver("cuMemFree", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    ask_driver("cuMemFreeAsync", 11020, 0);
    ask_driver("cuMemFreeAsync", 11020, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    ask_driver("cuGetProcAddress", 11030, 0);
    ask_driver("cuGetProcAddress", 12000, 0);
    ask_driver("cuCtxSynchronize", 2000, 0);
    ask_driver("cuNoSuchThing", 12000, 0);

    same_function("cuMemAlloc_v2", "cuMemAlloc", 3020, 0);
    same_function("cuMemFree_v2", "cuMemFree", 12000, 0);
    same_function("cuMemFreeAsync", "cuMemFreeAsync", 11020, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
    same_function("cuMemFreeAsync_ptsz", "cuMemFreeAsync", 11020,
                  CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    same_function("cuGetProcAddress", "cuGetProcAddress", 11030, 0);
    same_function("cuGetProcAddress_v2", "cuGetProcAddress", 12000, 0);

    printf("RTLD_DEFAULT malloc: %s\n", found(dlsym(RTLD_DEFAULT, "malloc")));
    printf("RTLD_NEXT malloc: %s\n", found(dlsym(RTLD_NEXT, "malloc")));
    printf("RTLD_NEXT, the same twice: %s\n",
           dlsym(RTLD_NEXT, "puts") == dlsym(RTLD_NEXT, "puts") ? "yes" : "no");
    printf("RTLD_NEXT ompt_start_tool: %s\n", found(dlsym(RTLD_NEXT, "ompt_start_tool")));
    printf("RTLD_NEXT main: %s\n", found(dlsym(RTLD_NEXT, "main")));
    printf("RTLD_DEFAULT cuNoSuchThing: %s\n", found(dlsym(RTLD_DEFAULT, "cuNoSuchThing")));
    return 0;
}
