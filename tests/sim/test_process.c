/* SPDX-License-Identifier: BSD-2-Clause */
/* The effects of the environment, the end of a process, and what processes share. This program runs
 * itself in several roles, and looks at the exit status and the output. What a role needs to know
 * lies in a shared file. */
#include "tests/sim/fixture.h"

#include <sys/mman.h>
#include <time.h>

#define GIFT_FD 60
#define LAZY CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS

static struct gift {
    CUipcMemHandle memory[2];
    size_t used_bytes;
} *gift;

/* Runs the role with one more environment variable. Stores its output in out and returns its exit
 * status. */
static int run(const char *role, const char *variable, const char *value, char *out, size_t size)
{
    int ends[2];
    size_t got = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        setenv(variable, value, 1);
        execl("/proc/self/exe", "test_process", role, NULL);
        _exit(99);
    }
    close(ends[1]);
    for (ssize_t n; got < size - 1 && (n = read(ends[0], out + got, size - 1 - got)) > 0;)
        got += (size_t)n;
    out[got] = '\0';
    close(ends[0]);
    int status = child_status(child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static int race(void)
{
    CUdeviceptr at = alloc(4096);
    fill(stream(CU_STREAM_NON_BLOCKING), at, 1024, 1);
    fill(stream(CU_STREAM_NON_BLOCKING), at, 1024, 2);
    printf("hazards %llu\n", (unsigned long long)simHazardCount());
    return 0; /* the output is still buffered */
}

static int quiet(void)
{
    CUdeviceptr at = alloc(4096);
    fill(NULL, at, 1024, 1);
    OK(cuMemFree(at));
    return 0;
}

static int fails(void)
{
    CUdeviceptr at;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = on_device(0);
    OK(cuMemFree(alloc(1)));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&at, 1));
    GIVES(CUDA_ERROR_UNKNOWN, cuMemCreate(&handle, 2 * MIB, &prop, 0));
    return 0;
}

static int old_driver(void)
{
    void *found;
    int version;
    CUevent fence = event();
    OK(cuDriverGetVersion(&version));
    OK(cuGetProcAddress("cuCtxRecordEvent", &found, version, 0, NULL));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuCtxRecordEvent(context, fence));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuCtxWaitEvent(context, fence));
    return found != NULL;
}

static int version_12010(void)
{
    void *found;
    BAD(cuGetProcAddress("cuMemAlloc", &found, 12020, 0, NULL));
    OK(cuGetProcAddress("cuCtxRecordEvent", &found, 12010, 0, NULL));
    return found != NULL;
}

static int no_vmm(void)
{
    int value;
    CUdeviceptr at;
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuMemAddressReserve(&at, 2 * MIB, 0, 0, 0));
    OK(cuMemFree(alloc(1)));
    return value;
}

/* The program is linked with the symbol, as with a real driver. */
static int unsimulated(void)
{
    unsigned flags;
    alloc(16);
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuCtxGetFlags(&flags));
    return 0;
}

static int devices(void)
{
    int count;
    OK(cuDeviceGetCount(&count));
    return count;
}

static int measured_costs(void)
{
    CUcontext now;
    uint64_t start = simNow_ns();
    OK(cuMemFree(alloc(256 * MIB)));
    assert_in_range(simNow_ns() - start, 100000, 200000);
    start = simNow_ns();
    OK(cuCtxGetCurrent(&now));
    return (int)(simNow_ns() - start);
}

static int own_cost(void)
{
    CUevent fence = event();
    uint64_t start = simNow_ns();
    OK(cuEventRecord(fence, NULL));
    return (int)(simNow_ns() - start);
}

