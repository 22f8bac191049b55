/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See proc_text.h.
 */
#include "shim/process/proc_text.h"

#include "shim/process/kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

bool proc_text_read(const char *path, char text[PROC_TEXT_BYTES])
{
    return proc_text_read_whole(path, text, PROC_TEXT_BYTES);
}

bool proc_text_read_whole(const char *path, char *text, size_t size_bytes)
{
    struct stat opened;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);

    text[0] = '\0';
    if (fd < 0)
        return false;
    bool known = !kernel_fstat(fd, &opened);
    errno = 0; /* an empty file sets none */
    ssize_t size = syscall(SYS_pread64, fd, text, size_bytes - 1, 0);
    int saved_errno = errno;
    if (known && kernel_is_own(fd, &opened))
        syscall(SYS_close, fd);
    errno = saved_errno;
    text[size > 0 ? size : 0] = '\0';
    return size > 0;
}

void proc_text_own_path(char path[PROC_TEXT_PATH_BYTES], const char *name)
{
    struct stat st;

    snprintf(path, PROC_TEXT_PATH_BYTES, "/proc/thread-self/%s", name);
    if (kernel_fstatat(AT_FDCWD, "/proc/thread-self", &st, AT_SYMLINK_NOFOLLOW))
        snprintf(path, PROC_TEXT_PATH_BYTES, "/proc/self/task/%d/%s", (int)kernel_gettid(),
                 name); /* before Linux 3.17 */
}

const char *proc_text_stat_field(const char *text, unsigned field)
{
    const char *at = strrchr(text, ')');

    for (unsigned before = 2; at && before < field; before++) {
        at = strchr(at, ' ');
        at = at ? at + 1 : NULL;
    }
    return at;
}
