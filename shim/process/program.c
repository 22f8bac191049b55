/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See program.h.
 */
#include "shim/process/program.h"

#include "shim/process/proc_text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

static const char *without_folders(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* Is it the path of a descriptor: /dev/fd/3, as fexecve has it, or any one of /proc? */
static bool is_descriptor(const char *path)
{
    static const char folder[] = "/fd/";
    const char *name = without_folders(path);
    size_t before = (size_t)(name - path), n = sizeof folder - 1;

    return (strncmp(path, "/dev/", 5) == 0 || strncmp(path, "/proc/", 6) == 0) && before > n &&
           strncmp(name - n, folder, n) == 0 && *name && name[strspn(name, "0123456789")] == '\0';
}

/* Where the loader was started with the program as an argument, the kernel has mapped no loader
 * (AT_BASE is 0) and knows the loader's name only. The C library then has taken the loader's
 * arguments away. */
const char *program_name(char room[PROGRAM_NAME_MAX])
{
    const char *path = (const char *)getauxval(AT_EXECFN);

    if (!path || !*path || !getauxval(AT_BASE))
        return program_invocation_short_name;
    if (!is_descriptor(path))
        return without_folders(path);
    return program_file_name(room, PROGRAM_NAME_MAX) ? room : program_invocation_short_name;
}

bool program_file_name(char *out, size_t size_bytes)
{
    static const char deleted[] = " (deleted)";
    char path[PROGRAM_PATH_MAX], link[PROC_TEXT_PATH_BYTES];
    int saved_errno = errno;

    proc_text_own_path(link, "exe");
    ssize_t n = readlink(link, path, sizeof path - 1);

    errno = saved_errno;
    if (n <= 0 || (size_t)n == sizeof path - 1) /* maybe cut */
        return false;
    path[n] = '\0';
    size_t tail = sizeof deleted - 1;
    if ((size_t)n > tail && strcmp(path + n - tail, deleted) == 0)
        path[(size_t)n - tail] = '\0';
    snprintf(out, size_bytes, "%s", without_folders(path));
    return true;
}