/* The program closes all descriptors and opens files of its own in their place. */
static int closed_files(void)
{
    CUdeviceptr at = alloc(4 * MIB);
    CUipcMemHandle handle;
    FILE *files[8];
    for (int fd = 3; fd < 100; fd++)
        close(fd);
    for (int i = 0; i < 8; i++)
        assert_non_null(files[i] = tmpfile());
    GIVES(CUDA_ERROR_OPERATING_SYSTEM, cuIpcGetMemHandle(&handle, at));
    fill(NULL, at, MIB, 3);
    assert_int_equal(wrong(at, MIB, 3), 0);
    OK(cuMemFree(at));
    OK(cuMemFree(alloc(8 * MIB)));
    for (int i = 0; i < 8; i++) {
        assert_int_equal(fseek(files[i], 0, SEEK_END), 0);
        assert_int_equal(ftell(files[i]), 0);
        assert_int_equal(fclose(files[i]), 0);
    }
    return 0;
}

static uint64_t real_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int slow(void)
{
    uint64_t from_ns = real_ns();
    spin(NULL, 50 * MS);
    OK(cuCtxSynchronize());
    return real_ns() - from_ns >= 50 * MS;
}

static void *hammer(void *unused)
{
    CUresult rc = cuCtxSetCurrent(context);
    while (rc == CUDA_SUCCESS) {
        CUdeviceptr at = 0;
        rc = cuMemAlloc(&at, 3 * MIB);
        if (rc == CUDA_SUCCESS)
            rc = cuMemsetD8Async(at, 1, 16, CU_STREAM_PER_THREAD);
        if (rc == CUDA_SUCCESS)
            rc = cuMemFree(at);
    }
    if (rc != CUDA_ERROR_DEINITIALIZED)
        printf("hammer: %d\n", (int)rc);
    for (;;)
        pause();
    return unused;
}

/* Threads inside calls do not disturb the end of the process. */
static int leave(void)
{
    for (int i = 0; i < 4; i++)
        started(hammer, NULL);
    usleep(20000);
    return 0;
}

static bool looks_back;

__attribute__((destructor)) static void after_exit(void)
{
    CUdeviceptr at = 0;
    if (looks_back)
        printf("%d %d\n", (int)cuMemAlloc(&at, 4096), (int)cuMemFree(1 << 20));
}

static int look_back(void)
{
    looks_back = true;
    return 0;
}

/* Adds one to the first words of both allocations of the handles. */
static int add_one(void)
{
    for (int i = 0; i < 2; i++) {
        CUdeviceptr at, again;
        uint32_t value;
        OK(cuIpcOpenMemHandle(&at, gift->memory[i], LAZY));
        OK(cuIpcOpenMemHandle(&again, gift->memory[i], LAZY));
        assert_int_equal(at, again);
        OK(cuMemcpyDtoH(&value, at, 4));
        assert_int_equal(wrong(at, 16, value), 0);
        fill(NULL, at, 16, value + 1);
        OK(cuCtxSynchronize());
        OK(cuIpcCloseMemHandle(at));
        OK(cuMemcpyDtoH(&value, at, 4)); /* opened twice */
        fill(stream(CU_STREAM_NON_BLOCKING), at, 16, value);
        OK(cuIpcCloseMemHandle(at)); /* waits */
        BAD(cuIpcCloseMemHandle(at));
        BAD(cuMemcpyDtoH(&value, at, 4));
    }
    return (int)simHazardCount();
}

/* Leaves a handle behind. */
static int testator(void)
{
    OK(cuIpcGetMemHandle(&gift->memory[0], alloc(4 * MIB)));
    return 0;
}

/* Device 1 opens memory of device 0, which it may then use. */
static int from_afar(void)
{
    CUcontext peer;
    CUdeviceptr at;
    OK(cuCtxCreate(&peer, NULL, 0, 1));
    OK(cuIpcOpenMemHandle(&at, gift->memory[0], LAZY));
    OK(cuMemsetD32(at, 8, 100));
    OK(cuCtxSynchronize());
    OK(cuCtxDestroy(peer));
    return 0;
}

