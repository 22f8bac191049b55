/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the pool needs of a GPU: address space, physical memory, fences, a clock. The pool sees the
 * device only through this table. The shim implements it on the CUDA driver, tests on a model.
 *
 * Device addresses are uint64_t and never dereferenced. A row that can fail returns 0, or the
 * provider's own code (a CUresult on the real driver). The pool hands this code to its caller
 * unchanged. The pool calls no row with a lock held but now_ns, and no row but ask_others and
 * ask_in_background may call back into the pool. Any thread calls rows, several at a time. A
 * provider leaves errno, the calling thread's current context and its capture mode as it found
 * them.
 */
#ifndef POOL_BACKEND_H
#define POOL_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

struct backend;

enum fence_state {
    FENCE_DONE, /* all work that the fence captured is complete */
    FENCE_BUSY, /* not yet, or a capture forbids the query now */
    FENCE_LOST, /* the context is broken (a sticky error): no fence will ever tell */
};

enum fence_record {
    FENCE_RECORDED,
    FENCE_REFUSED, /* a capture is open, which a record would spoil; fence_await, then retry */
    FENCE_BARRED,  /* the same, but nothing is known whose end could be awaited */
    FENCE_FAILED,  /* the context is broken */
};

/* What one request has asked others for memory so far. All zero at first, then the provider's. */
struct lend_attempt {
    uint64_t deadline_ns;   /* 0: nobody was asked yet */
    uint64_t park_until_ns; /* how far parks of other processes may put it off */
    bool last_try; /* nobody is asked any more: the caller's try after this is the last one */
};

struct backend_ops {
    /* Address space: size_bytes and *addr are multiples of granularity_bytes. */
    int (*reserve)(struct backend *b, uint64_t size_bytes, uint64_t *addr);
    void (*unreserve)(struct backend *b, uint64_t addr, uint64_t size_bytes);

    /* Physical memory of an arena. create gives a handle of size_bytes. map puts a whole handle at
     * addr. allow makes a mapped range (several handles) accessible; it may refuse several what it
     * gives each. unmap takes away a range of whole mappings, or fails and takes none. unmap and
     * release do not wait for GPU work: the caller has fenced. */
    int (*create)(struct backend *b, uint64_t size_bytes, uint64_t *handle);
    void (*release)(struct backend *b, uint64_t handle, uint64_t size_bytes);
    int (*map)(struct backend *b, uint64_t addr, uint64_t size_bytes, uint64_t handle);
    int (*allow)(struct backend *b, uint64_t addr, uint64_t size_bytes);
    int (*unmap)(struct backend *b, uint64_t addr, uint64_t size_bytes);

    /* One allocation of the driver's own. Freeing may wait for all work of the context, as
     * cuMemFree does. It does not if the allocation is idle, no work in flight uses it, and the
     * provider frees_beside. */
    int (*segment_alloc)(struct backend *b, uint64_t size_bytes, uint64_t *addr);
    int (*segment_free)(struct backend *b, uint64_t addr, bool idle);
    /* Around a free, without locks; both may be NULL. False: the context may be ending, so nothing
     * is freed and nothing ends. waits: it may take a while to find out. */
    bool (*segment_free_begin)(struct backend *b, bool waits);
    void (*segment_free_end)(struct backend *b);

    /* Fences. A recorded fence captures all activity of the context up to the record, on every
     * stream. order: all work submitted to the context afterwards runs behind the fence; the host
     * does not wait. wait: the host waits until the fence is done; 0, or a code (timeout or broken
     * context). A fence may be recorded again at any time: work that was ordered behind it stays
     * so. fence_create may fail at any time for want of memory. Only a record or a query tells that
     * the context is broken. */
    int (*fence_create)(struct backend *b, uint64_t *fence);
    void (*fence_destroy)(struct backend *b, uint64_t fence);
    enum fence_record (*fence_record)(struct backend *b, uint64_t fence);
    enum fence_state (*fence_query)(struct backend *b, uint64_t fence);
    int (*fence_order)(struct backend *b, uint64_t fence);
    int (*fence_wait)(struct backend *b, uint64_t fence, uint64_t timeout_ns);
    /* After a refused record: the host waits until a fence may be recorded. False: not within that
     * time, or never, because the calling thread itself is in the way. */
    bool (*fence_await)(struct backend *b, uint64_t timeout_ns);
    /* The host waits for all work that was submitted to the context so far, as in the driver's own
     * free. Not where a capture is open, or the context may be ending. Needs no fence. */
    void (*drain)(struct backend *b);

    /* Bytes that the driver reports as free on the device, and in all. */
    int (*mem_info)(struct backend *b, uint64_t *free_bytes, uint64_t *total_bytes);
    /* Both may be NULL, and may call functions of the pool. ask_others: the driver has no memory
     * for size_bytes, and the pool has nothing left to give back. Asks whatever else holds memory
     * of the device. *attempt is all zero at the first call for a request. True: some memory came,
     * so the caller tries again, and may call again. False: no more comes. ask_in_background: the
     * same where nothing waits for what comes. */
    bool (*ask_others)(struct backend *b, uint64_t size_bytes, struct lend_attempt *attempt);
    void (*ask_in_background)(struct backend *b, uint64_t size_bytes);
    /* Monotonic; microseconds matter to the time budget (time_budget.h). */
    uint64_t (*now_ns)(struct backend *b);
};

struct backend {
    const struct backend_ops *ops;
    uint64_t granularity_bytes; /* of create, map, reserve: a power of two; 2 MiB so far */
    uint64_t total_bytes;       /* device memory */
    int nomem_code;             /* what create, map and segment_alloc return when memory is short */
    bool has_arena;             /* reserve..unmap work */
    _Atomic bool has_order;     /* fence_order works (context events, CUDA 12.5); may cease to */
    _Atomic bool gone;          /* the context may be ending, or has: its segments go with it */
    bool sees_all;              /* the caller looks at each block: no magazines (pool.h) */
    _Atomic bool frees_beside;  /* see segment_free; may cease to */
    bool single_stream;         /* so far the program uses only the legacy default stream */
};

#endif
