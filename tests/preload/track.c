/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds the hazard checker's calls in a simulated driver that is already loaded, by whatever way. A
 * real driver has none. State: the two functions, looked up once. */
#include "tests/preload/track.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

static void (*owner_begin)(uint64_t address, size_t size_bytes);
static void (*owner_end)(uint64_t address);

static void find(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (driver == NULL)
        return;
    void *begin = dlsym(driver, "simOwnerBegin");
    void *end = dlsym(driver, "simOwnerEnd");
    if (begin == NULL || end == NULL)
        return;
    memcpy(&owner_begin, &begin, sizeof owner_begin);
    memcpy(&owner_end, &end, sizeof owner_end);
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

int track_malloc(int rc, uint64_t address, size_t size_bytes)
{
    pthread_once(&once, find);
    if (rc == 0 && address != 0 && owner_begin != NULL)
        owner_begin(address, size_bytes);
    return rc;
}

void track_free(uint64_t address)
{
    pthread_once(&once, find);
    if (address != 0 && owner_end != NULL)
        owner_end(address);
}
