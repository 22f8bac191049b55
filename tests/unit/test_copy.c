/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/park/copy.c on a driver whose device memory is host memory: jobs of all lanes, their ends,
 * and host memory that is touched ahead. */
#include "shim/park/copy.h"

#include <sys/mman.h>

#include "tests/unit/cases.h"

enum { PARTS = 5, BYTES = 24 * 1024 * 1024, PAGE_BYTES = 4096 };

struct hooks_real real;
_Atomic(PFN_cuMemcpyDtoHAsync_v3020) real_cuMemcpyDtoHAsync_v2;
_Atomic(PFN_cuMemcpyHtoDAsync_v3020) real_cuMemcpyHtoDAsync_v2;

static const CUcontext context = (CUcontext)64;
static atomic_uint num_copies, fails_at, asked, stops_at;

static CUresult copy(void *to, const void *from, size_t size)
{
    if (atomic_fetch_add(&num_copies, 1) + 1 == atomic_load(&fails_at))
        return CUDA_ERROR_ECC_UNCORRECTABLE;
    memcpy(to, from, size);
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI out(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    return copy(to, (const void *)(uintptr_t)from, size);
}

static CUresult CUDAAPI in(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    return copy((void *)(uintptr_t)to, from, size);
}

static CUresult CUDAAPI current(CUcontext *ctx)
{
    *ctx = context;
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI make_stream(CUstream *stream, unsigned flags)
{
    *stream = NULL;
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI of_stream(CUstream stream)
{
    return CUDA_SUCCESS;
}

static size_t registered;

static CUresult CUDAAPI do_register(void *at, size_t size, unsigned flags)
{
    registered = size;
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI unregister(void *at)
{
    return CUDA_SUCCESS;
}

static char *device, *host;
static struct copy_part parts[PARTS];

static char *map(void)
{
    char *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    return p;
}

/* Parts of many sizes, some shorter than a step and one over several. */
static int begin(void **state)
{
    static const uint64_t sizes[PARTS] = {512, 9 * 1024 * 1024 + 512, 1024, 5 * 1024 * 1024, 4096};
    uint64_t at = 0;
    atomic_store(&real.cuCtxGetCurrent, current);
    atomic_store(&real.cuStreamCreate, make_stream);
    atomic_store(&real.cuStreamSynchronize, of_stream);
    atomic_store(&real.cuStreamDestroy_v2, of_stream);
    atomic_store(&real.cuMemHostRegister_v2, do_register);
    atomic_store(&real.cuMemHostUnregister, unregister);
    atomic_store(&real_cuMemcpyDtoHAsync_v2, out);
    atomic_store(&real_cuMemcpyHtoDAsync_v2, in);
    num_copies = fails_at = asked = stops_at = 0;
    device = map();
    host = map();
    for (size_t i = 0; i < BYTES; i++)
        device[i] = (char)(i * 2654435761u >> 24);
    for (unsigned i = 0; i < PARTS; i++) {
        parts[i] = (struct copy_part){
            .addr = (uintptr_t)device + at, .size_bytes = sizes[i], .host = host + at + PAGE_BYTES};
        at += sizes[i];
    }
    assert_true(copy_begin(context, UINT64_C(64) * BYTES));
    copy_open(context);
    return 0;
}

static int end(void **state)
{
    copy_close();
    copy_finish(context);
    munmap(device, BYTES);
    munmap(host, BYTES);
    return 0;
}

static uint64_t total(void)
{
    return (uint64_t)(parts[PARTS - 1].addr + parts[PARTS - 1].size_bytes - parts[0].addr);
}

static bool goes_on(void)
{
    return atomic_fetch_add(&asked, 1) + 1 != atomic_load(&stops_at);
}

static enum copy_end run(enum copy_way way, CUresult *code)
{
    return copy_run(&(struct copy_job){way, parts, PARTS, goes_on, false, false}, code);
}

TEST_WITH(each_byte_goes_out_and_back, begin, end)
{
    CUresult code;
    char *before = malloc(total());
    assert_non_null(before);
    memcpy(before, device, total());
    assert_int_equal(run(COPY_OUT, &code), COPY_DONE);
    assert_memory_equal(host + PAGE_BYTES, before, total());
    memset(device, 0, total());
    assert_int_equal(run(COPY_BACK, &code), COPY_DONE);
    assert_memory_equal(device, before, total());
    free(before);
}

TEST_WITH(an_error_and_a_stop_end_the_job, begin, end)
{
    CUresult code;
    atomic_store(&fails_at, 3);
    assert_int_equal(run(COPY_OUT, &code), COPY_FAILED);
    assert_int_equal(code, CUDA_ERROR_ECC_UNCORRECTABLE);
    atomic_store(&stops_at, atomic_load(&asked) + 2);
    assert_int_equal(run(COPY_OUT, &code), COPY_STOPPED);
    assert_int_equal(run(COPY_OUT, &code), COPY_DONE);
}

TEST_WITH(staging_is_as_large_as_what_is_copied, begin, end)
{
    static const struct {
        uint64_t copied, halves;
    } steps[] = {{512, 2}, {12 * 1024 * 1024, 4}, {512, 4}, {UINT64_C(64) * BYTES, 16}};
    CUresult code;

    copy_close();
    copy_finish(context);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        assert_true(copy_begin(context, steps[i].copied));
        assert_int_equal(registered, steps[i].halves * COPY_HALF_BYTES);
        copy_open(context);
        memset(host, 0, BYTES);
        assert_int_equal(run(COPY_OUT, &code), COPY_DONE);
        assert_memory_equal(host + PAGE_BYTES, device, total());
        copy_close();
    }
}

static unsigned resident(const char *from, size_t size)
{
    static unsigned char pages[BYTES / PAGE_BYTES];
    unsigned count = 0;
    assert_int_equal(mincore((void *)(uintptr_t)from, size, pages), 0);
    for (size_t i = 0; i < size / PAGE_BYTES; i++)
        count += pages[i] & 1;
    return count;
}

TEST_WITH(touched_memory_is_there_before_a_copy, begin, end)
{
    if (!copy_can_touch())
        skip();
    assert_int_equal(resident(host, BYTES), 0);
    assert_int_equal(copy_touch(host, BYTES / 2, goes_on), COPY_DONE);
    assert_int_equal(resident(host, BYTES / 2), BYTES / 2 / PAGE_BYTES);
    assert_true(resident(host, BYTES) < BYTES / PAGE_BYTES);
    assert_int_equal(atomic_load(&num_copies), 0);
}

TEST_WITH(a_touch_stops_and_fails, begin, end)
{
    if (!copy_can_touch())
        skip();
    atomic_store(&stops_at, 1);
    assert_int_equal(copy_touch(host, BYTES, goes_on), COPY_STOPPED);
    assert_true(resident(host, BYTES) < BYTES / PAGE_BYTES);
    assert_int_equal(mprotect(host + BYTES / 2, BYTES / 2, PROT_NONE), 0);
    assert_int_equal(copy_touch(host, BYTES, goes_on), COPY_FAILED);
}

PLAY_TESTS
