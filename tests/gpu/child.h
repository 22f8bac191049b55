/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A case in a process of its own, because an error of the driver may stay in the process, or the
 * driver may not return. The parent never asks the driver for anything: the driver does not survive
 * a fork. No lock.
 */
#ifndef TESTS_GPU_CHILD_H
#define TESTS_GPU_CHILD_H

/* Runs body in a child, which ends after limit_s seconds in any case, with all processes that it
 * started. Returns the child's exit status. Returns 256 and more for another end: CHILD_SIGNAL plus
 * the signal, or CHILD_LATE. */
enum { CHILD_SIGNAL = 256, CHILD_LATE = 512 };

int child_run(int (*body)(void *arg), void *arg, unsigned limit_s);

/* The words for what child_run returned. The text is valid until the next call. */
const char *child_words(int status);

#endif
