/* SPDX-License-Identifier: BSD-2-Clause */
/* The functions of sim.h, and the reports at exit. */
#include "tests/sim/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "tests/sim/api.h"
#include "tests/sim/clock.h"
#include "tests/sim/config.h"
#include "tests/sim/context.h"
#include "tests/sim/device.h"
#include "tests/sim/fault.h"
#include "tests/sim/graph.h"
#include "tests/sim/hazard.h"
#include "tests/sim/memory.h"
#include "tests/sim/owner.h"

uint64_t simNow_ns(void)
{
    return clock_now_ns();
}

void simAdvance_ns(uint64_t ns)
{
    api_lock();
    clock_charge(ns);
    clock_run();
    api_leave(CUDA_SUCCESS);
}

int simGraphMemory(int device, uint64_t bytes)
{
    api_lock();
    bool taken = device_valid(device) && device_take(device, bytes);
    if (taken)
        device_at(device)->graph_bytes += bytes;
    api_unlock();
    return taken ? 0 : -1;
}

uint64_t simDeviceBytesUsed(int device)
{
    api_lock();
    uint64_t used = device_valid(device) ? device_at(device)->used_bytes : 0;
    api_unlock();
    return used;
}

static void add_pending(CUcontext context, void *data)
{
    *(uint64_t *)data += context->pending;
}

uint64_t simWorkPending(void)
{
    uint64_t pending = 0;
    api_lock();
    context_each(add_pending, &pending);
    api_unlock();
    return pending;
}

void simOwnerBegin(uint64_t addr, size_t size_bytes)
{
    if (!api_used())
        return; /* a forked child: another thread may have been changing the owners */
    api_lock();
    owner_begin(addr, size_bytes);
    api_unlock();
}

void simOwnerEnd(uint64_t addr)
{
    if (!api_used())
        return;
    api_lock();
    owner_end(addr);
    api_unlock();
}

uint64_t simHazardCount(void)
{
    api_lock();
    uint64_t count = hazard_count();
    api_unlock();
    return count;
}

void simHazardReset(void)
{
    api_lock();
    hazard_reset();
    api_unlock();
}

uint64_t simCallCount(const char *symbol)
{
    enum function function = api_by_name(symbol);
    return function != FUNCTION_COUNT ? api_calls(function) : UINT64_MAX;
}

int simFail(const char *symbol, unsigned nth, int code)
{
    char spec[160];
    snprintf(spec, sizeof spec, "%s:%u:%d", symbol, nth, code);
    return simFailSpec(spec);
}

int simSyncMemops(uint64_t addr)
{
    api_lock();
    const struct memory *memory = memory_find(addr);
    int set = memory != NULL && memory->sync_memops;
    api_unlock();
    return set;
}

int simFailSpec(const char *spec)
{
    api_lock();
    bool added = fault_add(spec);
    api_unlock();
    return added ? 0 : -1;
}

void simFailClear(const char *symbol)
{
    api_lock();
    fault_clear(symbol != NULL ? api_by_name(symbol) : FUNCTION_COUNT);
    api_unlock();
}

static int hold(const char *symbol, bool on)
{
    enum function function = api_by_name(symbol);
    if (function == FUNCTION_COUNT)
        return -1;
    api_hold(function, on);
    return 0;
}

int simHold(const char *symbol)
{
    return hold(symbol, true);
}

void simLetGo(const char *symbol)
{
    hold(symbol, false);
}

unsigned simHeld(void)
{
    return api_held();
}

int simDeviceLaunch(void *exec, void *stream)
{
    api_lock();
    return (int)api_leave(graph_launch(exec, stream));
}

/* The process that ends last has the file. A lock keeps the others out meanwhile, and readers. */
static void print_calls(void)
{
    const char *name = strchr(config.trace, ':');
    FILE *file = name != NULL ? fopen(name + 1, "a") : stderr;
    if (file == NULL)
        return;
    if (name != NULL && flock(fileno(file), LOCK_EX) == 0)
        (void)!ftruncate(fileno(file), 0); /* a terminal has nothing to cut off */
    for (enum function i = 0; i < FUNCTION_COUNT; i++)
        if (api_calls(i) > 0)
            fprintf(file, "sim: calls: %s %llu\n", api_name(i), (unsigned long long)api_calls(i));
    if (file != stderr)
        fclose(file);
}

/* Takes no lock: threads of the program may still be inside a call. */
__attribute__((destructor)) static void at_exit(void)
{
    if (!api_used())
        return;
    if (config.trace != NULL && strncmp(config.trace, "calls", 5) == 0)
        print_calls();
    if (config.hazard == NULL || strcmp(config.hazard, "abort") != 0 || hazard_count() == 0)
        return;
    fprintf(stderr, "sim: %llu hazards\n", (unsigned long long)hazard_count());
    fflush(NULL);
    _exit(SIM_HAZARD_EXIT);
}
