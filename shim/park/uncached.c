/* SPDX-License-Identifier: BSD-2-Clause */
#include "shim/park/uncached.h"

#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#include <stdint.h>

enum { VECTOR_BYTES = 16 };

void uncached_copy(void *to, const void *from, size_t size_bytes)
{
    char *out = to;
    const char *in = from;
    size_t head = -(uintptr_t)out % VECTOR_BYTES;

    if (size_bytes < head + VECTOR_BYTES) {
        memcpy(out, in, size_bytes);
        return;
    }
    memcpy(out, in, head);
    size_t at = head;
    for (; at + VECTOR_BYTES <= size_bytes; at += VECTOR_BYTES)
        _mm_stream_si128((__m128i *)(void *)(out + at),
                         _mm_loadu_si128((const __m128i *)(const void *)(in + at)));
    _mm_sfence(); /* such stores are in no order with later ones */
    memcpy(out + at, in + at, size_bytes - at);
}
#else
void uncached_copy(void *to, const void *from, size_t size_bytes)
{
    memcpy(to, from, size_bytes);
}
#endif
