/* SPDX-License-Identifier: BSD-2-Clause */
/* The effects of the environment, and the end of a process. This program runs itself in several
 * roles and looks at the exit status and the output. */
#include "tests/sim/fixture.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char self[4096];

/* Runs the role with one more environment variable. Stores its output in out and returns its exit
 * status. */
static int role(const char *name, const char *variable, const char *value, char *out, size_t size)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        setenv(variable, value, 1);
        execl(self, self, name, NULL);
        _exit(99);
    }
    close(ends[1]);
    size_t used = 0;
    for (ssize_t n; used < size - 1 && (n = read(ends[0], out + used, size - 1 - used)) > 0;)
        used += (size_t)n;
    out[used] = '\0';
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
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

static void hazards_can_end_the_process_badly(void **state)
{
    char out[8192];
    assert_int_equal(role("race", "SIM_HAZARD", "abort", out, sizeof out), SIM_HAZARD_EXIT);
    assert_non_null(strstr(out, "sim: hazard: fill on stream"));
    assert_non_null(strstr(out, "not ordered before fill on stream"));
    assert_non_null(strstr(out, "hazards 1\n"));
    assert_int_equal(role("race", "SIM_HAZARD", "report", out, sizeof out), 0);
    assert_non_null(strstr(out, "sim: hazard:"));
    assert_int_equal(role("race", "SIM_HAZARD", "off", out, sizeof out), 0);
    assert_string_equal(out, "hazards 0\n");
}

static int quiet(void)
{
    CUdeviceptr at = alloc(4096);
    fill(NULL, at, 1024, 1);
    OK(cuMemFree(at));
    return 0;
}

static void traces_are_printed_when_asked_for(void **state)
{
    char out[8192], file[64], value[80];
    assert_int_equal(role("quiet", "SIM_HAZARD", "abort", out, sizeof out), 0);
    assert_string_equal(out, "");
    assert_int_equal(role("quiet", "SIM_TRACE", "calls", out, sizeof out), 0);
    assert_non_null(strstr(out, "sim: calls: cuMemAlloc_v2 1\n"));
    assert_null(strstr(out, "cuMemAllocAsync"));
    snprintf(file, sizeof file, "/tmp/test_process-%d.trace", getpid());
    snprintf(value, sizeof value, "calls:%s", file);
    assert_int_equal(role("quiet", "SIM_TRACE", value, out, sizeof out), 0);
    assert_string_equal(out, "");
    FILE *trace = fopen(file, "r");
    assert_non_null(trace);
    out[fread(out, 1, sizeof out - 1, trace)] = '\0';
    fclose(trace);
    unlink(file);
    assert_non_null(strstr(out, "sim: calls: cuMemFree_v2 1\n"));
}

static void bad_settings_are_named(void **state)
{
    char out[8192];
    assert_int_equal(role("quiet", "SIM_CAPACITY", "lots", out, sizeof out), 0);
    assert_non_null(strstr(out, "SIM_CAPACITY=lots"));
    assert_int_equal(role("quiet", "SIM_FAIL", "cuMemAllocate:1:2", out, sizeof out), 0);
    assert_non_null(strstr(out, "SIM_FAIL: cannot understand \"cuMemAllocate:1:2\""));
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

static void faults_come_from_the_environment(void **state)
{
    char out[8192];
    assert_int_equal(
        role("fails", "SIM_FAIL", "cuMemAlloc_v2:2:2,cuMemCreate:1+:999", out, sizeof out), 0);
    assert_string_equal(out, "");
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
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress("cuMemAlloc", &found, 12020, 0, NULL));
    OK(cuGetProcAddress("cuCtxRecordEvent", &found, 12010, 0, NULL));
    return found != NULL;
}

static int no_vmm(void)
{
    int value;
    size_t bytes;
    CUmemAllocationProp prop = on_device(0);
    CUdeviceptr at;
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    assert_int_equal(value, 0);
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuMemGetAllocationGranularity(&bytes, &prop, 0));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuMemAddressReserve(&at, 2 * MIB, 0, 0, 0));
    OK(cuMemFree(alloc(1)));
    return 0;
}

/* The program is linked with the symbol, as with a real driver. */
static int unsimulated(void)
{
    CUdeviceptr at = alloc(16);
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuMemcpy(at, at, 16));
    return 0;
}

static void a_function_that_is_not_simulated_names_itself(void **state)
{
    char out[8192];
    assert_int_equal(role("unsimulated", "SIM_HAZARD", "abort", out, sizeof out), 0);
    assert_string_equal(out, "sim: cuMemcpy is not simulated\n");
}

static int three_devices(void)
{
    int count;
    size_t total;
    OK(cuDeviceGetCount(&count));
    OK(cuDeviceTotalMem(&total, 2));
    assert_int_equal(total, 16 * 1024 * MIB);
    return count == 3 ? 0 : 1;
}

static int measured_costs(void)
{
    CUcontext now;
    uint64_t start = simNow_ns();
    OK(cuMemFree(alloc(256 * MIB)));
    uint64_t pair = simNow_ns() - start;
    assert_in_range(pair, 100000, 200000);
    start = simNow_ns();
    OK(cuCtxGetCurrent(&now));
    assert_int_equal(simNow_ns() - start, 7);
    return 0;
}

