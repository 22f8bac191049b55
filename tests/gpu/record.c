/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A library for LD_PRELOAD that records what a program asks of the driver, for tests/bench/replay:
 *
 *   LD_PRELOAD="record.so libgpucache.so" RECORD=FILE.csv program
 *
 * It stands before libgpucache, so it sees the calls of the program and not those of the pool. It
 * keeps the events in memory and writes them when the process exits. The file has RMM's columns,
 * with the time in nanoseconds since the first event, and two more actions:
 *
 *   allocate, free  Pointer and Size as the program has them; Stream is 0x0
 *   launch          Size pieces of work (kernels, copies, memsets) in a row for one stream. The
 *                   time is that of the first of them
 *   wait            the host waited Size nanoseconds for the stream, or for all work (0x0 with
 *                   Pointer 0x1). The time is that of the end of the wait
 *
 * A program reaches the driver by dlsym and cuGetProcAddress. The library answers with functions of
 * its own that record and call what the program would have got. cudaMalloc and cudaFree go to the
 * program's shared runtime, and not to libgpucache's shorter way, so that each call is seen once.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_EVENTS (UINT64_C(1) << 23)

enum action { ALLOCATE, FREE, LAUNCH, WAIT };
static const char *const action_names[] = {"allocate", "free", "launch", "wait"};

struct event {
    uint64_t time_ns, pointer, size, stream;
    uint32_t thread;
    enum action action;
};

static struct event *events; /* address space; a page gets memory when it is written */
static uint64_t num_events, num_lost;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static uint32_t thread_id(void)
{
    static _Thread_local uint32_t id;
    if (!id)
        id = (uint32_t)syscall(SYS_gettid);
    return id;
}

/* Launches in a row by one thread for one stream are one event. */
static bool joins_last(const struct event *e)
{
    struct event *last = num_events ? &events[num_events - 1] : NULL;
    if (e->action != LAUNCH || !last || last->action != LAUNCH || last->stream != e->stream ||
        last->thread != e->thread)
        return false;
    last->size++;
    return true;
}

static void note(enum action action, uint64_t pointer, uint64_t size, uint64_t stream,
                 uint64_t time_ns)
{
    struct event e = {time_ns, pointer, size, stream, thread_id(), action};
    pthread_mutex_lock(&lock);
    if (!events) {
        void *at = mmap(NULL, MAX_EVENTS * sizeof e, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        events = at != MAP_FAILED ? at : NULL;
    }
    if (!events || num_events == MAX_EVENTS)
        num_lost++;
    else if (!joins_last(&e))
        events[num_events++] = e;
    pthread_mutex_unlock(&lock);
}

__attribute__((destructor)) static void write_events(void)
{
    const char *path = getenv("RECORD");
    FILE *file = path && num_events ? fopen(path, "w") : NULL;
    if (!file)
        return;
    fprintf(file, "Thread,Time,Action,Pointer,Size,Stream\n");
    for (uint64_t i = 0; i < num_events; i++) {
        const struct event *e = &events[i];
        fprintf(file, "%" PRIu32 ",%" PRIu64 ",%s,0x%" PRIx64 ",%" PRIu64 ",0x%" PRIx64 "\n",
                e->thread, e->time_ns - events[0].time_ns, action_names[e->action], e->pointer,
                e->size, e->stream);
    }
    fclose(file);
    if (num_lost)
        fprintf(stderr, "record: %" PRIu64 " events lost\n", num_lost);
}

typedef void *lookup_fn(void *handle, const char *name);

static lookup_fn *libc_dlsym(void)
{
    static lookup_fn *found;
    if (!found)
        found = (lookup_fn *)(uintptr_t)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!found)
        found = (lookup_fn *)(uintptr_t)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return found;
}

/* What the program would have called: libgpucache's, or else the C library's. */
static lookup_fn *next_dlsym(void)
{
    static lookup_fn *found;
    if (!found)
        found = (lookup_fn *)(uintptr_t)libc_dlsym()(RTLD_NEXT, "dlsym");
    return found;
}

/* Each function that is recorded has two forms: for the legacy default stream, and for that of the
 * thread. Those of cuCtxSynchronize are the first, for the current context, and the second, for
 * any context.
 * `real` is what the program would have called. */
enum { LEGACY, PER_THREAD, FORMS };

#define REAL(name, ...) static CUresult (*real_##name[FORMS])(__VA_ARGS__)

