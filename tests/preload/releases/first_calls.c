/* SPDX-License-Identifier: BSD-2-Clause */
/* What the first calls of a program do in its runtime: which context they make, and of which
 * device; which errors they give, and which of those stay. Without an argument it plays every act
 * below, each in a process of its own. It calls the runtime itself, so that it links with every
 * release. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Deprecated, and what programs of before release 12.5 call. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

/* Since release 12.5; NULL before. */
extern cudaError_t cudaGetDriverEntryPointByVersion(const char *, void **, unsigned,
                                                    unsigned long long,
                                                    enum cudaDriverEntryPointQueryResult *)
    __attribute__((weak));

extern char **environ;

static void *driver;

static void *driver_symbol(const char *name)
{
    if (driver == NULL)
        driver = dlopen("libcuda.so.1", RTLD_NOW);
    return driver != NULL ? dlsym(driver, name) : NULL;
}

/* A driver function as the header's macros name it, and one by another symbol. */
#define DRIVER(name, ...) DRIVER_AS(name, name, __VA_ARGS__)
#define DRIVER_AS(type, name, ...)                                                                 \
    (((__typeof__(type) *)(uintptr_t)driver_symbol(#name))(__VA_ARGS__))

/* The current context's device and which primary contexts there are; "not initialised" is an
 * answer. */
static void show_context(void)
{
    CUcontext context = NULL;
    CUdevice device = -1;
    int rc = (int)DRIVER(cuCtxGetCurrent, &context);
    printf("    current %d %s", rc, context != NULL ? "some" : "none");
    if (context != NULL && DRIVER(cuCtxGetDevice, &device) == CUDA_SUCCESS)
        printf(" of device %d", device);
    for (int i = 0; i < 2; i++) {
        unsigned flags = 0;
        int active = -1;
        rc = (int)DRIVER(cuDevicePrimaryCtxGetState, i, &flags, &active);
        printf(", primary %d: %d %d", i, rc, active);
    }
    printf("\n");
}

static void say(const char *what, cudaError_t rc)
{
    cudaError_t peeked = cudaPeekAtLastError();
    printf("  %s: %d, last %d\n", what, rc, peeked);
}

static void show_device_of(const void *p)
{
    struct cudaPointerAttributes attributes;
    memset(&attributes, 0, sizeof attributes);
    cudaError_t rc = cudaPointerGetAttributes(&attributes, p);
    printf("    pointer: %d, type %d device %d\n", rc, attributes.type, attributes.device);
}

static void alloc_and_free(void)
{
    void *p = NULL;
    say("malloc", cudaMalloc(&p, 1 << 20));
    show_context();
    show_device_of(p);
    say("memset", cudaMemset(p, 7, 1 << 20));
    say("free", cudaFree(p));
    show_context();
}

static void act_free_null(void)
{
    say("free of NULL", cudaFree(NULL));
    show_context();
    alloc_and_free();
}

static void act_set_device(void)
{
    int device = -1;
    say("set device 0", cudaSetDevice(0));
    show_context();
    say("get device", cudaGetDevice(&device));
    printf("    device %d\n", device);
    alloc_and_free();
}

static void act_other_device(void)
{
    void *p = NULL;
    int count = 0;
    say("count", cudaGetDeviceCount(&count));
    say("set device 1", cudaSetDevice(1));
    show_context();
    alloc_and_free();
    say("set device 0", cudaSetDevice(0));
    say("malloc", cudaMalloc(&p, 1000));
    show_device_of(p);
    say("set device 1", cudaSetDevice(1));
    say("free from there", cudaFree(p));
    show_context();
}

static void act_nothing_yet(void)
{
    int number = -1;
    size_t free_bytes = 0;
    say("peek and get", cudaGetLastError());
    say("runtime version", cudaRuntimeGetVersion(&number));
    show_context();
    say("driver version", cudaDriverGetVersion(&number));
    show_context();
    say("count", cudaGetDeviceCount(&number));
    say("get device", cudaGetDevice(&number));
    show_context();
    say("memory information", cudaMemGetInfo(&free_bytes, NULL));
    show_context();
    alloc_and_free();
}

static void act_errors(void)
{
    void *p = &p;
    void *wild = (void *)(uintptr_t)0x1234567000;
    say("malloc of 0", cudaMalloc(&p, 0));
    printf("    left %s\n", p == &p ? "alone" : p == NULL ? "NULL" : "something");
    show_context();
    say("malloc to NULL", cudaMalloc(NULL, 100));
    say("get", cudaGetLastError());
    p = &p;
    say("malloc of 2^60", cudaMalloc(&p, (size_t)1 << 60));
    printf("    left %s\n", p == &p ? "alone" : p == NULL ? "NULL" : "something");
    say("malloc", cudaMalloc(&p, 4096));
    say("free", cudaFree(p));
    say("free of NULL", cudaFree(NULL));
    say("get", cudaGetLastError());
    say("get again", cudaGetLastError());
    say("malloc of SIZE_MAX", cudaMalloc(&p, SIZE_MAX));
    say("get", cudaGetLastError());
    say("free of a wild pointer", cudaFree(wild));
    say("get", cudaGetLastError());
    say("malloc", cudaMalloc(&p, 1 << 22));
    say("free of its inside", cudaFree((char *)p + 4096));
    say("free", cudaFree(p));
    say("free again", cudaFree(p));
    say("get", cudaGetLastError());
    say("set device 99", cudaSetDevice(99));
    say("malloc", cudaMalloc(&p, 1 << 20));
    say("free", cudaFree(p));
    say("get", cudaGetLastError());
}

static void act_error_first(void)
{
    say("malloc of 2^60", cudaMalloc(&driver, (size_t)1 << 60));
    driver = NULL;
    show_context();
    alloc_and_free();
    say("get", cudaGetLastError());
}

static void *in_thread(void *unused)
{
    show_context();
    alloc_and_free();
    return NULL;
}

static void act_thread(void)
{
    pthread_t thread;
    void *p = NULL;
    say("set device 0", cudaSetDevice(0));
    say("malloc", cudaMalloc(&p, 100));
    pthread_create(&thread, NULL, in_thread, NULL);
    pthread_join(thread, NULL);
    say("free", cudaFree(p));
}

typedef CUresult create_fn(CUcontext *context, unsigned flags, CUdevice device);

/* The runtime allocates in the context that its program made current through the driver. */
static void act_own_context(void)
{
    CUcontext own = NULL;
    CUcontext of_block = NULL;
    void *p = NULL;
    printf("  init %d\n", DRIVER(cuInit, 0));
    printf("  create %d\n", DRIVER_AS(create_fn, cuCtxCreate_v2, &own, 0, 0));
    say("malloc", cudaMalloc(&p, 1 << 20));
    show_context();
    int rc = (int)DRIVER(cuPointerGetAttribute, &of_block, CU_POINTER_ATTRIBUTE_CONTEXT,
                         (CUdeviceptr)(uintptr_t)p);
    printf("    its context: %d %s\n", rc, of_block == own ? "the own one" : "another");
    say("free", cudaFree(p));
    printf("  no context %d\n", DRIVER(cuCtxSetCurrent, NULL));
    alloc_and_free();
    printf("  the own again %d\n", DRIVER(cuCtxSetCurrent, own));
    say("malloc", cudaMalloc(&p, 1 << 20));
    printf("  no context %d\n", DRIVER(cuCtxSetCurrent, NULL));
    say("free without a context", cudaFree(p));
    show_context();
}

/* What the driver itself says in a thread whose context is not alive, or not yet. */
static void show_driver(void)
{
    CUdeviceptr block = 0;
    CUdevice device = -1;
    size_t free_bytes = 0;
    unsigned version = 0;
    printf("    driver: device %d", DRIVER(cuCtxGetDevice, &device));
    printf(" version %d", DRIVER(cuCtxGetApiVersion, NULL, &version));
    printf(" info %d", DRIVER(cuMemGetInfo, &free_bytes, NULL));
    int rc = (int)DRIVER(cuMemAlloc, &block, 1 << 20);
    printf(" alloc %d free %d\n", rc, rc == 0 ? (int)DRIVER(cuMemFree, block) : 0);
}

static void act_driver_first(void)
{
    say("set device 0", cudaSetDevice(0));
    show_driver();
    alloc_and_free();
    show_driver();
    say("set device 1", cudaSetDevice(1));
    show_driver();
    say("set device 0", cudaSetDevice(0));
    show_driver();
    alloc_and_free();
}

static void act_reset(void)
{
    void *p = NULL;
    say("reset", cudaDeviceReset());
    show_context();
    say("malloc", cudaMalloc(&p, 1 << 20));
    say("reset", cudaDeviceReset());
    show_context();
    alloc_and_free();
    say("reset", cudaDeviceReset());
    show_driver();
    alloc_and_free();
}

static const char *answer_of(void *found, void *untouched)
{
    return found == untouched ? "alone" : found != NULL ? "found" : "NULL";
}

static void show_entry(const char *name, unsigned long long flags, const char *export)
{
    enum cudaDriverEntryPointQueryResult status = (enum cudaDriverEntryPointQueryResult)77;
    void *found = &found;
    int rc = cudaGetDriverEntryPoint(name, &found, flags, &status);
    printf("  %s %llu: %d, status %d, %s", name, flags, rc, status, answer_of(found, &found));
    if (export != NULL)
        printf(", %s", found == driver_symbol(export) ? export : "another");
    printf(", last %d\n", cudaGetLastError());
    for (unsigned version = 11000; cudaGetDriverEntryPointByVersion != NULL && version <= 13000;
         version += 1000) {
        found = &found;
        rc = cudaGetDriverEntryPointByVersion(name, &found, version, flags, &status);
        printf("    %u: %d, status %d, %s", version, rc, status, answer_of(found, &found));
        printf(", %s\n", export != NULL && found == driver_symbol(export) ? export : "another");
        cudaGetLastError();
    }
}

static const struct {
    const char *name;
    unsigned long long flags;
    const char *export;
} entry_points[] = {
    {"cuMemAlloc", cudaEnableDefault, "cuMemAlloc_v2"},
    {"cuMemFree", cudaEnableLegacyStream, "cuMemFree_v2"},
    {"cuMemFree", cudaEnablePerThreadDefaultStream, "cuMemFree_v2"},
    {"cuMemAllocAsync", cudaEnableDefault, "cuMemAllocAsync"},
    {"cuMemAllocAsync", cudaEnablePerThreadDefaultStream, "cuMemAllocAsync_ptsz"},
    {"cuMemFreeAsync", cudaEnablePerThreadDefaultStream, "cuMemFreeAsync_ptsz"},
    {"cuLaunchKernel", cudaEnablePerThreadDefaultStream, "cuLaunchKernel_ptsz"},
    {"cuGetProcAddress", cudaEnableDefault, "cuGetProcAddress_v2"},
    {"cuCtxGetDevice", cudaEnableDefault, NULL},
    {"cuMemAlloc_v2", cudaEnableDefault, NULL},
    {"cuNoSuchThing", cudaEnableDefault, NULL},
    {"cudaMalloc", cudaEnableDefault, NULL},
    {"", cudaEnableDefault, NULL},
    {"cuMemAlloc", 77, NULL},
};

static void act_entry_points(void)
{
    CUresult (*alloc)(CUdeviceptr *, size_t) = NULL;
    CUresult (*release)(CUdeviceptr) = NULL;
    CUdeviceptr block = 0;
    void *p = NULL;
    void *symbol = NULL;
    for (size_t i = 0; i < sizeof entry_points / sizeof *entry_points; i++) {
        show_entry(entry_points[i].name, entry_points[i].flags, entry_points[i].export);
        if (i == 0)
            show_context();
    }
    say("alloc's", cudaGetDriverEntryPoint("cuMemAlloc", &symbol, cudaEnableDefault, NULL));
    memcpy(&alloc, &symbol, sizeof alloc);
    say("release's", cudaGetDriverEntryPoint("cuMemFree", &symbol, cudaEnableDefault, NULL));
    memcpy(&release, &symbol, sizeof release);
    say("free of NULL", cudaFree(NULL));
    if (alloc == NULL || release == NULL)
        return;
    printf("  alloc %d\n", alloc(&block, 1 << 20));
    say("free", cudaFree((void *)(uintptr_t)block));
    say("malloc", cudaMalloc(&p, 1 << 20));
    printf("  release %d\n", release((CUdeviceptr)(uintptr_t)p));
    printf("  release again %d\n", release((CUdeviceptr)(uintptr_t)p));
}

static const struct act {
    const char *name;
    void (*play)(void);
} acts[] = {
    {"malloc", alloc_and_free},
    {"free-null", act_free_null},
    {"set-device", act_set_device},
    {"other-device", act_other_device},
    {"driver-first", act_driver_first},
    {"nothing-yet", act_nothing_yet},
    {"errors", act_errors},
    {"error-first", act_error_first},
    {"thread", act_thread},
    {"own-context", act_own_context},
    {"reset", act_reset},
    {"entry-points", act_entry_points},
};
enum { ACTS = sizeof acts / sizeof *acts, AT_ONCE = 4 };

struct player {
    pid_t child;
    int words; /* what it says comes out here */
};

/* Starts a process that plays one act. */
static struct player start(char *self, const char *act)
{
    struct player p = {.child = -1};
    char *arguments[] = {self, (char *)(uintptr_t)act, NULL};
    posix_spawn_file_actions_t actions;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return p;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    if (posix_spawn(&p.child, "/proc/self/exe", &actions, NULL, arguments, environ) != 0)
        p.child = -1;
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    p.words = ends[0];
    return p;
}

/* Passes on what it says until it ends; its status, or -1. */
static int finish(const struct player *p)
{
    char text[4096];
    ssize_t n;
    int status = -1;
    if (p->child < 0)
        return -1;
    while ((n = read(p->words, text, sizeof text)) > 0)
        fwrite(text, 1, (size_t)n, stdout);
    close(p->words);
    return waitpid(p->child, &status, 0) == p->child ? status : -1;
}

/* Several run at a time, because a process of a real driver takes seconds to start and to end on
 * some machines. Their output comes in their order. */
static int play_all(char *self)
{
    struct player players[ACTS];
    int started = 0, failed = 0;
    for (int i = 0; i < ACTS; i++) {
        for (; started < ACTS && started < i + AT_ONCE; started++)
            players[started] = start(self, acts[started].name);
        int status = finish(&players[i]);
        if (status == -1)
            return 1;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
            return 77;
        printf("%s: ended %s %d\n", acts[i].name, WIFEXITED(status) ? "with" : "by signal",
               WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
        failed += status != 0;
    }
    return failed != 0;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return play_all(argv[0]);
    if (driver_symbol("cuInit") == NULL) {
        printf("skipped: no driver\n");
        return 77;
    }
    for (int i = 0; i < ACTS; i++) {
        if (strcmp(argv[1], acts[i].name) != 0)
            continue;
        int version = 0;
        setvbuf(stdout, NULL, _IOLBF, 0); /* what was said before a crash */
        printf("%s\n", acts[i].name);
        acts[i].play();
        say("version", cudaRuntimeGetVersion(&version));
        printf("    %d\n", version);
        return 0;
    }
    return 2;
}
