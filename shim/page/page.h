/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The room page/: the process's page, which has its state for other processes, and their requests
 * to it. layout.h is the layout, dir.h finds the place, and map.h has the mapping. This file makes
 * and removes the page and writes the state. server.h has the requests, and the thread that waits
 * at the doorbell. client.h is the other side: one process asks another one. The room's one seam is
 * that texts come in and go out as bytes: none of the files knows what they say. No CUDA.
 *
 * Every process of this user can write to the page, truncate it, or fill its file system.
 *
 * Why no such process harms this one:
 *  1. No instruction of the library loads from the mapping or stores to it. The kernel copies
 *     (process_vm_readv and process_vm_writev on the own process) and waits (futex). Where a page
 *     of the file is missing, these calls fail with EFAULT. A load would raise SIGBUS.
 *  2. Offsets and lengths of the copies are constants, or numbers of this process. A length that
 *     stands in the page only shortens the private copy.
 *  3. A text is checked and parsed in a private copy, which no other process can change.
 *  4. What the library must remember (its last sequence, the requests served, the file) is in
 *     private memory. It writes those words to the page, and reads none of them back.
 *  5. The library waits for words of the page on the doorbell's thread only. That thread has no
 *     other work, holds no lock, and has all signals blocked.
 *  6. The doorbell's thread rests for PAGE_REST_NS after each ring. So a writer that rings without
 *     end causes one pass a millisecond, and a pass looks at PAGE_SLOTS requests.
 *
 * Why no request is lost:
 *  7. The asker writes its request, then raises the doorbell, then wakes. The doorbell's thread
 *     reads the doorbell, then calls for the pass that looks at the requests, then rests. At last
 *     it waits until the doorbell differs from the value read. If the doorbell was raised before
 *     that read, the pass comes after the request. If it was raised later, the kernel refuses the
 *     wait, and the loop goes on. A new file may take the page's place, after somebody removed it
 *     or cut it off. Who waits at the file before is woken, and reads the new doorbell. Who has
 *     read the doorbell before, and comes to the wait later, is refused as well: the new doorbell
 *     begins at another number. Nobody can wake who waits at a file that was cut off. Then another
 *     thread waits at the new one, and the first until the process ends.
 *  8. A request counts as served once its reply is on the page. A request that must wait (for the
 *     end of a capture, or for GPU work) stays unserved, and is found by the next pass. All that is
 *     known of requests holds for one file: in the next one the numbers begin again. Before a file
 *     is replaced, each request in it is refused (page_refuse_requests), so that its asker asks at
 *     the new one. A request that is written between that pass and the new mapping gets no reply,
 *     some 100 us after somebody removed the file. Nor does one in a file that was cut off, where
 *     nothing can be written. Their askers give up when their time is up.
 *
 * Why a reader does not mistake a torn state for a whole one:
 *  9. The sequence is odd before the first byte of the new state is written, and even after the
 *     last. Each step is a call of the kernel with a fence before and behind it. A reader that sees
 *     the same even number before and after its copy copied between two publications.
 * 10. The kernel may copy the eight bytes of the sequence one by one. From even to odd only the
 *     lowest byte changes. From odd to even a carry may change others. Then the torn number ends in
 *     a zero byte and is 256 or more below the new one. A reader has to be 128 publications late to
 *     have seen that number before.
 *
 * Why it ends with the process:
 * 11. page_remove and the thread that makes the page meet at one word. Either page_remove finds a
 *     finished page and removes it, or the maker finds the word changed and removes the file. The
 *     same holds for a file that is made anew (page_renew).
 * 12. A forked child has no mapping of the page (MADV_DONTFORK): copies in it fail. Its process id
 *     is another: it removes nothing. A new program of the process (exec) has the same id and
 *     start. So its page gets the same name and replaces the old one.
 *
 * A page is made once, in some 100 us. Meanwhile a program may close every descriptor and open a
 * file of its own under a number of the library's. Why that file is safe:
 * 13. Each file is known by its inode, which is read right after its open. The new page's is
 *     compared with the name. Before the mapping is used, and before a number is closed, the inode
 *     is compared again. So the library writes no state into a file of the program's, and closes
 *     none. It gives up the page.
 * 14. Reads are preads: they move no offset, and take nothing from a pipe or a socket.
 * 15. What is left: the number changes hands between such a look and the call behind it, below a
 *     microsecond. A regular file of the program's may then grow to the size of a page, by zeroes,
 *     or a file be closed.
 *
 * One thread, the control thread, calls the functions, but for page_remove (any thread, at exit)
 * and page_folder.
 */
#ifndef SHIM_PAGE_H
#define SHIM_PAGE_H

#include "shim/page/dir.h"
#include "shim/page/layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A state to publish. All is borrowed for the call. */
struct page_state {
    const char *body;  /* JSON */
    size_t body_bytes; /* at most PAGE_BODY_BYTES */
    const struct page_gpu *gpus;
    size_t num_gpus; /* at most PAGE_GPUS_MAX */
};

/* Makes the page with its first state, in the directory `path`, or in the first default place that
 * serves (NULL). Removes stale pages there. False: there is none, for the reason *why (static) with
 * errno (0: none), or without a reason (NULL) because the process leaves. Opens and closes
 * descriptors. To be called once. */
bool page_make(const char *path, const struct page_state *state, const char **why);
/* Has somebody removed the file, or cut it off? The end of a login session removes it in /dev/shm
 * (RemoveIPC of logind.conf), while the programs of the user go on. */
bool page_is_lost(void);
/* After that: makes the file anew, and its directory. False: that failed; the old page stays. */
bool page_renew(const struct page_state *state);
/* Where the page is, as for page_make; "" without one. Any thread. */
const char *page_folder(void);

/* Writes a new state. False: there is no page, or none any more. */
bool page_publish(const struct page_state *state);
/* A reader looks on until then (CLOCK_MONOTONIC), as it says itself. 0: none does. */
uint64_t page_watched_until_ns(void);

/* The process leaves: removes the file. Any thread; does nothing in a child. Keeps errno. */
void page_remove(void);

#endif
