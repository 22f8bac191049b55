/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Host memory for the pool's own records. It comes from mmap, not malloc: the program may have
 * replaced malloc, may be inside it, or may be short of it. Records are recycled, never unmapped.
 */
#ifndef POOL_HOST_MEMORY_H
#define POOL_HOST_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* A cache of records of one size. The owner's lock guards it. */
struct host_cache {
    size_t record_bytes; /* a multiple of 16 */
    size_t zeroed_bytes;
    size_t count; /* free records, never used ones included */
    void *free;   /* used before, linked through the first word */
    char *fresh;  /* the next never used record: its page is not touched before */
    size_t fresh_count;
    char *batches; /* all memory: the newest batch, whose end leads to the one before */
};

/* The first zeroed_bytes (a word at least) of a record are zero whenever it is handed out. The rest
 * is zero in a new record, and later as its last user left it. Fields that other threads may read
 * at any time belong there. */
void host_cache_init(struct host_cache *c, size_t record_bytes, size_t zeroed_bytes);
/* Makes sure of count free records (count is small). False: no host memory. */
bool host_cache_ensure(struct host_cache *c, size_t count);
/* A record, or NULL (never after enough was ensured). */
void *host_cache_get(struct host_cache *c);
void host_cache_put(struct host_cache *c, void *record);
/* Calls f for each record that was ever used, free or not. */
void host_cache_each(const struct host_cache *c, void (*f)(void *record));
/* All records are free again, whichever thread has them. */
void host_cache_reclaim(struct host_cache *c);

/* Zeroed pages, touched only when used; NULL if there are none. */
void *host_pages(size_t bytes);
void host_pages_free(void *pages, size_t bytes);

#endif
