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

/* What the program was started as, without folders. Where the kernel does not tell, or tells a
 * descriptor or the loader, it is the C library's name. Static. */
const char *program_name(void);
/* The name of the file that runs, without folders. False: /proc does not tell, or the path is
 * longer than PROGRAM_PATH_MAX - 2. Keeps errno. */
bool program_file_name(char *out, size_t size_bytes);

#endif
