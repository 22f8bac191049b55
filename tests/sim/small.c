/* SPDX-License-Identifier: BSD-2-Clause */
/* Allocations below 1 MiB are parts of 2 MiB pages, in steps of 512 bytes (measured). When its last
 * part is freed, a page goes back to the device. Freed parts are overwritten, so that a stale read
 * shows. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/alloc.h"
#include "tests/sim/memory.h"
#include "tests/sim/space.h"

#define STEP_BYTES 512
#define POISON 0xdb
#define POISON_BYTES_MAX (64 * KIB)

struct block {
    struct physical *physical;
    uint64_t addr;
    struct space space;
    unsigned used;
    struct block *next;
};

static struct block *add_block(CUcontext context)
{
    struct block *block = never_null(calloc(1, sizeof *block));
    block->physical = physical_create(context->device, PAGE_BYTES, false);
    if (block->physical == NULL) {
        free(block);
        return NULL;
    }
    if (!address_alloc(PAGE_BYTES, &block->addr)) {
        physical_release(block->physical);
        free(block);
        return NULL;
    }
    space_init(&block->space, 0, PAGE_BYTES);
    block->next = context->blocks;
    context->blocks = block;
    return block;
}

static void free_block(struct block *block)
{
    address_free(block->addr, PAGE_BYTES);
    physical_release(block->physical);
    space_finish(&block->space);
    free(block);
}

struct memory *small_alloc(CUcontext context, uint64_t size)
{
    uint64_t extent = round_up(size, STEP_BYTES), at = 0;
    struct block *block = context->blocks;
    while (block != NULL && !space_alloc(&block->space, extent, STEP_BYTES, &at))
        block = block->next;
    if (block == NULL) {
        block = add_block(context);
        if (block == NULL)
            return NULL;
        space_alloc(&block->space, extent, STEP_BYTES, &at);
    }
    block->used++;
    struct memory *memory = memory_add(MEMORY_SMALL, block->addr + at, extent, context);
    memory->block = block;
    memory->physical = physical_retain(block->physical);
    memory->host = block->physical->host + at;
    return memory;
}

void small_free(struct memory *memory)
{
    struct block *block = memory->block, **link = &memory->context->blocks;
    uint64_t extent = memory->range.hi - memory->range.lo;
    if (block->physical->touched)
        memset(memory->host, POISON, extent < POISON_BYTES_MAX ? extent : POISON_BYTES_MAX);
    space_free(&block->space, memory->range.lo - block->addr, extent);
    if (--block->used > 0)
        return;
    while (*link != block)
        link = &(*link)->next;
    *link = block->next;
    free_block(block);
}

void small_free_blocks(CUcontext context)
{
    while (context->blocks != NULL) {
        struct block *block = context->blocks;
        context->blocks = block->next;
        free_block(block);
    }
}
