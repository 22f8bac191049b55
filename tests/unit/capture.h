/* SPDX-License-Identifier: BSD-2-Clause */
/* What is written to fd 2 between two points. The same pipe stands at fd 2 each time, because the
 * log writes only to the stderr that it saw first. */
#ifndef TESTS_UNIT_CAPTURE_H
#define TESTS_UNIT_CAPTURE_H

#include "tests/unit/cases.h"

static int capture_pipe[2], capture_stderr = -1;

static inline void capture_begin(void)
{
    if (capture_stderr < 0) {
        capture_stderr = dup(STDERR_FILENO);
        assert_true(capture_stderr >= 0);
        assert_int_equal(pipe2(capture_pipe, O_NONBLOCK | O_CLOEXEC), 0);
    }
    fflush(stderr);
    assert_int_equal(dup2(capture_pipe[1], STDERR_FILENO), STDERR_FILENO);
}

static inline void capture_end(char *said, size_t size_bytes)
{
    ssize_t n = read(capture_pipe[0], said, size_bytes - 1);
    said[n > 0 ? n : 0] = '\0';
    dup2(capture_stderr, STDERR_FILENO);
}

#endif
