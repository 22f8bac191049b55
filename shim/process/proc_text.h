/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Small files of /proc and /sys. System calls read them: the C library's functions are cancellation
 * points, and the program may wrap them. No descriptor stays open. No state, no lock.
 */
#ifndef SHIM_PROC_TEXT_H
#define SHIM_PROC_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Enough for the first 22 fields of /proc/PID/stat: 20 numbers and a name of 64 characters. */
enum { PROC_TEXT_BYTES = 512 };

/* What the kernel has in the file, cut to fit, with a NUL. False, with errno and with "": it cannot
 * be read, or is empty. */
bool proc_text_read(const char *path, char text[PROC_TEXT_BYTES]);
/* The same with a text of any size. */
bool proc_text_read_whole(const char *path, char *text, size_t size_bytes);

enum { PROC_TEXT_PATH_BYTES = 64 };

/* The path of the calling thread's own file of that name: maps, exe, cmdline, fd/3. /proc/self is
 * the first thread's, and shows nothing of the process once that thread has ended. */
void proc_text_own_path(char path[PROC_TEXT_PATH_BYTES], const char *name);

/* Where a field of a text of /proc/PID/stat begins. Fields count from 1 (proc(5)). The second is
 * the name of the process and may hold blanks and brackets, so `field` must be 3 or more. NULL:
 * there is none. */
const char *proc_text_stat_field(const char *text, unsigned field);

#endif
