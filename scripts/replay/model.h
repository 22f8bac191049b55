/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A model of a GPU behind pool/backend.h. It has memory with a capacity, address space, streams on
 * a virtual clock, fences, captures, and a fault plan. A checker reports what would go wrong on a
 * real device. It knows nothing of the pool's files. Everything is under the model's one lock;
 * every function may be called from any thread.
 */
#ifndef REPLAY_MODEL_H
#define REPLAY_MODEL_H

#include "pool/backend.h"

#include <pthread.h>

#define MODEL_STREAMS 8
#define MODEL_GRANULE_BYTES (UINT64_C(2) << 20)
#define MODEL_FOREVER UINT64_MAX /* duration of a kernel that ends only by model_end_forever */
#define MODEL_SPACES 2           /* one reservation and the driver's own allocations */

/* What the rows answer when they fail; the pool hands them on unchanged. */
enum { MODEL_NOMEM = 2, MODEL_BROKEN = 719, MODEL_REFUSED = 900, MODEL_TIMEOUT = 600 };

enum model_row {
#define MODEL_ROW(name) MODEL_ROW_##name,
#include "scripts/replay/model_rows.def"
#undef MODEL_ROW
    MODEL_ROWS,
    MODEL_ANY = MODEL_ROWS /* in a fault plan: calls of all rows that can fail, counted together */
};

struct model_granule {
    uint32_t owner; /* handle or segment number, 0: none */
    bool allowed;
    uint32_t *marks; /* what was written to each unit; NULL: nothing; see model_write */
};

struct model_space {
    uint64_t base, size_bytes; /* size 0: not reserved */
    struct model_granule *granules;
};

enum { MODEL_ALIASES = 256 };

/* Memory lives until it is released and mapped nowhere; it may be mapped at several places at
 * once. */
struct model_handle {
    uint64_t size_bytes; /* 0: gone */
    uint64_t addr;       /* of a segment */
    uint64_t maps[MODEL_ALIASES];
    unsigned map_count;
    bool released;
};

/* Work that has been submitted and not completed. It touches [addr, addr+size) for a block. */
struct model_work {
    unsigned stream;
    uint64_t seq; /* on its stream, from 1 */
    uint64_t submit_ns, duration_ns, end_ns;
    uint64_t after[MODEL_STREAMS]; /* runs behind all work up to these */
    uint64_t addr, size_bytes, owner;
};

struct model_fence {
    bool alive, recorded;
    uint64_t seq[MODEL_STREAMS];       /* what it captured */
    uint64_t freed_seq[MODEL_STREAMS]; /* what was submitted before the latest free by then */
};

struct model {
    struct backend backend; /* what the pool sees; tests may change its flags before pool_create */
    pthread_mutex_t lock;
    const char *error; /* the first thing that would have gone wrong */

    uint64_t used_bytes, other_bytes, peak_bytes; /* other: taken by other processes */
    unsigned slot;
    struct model_space spaces[MODEL_SPACES];
    struct model_handle *handles;
    uint32_t handle_count;
    bool may_be_away;  /* memory may be handed out that is not there */
    bool odd_segments; /* segments start in the middle of a granule */

    uint64_t now_ns;
    uint64_t submitted[MODEL_STREAMS], completed[MODEL_STREAMS], barrier[MODEL_STREAMS];
    struct model_work *works; /* in the order of submission */
    uint32_t work_count, work_room;
    uint64_t freed_seq[MODEL_STREAMS]; /* submitted by the time of the latest free */

    struct model_fence *fences;
    uint32_t fence_count;
    unsigned captures;
    bool own_capture;    /* of the calling thread: no thread can wait for its end */
    bool unseen_capture; /* records are refused, for an unknown time */
    bool query_refused;  /* queries during a capture answer BUSY, as some contexts' do */
    bool late_allowed;   /* the host may wait for, or order behind, later work now */
    bool broken; /* a sticky error: set by a test, or by a failing record or query; or create, but
                    for want of memory */
    bool context_gone;

