/* SPDX-License-Identifier: BSD-2-Clause */
/* Frees, sizes and addresses that are wrong, through the runtime and through the driver. */
#include "tests/misuse/misuse.h"

/* A block freed twice, small and large, at once and after other frees. */
SIN(double_free)
{
    static const size_t sizes[] = {512, 64 * KIB, 1 * MIB, 20 * MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t block = NEW_BLOCK(sizes[i]);
        misuse_expect("first free", gpu_free(block), 0);
        misuse_expect("second free", gpu_free(block), CUDA_ERROR_INVALID_VALUE);
        REQUIRE(gpu_malloc(&block, sizes[i]));
        uint64_t other = NEW_BLOCK(sizes[i]);
        REQUIRE(gpu_free(block));
        REQUIRE(gpu_free(other));
        misuse_expect("free after both", gpu_free(block), CUDA_ERROR_INVALID_VALUE);
    }
}

/* A free of a pointer into the middle of a block; the block stays whole. */
SIN(interior_free)
{
    static const size_t sizes[] = {1024, 64 * KIB, 3 * MIB, 20 * MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t block = NEW_BLOCK(sizes[i]);
        REQUIRE(gpu_memset(block, 5, sizes[i]));
        misuse_expect("one byte in", gpu_free(block + 1), CUDA_ERROR_INVALID_VALUE);
        misuse_expect("512 bytes in", gpu_free(block + 512), CUDA_ERROR_INVALID_VALUE);
        misuse_expect("half way", gpu_free(block + sizes[i] / 2), CUDA_ERROR_INVALID_VALUE);
        misuse_expect("last byte", gpu_free(block + sizes[i] - 1), CUDA_ERROR_INVALID_VALUE);
        printf("%zu wrong bytes\n", scene_wrong_bytes(block, sizes[i], 5));
        misuse_expect("base", gpu_free(block), 0);
    }
}

/* A free of addresses that nothing ever allocated. */
SIN(wild_free)
{
    static const uint64_t wild[] = {1, 4096, 0x12345600, 0x7fff00000000, 0xdeadbeef00000000};
    for (size_t i = 0; i < sizeof wild / sizeof *wild; i++)
        misuse_expect("wild", gpu_free(wild[i]), CUDA_ERROR_INVALID_VALUE);
}

/* An allocation of no bytes: the runtime gives NULL and success, the driver an error. */
SIN(zero_size)
{
    uint64_t block = 1;
    size_t pitch_bytes = 0;
    misuse_expect("malloc of 0", gpu_malloc(&block, 0),
                  gpu_is_runtime ? 0 : CUDA_ERROR_INVALID_VALUE);
    printf("NULL: %s\n", block == 0 ? "yes" : "no");
    misuse_report("pitch of 0 rows", gpu_malloc_pitch(&block, &pitch_bytes, 100, 0));
    misuse_report("pitch of 0 columns", gpu_malloc_pitch(&block, &pitch_bytes, 0, 100));
}

/* A free of NULL is no sin. */
SIN(null_free)
{
    misuse_expect("free of NULL", gpu_free(0), 0);
    misuse_report("stream-ordered free of NULL", gpu_free_async(0, NULL));
}

/* An allocation with nowhere to put the address. */
SIN(null_out)
{
    misuse_expect("4096 bytes to NULL", gpu_malloc_nowhere(4096), CUDA_ERROR_INVALID_VALUE);
    misuse_expect("20 MiB to NULL", gpu_malloc_nowhere(20 * MIB), CUDA_ERROR_INVALID_VALUE);
    misuse_expect("0 bytes to NULL", gpu_malloc_nowhere(0), CUDA_ERROR_INVALID_VALUE);
}

/* Allocations that no device can hold, to the edge of the address space. */
SIN(huge_size)
{
    static const size_t sizes[] = {(size_t)1 << 44, (size_t)1 << 52, (size_t)1 << 62, SIZE_MAX / 2,
                                   SIZE_MAX - 4096, SIZE_MAX - 511,  SIZE_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t block = 0;
        misuse_expect("huge", gpu_malloc(&block, sizes[i]), CUDA_ERROR_OUT_OF_MEMORY);
        printf("untouched: %s\n", block == 0 ? "yes" : "no");
    }
}

/* Pinned host memory freed as device memory, and the other way round. */
SIN(free_host)
{
    void *host = NULL;
    REQUIRE(gpu_host_alloc(&host, 64 * KIB));
    uint64_t block = NEW_BLOCK(64 * KIB);
    misuse_expect("device free of host memory", gpu_free((uint64_t)(uintptr_t)host),
                  CUDA_ERROR_INVALID_VALUE);
    misuse_expect("host free of device memory", gpu_host_free((void *)(uintptr_t)block),
                  CUDA_ERROR_INVALID_VALUE);
    misuse_expect("host free", gpu_host_free(host), 0);
    misuse_expect("device free", gpu_free(block), 0);
}

