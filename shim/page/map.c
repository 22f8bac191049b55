/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See page/map.h. The copies name the process by the calling thread. Once the first thread has
 * ended, the kernel finds no memory under the number of the process.
 */
#include "shim/page/map.h"

#include "shim/page/layout.h"
#include "shim/process/futex.h"
#include "shim/process/kernel.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/uio.h>

static char *mapping; /* of struct page; NULL: none */
static atomic_uint num_mapped;
static bool left_waiter;

static bool wake_all(void *word)
{
    return futex_wake_all(word, FUTEX_OF_FILE) >= 0;
}

bool page_copy_map(int fd, const struct stat *file)
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
        bool woken = old != MAP_FAILED && wake_all((char *)old + offsetof(struct page, bell));
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
    if (!before) /* else it is the same, and the thread of the bell may be reading it */
        mapping = at;
    atomic_fetch_add(&num_mapped, 1); /* after the mapping */
    return true;
}

unsigned page_copy_count(void)
{
    return atomic_load(&num_mapped);
}

bool page_copy_left_waiter(void)
{
    bool left = left_waiter;

    left_waiter = false;
    return left;
}

void page_copy_unmap(void)
{
    if (mapping)
        munmap(mapping, sizeof(struct page));
    mapping = NULL;
}

/* The barriers are the old ones of gcc, because its thread sanitizer knows no fence of stdatomic.h.
 */
bool page_put_all(const struct page_piece *pieces, unsigned num_pieces)
{
    struct iovec here[PAGE_PIECES_MAX], there[PAGE_PIECES_MAX];
    size_t all = 0;

    if (!mapping || num_pieces > PAGE_PIECES_MAX)
        return false;
    for (unsigned i = 0; i < num_pieces; i++) {
        const struct page_piece *p = &pieces[i];

        here[i] = (struct iovec){(void *)(uintptr_t)p->from, p->size_bytes};
        there[i] = (struct iovec){mapping + p->offset, p->size_bytes};
        all += p->size_bytes;
    }
    __sync_synchronize();
    ssize_t n = process_vm_writev(kernel_gettid(), here, num_pieces, there, num_pieces, 0);
    __sync_synchronize();
    return n >= 0 && (size_t)n == all;
}

bool page_copy_permitted(void)
{
    char from = 0, to;
    struct iovec here = {&from, 1}, there = {&to, 1};

    return process_vm_writev(kernel_gettid(), &here, 1, &there, 1, 0) == 1;
}

bool page_put(const void *from, size_t offset, size_t size_bytes)
{
    return page_put_all(&(struct page_piece){from, offset, size_bytes}, 1);
}

bool page_get(void *to, size_t offset, size_t size_bytes)
{
    if (!mapping)
        return false;
    struct iovec here = {to, size_bytes}, there = {mapping + offset, size_bytes};

    __sync_synchronize();
    ssize_t n = process_vm_readv(kernel_gettid(), &here, 1, &there, 1, 0);
    __sync_synchronize();
    return n == (ssize_t)size_bytes;
}

bool page_wait(size_t offset, uint32_t value)
{
    return mapping && futex_wait(mapping + offset, value, FUTEX_FOREVER, FUTEX_OF_FILE);
}

void page_wake(size_t offset)
{
    if (mapping)
        futex_wake_all(mapping + offset, FUTEX_OF_FILE);
}
