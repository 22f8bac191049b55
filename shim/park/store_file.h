/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Host memory that is a file of the library's in a folder of the user's, for a store (store.h). The
 * bytes go to the disk whenever the kernel wants their memory. They are there as plain text.
 *
 * 1. The file has no name: O_TMPFILE, or it is made (O_EXCL) and unlinked at once. So nobody else
 *    opens it, and it is gone with its last mapping, also if the process is killed.
 * 2. It has all its bytes before a mapping exists: the kernel reserves them (fallocate), or zeros
 *    are written and synchronised where a file system cannot reserve. So a full file system shows
 *    at once, and not at a copy. Zeros take as long as the disk does, so a use stops that.
 * 3. A thread with a descriptor table of its own makes it, and ends with it. The program has no
 *    descriptor of the file at any time, and may close all that it has. Where the kernel allows no
 *    such table, there is no file.
 * 4. No instruction of the library loads from the mapping or stores to it. The kernel copies
 *    (store_file_get, store_file_put). Where a disk fails or the file was cut off, these calls
 *    fail. A load would raise SIGBUS.
 * 5. Bytes that the kernel could not write are lost, and a later read brings older ones from the
 *    disk. The kernel notes that before it drops them. So who has read all bytes and then finds no
 *    note (store_file_is_whole) has read the right ones.
 * 6. No child inherits the mapping, and no core dump has its bytes. No child is forked between the
 *    mapping and the advice that says so (fork_gate.h).
 * No lock: the park thread calls, but for the copies, which any own thread may make.
 */
#ifndef SHIM_STORE_FILE_H
#define SHIM_STORE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* May the folder have such a file? It must be an absolute name of a directory of the user's or of
 * root's. False: `why` is one sentence. */
bool store_file_allowed(const char *folder, char *why, size_t why_bytes);
/* Are the bytes of its files host memory (tmpfs)? */
bool store_file_is_memory(const char *folder);
/* Maps a new file of so many bytes over `at`, which is a multiple of a page. goes_on: NULL, or
 * asked while zeros are written, by another thread. False: nothing changed, and `why` is one
 * sentence. */
bool store_file_map(const char *folder, char *at, uint64_t size_bytes, bool (*goes_on)(void),
                    char *why, size_t why_bytes);
/* Step 5, for the file that is mapped at `at`. False: bytes may be lost. Waits for the disk. */
bool store_file_is_whole(char *at);
/* False: not all bytes. */
bool store_file_put(char *to, const char *from, size_t size_bytes);
bool store_file_get(char *to, const char *from, size_t size_bytes);

#endif