    uint64_t calls[MODEL_ROWS + 1];
    uint64_t unmaps; /* that took memory away */
    int unmap_code;  /* 0, or unmap answers this and does nothing */
    int work_code;   /* 0, or unmap does its own and answers this, an error of other work */
    struct {
        enum model_row row;
        uint64_t at, count; /* so many calls of the row fail, from number at on; at 0: none */
        int code;
    } plan;
    /* Called, unlocked, before a row acts: lets a test put another thread's step into the moment
     * when the pool has dropped its lock. */
    void (*hook)(struct model *m, enum model_row row);
    void *hook_arg;
    /* The same, after a segment has gone back: another pool may have its addresses. */
    void (*hook_freed)(struct model *m, uint64_t addr);
    /* Called, unlocked, before memory is unmapped. */
    void (*hook_unmap)(struct model *m);
};

/* A device of so many bytes, with arena and order, many streams in use. */
struct model *model_create(uint64_t capacity_bytes);
void model_destroy(struct model *m);

/* The first violation so far, or NULL; and what the pool has not given back, or NULL. */
const char *model_error(struct model *m);
const char *model_leak(struct model *m);
uint64_t model_used_bytes(struct model *m);

/* Call number nth (from 1, from now on) of the row fails with the code. 0: none. */
void model_fail(struct model *m, enum model_row row, uint64_t nth, int code);
/* The same for so many calls, from that one on. */
void model_fail_many(struct model *m, enum model_row row, uint64_t nth, uint64_t count, int code);
/* True once the planned failure has happened. */
bool model_failed(struct model *m);
uint64_t model_calls(struct model *m, enum model_row row);

/* Work of duration_ns on a stream that touches memory of the block known as owner (any number that
 * is unique to one lifetime of a block). size_bytes 0: touches nothing. Reports memory that is not
 * there and memory whose work for an earlier owner is neither complete nor ordered before. */
void model_submit(struct model *m, unsigned stream, uint64_t duration_ns, uint64_t addr,
                  uint64_t size_bytes, uint64_t owner);
/* The program is about to free memory: what was submitted so far may be waited for. */
void model_note_free(struct model *m);
/* Memory is handed out. Reports old work on it, unless work submitted from now on would run behind
 * that: on one stream alone, or with -1 on any. */
void model_check_handed_out(struct model *m, uint64_t addr, uint64_t size_bytes, int stream);

/* Memory by units of 512 bytes. A mark stands for the bytes of a unit: it is lost when
 * the unit is unmapped. write and read report memory that is not there, or not accessible; new
 * memory reads as 0. each calls f for the marks of a range, all of which has to be there, by
 * address. */
void model_write(struct model *m, uint64_t addr, uint32_t mark);
bool model_is_there(struct model *m, uint64_t addr);
uint32_t model_read(struct model *m, uint64_t addr);
void model_each_mark(struct model *m, uint64_t addr, uint64_t size_bytes,
                     void (*f)(void *arg, uint64_t addr, uint32_t mark), void *arg);

uint64_t model_now(struct model *m);
void model_advance(struct model *m, uint64_t by_ns);
/* Every kernel of MODEL_FOREVER ends now. */
void model_end_forever(struct model *m);
/* Lets time pass until nothing runs. */
void model_drain(struct model *m);
bool model_is_idle(struct model *m);

void model_capture_begin(struct model *m);
void model_capture_end(struct model *m);
/* The context is destroyed, with its segments, and its work stops. */
void model_destroy_context(struct model *m);

/* For the model's own files, its lock held. */
void model_blame(struct model *m, const char *words);
/* NULL: not reserved. */
struct model_granule *model_granule_at(struct model *m, uint64_t addr);
bool model_row_fails(struct model *m, enum model_row row);
bool model_range_is_busy(const struct model *m, uint64_t addr, uint64_t size_bytes);
bool model_wait_all(struct model *m);
bool model_wait_ordered(struct model *m);
extern const struct backend_ops model_fence_rows;

#endif