REAL(alloc, CUdeviceptr *, size_t);
REAL(free, CUdeviceptr);
REAL(kernel, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
     CUstream, void **, void **);
REAL(kernel_ex, const CUlaunchConfig *, CUfunction, void **, void **);
REAL(sync_stream, CUstream);
REAL(sync_context, CUcontext);
REAL(address, const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static CUresult record_alloc(CUdeviceptr *at, size_t size_bytes)
{
    CUresult rc = real_alloc[LEGACY](at, size_bytes);
    if (rc == CUDA_SUCCESS)
        note(ALLOCATE, *at, size_bytes, 0, now_ns());
    return rc;
}

/* Noted before, since another thread may get the address at once. */
static CUresult record_free(CUdeviceptr at)
{
    if (at)
        note(FREE, at, 0, 0, now_ns());
    return real_free[LEGACY](at);
}

static CUresult waited(CUresult rc, uint64_t begin_ns, CUstream stream, bool all)
{
    uint64_t end_ns = now_ns();
    note(WAIT, all, end_ns - begin_ns, (uintptr_t)stream, end_ns);
    return rc;
}

/* An argument that the older form does not have does no harm. */
static CUresult record_sync_context_LEGACY(CUcontext context)
{
    uint64_t begin_ns = now_ns();
    return waited(real_sync_context[LEGACY](context), begin_ns, NULL, true);
}

static CUresult record_sync_context_PER_THREAD(CUcontext context)
{
    uint64_t begin_ns = now_ns();
    return waited(real_sync_context[PER_THREAD](context), begin_ns, NULL, true);
}

/* The functions that take a stream, in both forms. */
#define RECORD_FORM(form)                                                                          \
    static CUresult record_kernel_##form(CUfunction f, unsigned gx, unsigned gy, unsigned gz,      \
                                         unsigned bx, unsigned by, unsigned bz, unsigned shared,   \
                                         CUstream stream, void **args, void **extra)               \
    {                                                                                              \
        note(LAUNCH, 0, 1, (uintptr_t)stream, now_ns());                                           \
        return real_kernel[form](f, gx, gy, gz, bx, by, bz, shared, stream, args, extra);          \
    }                                                                                              \
    static CUresult record_kernel_ex_##form(const CUlaunchConfig *config, CUfunction f,            \
                                            void **args, void **extra)                             \
    {                                                                                              \
        note(LAUNCH, 0, 1, (uintptr_t)config->hStream, now_ns());                                  \
        return real_kernel_ex[form](config, f, args, extra);                                       \
    }                                                                                              \
    static CUresult record_sync_stream_##form(CUstream stream)                                     \
    {                                                                                              \
        uint64_t begin_ns = now_ns();                                                              \
        return waited(real_sync_stream[form](stream), begin_ns, stream, false);                    \
    }
RECORD_FORM(LEGACY)
RECORD_FORM(PER_THREAD)

/* Copies and memsets of four words, the last of which is the stream. */
#define MOVES(X)                                                                                   \
    X(cuMemcpyAsync)                                                                               \
    X(cuMemcpyHtoDAsync)                                                                           \
    X(cuMemcpyDtoHAsync)                                                                           \
    X(cuMemcpyDtoDAsync)                                                                           \
    X(cuMemsetD8Async)                                                                             \
    X(cuMemsetD16Async)                                                                            \
    X(cuMemsetD32Async)

typedef CUresult move_fn(uintptr_t to, uintptr_t what, size_t count, CUstream stream);

#define RECORD_MOVE(name)                                                                          \
    static move_fn *real_##name[FORMS];                                                            \
    static CUresult name##_LEGACY(uintptr_t to, uintptr_t what, size_t count, CUstream stream)     \
    {                                                                                              \
        note(LAUNCH, 0, 1, (uintptr_t)stream, now_ns());                                           \
        return real_##name[LEGACY](to, what, count, stream);                                       \
    }                                                                                              \
    static CUresult name##_PER_THREAD(uintptr_t to, uintptr_t what, size_t count, CUstream stream) \
    {                                                                                              \
        note(LAUNCH, 0, 1, (uintptr_t)stream, now_ns());                                           \
        return real_##name[PER_THREAD](to, what, count, stream);                                   \
    }
MOVES(RECORD_MOVE)

static CUresult record_address(const char *symbol, void **pfn, int version, cuuint64_t flags,
                               CUdriverProcAddressQueryResult *status);

