/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See descriptors.h.
 */
#include "shim/process/descriptors.h"

#include "shim/process/decimal.h"
#include "shim/process/proc_text.h"

#include <dirent.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE 2
#endif

/* The program's descriptors must not stay open in a copy of its table: a pipe would never end. */
static bool close_all(void)
{
    char path[PROC_TEXT_PATH_BYTES];

    proc_text_own_path(path, "fd");
    DIR *folder = opendir(path);
    if (!folder)
        return false;
    for (const struct dirent *entry; (entry = readdir(folder));) {
        const char *name = entry->d_name;
        uint64_t fd;

        if (decimal_read(&name, &fd) && (int)fd != dirfd(folder))
            close((int)fd);
    }
    closedir(folder);
    return true;
}

enum descriptors descriptors_leave(void)
{
    if (syscall(SYS_close_range, 0u, UINT_MAX, CLOSE_RANGE_UNSHARE) == 0)
        return DESCRIPTORS_OWN;
    if (unshare(CLONE_FILES) != 0) /* before Linux 5.9 */
        return DESCRIPTORS_SHARED;
    return close_all() ? DESCRIPTORS_OWN : DESCRIPTORS_SPOILT;
}
