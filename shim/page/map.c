/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See page/map.h.
 */
#include "shim/page/map.h"

#include "shim/page/layout.h"
#include "shim/process/futex.h"
#include "shim/process/kernel.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>

static struct page *mapping; /* NULL: none */
static atomic_uint num_mapped;
static bool left_waiter;

static bool wake_all(void *word)
{
    return futex_wake_all(word, FUTEX_OF_FILE) >= 0;
}

struct page *page_own(void)
{
    return mapping;
}

bool page_map(int fd, const struct stat *file)
{
    void *before = mapping, *old = MAP_FAILED;
    struct stat st;

    void *at = mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return false;
    if (kernel_fstat(fd, &st) || st.st_ino != file->st_ino || st.st_dev != file->st_dev) {
        munmap(at, sizeof(struct page));
        errno = EBADF;
        return false;
    }
    if (before) { /* of length 0: a second mapping of the same file */
        old = mremap(before, 0, sizeof(struct page), MREMAP_MAYMOVE);
        at = mremap(at, sizeof(struct page), sizeof(struct page), MREMAP_MAYMOVE | MREMAP_FIXED,
                    before);
        bool woken = old != MAP_FAILED && wake_all((char *)old + offsetof(struct page, doorbell));
        left_waiter = left_waiter || !woken;
    }
    if (old != MAP_FAILED)
        munmap(old, sizeof(struct page));
    if (at == MAP_FAILED) {
        mapping = NULL; /* the kernel may have removed the old one */
        return false;
    }
    madvise(at, sizeof(struct page), MADV_DONTFORK);
    madvise(at, sizeof(struct page), MADV_DONTDUMP);
    if (!before) /* else it is the same, and the thread of the doorbell may be reading it */
        mapping = at;
    atomic_fetch_add(&num_mapped, 1); /* after the mapping */
    return true;
}

unsigned page_map_count(void)
{
    return atomic_load(&num_mapped);
}

bool page_map_left_waiter(void)
{
    bool left = left_waiter;

    left_waiter = false;
    return left;
}

void page_unmap(void)
{
    if (mapping)
        munmap(mapping, sizeof(struct page));
    mapping = NULL;
}
