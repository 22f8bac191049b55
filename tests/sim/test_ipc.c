/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory, events and capacity between processes. The other process is this program again with a
 * word that names its role. It answers with its exit status and a line on stdout. */
#include "tests/sim/fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS (MIB / 4)

static char self[4096];

static void to_hex(char *out, const void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        sprintf(out + 2 * i, "%02x", ((const unsigned char *)bytes)[i]);
}

static void from_hex(void *bytes, const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        sscanf(text + 2 * i, "%2hhx", (unsigned char *)bytes + i);
}

/* Runs the other process to its end. Returns its exit status. */
static int other(const char *what, const char *first, const char *second)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        execl(self, self, what, first, second, NULL);
        _exit(99);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Other process: adds one to all words of both allocations of the handles. */
static int add_one(const char *first, const char *second)
{
    const char *texts[] = {first, second};
    for (int i = 0; i < 2; i++) {
        CUipcMemHandle handle;
        CUdeviceptr at, again;
        from_hex(&handle, texts[i], sizeof handle);
        OK(cuIpcOpenMemHandle(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        OK(cuIpcOpenMemHandle(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        if (at != again)
            return 2;
        uint32_t value;
        OK(cuMemcpyDtoH(&value, at, 4));
        if (wrong(at, 16, value) != 0)
            return 3;
        fill(NULL, at, 16, value + 1);
        OK(cuCtxSynchronize());
        OK(cuIpcCloseMemHandle(at));
        OK(cuMemcpyDtoH(&value, at, 4)); /* opened twice */
        OK(cuIpcCloseMemHandle(at));
        GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(at));
        GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(&value, at, 4));
    }
    return 0;
}

static void legacy_handles_arrive_at_their_own_allocation(void **state)
{
    CUdeviceptr large = alloc(8 * MIB), first = alloc(5000), second = alloc(600);
    CUipcMemHandle base, interior, a, b;
    char text_a[129], text_b[129];
    OK(cuMemsetD32(large, 10, 2 * MIB));
    OK(cuMemsetD32(first, 20, 1250));
    OK(cuMemsetD32(second, 30, 150));
    OK(cuIpcGetMemHandle(&base, large));
    OK(cuIpcGetMemHandle(&interior, large + 3 * MIB));
    assert_memory_equal(&base, &interior, sizeof base);
    OK(cuIpcGetMemHandle(&a, first));
    OK(cuIpcGetMemHandle(&b, second));
    assert_memory_not_equal(&a, &b, sizeof a);
    OK(cuCtxSynchronize());
    to_hex(text_a, &base, sizeof base);
    to_hex(text_b, &b, sizeof b);
    assert_int_equal(other("add_one", text_a, text_b), 0);
    assert_int_equal(wrong(large, 16, 11), 0);
    assert_int_equal(wrong(second, 16, 31), 0);
    assert_int_equal(wrong(first, 1250, 20), 0);
    CUdeviceptr here;
    GIVES(CUDA_ERROR_INVALID_CONTEXT,
          cuIpcOpenMemHandle(&here, base, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    memset(&base, 0, sizeof base);
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cuIpcOpenMemHandle(&here, base, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuMemFree(large));
    OK(cuMemFree(first));
    CUdeviceptr same = alloc(5000); /* the same place is another handle */
    assert_int_equal(same, first);
    OK(cuIpcGetMemHandle(&b, same));
    assert_memory_not_equal(&a, &b, sizeof a);
    OK(cuMemFree(same));
    OK(cuMemFree(second));
}

/* Other process: leaves a handle behind. */
static int leave(const char *number, const char *unused)
{
    CUipcMemHandle handle;
    CUdeviceptr at;
    (void)unused;
    OK(cuMemAlloc(&at, 4 * MIB));
    OK(cuIpcGetMemHandle(&handle, at));
    return write(atoi(number), &handle, sizeof handle) == sizeof handle ? 0 : 1;
}

static void handles_of_a_process_that_is_gone_are_none(void **state)
{
    int ends[2];
    char number[16];
    CUipcMemHandle handle;
    CUdeviceptr at;
    assert_int_equal(pipe(ends), 0);
    snprintf(number, sizeof number, "%d", ends[1]);
    assert_int_equal(other("leave", number, ""), 0);
    assert_int_equal(read(ends[0], &handle, sizeof handle), sizeof handle);
    GIVES(CUDA_ERROR_INVALID_HANDLE,
          cuIpcOpenMemHandle(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    close(ends[0]);
    close(ends[1]);
}

/* Other process: device 1 opens memory of device 0, which it may then use. */
static int from_afar(const char *text, const char *unused)
{
    CUipcMemHandle handle;
    CUcontext peer;
    CUdeviceptr at;
    (void)unused;
    from_hex(&handle, text, sizeof handle);
    OK(cuCtxCreate(&peer, NULL, 0, 1));
    OK(cuIpcOpenMemHandle(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuMemsetD32(at, 8, 100));
    OK(cuCtxSynchronize());
    OK(cuCtxDestroy(peer));
    return 0;
}

static void other_devices_may_use_what_they_open(void **state)
{
    CUipcMemHandle handle;
    char text[129];
    CUdeviceptr at = alloc(2 * MIB);
    OK(cuIpcGetMemHandle(&handle, at));
    to_hex(text, &handle, sizeof handle);
    assert_int_equal(other("from_afar", text, ""), 0);
    assert_int_equal(wrong(at, 100, 8), 0);
    OK(cuMemFree(at));
}

/* Other process: maps the memory behind an inherited descriptor and writes to it. */
static int import(const char *number, const char *unused)
{
    (void)unused;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop;
    CUdeviceptr at;
    int fd = atoi(number);
    OK(cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    OK(cuMemGetAllocationPropertiesFromHandle(&prop, handle));
    if (prop.location.id != 1 || simDeviceBytesUsed(1) != 0)
        return 2;
    OK(cuMemAddressReserve(&at, 4 * MIB, 0, 0, 0));
    OK(cuMemMap(at, 4 * MIB, 0, handle, 0));
    allow(at, 4 * MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    if (wrong(at, WORDS, 5) != 0)
        return 3;
    fill(NULL, at, WORDS, 6);
    OK(cuCtxSynchronize());
    unmap(at, 4 * MIB, handle);
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)0,
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    return 0;
}

static void shareable_handles_show_the_same_bytes(void **state)
{
    CUmemAllocationProp prop = on_device(1);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    int fd;
    char number[16];
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    OK(cuMemCreate(&handle, 4 * MIB, &prop, 0));
    OK(cuMemAddressReserve(&at, 4 * MIB, 0, 0, 0));
    OK(cuMemMap(at, 4 * MIB, 0, handle, 0));
    allow(at, 4 * MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    fill(NULL, at, WORDS, 5);
    OK(cuCtxSynchronize());
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    fcntl(fd, F_SETFD, 0);
    snprintf(number, sizeof number, "%d", fd);
    assert_int_equal(other("import", number, ""), 0);
    close(fd);
    assert_int_equal(wrong(at, WORDS, 6), 0);
    unmap(at, 4 * MIB, handle);
    assert_int_equal(simDeviceBytesUsed(1), 0);
}

/* Other process: sees the event complete only when the first process's work is done. Its own work
 * waits for it. */
static int follow(const char *event_text, const char *memory_text)
{
    CUipcEventHandle event_handle;
    CUipcMemHandle memory_handle;
    CUevent fence;
    CUdeviceptr at;
    uint32_t value = 0;
    CUstream on = stream(CU_STREAM_NON_BLOCKING);
    from_hex(&event_handle, event_text, sizeof event_handle);
    from_hex(&memory_handle, memory_text, sizeof memory_handle);
    OK(cuIpcOpenEventHandle(&fence, event_handle));
    OK(cuIpcOpenMemHandle(&at, memory_handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuStreamWaitEvent(on, fence, 0));
    OK(cuMemcpyDtoHAsync(&value, at, 4, on));
    OK(cuStreamSynchronize(on));
    OK(cuEventQuery(fence));
    OK(cuEventDestroy(fence));
    return value == 7 ? 0 : 2;
}

static void interprocess_events_order_processes(void **state)
{
    CUevent fence;
    CUipcEventHandle event_handle;
    CUipcMemHandle memory_handle;
    CUdeviceptr at = alloc(4 * MIB);
    char event_text[129], memory_text[129];
    GIVES(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&fence, CU_EVENT_INTERPROCESS));
    OK(cuEventCreate(&fence, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    OK(cuIpcGetEventHandle(&event_handle, fence));
    OK(cuIpcGetMemHandle(&memory_handle, at));
    to_hex(event_text, &event_handle, sizeof event_handle);
    to_hex(memory_text, &memory_handle, sizeof memory_handle);
    OK(cuMemsetD32(at, 1, MIB));
    late_fill(NULL, at, MIB, 7, 20 * MS);
    OK(cuEventRecord(fence, NULL));
    assert_int_equal(other("follow", event_text, memory_text), 0);
    OK(cuEventSynchronize(fence));
    OK(cuEventDestroy(fence));
    OK(cuMemFree(at));
}

/* Other process: sees what the first process takes. It takes memory and exits without giving it
 * back. */
static int share(const char *expected, const char *unused)
{
    (void)unused;
    size_t available, total;
    CUdeviceptr at;
    OK(cuMemGetInfo(&available, &total));
    if (total - available != strtoull(expected, NULL, 10))
        return 2;
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&at, available + 2 * MIB));
    OK(cuMemAlloc(&at, available));
    _exit(0);
}

static void capacity_is_one_for_all_processes(void **state)
{
    CUdeviceptr at = alloc(100 * MIB);
    size_t available, total;
    char expected[32];
    OK(cuMemGetInfo(&available, &total));
    snprintf(expected, sizeof expected, "%zu", total - available);
    assert_int_equal(other("share", expected, ""), 0);
    OK(cuMemFree(at));
    OK(cuMemGetInfo(&available, &total)); /* a process that is gone has nothing */
    assert_int_equal(total - available, simDeviceBytesUsed(0));
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(const char *, const char *);
    } roles[] = {{"add_one", add_one}, {"import", import}, {"follow", follow},
                 {"share", share},     {"leave", leave},   {"from_afar", from_afar}};
    char shared[32];
    snprintf(shared, sizeof shared, "test-%d", getpid());
    setenv("SIM_SHARED", shared, 0);
    setenv("SIM_CAPACITY", "1G", 1);
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return 1;
    for (size_t i = 0; argc > 3 && i < sizeof roles / sizeof *roles; i++)
        if (strcmp(argv[1], roles[i].name) == 0)
            return fixture_start(NULL) != 0 ? 98 : roles[i].run(argv[2], argv[3]);
    const struct CMUnitTest tests[] = {
        TEST(legacy_handles_arrive_at_their_own_allocation),
        TEST(handles_of_a_process_that_is_gone_are_none),
        TEST(other_devices_may_use_what_they_open),
        TEST(shareable_handles_show_the_same_bytes),
        TEST(interprocess_events_order_processes),
        TEST(capacity_is_one_for_all_processes),
    };
    int failed = RUN(tests);
    char file[64];
    snprintf(file, sizeof file, "/dev/shm/simulated-gpu-%s", shared);
    unlink(file);
    return failed;
}
