// SPDX-License-Identifier: BSD-2-Clause
//
// CUB: sorts, scans and sums on two streams. Their temporary memory comes from cudaMalloc, freed
// before the work is done, or from CUB's own caching allocator.
#include "tests/gpu/lib_common.h"

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_scan.cuh>
#include <cub/util_allocator.cuh>

enum { ROUNDS = 40 };

static cub::CachingDeviceAllocator cache;

struct temporary {
    bool cached;
    cudaStream_t stream;
    void *p;
    temporary(size_t size_bytes, bool is_cached, cudaStream_t on)
        : cached(is_cached), stream(on), p(nullptr)
    {
        if (cached)
            MUST(cache.DeviceAllocate(&p, size_bytes, stream));
        else
            p = lib_device(size_bytes);
    }
    ~temporary()
    {
        if (cached)
            MUST(cache.DeviceFree(p));
        else
            MUST(cudaFree(p));
    }
};

static void round_of(int round, cudaStream_t stream)
{
    bool cached = round % 4 >= 2;
    int count = 1000 + (int)((size_t)round * 104729 % 700000);
    size_t size_bytes = (size_t)count * sizeof(uint32_t), temp_bytes = 0;
    uint32_t state = (uint32_t)round, *host = (uint32_t *)lib_host(size_bytes);
    for (int i = 0; i < count; i++)
        host[i] = lib_random(&state);
    uint32_t *keys = (uint32_t *)lib_upload(host, size_bytes, stream);
    uint32_t *sorted = (uint32_t *)lib_device(size_bytes);
    uint32_t *sums = (uint32_t *)lib_device(size_bytes);
    uint32_t *total = (uint32_t *)lib_device(sizeof *total), sum = 0;
    MUST(cub::DeviceRadixSort::SortKeys(nullptr, temp_bytes, keys, sorted, count, 0, 24, stream));
    {
        temporary area(temp_bytes, cached, stream);
        MUST(cub::DeviceRadixSort::SortKeys(area.p, temp_bytes, keys, sorted, count, 0, 24,
                                            stream));
    }
    MUST(cub::DeviceScan::InclusiveSum(nullptr, temp_bytes, sorted, sums, count, stream));
    {
        temporary area(temp_bytes, cached, stream);
        MUST(cub::DeviceScan::InclusiveSum(area.p, temp_bytes, sorted, sums, count, stream));
    }
    MUST(cub::DeviceReduce::Sum(nullptr, temp_bytes, keys, total, count, stream));
    {
        temporary area(temp_bytes, cached, stream);
        MUST(cub::DeviceReduce::Sum(area.p, temp_bytes, keys, total, count, stream));
    }
    MUST(cudaFree(keys));
    MUST(cudaMemcpyAsync(&sum, total, sizeof sum, cudaMemcpyDeviceToHost, stream));
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaFree(total));
    uint64_t first = lib_hash_device(sorted, host, size_bytes);
    uint64_t second = lib_hash_device(sums, lib_host(size_bytes), size_bytes);
    printf("%d %d %u %016llx %016llx\n", round, count, sum, (unsigned long long)first,
           (unsigned long long)second);
}

int main(int argc, char **argv)
{
    cudaStream_t streams[2];
    MUST(cudaStreamCreateWithFlags(&streams[0], cudaStreamNonBlocking));
    MUST(cudaStreamCreate(&streams[1]));
    for (int round = 0; lib_goes_on(round, ROUNDS, argc, argv); round++)
        round_of(round, streams[round % 2]);
    MUST(cache.FreeAllCached());
    return 0;
}
