/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See reservation.h. One table for the process, in no order, because it is short and seldom asked.
 * If host memory is short a range is not recorded, and the program may free it or map memory there.
 * The lock is not held over a driver call.
 */
#include "shim/driver/reservation.h"

#include <pthread.h>
#include <stdlib.h>

struct range {
    CUdeviceptr addr;
    size_t size_bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range *ranges;
static size_t num_ranges, max_ranges;

static void record(CUdeviceptr addr, size_t size_bytes)
{
    pthread_mutex_lock(&lock);
    if (num_ranges == max_ranges) {
        struct range *more = realloc(ranges, (2 * max_ranges + 8) * sizeof *ranges);
        if (more) {
            ranges = more;
            max_ranges = 2 * max_ranges + 8;
        }
    }
    if (num_ranges < max_ranges)
        ranges[num_ranges++] = (struct range){addr, size_bytes};
    pthread_mutex_unlock(&lock);
}

static void forget(CUdeviceptr addr)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < num_ranges; i++)
        if (ranges[i].addr == addr)
            ranges[i--] = ranges[--num_ranges];
    pthread_mutex_unlock(&lock);
}

CUresult reservation_create(CUdeviceptr *addr, size_t size_bytes, size_t align_bytes)
{
    CUresult rc = real.cuMemAddressReserve(addr, size_bytes, align_bytes, 0, 0);
    if (rc == CUDA_SUCCESS)
        record(*addr, size_bytes);
    return rc;
}

void reservation_destroy(CUdeviceptr addr, size_t size_bytes)
{
    forget(addr); /* first: from then on the program may get these addresses */
    real.cuMemAddressFree(addr, size_bytes);
}

bool reservation_covers(CUdeviceptr addr, size_t size_bytes)
{
    bool covers = false;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < num_ranges && !covers; i++)
        covers = addr < ranges[i].addr ? ranges[i].addr - addr < size_bytes
                                       : addr - ranges[i].addr < ranges[i].size_bytes;
    pthread_mutex_unlock(&lock);
    return covers;
}
