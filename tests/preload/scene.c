/* SPDX-License-Identifier: BSD-2-Clause */
/* The helpers of scene.h. */
#include "tests/preload/scene.h"
#include "tests/preload/observer.h"
#include "tests/sim/words.h"

#include <link.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static atomic_bool leaving;

void scene_leave(void)
{
    atomic_store(&leaving, true);
}

void scene_require(const char *file, int line, const char *what, int rc)
{
    if (rc == 0)
        return;
    while (atomic_load(&leaving))
        pause();
    const char *name = strrchr(file, '/');
    printf("%s:%d: %s gave %d\n", name != NULL ? name + 1 : file, line, what, rc);
    fflush(stdout);
    _exit(1);
}

uint64_t scene_new_block(const char *file, int line, size_t size_bytes)
{
    uint64_t block = 0;
    scene_require(file, line, "gpu_malloc", gpu_malloc(&block, size_bytes));
    return block;
}

CUstream scene_new_stream(const char *file, int line, bool blocking)
{
    CUstream stream = NULL;
    scene_require(file, line, "gpu_stream_create", gpu_stream_create(&stream, blocking));
    return stream;
}

uint64_t scene_new_filled(const char *file, int line, uint64_t words, uint32_t value,
                          CUstream stream)
{
    uint64_t block = scene_new_block(file, line, words * 4);
    scene_require(file, line, "gpu_fill", gpu_fill(block, words, value, stream));
    return block;
}

pthread_t scene_new_thread(const char *file, int line, void *(*run)(void *), void *arg)
{
    pthread_t thread;
    scene_require(file, line, "pthread_create", pthread_create(&thread, NULL, run, arg));
    return thread;
}

CUgraphExec scene_new_exec(const char *file, int line, CUgraph graph)
{
    CUgraphExec exec = NULL;
    scene_require(file, line, "gpu_graph_instantiate", gpu_graph_instantiate(&exec, graph));
    return exec;
}

CUgraph scene_end_capture(const char *file, int line, CUstream stream)
{
    CUgraph graph = NULL;
    scene_require(file, line, "gpu_capture_end", gpu_capture_end(stream, &graph));
    return graph;
}

size_t scene_free_bytes(const char *file, int line)
{
    size_t bytes = 0;
    scene_require(file, line, "gpu_mem_info", gpu_mem_info(&bytes, NULL));
    return bytes;
}

void scene_skip(const char *why)
{
    printf("skipped: %s\n", why);
    fflush(stdout);
    _exit(SCENE_SKIP);
}

void scene_watchdog(unsigned seconds)
{
    alarm(seconds);
}

void scene_start(int devices, unsigned watchdog_s)
{
    int count = 0;
    scene_watchdog(watchdog_s);
    int rc = gpu_device_count(&count);
    if (rc == CUDA_ERROR_NO_DEVICE || (rc == 0 && count < devices))
        scene_skip("not enough devices");
    REQUIRE(rc);
    REQUIRE(gpu_open(0));
}

void scene_start_peers(unsigned watchdog_s)
{
    bool can = false;
    scene_start(2, watchdog_s);
    REQUIRE(gpu_peer_can(&can, 1, 0));
    if (!can)
        scene_skip("the devices are no peers");
}

bool scene_preloaded(void)
{
    const char *preload = getenv("LD_PRELOAD");
    return preload != NULL && strstr(preload, "libgpucache") != NULL;
}

void *scene_driver_symbol(const char *name)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    return driver != NULL ? dlsym(driver, name) : NULL;
}

bool scene_driver_has(const char *name)
{
    return scene_driver_symbol(name) != NULL;
}

bool scene_simulated(void)
{
    return scene_driver_has("simHazardCount");
}

void scene_await_held(unsigned count)
{
    for (int ms = 0; SIM(simHeld)() < count && ms < 30000; ms++)
        scene_sleep_ms(1);
    EXPECT(SIM(simHeld)() >= count);
}

bool scene_handles(pthread_t thread, int number, atomic_bool *handled)
{
    for (int ms = 0; ms < 5000 && !atomic_load(handled); ms++) {
        if (ms % 1000 == 0)
            REQUIRE(pthread_kill(thread, number));
        scene_sleep_ms(1);
    }
    return atomic_load(handled);
}

void scene_cost(const char *function, const char *ns)
{
    char name[128];
    snprintf(name, sizeof name, "SIM_COST_%s", function);
    REQUIRE(setenv("SIM_REALTIME", "1", 0));
    REQUIRE(setenv(name, ns, 0));
}

uint32_t *scene_hold(CUstream stream)
{
    void *word = NULL;
    REQUIRE(gpu_host_alloc(&word, sizeof(uint32_t)));
    __atomic_store_n((uint32_t *)word, 0, __ATOMIC_SEQ_CST);
    REQUIRE(gpu_wait_flag((uint64_t)(uintptr_t)word, stream));
    return word;
}

