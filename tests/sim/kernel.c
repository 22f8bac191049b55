/* SPDX-License-Identifier: BSD-2-Clause */
/* The known kernels, on 32-bit words of simulated memory. */
#include "tests/sim/kernel.h"

#include <string.h>

#include "tests/sim/config.h"
#include "tests/sim/memory.h"
#include "tests/sim/page_hash.h"
#include "tests/sim/words.h"

static const struct {
    const char *name, *sizes;
} kernels[KERNEL_COUNT] = {
#define KERNEL(name, sizes) {#name, sizes},
#include "tests/sim/kernels.def"
};

enum kernel kernel_by_name(const char *name)
{
    enum kernel i = 0;
    while (i < KERNEL_COUNT && strcmp(kernels[i].name, name) != 0)
        i++;
    return i;
}

const char *kernel_name(enum kernel kernel)
{
    return kernels[kernel].name;
}

unsigned kernel_parameter_count(enum kernel kernel)
{
    return (unsigned)strlen(kernels[kernel].sizes);
}

unsigned kernel_parameter_bytes(enum kernel kernel, unsigned index)
{
    return (unsigned)(kernels[kernel].sizes[index] - '0');
}

unsigned kernel_accesses(enum kernel kernel, const uint64_t *args, struct access *out)
{
    switch (kernel) {
    case KERNEL_fill:
    case KERNEL_spin_fill:
        out[0] = (struct access){args[0], args[1] * 4, ACCESS_WRITE};
        return args[1] > 0;
    case KERNEL_copy:
        out[0] = (struct access){args[0], args[2] * 4, ACCESS_WRITE};
        out[1] = (struct access){args[1], args[2] * 4, ACCESS_READ};
        return args[2] > 0 ? 2 : 0;
    case KERNEL_check:
    case KERNEL_spin_check:
        out[0] = (struct access){args[3], 4, ACCESS_ATOMIC};
        out[1] = (struct access){args[0], args[1] * 4, ACCESS_READ};
        return args[1] > 0 ? 2 : 1;
    case KERNEL_wait_flag:
        out[0] = (struct access){args[0], 4, ACCESS_ATOMIC};
        return 1;
    case KERNEL_gather: /* loads at random places: all of it may be read */
    case KERNEL_chase:
        out[0] = (struct access){args[4], 4, ACCESS_ATOMIC};
        out[1] = (struct access){args[0], args[1] * 4, ACCESS_READ};
        return 2;
    case KERNEL_stream:
        out[0] = (struct access){args[0], args[1] * 16, ACCESS_WRITE};
        out[1] = (struct access){args[2], args[1] * 16, ACCESS_READ};
        return args[1] > 0 ? 2 : 0;
    case KERNEL_gpucache_page_hash:
        out[0] = (struct access){args[0], args[1] * PAGE_HASH_PAGE, ACCESS_READ};
        out[1] = (struct access){args[2], PAGE_HASH_KEY, ACCESS_READ};
        out[2] = (struct access){args[3], args[1] * 32, ACCESS_WRITE};
        return 3;
    case KERNEL_spin:
    case KERNEL_COUNT:
        break;
    }
    return 0;
}

uint64_t kernel_busy_ns(enum kernel kernel, const uint64_t *args)
{
    switch (kernel) {
    case KERNEL_spin:
        return args[0];
    case KERNEL_spin_fill:
        return args[3];
    case KERNEL_spin_check:
        return args[4];
    default:
        return config.kernel_ns;
    }
}

static CUresult fill(struct CUctx_st *context, uint64_t ptr, uint64_t words, uint32_t value)
{
    for (uint64_t left = words * 4; left > 0;) {
        size_t room;
        uint32_t *at = memory_at(context, ptr, true, &room);
        REFUSE(at == NULL || room < 4, ILLEGAL_ADDRESS);
        uint64_t now = (left < room ? left : room) & ~(uint64_t)3;
        words_fill(at, now / 4, value);
        left -= now;
        ptr += now;
    }
    return CUDA_SUCCESS;
}