/* A free of ordinary memory of the process: stack, heap, code, static data. */
SIN(free_stack)
{
    static int data;
    int on_stack = 0;
    void *heap = malloc(4096);
    misuse_expect("stack", gpu_free((uint64_t)(uintptr_t)&on_stack), CUDA_ERROR_INVALID_VALUE);
    misuse_expect("heap", gpu_free((uint64_t)(uintptr_t)heap), CUDA_ERROR_INVALID_VALUE);
    misuse_expect("code", gpu_free((uint64_t)(uintptr_t)&misuse_end), CUDA_ERROR_INVALID_VALUE);
    misuse_expect("data", gpu_free((uint64_t)(uintptr_t)&data), CUDA_ERROR_INVALID_VALUE);
    free(heap);
}

static uint64_t shared;

static int free_block(int index, void *context)
{
    return gpu_free(shared);
}

/* A free in a thread that has made no CUDA call and has no context: the pointer says whose it is.
 * */
SIN(free_other_thread)
{
    static const size_t sizes[] = {512, 64 * KIB, 20 * MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        REQUIRE(gpu_malloc(&shared, sizes[i]));
        int rc = scene_elsewhere(free_block, NULL);
        misuse_expect("freed elsewhere", rc, 0);
        misuse_expect("and here", gpu_free(shared), rc == 0 ? CUDA_ERROR_INVALID_VALUE : 0);
    }
}

enum { ROUNDS = 100 };

static int open_and_free(int index, void *context)
{
    REQUIRE(gpu_open(0));
    return free_block(index, context);
}

/* One block freed by two threads at once: one of them is right, the other is told. */
SIN(free_two_threads)
{
    int right = 0;
    for (int i = 0; i < ROUNDS; i++) {
        REQUIRE(gpu_malloc(&shared, i % 2 == 0 ? 4 * KIB : 4 * MIB));
        int sum = scene_threads(2, open_and_free, NULL);
        right += sum == CUDA_SUCCESS + CUDA_ERROR_INVALID_VALUE;
    }
    printf("%d times of %d one success and one error\n", right, ROUNDS);
    EXPECT(right == ROUNDS);
}

/* Memory of before a reset, used, asked for and freed after it. */
SIN(use_after_reset)
{
    uint64_t base = 0;
    size_t size_bytes = 0;
    uint64_t small = NEW_BLOCK(4096), large = NEW_BLOCK(20 * MIB);
    REQUIRE(gpu_memset(large, 1, 20 * MIB));
    misuse_expect("reset", gpu_reset(), 0);
    REQUIRE(gpu_open(0));
    misuse_expect("free small", gpu_free(small), CUDA_ERROR_INVALID_VALUE);
    misuse_expect("free large", gpu_free(large), CUDA_ERROR_INVALID_VALUE);
    /* A real driver may put something of the new context's own there: then both succeed. */
    if (scene_simulated()) {
        misuse_report("memset", gpu_memset(large, 1, 4096));
        misuse_report("range", gpu_address_range(&base, &size_bytes, large));
    }
}

/* Stream-ordered frees of what is no allocation any more, or never was one. */
SIN(free_async_sins)
{
    uint64_t block = NEW_BLOCK(64 * KIB);
    misuse_expect("free", gpu_free(block), 0);
    misuse_report("then in stream order", gpu_free_async(block, NULL));
    REQUIRE(gpu_malloc(&block, 64 * KIB));
    misuse_expect("in stream order", gpu_free_async(block, NULL), 0);
    REQUIRE(gpu_sync());
    misuse_expect("then plainly", gpu_free(block), CUDA_ERROR_INVALID_VALUE);
    misuse_report("interior in stream order", gpu_free_async(block + 512, NULL));
    misuse_report("wild in stream order", gpu_free_async(0x1234500, NULL));

    /* Memory of no graph, in a capture: refused, and still there afterwards. */
    CUgraph graph = NULL;
    CUstream stream = NEW_STREAM(false);
    REQUIRE(gpu_malloc(&block, 64 * KIB));
    REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    misuse_report("in a capture", gpu_free_async(block, stream));
    gpu_capture_end(stream, &graph);
    misuse_report("after it", gpu_free(block));
}

/* A runtime's free in a thread whose context was taken away: the block goes, and a context is
 * current again. */
SIN(free_without_context)
{
    uint64_t block = 0;
    CUcontext context = NULL;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    EXPECT(driver);
    CUresult (*set)(CUcontext) =
        (CUresult (*)(CUcontext))(uintptr_t)dlsym(driver, "cuCtxSetCurrent");
    CUresult (*get)(CUcontext *) =
        (CUresult (*)(CUcontext *))(uintptr_t)dlsym(driver, "cuCtxGetCurrent");
    EXPECT(set && get);
    for (int i = 0; i < 4; i++) {
        REQUIRE(gpu_malloc(&block, 4096));
        /* What was handed out a second time is freed another way than what is new. */
        if (i % 2)
            REQUIRE(set(NULL));
        misuse_expect("free", gpu_free(block), 0);
        REQUIRE(get(&context));
        misuse_report("a context is current", context != NULL);
    }
}
