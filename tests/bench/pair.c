/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The time of a pair of malloc and free through the hooks of a preloaded libgpucache.so. It runs on
 * the simulated driver, whose calls take no virtual time and little real time. One line for each
 * interface, mode, size and number of threads:
 *
 *   api= mode= size= threads= live= median_ns= min_ns=
 *
 * over batches of pairs. Modes. `single`: no work but on the legacy default stream. `launches`:
 * between malloc and free a kernel is launched on a stream of each thread, and ends at once.
 * `streams`: the same on two streams of each thread in turn. `fenced`: two streams have work that
 * does not end meanwhile. The time of the launches alone is measured and subtracted. On a busy
 * machine the result may be negative.
 */
#include "tests/bench/arguments.h"
#include "tests/preload/gpu.h"
#include "tests/sim/sim.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define APIS "driver,runtime"
#define MODES "single,launches,streams,fenced"

enum { LIVE_MAX = 4096, SIZES_MAX = 32, THREADS_MAX = 64, COUNT_MAX = 1000000 };

static struct options {
    const char *apis, *modes, *sizes, *threads;
    unsigned batches, pairs, live;
    uint64_t at_most;
    bool json;
} options = {.apis = APIS,
             .modes = MODES,
             .sizes = "512,4K,32K,256K,1M,2M,16M,64M",
             .threads = "1,2,4,8,16",
             .batches = 200,
             .pairs = 200,
             .live = 1,
             .at_most = UINT64_MAX};

static CUcontext context;
static pthread_barrier_t barrier;