/* Sees what the first process takes. It takes memory and exits without giving it back. */
static int share(void)
{
    CUdeviceptr at;
    size_t available, total;
    assert_int_equal(used(), gift->used_bytes);
    OK(cuMemGetInfo(&available, &total));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&at, available + 2 * MIB));
    OK(cuMemAlloc(&at, available));
    _exit(0);
}

#define ROLE(name) {#name, name}
static const struct {
    const char *name;
    int (*play)(void);
} roles[] = {ROLE(race),           ROLE(quiet),         ROLE(fails),        ROLE(old_driver),
             ROLE(no_vmm),         ROLE(version_12010), ROLE(unsimulated),  ROLE(devices),
             ROLE(measured_costs), ROLE(own_cost),      ROLE(closed_files), ROLE(slow),
             ROLE(leave),          ROLE(look_back),     ROLE(add_one),      ROLE(testator),
             ROLE(from_afar),      ROLE(share)};

TEST_WITH(the_environment_has_its_effects, NULL, NULL)
{
    static const struct {
        const char *role, *variable, *value;
        int status;
        const char *says; /* in the output; "": there is none */
    } rows[] = {
        {"race", "SIM_HAZARD", "abort", SIM_HAZARD_EXIT, "sim: hazard: fill on stream"},
        {"race", "SIM_HAZARD", "abort", SIM_HAZARD_EXIT, "not ordered before fill on stream"},
        {"race", "SIM_HAZARD", "abort", SIM_HAZARD_EXIT, "hazards 1\n"},
        {"race", "SIM_HAZARD", "report", 0, "sim: hazard:"},
        {"race", "SIM_HAZARD", "off", 0, "hazards 0\n"},
        {"quiet", "SIM_HAZARD", "abort", 0, ""},
        {"quiet", "SIM_TRACE", "calls", 0, "sim: calls: cuMemAlloc_v2 1\n"},
        {"quiet", "SIM_TRACE", "calls:/dev/null", 0, ""},
        {"quiet", "SIM_TRACE", "calls:/proc/self/fd/1", 0, "sim: calls: cuMemFree_v2 1\n"},
        {"quiet", "SIM_CAPACITY", "lots", 0, "SIM_CAPACITY=lots"},
        {"quiet", "SIM_FAIL", "cuMemAllocate:1:2", 0, "cannot understand \"cuMemAllocate:1:2\""},
        {"fails", "SIM_FAIL", "cuMemAlloc_v2:2:2,cuMemCreate:1+:999", 0, ""},
        {"old_driver", "SIM_CTX_EVENTS", "0", 0, ""},
        {"version_12010", "SIM_DRIVER_VERSION", "12010", 0, ""},
        {"no_vmm", "SIM_VMM", "0", 0, ""},
        {"unsimulated", "SIM_HAZARD", "abort", 0, "sim: cuCtxGetFlags is not simulated\n"},
        {"devices", "SIM_DEVICES", "3", 3, ""},
        {"nothing", "SIM_DEVICES", "0", CUDA_ERROR_NO_DEVICE, ""},
        {"measured_costs", "SIM_COST", "h200", 7, ""},
        {"own_cost", "SIM_COST_cuEventRecord", "77", 77, ""},
        {"closed_files", "SIM_TRACE", "", 0, ""},
        {"slow", "SIM_REALTIME", "1", 1, ""},
        {"slow", "SIM_REALTIME", "0", 0, ""},
        {"leave", "SIM_EXIT_MS", "0", 0, ""},
        {"leave", "SIM_EXIT_MS", "30", 0, ""},
        {"look_back", "SIM_EXIT_MS", "0", 0, "4 4\n"},
    };
    char out[8192];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int status = run(rows[i].role, rows[i].variable, rows[i].value, out, sizeof out);
        if (status != rows[i].status || strstr(out, rows[i].says) == NULL ||
            (rows[i].says[0] == '\0' && out[0] != '\0'))
            fail_msg("%s with %s=%s: %d, %s", rows[i].role, rows[i].variable, rows[i].value, status,
                     out);
    }
    uint64_t before_ns = real_ns();
    run("look_back", "SIM_EXIT_MS", "300", out, sizeof out);
    assert_true(real_ns() - before_ns >= 300 * MS);
}

