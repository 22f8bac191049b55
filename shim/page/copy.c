/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See page/copy.h. The copies name the process by the calling thread. Once the first thread has
 * ended, the kernel finds no memory under the number of the process.
 */
#include "shim/page/copy.h"

#include "shim/process/futex.h"
#include "shim/process/kernel.h"

#include <sys/uio.h>

/* The barriers are the old ones of gcc, because its thread sanitizer knows no fence of stdatomic.h.
 */
bool page_put_all(struct page *page, const struct page_piece *pieces, unsigned num_pieces)
{
    struct iovec here[PAGE_PIECES_MAX], there[PAGE_PIECES_MAX];
    size_t all = 0;

    if (!page || num_pieces > PAGE_PIECES_MAX)
        return false;
    for (unsigned i = 0; i < num_pieces; i++) {
        const struct page_piece *p = &pieces[i];

        here[i] = (struct iovec){(void *)(uintptr_t)p->from, p->size_bytes};
        there[i] = (struct iovec){(char *)page + p->offset, p->size_bytes};
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

bool page_put(struct page *page, const void *from, size_t offset, size_t size_bytes)
{
    return page_put_all(page, &(struct page_piece){from, offset, size_bytes}, 1);
}

bool page_get(struct page *page, void *to, size_t offset, size_t size_bytes)
{
    if (!page)
        return false;
    struct iovec here = {to, size_bytes}, there = {(char *)page + offset, size_bytes};

    __sync_synchronize();
    ssize_t n = process_vm_readv(kernel_gettid(), &here, 1, &there, 1, 0);
    __sync_synchronize();
    return n == (ssize_t)size_bytes;
}

bool page_wait(struct page *page, size_t offset, uint32_t value, uint64_t until_ns)
{
    return page && futex_wait((char *)page + offset, value, until_ns, FUTEX_OF_FILE);
}

void page_wake(struct page *page, size_t offset)
{
    if (page)
        futex_wake_all((char *)page + offset, FUTEX_OF_FILE);
}