static CUresult copy(struct CUctx_st *context, uint64_t dst, uint64_t src, uint64_t words)
{
    for (uint64_t left = words * 4; left > 0;) {
        size_t dst_room, src_room;
        uint8_t *to = memory_at(context, dst, true, &dst_room);
        const uint8_t *from = memory_at(context, src, false, &src_room);
        REFUSE(to == NULL || from == NULL || dst_room < 4 || src_room < 4, ILLEGAL_ADDRESS);
        uint64_t now = left < dst_room ? left : dst_room;
        now = (now < src_room ? now : src_room) & ~(uint64_t)3;
        memory_move(to, from, now);
        left -= now;
        dst += now;
        src += now;
    }
    return CUDA_SUCCESS;
}

static CUresult check(struct CUctx_st *context, uint64_t ptr, uint64_t words, uint32_t value,
                      uint64_t errors_ptr)
{
    size_t room;
    uint32_t errors = 0;
    for (uint64_t left = words * 4; left > 0;) {
        const uint32_t *at = memory_at(context, ptr, false, &room);
        REFUSE(at == NULL || room < 4, ILLEGAL_ADDRESS);
        uint64_t now = (left < room ? left : room) & ~(uint64_t)3;
        errors += words_differing(at, now / 4, value);
        left -= now;
        ptr += now;
    }
    uint32_t *sum = memory_at(context, errors_ptr, true, &room);
    REFUSE(sum == NULL || room < 4, ILLEGAL_ADDRESS);
    __atomic_fetch_add(sum, errors, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

/* The memory in one piece, as the context sees it. False: it does not see all of it.
 * out NULL: whether it does. */
static bool read_all(struct CUctx_st *context, uint64_t ptr, void *out, uint64_t size)
{
    for (size_t room; size > 0; ptr += room, size -= room) {
        const uint8_t *at = memory_at(context, ptr, false, &room);
        if (at == NULL)
            return false;
        room = size < room ? size : room;
        if (out != NULL)
            out = (uint8_t *)memcpy(out, at, room) + room;
    }
    return true;
}

/* Loads that write nothing but a word at out. */
static CUresult touch(struct CUctx_st *context, uint64_t ptr, uint64_t words, uint64_t out)
{
    size_t room;
    REFUSE(!read_all(context, ptr, NULL, words * 4), ILLEGAL_ADDRESS);
    uint32_t *word = memory_at(context, out, true, &room);
    REFUSE(word == NULL || room < 4, ILLEGAL_ADDRESS);
    *word = 0;
    return CUDA_SUCCESS;
}

static CUresult hash_pages(struct CUctx_st *context, const uint64_t *args)
{
    static uint32_t page[PAGE_HASH_PAGE / 4], key[PAGE_HASH_KEY / 4];
    REFUSE(!read_all(context, args[2], key, sizeof key), ILLEGAL_ADDRESS);
    for (uint64_t i = 0; i < args[1]; i++) {
        size_t room;
        uint64_t *out = memory_at(context, args[3] + i * 32, true, &room);
        if (out == NULL || room < 32 ||
            !read_all(context, args[0] + i * PAGE_HASH_PAGE, page, sizeof page))
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        page_hash(page, key, out);
    }
    return CUDA_SUCCESS;
}

CUresult kernel_run(enum kernel kernel, const uint64_t *args, struct CUctx_st *context)
{
    size_t room;
    struct access accesses[COMMAND_ACCESSES_MAX];
    for (unsigned i = kernel_accesses(kernel, args, accesses); i-- > 0;)
        REFUSE(accesses[i].addr % 4 != 0, MISALIGNED_ADDRESS);
    switch (kernel) {
    case KERNEL_fill:
    case KERNEL_spin_fill:
        return fill(context, args[0], args[1], (uint32_t)args[2]);
    case KERNEL_copy:
        return copy(context, args[0], args[1], args[2]);
    case KERNEL_check:
    case KERNEL_spin_check:
        return check(context, args[0], args[1], (uint32_t)args[2], args[3]);
    case KERNEL_stream:
        return copy(context, args[0], args[2], args[1] * 4);
    case KERNEL_gather:
    case KERNEL_chase:
        return touch(context, args[0], args[1], args[4]);
    case KERNEL_gpucache_page_hash:
        return hash_pages(context, args);
    case KERNEL_wait_flag:
        return memory_at(context, args[0], false, &room) != NULL ? CUDA_SUCCESS
                                                                 : CUDA_ERROR_ILLEGAL_ADDRESS;
    case KERNEL_spin:
    case KERNEL_COUNT:
        break;
    }
    return CUDA_SUCCESS;
}
