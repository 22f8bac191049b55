/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Memory that keeps the bytes of parked device memory, and the table that says where each byte
 * belongs. It is one range of addresses, of which a growing first part can be used: anonymous host
 * memory, or nameless files of a folder (store_file.h).
 *
 * 1. Before a part can be used, the host must have room for what is still to come: what the machine
 *    has available, and what each memory cgroup above the process leaves (store_room). So a park is
 *    refused before the kernel would kill a process. Limits on addresses and overcommit refuse by
 *    mmap and mprotect. A file needs room on its disk instead, and both where it is host memory.
 * 2. A forked child has no copy of it (MADV_DONTFORK), and a core dump none of its bytes
 *    (MADV_DONTDUMP). Nothing is left behind a process that is killed.
 * 3. store_free unmaps all of it: the process is as large as before the park.
 * 4. It begins at a huge page, and its steps are whole ones, so that the kernel may use them.
 * 5. A program that locks its memory (mlockall) means its own. None of this is locked: it would
 *    have all its pages at once, and keep those that go back. So nothing is accessible before
 *    munlock.
 * No lock: the park thread has it, and its workers write only bytes of rows that it gave them.
 */
#ifndef SHIM_STORE_H
#define SHIM_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A range of device memory, and where its bytes are. */
struct store_row {
    uint64_t addr, size_bytes, offset;
};

enum { STORE_FOLDER_BYTES = 256, STORE_FILES_MAX = 64 };

struct store {
    char *bytes; /* NULL: there is no store. Of a file: only the kernel copies from and to there */
    char folder[STORE_FOLDER_BYTES]; /* "": host memory */
    uint64_t files[STORE_FILES_MAX]; /* where each file begins */
    unsigned num_files;
    bool is_lost;          /* a file has lost bytes */
    bool (*goes_on)(void); /* see store_file_map; the caller sets it behind store_begin */
    /* size: of the addresses; used: the end of the last row that came; awaited: what is still to
     * come in this park. */
    uint64_t size_bytes, usable_bytes, used_bytes, awaited_bytes;
    struct store_row *rows;
    size_t num_rows, max_rows;
    bool is_sorted; /* by address */
};

/* An earlier state of a store. */
struct store_mark {
    uint64_t used_bytes, usable_bytes;
    size_t num_rows;
    unsigned num_files;
};

/* Bytes that the host has for the process; UINT64_MAX: not known. root: "", or a folder that stands
 * for the root of the file system, here and below. */
uint64_t store_room(const char *root);
/* Is less than a twentieth left of the machine's memory, or of a cgroup's limit? */
bool store_is_tight(const char *root);

/* Makes the store if there is none, in a folder or ("") in host memory, with addresses for so many
 * bytes. One that is there stays where it is. Announces so many more bytes of rows. False: `why`
 * says in one sentence what is missing. */
bool store_begin(struct store *s, const char *folder, uint64_t most_bytes, uint64_t awaited_bytes,
                 char *why, size_t why_bytes);
/* Makes more of the first `until` bytes usable: a step of host memory, or all that is missing in a
 * file. False, with `why`: the host has too little by now. */
bool store_extend(struct store *s, uint64_t until, char *why, size_t why_bytes);
/* Adds a row behind the others. NULL: there is no room for it in the addresses or in the table. */
const struct store_row *store_add(struct store *s, uint64_t addr, uint64_t size_bytes);
/* The same for the bytes of all rows so far, and as often as needed. */
bool store_make_usable(struct store *s, char *why, size_t why_bytes);
/* The row with the lowest address that shares bytes with the range from addr to end. NULL: there is
 * none. Sorts the rows first, if needed. */
const struct store_row *store_find(struct store *s, uint64_t addr, uint64_t end);

/* Keeps those of the rows behind the mark of which is_kept is true. */
void store_keep(struct store *s, struct store_mark mark, bool (*is_kept)(uint64_t addr));
/* The row (by its place in the table) belongs to another range of the same size from now on. */
const struct store_row *store_rename(struct store *s, size_t row, uint64_t addr);

struct store_mark store_mark(const struct store *s);
/* Forgets what came behind the mark. */
void store_cut(struct store *s, struct store_mark mark);
/* Of a store in host memory: keeps the rows whose bytes lie in its first most_bytes. The memory
 * behind them goes back. */
void store_shrink(struct store *s, uint64_t most_bytes);
/* All rows have their bytes: gives memory back that they do not need. */
void store_settle(struct store *s);
/* All bytes were read: were they the right ones? False: a disk has lost some, for ever. */
bool store_is_whole(struct store *s);
void store_free(struct store *s);

#endif