void scene_let_go(uint32_t *word)
{
    __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
}

void scene_run_alone(CUstream stream, bool waits)
{
    enum { BLOCKS = 160, BLOCK_BYTES = 64 * 1024 };
    for (uint32_t i = 0; i < BLOCKS; i++) {
        uint64_t block = NEW_BLOCK(BLOCK_BYTES);
        REQUIRE(gpu_fill(block, 64, i, stream));
        REQUIRE(gpu_free(block));
        if (waits && i == BLOCKS / 2)
            REQUIRE(gpu_stream_sync(stream));
    }
}

void scene_free_late(uint64_t words, uint64_t ns, CUstream stream)
{
    uint64_t block = NEW_BLOCK(words * 4);
    REQUIRE(gpu_spin_fill(block, words, 0xdead, ns, stream));
    REQUIRE(gpu_free(block));
}

uint32_t scene_wrong_words(uint64_t ptr, uint64_t n_words, uint32_t value, CUstream stream)
{
    uint64_t errors_ptr = 0;
    uint32_t errors = 0;
    REQUIRE(gpu_malloc(&errors_ptr, sizeof errors));
    REQUIRE(gpu_memset_async(errors_ptr, 0, sizeof errors, stream));
    REQUIRE(gpu_check(ptr, n_words, value, errors_ptr, stream));
    REQUIRE(gpu_get_async(&errors, errors_ptr, sizeof errors, stream));
    REQUIRE(gpu_stream_sync(stream));
    REQUIRE(gpu_free(errors_ptr));
    return errors;
}

/* In parts: fresh memory for the whole of a large block takes longer than the copy. */
enum { PART_BYTES = 256 * 1024 };

size_t scene_wrong_bytes(uint64_t ptr, size_t size_bytes, unsigned char byte)
{
    size_t part_max = size_bytes < PART_BYTES ? size_bytes : PART_BYTES, wrong = 0;
    unsigned char *host = malloc(part_max);
    EXPECT(host != NULL);
    for (size_t at = 0; at < size_bytes; at += part_max) {
        size_t part = size_bytes - at < part_max ? size_bytes - at : part_max;
        REQUIRE(gpu_get(host, ptr + at, part));
        wrong += bytes_differing(host, part, byte);
    }
    free(host);
    return wrong;
}

/* In the table of a linker the strings come right behind the symbols. */
void *scene_drivers_own(const char *name)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    struct link_map *map = NULL;
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    if (driver == NULL || dlinfo(driver, RTLD_DI_LINKMAP, &map) != 0)
        return NULL;
    for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) {
        if (d->d_tag == DT_SYMTAB)
            symbols = (const ElfW(Sym) *)(uintptr_t)d->d_un.d_ptr;
        if (d->d_tag == DT_STRTAB)
            strings = (const char *)(uintptr_t)d->d_un.d_ptr;
    }
    for (const ElfW(Sym) *s = symbols; s != NULL && (const char *)s < strings; s++)
        if (s->st_value != 0 && strcmp(strings + s->st_name, name) == 0)
            return (void *)(uintptr_t)(map->l_addr + s->st_value);
    return NULL;
}

