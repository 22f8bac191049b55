/* SPDX-License-Identifier: BSD-2-Clause */
/* How a fuzz target with a rig ends. */
#ifndef TESTS_FUZZ_FUZZ_END_H
#define TESTS_FUZZ_FUZZ_END_H

#include "tests/fuzz/fuzz.h"
#include "tests/unit/rig.h"

#include <stdio.h>
#include <stdlib.h>

/* words: what is wrong after byte `at`; NULL: nothing. Then the rig ends, or the process by abort()
 * where its end finds something. */
static inline int fuzz_end(struct rig *r, const char *words, size_t at, size_t size_bytes)
{
    if (words) {
        fprintf(stderr, "after byte %zu of %zu: %s\n", at, size_bytes, words);
        abort();
    }
    r->model->other_bytes = 0;
    words = rig_destroy(r);
    if (words) {
        fprintf(stderr, "at the end: %s\n", words);
        abort();
    }
    return 0;
}

#endif
