/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The directory of pages and the names of the files in it (page/layout.h). A directory serves if it
 * is no symbolic link, belongs to the effective user, and gives no rights to others. Its path must
 * not end in a slash or a dot: the kernel would follow a link before them. Every
 * descriptor is closed before the caller's own work goes on. No CUDA, no lock, no state.
 */
#ifndef SHIM_PAGE_DIR_H
#define SHIM_PAGE_DIR_H

#include "shim/page/layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PAGE_NAME_MAX = 96, PAGE_CLEAN_MAX = 64 };

/* A process, as a page's name tells it. */
struct page_id {
    uint64_t pid_namespace; /* inode */
    uint64_t pid;           /* in that namespace */
    uint64_t start_ticks;   /* since the boot */
};

/* The boot of this machine's kernel. False: /proc does not tell; then all are zero. */
bool page_boot_id(unsigned char boot_id[PAGE_BOOT_BYTES]);
/* The calling process. False: /proc does not tell, or is that of another namespace. */
bool page_id_self(struct page_id *id);
void page_id_name(const struct page_id *id, char name[PAGE_NAME_MAX]);
/* A page that is being made has this behind its name. */
#define PAGE_UNFINISHED ".new"
/* False: the name is none of a page, finished or not. */
bool page_id_parse(const char *name, struct page_id *id);

/* Opens the directory. Returns a descriptor, or -1 with *why, a static text, and errno (0: the text
 * says it all). */
int page_dir_open(const char *path, const char **why);
/* The same, but a directory that is missing is made, with mode 0700 whatever the umask. */
int page_dir_make(const char *path, const char **why);
/* The default places, in the order of the search: 0, 1. False: there are no more. */
bool page_dir_default(unsigned index, char *path, size_t size_bytes);

/* Removes stale files, at most PAGE_CLEAN_MAX of them. A file of this boot and of the own pid
 * namespace is stale if its process is gone. A process of another namespace, or of another machine
 * that shares the directory, cannot be seen from here: its file is stale if its state is older than
 * a day (page/layout.h). A file is not stale while a thread waits at its doorbell. Looks at no file
 * of another user. */
void page_dir_clean(int dir, const struct page_id *self);

#endif
