// SPDX-License-Identifier: BSD-2-Clause
//
// Thrust sorts, scans, reduces and makes unique vectors of varying size. Each vector takes device
// memory, and the algorithms take more.
#include "tests/gpu/lib_common.h"

#include <thrust/copy.h>
#include <thrust/device_vector.h>
#include <thrust/host_vector.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>
#include <thrust/transform.h>
#include <thrust/unique.h>

enum { ROUNDS = 40 };

struct mix {
    __host__ __device__ uint32_t operator()(uint32_t i) const
    {
        i = (i ^ (i >> 15)) * 2246822519u;
        return (i ^ (i >> 13)) % 50021u;
    }
};

static void round_of(int round)
{
    size_t count = 1000 + (size_t)round * 104729 % 700000;
    thrust::device_vector<uint32_t> keys(count), values(count);
    thrust::sequence(values.begin(), values.end(), (uint32_t)round);
    thrust::transform(values.begin(), values.end(), keys.begin(), mix());
    thrust::sort_by_key(keys.begin(), keys.end(), values.begin());
    thrust::device_vector<uint64_t> sums(count);
    thrust::inclusive_scan(keys.begin(), keys.end(), sums.begin(), thrust::plus<uint64_t>());
    uint64_t total = thrust::reduce(keys.begin(), keys.end(), (uint64_t)0);
    thrust::device_vector<uint32_t> few(keys);
    few.erase(thrust::unique(few.begin(), few.end()), few.end());
    few.shrink_to_fit();
    thrust::host_vector<uint32_t> order(values);
    printf("%d %zu %llu %llu %zu %016llx\n", round, count, (unsigned long long)total,
           (unsigned long long)(uint64_t)sums.back(), few.size(),
           (unsigned long long)lib_hash(order.data(), count * sizeof(uint32_t)));
}

int main(int argc, char **argv)
{
    for (int round = 0; lib_goes_on(round, ROUNDS, argc, argv); round++)
        round_of(round);
    return 0;
}
