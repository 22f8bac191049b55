/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The names of this process's program. Servers write a title over their arguments and their
 * environment (setproctitle), and name their first thread anew. So the C library's
 * program_invocation_short_name and the kernel's comm may say anything. These two names stay:
 *  - The path that the program was started by is kept by the kernel behind the environment
 *    (AT_EXECFN). Of a script it is the script's.
 *  - The file that runs is `exe` in /proc, with all links followed. Of a script it is the
 *    interpreter's.
 * No lock, no memory, no CUDA.
 */
#ifndef SHIM_PROGRAM_H
#define SHIM_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>

/* A longer path is not read: threads may have small stacks. */
enum { PROGRAM_NAME_MAX = 256, PROGRAM_PATH_MAX = 1024 };

/* What the program was started as, without folders; in room, or static. Where the kernel tells a
 * descriptor (fexecve, /proc/PID/fd/3), it is the name of the file that runs. Of a script that is
 * the interpreter's, as argv had it before a title was written over it. Where the kernel tells
 * nothing, or the loader, it is the C library's name. Keeps errno. */
const char *program_name(char room[PROGRAM_NAME_MAX]);
/* The name of the file that runs, without folders. False: /proc does not tell, or the path is
 * longer than PROGRAM_PATH_MAX - 2. Keeps errno. */
bool program_file_name(char *out, size_t size_bytes);

#endif
