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

/* Bytes from the first to behind the last that rows with this pitch span. */
static size_t span(const struct copy *copy, size_t pitch, size_t slice)
{
    return (copy->depth - 1) * slice + (copy->height - 1) * pitch + copy->width;
}

unsigned command_accesses(const struct command *command, struct access *out)
{
    unsigned count = 0;
    switch (command->kind) {
    case COMMAND_KERNEL:
        return kernel_accesses(command->launch.kernel, command->launch.args, out);
    case COMMAND_COPY: {
        const struct copy *copy = &command->copy;
        if (copy->width == 0 || copy->height == 0 || copy->depth == 0)
            break;
        if (!copy->dst_host)
            out[count++] = (struct access){copy->dst, span(copy, copy->dst_pitch, copy->dst_slice),
                                           ACCESS_WRITE};
        if (!copy->src_host)
            out[count++] = (struct access){copy->src, span(copy, copy->src_pitch, copy->src_slice),
                                           ACCESS_READ};
        break;
    }
    case COMMAND_SET:
        if (command->set.width > 0 && command->set.height > 0)
            out[count++] = (struct access){command->set.dst,
                                           (command->set.height - 1) * command->set.pitch +
                                               command->set.width * command->set.element_bytes,
                                           ACCESS_WRITE};
        break;
    case COMMAND_WAIT_VALUE:
    case COMMAND_WRITE_VALUE:
        out[count++] = (struct access){command->word.addr, command->word.bytes, ACCESS_ATOMIC};
        break;
    case COMMAND_POOL_FREE:
    case COMMAND_MARKER:
    case COMMAND_HOST_FUNCTION:
    case COMMAND_CALLBACK:
        break;
    }
    return count;
}

const char *command_name(const struct command *command)
{
    switch (command->kind) {
    case COMMAND_MARKER:
        return "marker";
    case COMMAND_KERNEL:
        return kernel_name(command->launch.kernel);
    case COMMAND_COPY:
        return "memcpy";
    case COMMAND_SET:
        return "memset";
    case COMMAND_HOST_FUNCTION:
        return "host function";
    case COMMAND_CALLBACK:
        return "stream callback";
    case COMMAND_WAIT_VALUE:
        return "wait value";
    case COMMAND_WRITE_VALUE:
        return "write value";
    case COMMAND_POOL_FREE:
        return "async free";
    }
    return "?";
}

static uint64_t transfer_ns(uint64_t bytes)
{
    return config.bytes_per_us > 0 ? bytes * 1000 / config.bytes_per_us : 0;
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
        return transfer_ns(bytes) +
               (command->kind == COMMAND_KERNEL
                    ? kernel_busy_ns(command->launch.kernel, command->launch.args)
                    : config.copy_ns);
    default:
        return 0;
    }
}

bool command_condition(const struct command *command)
{
    return command->kind == COMMAND_WAIT_VALUE ||
           (command->kind == COMMAND_KERNEL && command->launch.kernel == KERNEL_wait_flag);
}

bool command_holds(const struct command *command, struct CUctx_st *context)
{
    uint64_t word = 0, want;
    size_t bytes = command->kind == COMMAND_KERNEL ? 4 : command->word.bytes, room;
    uint64_t addr = command->kind == COMMAND_KERNEL ? command->launch.args[0] : command->word.addr;
    const uint8_t *at = memory_at(context, addr, false, &room);
    if (at == NULL || room < bytes)
        return true; /* ends with the fault that running it reports */
    if (bytes == 4)
        word = __atomic_load_n((const uint32_t *)at, __ATOMIC_ACQUIRE);
    else
        word = __atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE);
    if (command->kind == COMMAND_KERNEL)
        return word != 0;
    want = bytes == 4 ? (uint32_t)command->word.value : command->word.value;
    switch (command->word.flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return bytes == 4 ? (int32_t)(word - want) >= 0 : (int64_t)(word - want) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return word == want;
    case CU_STREAM_WAIT_VALUE_AND:
        return (word & want) != 0;
    default:
        return ~(word | want) != 0; /* NOR */
    }
}

bool command_calls_host(const struct command *command)
{
    return command->kind == COMMAND_HOST_FUNCTION || command->kind == COMMAND_CALLBACK;
}

