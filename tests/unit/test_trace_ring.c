/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/trace/ring.c: where what a ring tells of a time ends. */
#include "shim/trace/ring.h"
#include "tests/unit/cases.h"

enum { TRACE = 7, BEGIN = 1000, STEP = 1 << TRACE_STEP_SHIFT };

static struct trace_ring *ring;
static size_t chunks, records;

/* Two records, the second one a step later, then the clock at a time, and a record a step later. */
static void fill(uint64_t begin, uint64_t time)
{
    struct trace_chunk *chunk = trace_ring_chunk(&ring, TRACE);
    assert_non_null(chunk);
    chunk->ticks = begin;
    chunk->magic = TRACE_CHUNK_MAGIC;
    struct trace_record *r = (struct trace_record *)(chunk + 1);
    uint64_t free_record = (uint64_t)TRACE_FREE << 24;
    r[0] = (struct trace_record){0, free_record};
    r[1] = (struct trace_record){1, free_record};
    *(struct trace_wide *)&r[2] =
        (struct trace_wide){{0, (uint64_t)(TRACE_WIDE | TRACE_TIME) << 24}, time, 0};
    r[4] = (struct trace_record){1, free_record};
}

static void count_record(const struct trace_seen *record)
{
    records += record->kind == TRACE_FREE;
}

static void count_chunk(const struct trace_chunk *chunk, size_t used_bytes, bool lost_before)
{
    assert_false(lost_before);
    chunks++;
    trace_ring_read(chunk, used_bytes, count_record);
}

static void expect_until(uint64_t until_ticks, size_t num_chunks, size_t num_records)
{
    chunks = records = 0;
    assert_true(trace_ring_lock());
    trace_ring_each(TRACE, until_ticks, count_chunk);
    trace_ring_unlock();
    assert_int_equal(chunks, num_chunks);
    assert_int_equal(records, num_records);
}

TEST(records_of_later_are_not_told)
{
    fill(BEGIN, 10 * BEGIN);
    fill(20 * BEGIN, 30 * BEGIN);
    expect_until(BEGIN - 1, 0, 0);
    expect_until(BEGIN, 1, 1);
    expect_until(BEGIN + STEP - 1, 1, 1);
    expect_until(BEGIN + STEP, 1, 2);
    expect_until(10 * BEGIN + STEP - 1, 1, 2);
    expect_until(10 * BEGIN + STEP, 1, 3);
    expect_until(20 * BEGIN, 2, 4);
    expect_until(UINT64_MAX, 2, 6);
}

PLAY_TESTS
