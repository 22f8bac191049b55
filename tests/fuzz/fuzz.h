/* SPDX-License-Identifier: BSD-2-Clause */
/* The entry of a fuzz target, as libFuzzer wants it: 0, or abort() on a broken promise. */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

#endif
