/* SPDX-License-Identifier: BSD-2-Clause */
/* Names, durations and accesses of commands, and the effects of all but kernels (kernel.c). */
#include "tests/sim/command.h"

#include <stdlib.h>
#include <string.h>

#include "tests/sim/config.h"
#include "tests/sim/context.h"
#include "tests/sim/kernel.h"
#include "tests/sim/memory.h"
#include "tests/sim/mempool.h"
#include "tests/sim/words.h"

#define COPY_NS 2000u      /* the least that a copy or memset takes */
#define BYTES_PER_NS 2000u /* what kernels and copies move */

unsigned command_accesses(const struct command *command, struct access *out)
{
    unsigned count = 0;
    switch (command->kind) {
    case COMMAND_KERNEL:
        return kernel_accesses(command->launch.kernel, command->launch.args, out);
    case COMMAND_COPY: {
        const struct copy *copy = &command->copy;
        if (!copy->dst_host)
            out[count++] = (struct access){copy->dst, copy->size, ACCESS_WRITE};
        if (!copy->src_host)
            out[count++] = (struct access){copy->src, copy->size, ACCESS_READ};
        break;
    }
    case COMMAND_SET:
        out[count++] = (struct access){
            command->set.dst, command->set.count * command->set.element_bytes, ACCESS_WRITE};
        break;
    default:
        break;
    }
    return count;
}

const char *command_name(const struct command *command)
{
    static const char *const names[] = {
        [COMMAND_MARKER] = "marker",
        [COMMAND_COPY] = "memcpy",
        [COMMAND_SET] = "memset",
        [COMMAND_HOST_FUNCTION] = "host function",
        [COMMAND_WAIT_VALUE] = "wait value",
        [COMMAND_WAIT_MEMORY] = "wait value in memory",
        [COMMAND_POOL_FREE] = "async free",
    };
    return command->kind == COMMAND_KERNEL ? kernel_name(command->launch.kernel)
                                           : names[command->kind];
}

uint64_t command_duration_ns(const struct command *command)
{
    struct access accesses[COMMAND_ACCESSES_MAX];
    uint64_t bytes = 0;
    switch (command->kind) {
    case COMMAND_KERNEL:
    case COMMAND_COPY:
    case COMMAND_SET:
        for (unsigned i = command_accesses(command, accesses); i-- > 0;)
            bytes += accesses[i].size;
        return bytes / BYTES_PER_NS +
               (command->kind == COMMAND_KERNEL
                    ? kernel_busy_ns(command->launch.kernel, command->launch.args)
                    : COPY_NS) +
               (command->kind == COMMAND_COPY && command->copy.staging ? config.upload_ns : 0);
    default:
        return 0;
    }
}

bool command_condition(const struct command *command)
{
    return command->kind == COMMAND_WAIT_VALUE || command->kind == COMMAND_WAIT_MEMORY ||
           (command->kind == COMMAND_KERNEL && command->launch.kernel == KERNEL_wait_flag);
}

bool command_holds(const struct command *command, struct CUctx_st *context)
{
    size_t room;
    if (command->kind == COMMAND_WAIT_VALUE) {
        bool gone = memory_find((uint64_t)(uintptr_t)command->wait.word) == NULL;
        return gone || atomic_load(command->wait.word) >= command->wait.value;
    }
    bool waits = command->kind == COMMAND_WAIT_MEMORY;
    uint64_t addr = waits ? command->wait_memory.addr : command->launch.args[0];
    const uint32_t *at = memory_at(context, addr, false, &room);
    /* If there is no word, the command ends. Running it then reports the fault. */
    if (waits && at != NULL && room >= 4)
        return __atomic_load_n(at, __ATOMIC_ACQUIRE) >= command->wait_memory.value;
    return at == NULL || room < 4 || __atomic_load_n(at, __ATOMIC_ACQUIRE) != 0;
}

/* Both sides may be in several pieces. Copies between devices need no peer access. */
static CUresult run_copy(const struct copy *copy)
{
    uint64_t dst = copy->dst, src = copy->src;
    for (size_t left = copy->size; left > 0;) {
        size_t dst_room = left, src_room = left;
        uint8_t *to =
            copy->dst_host ? (uint8_t *)(uintptr_t)dst : memory_at(NULL, dst, true, &dst_room);
        uint8_t *from =
            copy->src_host ? (uint8_t *)(uintptr_t)src : memory_at(NULL, src, false, &src_room);
        REFUSE(to == NULL || from == NULL, ILLEGAL_ADDRESS);
        size_t now = left < dst_room ? left : dst_room;
        now = now < src_room ? now : src_room;
        memory_move(to, from, now);
        left -= now;
        dst += now;
        src += now;
    }
    return CUDA_SUCCESS;
}

static CUresult run_set(const struct command *command, struct CUctx_st *context)
{
    uint64_t dst = command->set.dst;
    for (size_t left = command->set.count * command->set.element_bytes; left > 0;) {
        size_t room;
        uint8_t *at = memory_at(context, dst, true, &room);
        REFUSE(at == NULL, ILLEGAL_ADDRESS);
        size_t now = left < room ? left : room;
        if (command->set.element_bytes == 1)
            memset(at, (int)(command->set.value & 0xff), now);
        else if (command->set.element_bytes == 4)
            words_fill((uint32_t *)at, now / 4, command->set.value);
        left -= now;
        dst += now;
    }
    return CUDA_SUCCESS;
}

CUresult command_run(struct command *command, struct CUctx_st *context)
{
    CUresult rc = CUDA_SUCCESS;
    bool healthy = context->error == CUDA_SUCCESS;
    switch (command->kind) {
    case COMMAND_KERNEL:
        if (healthy)
            rc = kernel_run(command->launch.kernel, command->launch.args, context);
        break;
    case COMMAND_COPY:
        if (healthy)
            rc = run_copy(&command->copy);
        command_drop(command);
        break;
    case COMMAND_SET:
        if (healthy)
            rc = run_set(command, context);
        break;
    case COMMAND_WAIT_MEMORY: {
        size_t room;
        if (healthy && memory_at(context, command->wait_memory.addr, false, &room) == NULL)
            rc = CUDA_ERROR_ILLEGAL_ADDRESS;
        break;
    }
    case COMMAND_POOL_FREE:
        mempool_reclaim(command->pool_free.addr);
        break;
    default:
        break;
    }
    return rc;
}

void command_drop(struct command *command)
{
    if (command->kind == COMMAND_COPY) {
        free(command->copy.staging);
        command->copy.staging = NULL;
    }
}