static void require(int code, const char *what)
{
    if (code) {
        fprintf(stderr, "pair: %s: error %d\n", what, code);
        exit(1);
    }
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int runtime_malloc(uint64_t *at, size_t size_bytes)
{
    void *p = NULL;
    int rc = (int)cudaMalloc(&p, size_bytes);
    *at = (uint64_t)(uintptr_t)p;
    return rc;
}

static int runtime_free(uint64_t at)
{
    return (int)cudaFree((void *)(uintptr_t)at);
}

static int driver_malloc(uint64_t *at, size_t size_bytes)
{
    CUdeviceptr p = 0;
    int rc = (int)cuMemAlloc(&p, size_bytes);
    *at = p;
    return rc;
}

static int driver_free(uint64_t at)
{
    return (int)cuMemFree((CUdeviceptr)at);
}

struct api {
    const char *name;
    int (*malloc)(uint64_t *at, size_t size_bytes);
    int (*free)(uint64_t at);
};

static const struct api apis[] = {
    {"driver", driver_malloc, driver_free},
    {"runtime", runtime_malloc, runtime_free},
};

/* One thread's part: a ring of live blocks, of which each pair frees the oldest. */
struct job {
    const struct api *api;
    size_t size_bytes;
    unsigned streams; /* launched to in turn, 0: nothing is launched */
    bool pairs;
    CUstream stream[2];
    uint64_t *live;
    unsigned at;
    uint64_t *batch_ns;
    pthread_t thread;
};

/* One function for warming up and for measuring: the library knows callers by their addresses. */
static __attribute__((noinline)) void batch(struct job *j)
{
    for (unsigned i = 0; i < options.pairs; i++) {
        if (j->pairs)
            require(j->api->malloc(&j->live[j->at], j->size_bytes), "malloc");
        if (j->streams)
            require(gpu_spin(0, j->stream[i % j->streams]), "launch");
        if (j->pairs) {
            j->at = (j->at + 1) % options.live;
            require(j->api->free(j->live[j->at]), "free");
            j->live[j->at] = 0;
        }
    }
}

/* A function of its own: instructions are counted inside of it alone. */
void pair_measured(void *arg);
__attribute__((noinline)) void pair_measured(void *arg)
{
    batch(arg);
    __asm__ volatile(""); /* or the call would be a jump out of here */
}

static void *thread_main(void *arg)
{
    struct job *j = arg;
    require((int)cuCtxSetCurrent(context), "cuCtxSetCurrent");
    for (unsigned i = 0; i < j->streams; i++)
        require(gpu_stream_create(&j->stream[i], false), "stream");
    j->live = calloc(options.live, sizeof *j->live);
    for (unsigned i = 1; j->pairs && i < options.live; i++)
        require(j->api->malloc(&j->live[i], j->size_bytes), "malloc");
    for (int warm = 0; warm < 3; warm++)
        batch(j);
    pthread_barrier_wait(&barrier);
    for (unsigned b = 0; b < options.batches; b++) {
        uint64_t start = now_ns();
        pair_measured(j);
        j->batch_ns[b] = now_ns() - start;
    }
    pthread_barrier_wait(&barrier);
    for (unsigned i = 0; j->pairs && i < options.live; i++)
        if (j->live[i])
            require(j->api->free(j->live[i]), "free");
    for (unsigned i = 0; i < j->streams; i++) {
        require(gpu_stream_sync(j->stream[i]), "sync");
        require(gpu_stream_destroy(j->stream[i]), "stream");
    }
    free(j->live);
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

struct result {
    double median_ns, min_ns;
};

static struct result measure(const struct job *like, unsigned threads)
{
    struct job jobs[THREADS_MAX];
    size_t count = (size_t)threads * options.batches;
    uint64_t *batch_ns = calloc(count, sizeof *batch_ns);
    pthread_barrier_init(&barrier, NULL, threads);
    for (unsigned i = 0; i < threads; i++) {
        jobs[i] = *like;
        jobs[i].batch_ns = batch_ns + (size_t)i * options.batches;
        require(pthread_create(&jobs[i].thread, NULL, thread_main, &jobs[i]), "thread");
    }
    for (unsigned i = 0; i < threads; i++)
        pthread_join(jobs[i].thread, NULL);
    pthread_barrier_destroy(&barrier);
    qsort(batch_ns, count, sizeof *batch_ns, by_value);
    struct result r = {(double)batch_ns[count / 2] / options.pairs,
                       (double)batch_ns[0] / options.pairs};
    free(batch_ns);
    return r;
}

static void report(struct job *j, const char *mode, unsigned threads)
{
    struct result r;
    j->pairs = true;
    r = measure(j, threads);
    if (j->streams) {
        j->pairs = false;
        struct result launches = measure(j, threads);
        r.median_ns -= launches.median_ns;
        r.min_ns -= launches.min_ns;
    }
    printf(options.json ? "{\"api\": \"%s\", \"mode\": \"%s\", \"size\": %zu, \"threads\": %u, "
                          "\"live\": %u, \"median_ns\": %.1f, \"min_ns\": %.1f}\n"
                        : "api=%s mode=%s size=%zu threads=%u live=%u median_ns=%.1f min_ns=%.1f\n",
           j->api->name, mode, j->size_bytes, threads, options.live, r.median_ns, r.min_ns);
    fflush(stdout);
}

/* Is the name in a list of names with commas between? */
static bool listed(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (!strncmp(at, name, n) && (at[n] == ',' || !at[n]))
            return true;
    }
    return false;
}

/* Is each name of a list in another list? */
static bool all_listed(const char *names, const char *known)
{
    char name[16];
    for (const char *at = names;; at++) {
        size_t n = strcspn(at, ",");
        if (!n || n >= sizeof name)
            return false;
        memcpy(name, at, n);
        name[n] = '\0';
        if (!listed(known, name))
            return false;
        at += n;
        if (!*at)
            return true;
    }
}

/* Numbers with commas between, each with a suffix K, M or G if need be. Returns how many. */
static unsigned numbers(const char *list, uint64_t *out, unsigned max)
{
    unsigned count = 0;
    while (*list && count < max) {
        char *end;
        uint64_t value = strtoull(list, &end, 10);
        const char *suffix = *end ? strchr("KMG", *end) : NULL;
        if (suffix) {
            value <<= 10 * (suffix - "KMG" + 1);
            end++;
        }
        if (!value || end == list || (*end && *end != ','))
            return 0;
        out[count++] = value;
        list = end + (*end == ',');
    }
    return count;
}

static unsigned launches_on(const char *mode)
{
    return !strcmp(mode, "launches") ? 1 : !strcmp(mode, "streams") ? 2 : 0;
}

static bool run_mode(const char *mode)
{
    uint64_t sizes[SIZES_MAX], threads[SIZES_MAX];
    unsigned size_count = numbers(options.sizes, sizes, SIZES_MAX);
    unsigned thread_count = numbers(options.threads, threads, SIZES_MAX);
    if (!size_count || !thread_count)
        return false;
    for (size_t a = 0; a < sizeof apis / sizeof *apis; a++)
        for (unsigned t = 0; t < thread_count && listed(options.apis, apis[a].name); t++)
            for (unsigned s = 0; s < size_count; s++) {
                struct job j = {
                    .api = &apis[a], .size_bytes = sizes[s], .streams = launches_on(mode)};
                if (threads[t] > THREADS_MAX)
                    return false;
                report(&j, mode, (unsigned)threads[t]);
            }
    return true;
}

/* While kernels on two streams wait for a word that the host writes at the end. */
static bool run_fenced(void)
{
    CUstream stream[2];
    volatile uint32_t *flag;
    void *pinned;
    uint64_t at;
    require(gpu_host_alloc(&pinned, sizeof *flag), "pinned memory");
    flag = pinned;
    *flag = 0;
    require(driver_malloc(&at, 512) || driver_free(at), "the first pair");
    for (int i = 0; i < 2; i++) {
        require(gpu_stream_create(&stream[i], false), "stream");
        require(gpu_wait_flag((uint64_t)(uintptr_t)flag, stream[i]), "launch");
    }
    bool good = run_mode("fenced");
    *flag = 1;
    require(gpu_sync(), "sync");
    for (int i = 0; i < 2; i++)
        require(gpu_stream_destroy(stream[i]), "stream");
    require(gpu_host_free(pinned), "pinned memory");
    return good;
}

/* Whether the pool asked the driver for memory at most options.at_most times. */
static bool asked_seldom(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *found = driver ? dlsym(driver, "simCallCount") : NULL;
    __typeof__(&simCallCount) count;
    memcpy(&count, &found, sizeof count);
    if (!found) {
        fprintf(stderr, "pair: --at-most needs the simulated driver\n");
        return false;
    }
    uint64_t asked = count("cuMemAlloc_v2") + count("cuMemCreate");
    if (asked > options.at_most)
        fprintf(stderr, "pair: the driver was asked for memory %llu times\n",
                (unsigned long long)asked);
    return asked <= options.at_most;
}

static int usage(const char *name)
{
    fprintf(stderr,
            "usage: LD_PRELOAD=libgpucache.so %s [OPTION]...\n"
            "  --api LIST      driver,runtime (the shared libcudart)\n"
            "  --mode LIST     single,launches,streams,fenced\n"
            "  --sizes LIST    bytes, K, M, G (%s)\n"
            "  --threads LIST  (%s), at most %d\n"
            "  --live N        live blocks of each thread; each pair frees the oldest (%u)\n"
            "  --batches N     of pairs; median and least are over these (%u)\n"
            "  --pairs N       of a batch (%u)\n"
            "  --at-most N     fail if the driver is asked for memory more often\n"
            "  --json          one JSON object for each line\n",
            name, options.sizes, options.threads, THREADS_MAX, options.live, options.batches,
            options.pairs);
    return 2;
}

/* The first pair of each interface. After it a thread of the library's keeps the runtime loaded.
 * Until then each call searches for its runtime, which is not what is measured. */
static void begin(void)
{
    for (size_t a = 0; a < sizeof apis / sizeof *apis; a++) {
        uint64_t at;
        if (listed(options.apis, apis[a].name))
            require(apis[a].malloc(&at, 512) || apis[a].free(at), "the first pair");
    }
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

static bool apis_known(const char *names)
{
    return all_listed(names, APIS);
}

static bool modes_known(const char *names)
{
    return all_listed(names, MODES);
}

int main(int argc, char **argv)
{
    static const struct argument arguments[] = {
        {"api", .text = &options.apis, .check = apis_known},
        {"mode", .text = &options.modes, .check = modes_known},
        {"sizes", .text = &options.sizes},
        {"threads", .text = &options.threads},
        {"live", .count = &options.live, .most = LIVE_MAX},
        {"batches", .count = &options.batches, .most = COUNT_MAX},
        {"pairs", .count = &options.pairs, .most = COUNT_MAX},
        {"at-most", .large = &options.at_most},
        {"json", .flag = &options.json},
        {0},
    };
    bool good = true;

    if (!arguments_parse(argc, argv, arguments) || optind != argc)
        return usage(argv[0]);
    /* Time is what the calls of the library take: simulated work is over at once, and unwatched. */
    setenv("SIM_KERNEL_NS", "0", 0);
    setenv("SIM_HAZARD", "off", 0);
    setenv("SIM_CAPACITY", "64G", 0);
    require(gpu_open(0), "no device");
    require((int)cuCtxGetCurrent(&context), "cuCtxGetCurrent");
    begin();
    if (listed(options.modes, "single"))
        good &= run_mode("single");
    if (listed(options.modes, "launches"))
        good &= run_mode("launches");
    if (listed(options.modes, "streams"))
        good &= run_mode("streams");
    if (listed(options.modes, "fenced"))
        good &= run_fenced();
    if (!good)
        return usage(argv[0]);
    return options.at_most == UINT64_MAX || asked_seldom() ? 0 : 1;
}
