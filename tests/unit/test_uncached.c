/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/park/uncached.c: the same bytes as memcpy's, at each alignment and size, and none beside. */
#include "shim/park/uncached.h"
#include "tests/unit/cases.h"

enum { LINE = 64, SIZE_MOST = 2 * LINE + 1, ROOM = LINE + SIZE_MOST + LINE };

static _Alignas(LINE) unsigned char from[ROOM], to[ROOM], expected[ROOM];

TEST(each_byte_is_copied_and_none_beside)
{
    for (size_t i = 0; i < ROOM; i++)
        from[i] = (unsigned char)(i % 251 + 1);
    for (size_t at = 0; at < LINE; at++)
        for (size_t size = 0; size <= SIZE_MOST; size++) {
            size_t source = size % LINE;
            memset(to, 0, ROOM);
            memset(expected, 0, ROOM);
            memcpy(expected + at, from + source, size);
            uncached_copy(to + at, from + source, size);
            assert_memory_equal(to, expected, ROOM);
        }
}

PLAY_TESTS