/* One row; both sides may be in several pieces. */
static CUresult copy_row(const struct copy *copy, struct CUctx_st *context, uint64_t dst,
                         uint64_t src)
{
    for (size_t left = copy->width; left > 0;) {
        size_t dst_room = left, src_room = left;
        uint8_t *to = copy->dst_host ? (uint8_t *)(uintptr_t)dst
                                     : memory_at(copy->peer ? NULL : context, dst, true, &dst_room);
        uint8_t *from = copy->src_host
                            ? (uint8_t *)(uintptr_t)src
                            : memory_at(copy->peer ? NULL : context, src, false, &src_room);
        if (to == NULL || from == NULL)
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        size_t now = left < dst_room ? left : dst_room;
        now = now < src_room ? now : src_room;
        memmove(to, from, now);
        left -= now;
        dst += now;
        src += now;
    }
    return CUDA_SUCCESS;
}

static CUresult run_copy(struct copy *copy, struct CUctx_st *context)
{
    CUresult rc = CUDA_SUCCESS;
    for (size_t z = 0; z < copy->depth; z++)
        for (size_t y = 0; y < copy->height && rc == CUDA_SUCCESS; y++)
            rc = copy_row(copy, context, copy->dst + z * copy->dst_slice + y * copy->dst_pitch,
                          copy->src + z * copy->src_slice + y * copy->src_pitch);
    return rc;
}

MEMORY_LOOP static void set_elements(uint8_t *at, size_t bytes, unsigned element_bytes,
                                     uint32_t value)
{
    if (element_bytes == 1) {
        memset(at, (int)(value & 0xff), bytes);
    } else if (element_bytes == 2) {
        for (size_t i = 0; i + 2 <= bytes; i += 2)
            memcpy(at + i, &(uint16_t){(uint16_t)value}, 2);
    } else {
        for (size_t i = 0; i + 4 <= bytes; i += 4)
            memcpy(at + i, &value, 4);
    }
}

static CUresult run_set(const struct command *command, struct CUctx_st *context)
{
    for (size_t y = 0; y < command->set.height; y++) {
        uint64_t dst = command->set.dst + y * command->set.pitch;
        for (size_t left = command->set.width * command->set.element_bytes; left > 0;) {
            size_t room;
            uint8_t *at = memory_at(context, dst, true, &room);
            if (at == NULL)
                return CUDA_ERROR_ILLEGAL_ADDRESS;
            size_t now = left < room ? left : room;
            set_elements(at, now, command->set.element_bytes, command->set.value);
            left -= now;
            dst += now;
        }
    }
    return CUDA_SUCCESS;
}

static CUresult run_write_value(const struct command *command, struct CUctx_st *context)
{
    size_t room;
    uint8_t *at = memory_at(context, command->word.addr, true, &room);
    if (at == NULL || room < command->word.bytes)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (command->word.bytes == 4)
        __atomic_store_n((uint32_t *)at, (uint32_t)command->word.value, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint64_t *)at, command->word.value, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

CUresult command_run(struct command *command, struct CUctx_st *context)
{
    CUresult rc = CUDA_SUCCESS;
    bool healthy = context->error == CUDA_SUCCESS;
    size_t room;
    switch (command->kind) {
    case COMMAND_KERNEL:
        if (healthy)
            rc = kernel_run(command->launch.kernel, command->launch.args, context);
        break;
    case COMMAND_COPY:
        if (healthy)
            rc = run_copy(&command->copy, context);
        command_drop(command);
        break;
    case COMMAND_SET:
        if (healthy)
            rc = run_set(command, context);
        break;
    case COMMAND_WRITE_VALUE:
        if (healthy)
            rc = run_write_value(command, context);
        break;
    case COMMAND_WAIT_VALUE:
        if (healthy && memory_at(context, command->word.addr, false, &room) == NULL)
            rc = CUDA_ERROR_ILLEGAL_ADDRESS;
        break;
    case COMMAND_POOL_FREE:
        mempool_reclaim(command->pool_free.addr);
        break;
    case COMMAND_MARKER:
    case COMMAND_HOST_FUNCTION:
    case COMMAND_CALLBACK:
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