#define ANY(f) ((void *)(uintptr_t)(f))
#define ONE(name, prefix) {name, {ANY(record_##prefix), ANY(record_##prefix)}, ANY(real_##prefix)}
#define TWO(name, prefix)                                                                          \
    {name, {ANY(record_##prefix##_LEGACY), ANY(record_##prefix##_PER_THREAD)}, ANY(real_##prefix)}
#define MOVE(name) {#name, {ANY(name##_LEGACY), ANY(name##_PER_THREAD)}, ANY(real_##name)},

/* By the name that cuGetProcAddress knows. */
static const struct recorded {
    const char *name;
    void *own[FORMS];
    void *real; /* the array of FORMS pointers */
} recorded[] = {ONE("cuMemAlloc", alloc),
                ONE("cuMemFree", free),
                TWO("cuLaunchKernel", kernel),
                TWO("cuLaunchKernelEx", kernel_ex),
                TWO("cuStreamSynchronize", sync_stream),
                TWO("cuCtxSynchronize", sync_context),
                ONE("cuGetProcAddress", address),
                MOVES(MOVE)};

static void *wrapped(const char *base, size_t len, int form, void *found)
{
    for (size_t i = 0; found && i < sizeof recorded / sizeof *recorded; i++) {
        const struct recorded *r = &recorded[i];
        if (strlen(r->name) != len || strncmp(r->name, base, len) != 0)
            continue;
        if (found != r->own[form])
            ((void **)r->real)[form] = found;
        return r->own[form];
    }
    return found;
}

static CUresult record_address(const char *symbol, void **pfn, int version, cuuint64_t flags,
                               CUdriverProcAddressQueryResult *status)
{
    CUresult rc = real_address[LEGACY](symbol, pfn, version, flags, status);
    bool second = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if (symbol && !strcmp(symbol, "cuCtxSynchronize"))
        second = version >= 13000;
    bool known = version >= 12000 ||
                 (version >= 3020 && symbol && strcmp(symbol, "cuGetProcAddress") != 0) ||
                 (symbol && strncmp(symbol, "cuMem", 5) != 0 && strncmp(symbol, "cuGet", 5) != 0);
    if (rc == CUDA_SUCCESS && symbol && pfn && known)
        *pfn = wrapped(symbol, strlen(symbol), second ? PER_THREAD : LEGACY, *pfn);
    return rc;
}

/* The exported names: NAME, NAME_v2 and both with _ptsz. Where cuMemAlloc has a _v2, the form
 * without is another function. */
static void *wrapped_export(const char *name, void *found)
{
    size_t len = strlen(name);
    int form = LEGACY;
    if (len > 5 && !strcmp(name + len - 5, "_ptsz")) {
        form = PER_THREAD;
        len -= 5;
    }
    bool second = len > 3 && !strncmp(name + len - 3, "_v2", 3);
    bool has_second =
        !strncmp(name, "cuGet", 5) ||
        (!strncmp(name, "cuMem", 5) && !strstr(name, "MemcpyAsync") && !strstr(name, "Memset"));
    if (has_second && !second)
        return found;
    if (second && !strncmp(name, "cuCtx", 5))
        form = PER_THREAD;
    return wrapped(name, second ? len - 3 : len, form, found);
}

/* The compiler makes a jump of the first return, so that the C library knows the caller. */
EXPORT void *dlsym(void *handle, const char *name)
{
    lookup_fn *next = next_dlsym();
    if (handle == RTLD_NEXT || name[0] != 'c' || name[1] != 'u')
        return next(handle, name);
    return wrapped_export(name, next(handle, name));
}

/* The program's shared runtime. */
static void *of_runtime(const char *name)
{
    static const char *const names[] = {"libcudart.so.13", "libcudart.so.12"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *runtime = dlopen(names[i], RTLD_LAZY | RTLD_NOLOAD);
        if (runtime)
            return libc_dlsym()(runtime, name);
    }
    return libc_dlsym()(RTLD_NEXT, name);
}

EXPORT int cudaMalloc(void **at, size_t size_bytes);
EXPORT int cudaMalloc(void **at, size_t size_bytes)
{
    static int (*_Atomic real)(void **, size_t);
    if (!real)
        real = (int (*)(void **, size_t))(uintptr_t)of_runtime("cudaMalloc");
    return real(at, size_bytes);
}

EXPORT int cudaFree(void *at);
EXPORT int cudaFree(void *at)
{
    static int (*_Atomic real)(void *);
    if (!real)
        real = (int (*)(void *))(uintptr_t)of_runtime("cudaFree");
    return real(at);
}