bool scene_is_mapped_for(int device, uint64_t address)
{
    CUresult (*ask)(unsigned long long *, const CUmemLocation *, CUdeviceptr) =
        (CUresult (*)(unsigned long long *, const CUmemLocation *, CUdeviceptr))(
            uintptr_t)scene_drivers_own("cuMemGetAccess");
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    unsigned long long access = 0;
    return ask && ask(&access, &location, address) == CUDA_SUCCESS &&
           access != CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

int scene_device_of(uint64_t address)
{
    bool is_device = false;
    int device = -1;
    int rc = gpu_pointer_is_device(&is_device, &device, address);
    return rc == 0 && is_device ? device : -1;
}

bool scene_lies_in(uint64_t address, uint64_t block, size_t size_bytes)
{
    uint64_t base = 0;
    size_t range_bytes = 0;
    int rc = gpu_address_range(&base, &range_bytes, address);
    return rc == 0 && base == block && range_bytes == size_bytes;
}

struct thread {
    pthread_t handle;
    int index;
    int (*body)(int index, void *context);
    void *context;
    int failures;
};

static void *thread_main(void *argument)
{
    struct thread *thread = argument;
    thread->failures = thread->body(thread->index, thread->context);
    return NULL;
}

int scene_threads(int n, int (*body)(int index, void *context), void *context)
{
    struct thread *threads = calloc((size_t)n, sizeof *threads);
    int failures = 0;
    EXPECT(threads != NULL);
    for (int i = 0; i < n; i++) {
        threads[i] = (struct thread){.index = i, .body = body, .context = context};
        REQUIRE(pthread_create(&threads[i].handle, NULL, thread_main, &threads[i]));
    }
    for (int i = 0; i < n; i++) {
        REQUIRE(pthread_join(threads[i].handle, NULL));
        failures += threads[i].failures;
    }
    free(threads);
    return failures;
}

int scene_elsewhere(int (*body)(int index, void *context), void *context)
{
    return scene_threads(1, body, context);
}

#ifndef __has_feature
#define __has_feature(name) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
enum { THREAD_SANITIZER = true };
#else
enum { THREAD_SANITIZER = false };
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
enum { ADDRESS_SANITIZER = true };
#else
enum { ADDRESS_SANITIZER = false };
#endif

void scene_leave_sanitizer(void)
{
    if (THREAD_SANITIZER)
        unsetenv("LD_PRELOAD");
}

bool scene_sanitized(void)
{
    return THREAD_SANITIZER || ADDRESS_SANITIZER;
}

char scene_thread_state(int thread)
{
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    EXPECT(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
    close(fd);
    const char *name_end = strrchr(text, ')');
    EXPECT(name_end != NULL && name_end[1] == ' ');
    return name_end[2];
}

size_t scene_resident_bytes(void)
{
    unsigned long all = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    EXPECT(file != NULL && fscanf(file, "%lu %lu", &all, &resident) == 2);
    fclose(file);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

void scene_sleep_ms(unsigned ms)
{
    struct timespec time = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
}

uint64_t scene_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 * MS_NS + (uint64_t)t.tv_nsec;
}

pid_t scene_fork(void)
{
    fflush(stdout);
    pid_t child = fork();
    EXPECT(child >= 0);
    return child;
}

int scene_wait(pid_t child)
{
    int status = -1;
    EXPECT(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

enum { ACTS_MAX = 64 };

static struct act {
    const char *name;
    int (*play)(void);
} acts[ACTS_MAX];
static size_t num_acts;
static const char *playing; /* the act's name; NULL: the program has none */

void scene_list_act(const char *name, int (*play)(void))
{
    EXPECT(num_acts < ACTS_MAX);
    acts[num_acts++] = (struct act){name, play};
}

/* Returns the exit status. */
static int play_here(const struct act *act)
{
    playing = act->name;
    int failures = act->play();
    return failures == SCENE_SKIP ? SCENE_SKIP : failures != 0;
}

static int play_apart(const struct act *act)
{
    pid_t pid = scene_fork();
    if (pid == 0)
        exit(play_here(act));
    return scene_wait(pid);
}

static bool is_named(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return true;
    return argc < 2;
}

int scene_again(const char *variable, const char *value)
{
    REQUIRE(setenv(variable, value, 1));
    pid_t child = scene_fork();
    if (child == 0) {
        execl("/proc/self/exe", program_invocation_name, playing, (char *)NULL);
        _exit(127);
    }
    return scene_wait(child);
}

bool scene_refuse(long call, long other, int error)
{
    struct sock_filter lines[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)other, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof lines / sizeof lines[0], lines};
    return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
           !syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter);
}

const char *scene_text(const char *path)
{
    static char text[65536];
    FILE *file = fopen(path, "re");
    size_t num_bytes = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
    text[num_bytes] = '\0';
    if (file != NULL)
        fclose(file);
    return text;
}

unsigned scene_count(const char *text, const char *words)
{
    unsigned found = 0;
    for (const char *at = text; (at = strstr(at, words)) != NULL; at++)
        found++;
    return found;
}

const char *scene_again_report(const char *variable, const char *value, int *status)
{
    char path[] = "/tmp/scene-report-XXXXXX", option[64];
    EXPECT(mkstemp(path) >= 0);
    snprintf(option, sizeof option, "exit-json:%s", path);
    REQUIRE(setenv("GPUCACHE_STATS", option, 1));
    *status = scene_again(variable, value);
    const char *text = scene_text(path);
    unlink(path);
    return text;
}

int scene_play(int argc, char **argv)
{
    int failed = 0, played = 0;
    observer_serve();
    for (size_t i = 0; i < num_acts && argc == 2; i++)
        if (is_named(acts[i].name, argc, argv))
            return play_here(&acts[i]);
    for (size_t i = 0; i < num_acts; i++) {
        if (!is_named(acts[i].name, argc, argv))
            continue;
        int status = play_apart(&acts[i]);
        printf("%s: %d\n", acts[i].name, status);
        failed += status != 0 && status != SCENE_SKIP;
        played += status != SCENE_SKIP;
    }
    return failed ? 1 : played ? 0 : SCENE_SKIP;
}
