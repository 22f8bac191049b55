/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Host memory that keeps the bytes of parked device memory, and the table that says where each byte
 * belongs. It is one anonymous mapping of addresses, of which a growing first part can be used.
 *
 * 1. Before a part can be used, the host must have room for what is still to come: what the machine
 *    has available, and what each memory cgroup above the process leaves (store_room). So a park is
 *    refused before the kernel would kill a process. Limits on addresses and overcommit refuse by
 *    mmap and mprotect.
 * 2. A forked child has no copy of it (MADV_DONTFORK), and a core dump none of its bytes
 *    (MADV_DONTDUMP). It has no file, so nothing is left behind a process that is killed.
 * 3. store_free unmaps all of it: the process is as large as before the park.
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

struct store {
    char *bytes; /* NULL: there is no store */
    /* size: of the addresses; used: the end of the last row that came; awaited: what is still to
     * come in this park. */
    uint64_t size_bytes, usable_bytes, used_bytes, awaited_bytes;
    struct store_row *rows;
    size_t num_rows, max_rows;
    bool is_sorted; /* by address */
};

/* An earlier state of a store. */
struct store_mark {
    uint64_t used_bytes;
    size_t num_rows;
};

/* Bytes that the host has for the process; UINT64_MAX: not known. root: "", or a folder that stands
 * for the root of the file system. */
uint64_t store_room(const char *root);

/* Makes the store if there is none, with addresses for so many bytes, and announces so many more
 * bytes of rows. False: `why` says in one sentence what is missing. */
bool store_begin(struct store *s, uint64_t most_bytes, uint64_t awaited_bytes, char *why,
                 size_t why_bytes);
/* Adds a row behind the others. NULL: there is no room for it in the addresses or in the table. */
const struct store_row *store_add(struct store *s, uint64_t addr, uint64_t size_bytes);
/* Makes the bytes of all rows so far usable. False, with `why`: the host has too little by now. */
bool store_make_usable(struct store *s, char *why, size_t why_bytes);
/* The row with the lowest address that shares bytes with the range from addr to end. NULL: there is
 * none. Sorts the rows first, if needed. */
const struct store_row *store_find(struct store *s, uint64_t addr, uint64_t end);

/* Keeps those of the rows behind the mark of which is_kept is true. */
void store_keep(struct store *s, struct store_mark mark, bool (*is_kept)(uint64_t addr));

struct store_mark store_mark(const struct store *s);
/* Forgets what came behind the mark. */
void store_cut(struct store *s, struct store_mark mark);
void store_free(struct store *s);

#endif