static void other_drivers_and_devices_can_be_had(void **state)
{
    char out[8192];
    assert_int_equal(role("old_driver", "SIM_CTX_EVENTS", "0", out, sizeof out), 0);
    assert_int_equal(role("version_12010", "SIM_DRIVER_VERSION", "12010", out, sizeof out), 0);
    assert_int_equal(role("no_vmm", "SIM_VMM", "0", out, sizeof out), 0);
    assert_int_equal(role("three_devices", "SIM_DEVICES", "3", out, sizeof out), 0);
    assert_int_equal(role("measured_costs", "SIM_COST", "h200", out, sizeof out), 0);
    assert_int_equal(role("own_cost", "SIM_COST_cuEventRecord", "777", out, sizeof out), 0);
    assert_int_equal(role("nothing", "SIM_DEVICES", "0", out, sizeof out), 100);
}

static int own_cost(void)
{
    CUevent fence = event();
    uint64_t start = simNow_ns();
    OK(cuEventRecord(fence, NULL));
    assert_int_equal(simNow_ns() - start, 777);
    return 0;
}

/* The program closes all descriptors and opens files of its own in their place. */
static int closed_files(void)
{
    CUdeviceptr at = alloc(4 * MIB);
    CUipcMemHandle handle;
    FILE *files[8];
    char name[64];
    snprintf(name, sizeof name, "/tmp/test_process-%d.file", getpid());
    for (int fd = 3; fd < 100; fd++)
        close(fd);
    for (int i = 0; i < 8; i++) {
        files[i] = fopen(name, "w+");
        assert_non_null(files[i]);
    }
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
    unlink(name);
    return 0;
}

static void files_of_the_program_are_left_alone(void **state)
{
    char out[8192];
    assert_int_equal(role("closed_files", "SIM_TRACE", "", out, sizeof out), 0);
    assert_string_equal(out, "");
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
    return real_ns() - from_ns >= 50 * MS ? 0 : 1;
}

static void time_can_be_real(void **state)
{
    char out[8192];
    assert_int_equal(role("slow", "SIM_REALTIME", "1", out, sizeof out), 0);
    assert_int_equal(role("slow", "SIM_REALTIME", "0", out, sizeof out), 1);
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
    pthread_t thread;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread, NULL, hammer, NULL), 0);
    usleep(20000);
    return 0;
}

static void exit_with_threads_at_work_is_clean(void **state)
{
    char out[8192];
    for (int i = 0; i < 5; i++) {
        assert_int_equal(role("leave", "SIM_EXIT_MS", i < 3 ? "0" : "30", out, sizeof out), 0);
        assert_string_equal(out, "");
    }
}

static bool looks_back;

__attribute__((destructor)) static void after_exit(void)
{
    CUdeviceptr at = 0;
    if (!looks_back)
        return;
    printf("%d", (int)cuMemAlloc(&at, 4096));
    printf(" %d\n", (int)cuMemFree(1 << 20));
}

static int look_back(void)
{
    looks_back = true;
    return 0;
}

static void the_driver_is_gone_before_the_process_is(void **state)
{
    char out[8192];
    assert_int_equal(role("look_back", "SIM_EXIT_MS", "0", out, sizeof out), 0);
    assert_string_equal(out, "4 4\n");
    uint64_t before_ns = real_ns();
    assert_int_equal(role("look_back", "SIM_EXIT_MS", "300", out, sizeof out), 0);
    assert_true(real_ns() - before_ns >= 300 * MS);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(void);
    } roles[] = {{"race", race},
                 {"quiet", quiet},
                 {"fails", fails},
                 {"old_driver", old_driver},
                 {"no_vmm", no_vmm},
                 {"version_12010", version_12010},
                 {"leave", leave},
                 {"unsimulated", unsimulated},
                 {"look_back", look_back},
                 {"three_devices", three_devices},
                 {"measured_costs", measured_costs},
                 {"own_cost", own_cost},
                 {"closed_files", closed_files},
                 {"slow", slow}};
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return 1;
    if (argc > 1 && strcmp(argv[1], "nothing") == 0)
        return (int)cuInit(0);
    for (size_t i = 0; argc > 1 && i < sizeof roles / sizeof *roles; i++)
        if (strcmp(argv[1], roles[i].name) == 0)
            return fixture_start(NULL) != 0 ? 98 : roles[i].run();
    /* No fixture here: CUDA is for the roles. */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hazards_can_end_the_process_badly),
        cmocka_unit_test(traces_are_printed_when_asked_for),
        cmocka_unit_test(bad_settings_are_named),
        cmocka_unit_test(faults_come_from_the_environment),
        cmocka_unit_test(other_drivers_and_devices_can_be_had),
        cmocka_unit_test(a_function_that_is_not_simulated_names_itself),
        cmocka_unit_test(files_of_the_program_are_left_alone),
        cmocka_unit_test(time_can_be_real),
        cmocka_unit_test(exit_with_threads_at_work_is_clean),
        cmocka_unit_test(the_driver_is_gone_before_the_process_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