static int other(const char *role)
{
    char out[4096];
    int status = run(role, "SIM_HAZARD", "report", out, sizeof out);
    if (out[0] != '\0')
        print_message("%s", out);
    return status;
}

TEST(legacy_handles_arrive_at_their_own_allocation)
{
    CUdeviceptr large = alloc(8 * MIB), first = alloc(5000), second = alloc(600), at;
    CUipcMemHandle old, same;
    OK(cuMemsetD32(large, 10, 2 * MIB));
    OK(cuMemsetD32(first, 20, 1250));
    OK(cuMemsetD32(second, 30, 150));
    OK(cuIpcGetMemHandle(&gift->memory[0], large));
    OK(cuIpcGetMemHandle(&same, large + 3 * MIB));
    assert_memory_equal(&gift->memory[0], &same, sizeof same);
    OK(cuIpcGetMemHandle(&old, first));
    OK(cuIpcGetMemHandle(&gift->memory[1], second));
    assert_memory_not_equal(&old, &gift->memory[1], sizeof old);
    OK(cuCtxSynchronize());
    assert_int_equal(other("add_one"), 0);
    assert_int_equal(wrong(large, 16, 11), 0);
    assert_int_equal(wrong(second, 16, 31), 0);
    assert_int_equal(wrong(first, 1250, 20), 0);
    assert_int_equal(other("from_afar"), 0);
    assert_int_equal(wrong(large, 100, 8), 0);
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuIpcOpenMemHandle(&at, gift->memory[0], LAZY));
    memset(&same, 0, sizeof same);
    BAD(cuIpcOpenMemHandle(&at, same, LAZY));
    OK(cuMemFree(large));
    OK(cuMemFree(first));
    assert_int_equal(alloc(5000), first); /* the same place is another handle */
    OK(cuIpcGetMemHandle(&same, first));
    assert_memory_not_equal(&old, &same, sizeof same);
    OK(cuMemFree(first));
    OK(cuMemFree(second));
    assert_int_equal(other("testator"), 0); /* it is gone */
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuIpcOpenMemHandle(&at, gift->memory[0], LAZY));
}

TEST(capacity_is_one_for_all_processes)
{
    CUdeviceptr at = alloc(100 * MIB);
    gift->used_bytes = used();
    assert_int_equal(other("share"), 0);
    assert_int_equal(used(), simDeviceBytesUsed(0)); /* a process that is gone has nothing */
    OK(cuMemFree(at));
}

static struct gift *open_gift(void)
{
    if (fcntl(GIFT_FD, F_GETFD) < 0) {
        int fd = memfd_create("gift", 0);
        if (ftruncate(fd, sizeof *gift) != 0 || dup2(fd, GIFT_FD) < 0)
            return MAP_FAILED;
    }
    return mmap(NULL, sizeof *gift, PROT_READ | PROT_WRITE, MAP_SHARED, GIFT_FD, 0);
}

int main(int argc, char **argv)
{
    char shared[32], file[64];
    gift = open_gift();
    if (gift == MAP_FAILED)
        return 97;
    if (argc > 1 && strcmp(argv[1], "nothing") == 0)
        return (int)cuInit(0);
    snprintf(shared, sizeof shared, "test-%d", getpid());
    setenv("SIM_SHARED", shared, 0);
    setenv("SIM_CAPACITY", "1G", 0);
    for (size_t i = 0; argc > 1 && i < sizeof roles / sizeof *roles; i++)
        if (strcmp(argv[1], roles[i].name) == 0)
            return fixture_start(NULL) != 0 ? 98 : roles[i].play();
    int failed = play_tests(fixture_start, NULL);
    snprintf(file, sizeof file, "/dev/shm/simulated-gpu-%s", shared);
    unlink(file);
    return failed;
}
