/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The layout of a process's page of live state: one file in the directory of GPUCACHE_DIR. Readers
 * are the tool (scripts/gpucache) and other processes under the library. Numbers have the machine's
 * byte order. The layout of a version never changes: a new field goes into room that is zero today,
 * or raises PAGE_VERSION. A reader of another version uses what lies in the first 128 bytes, which
 * every version keeps.
 *
 * The file is called NAMESPACE-PID-START.page, with decimal numbers. They are the inode of the
 * process's pid namespace, its pid there, and its start in ticks since the boot (field 22 of
 * /proc/PID/stat). Machines that share the directory have the same first namespace. So they, and
 * the boots of one machine, are told apart by boot_id (/proc/sys/kernel/random/boot_id). Zeroes say
 * nothing of the boot.
 *
 * Removing: a process removes its own page. A page that is left belongs to nobody. Any process that
 * makes a page, and the tool, may remove it: at once if it is of this boot and pid namespace and
 * its process is gone, else if its state is older than a day (without a state: if the file is). A
 * process publishes every hour at least. If its page is removed all the same, it makes another one.
 *
 * Reading: read `sequence`, then what is wanted, then `sequence` again. Both are the same even
 * number: what was read belongs together. Else read again.
 *
 * Asking: take a write lock on the first byte of a slot that nobody holds: fcntl F_OFD_SETLK, a
 * lock of the descriptor. F_SETLK serves where the kernel lacks that. But it is a lock of the
 * process, which ends when any of its threads closes any descriptor of the file. If a slot's
 * ask_sequence is not its reply_sequence, an asker gave up and the reply is still to come. Take
 * such a slot only if there is no other. Write `ask` and `ask_bytes`, then add one to ask_sequence.
 * In a slot that was left, reply_sequence + 1 would be the number of a request that was made
 * before. Add one to `doorbell`, and wake one waiter of it (futex, shared). Wait until
 * reply_sequence is ask_sequence (the writer wakes waiters of reply_sequence), then read the reply
 * and unlock. Two wakes of the doorbell, 10 ms apart, may find no waiter. Then the process has
 * ended, or is stopped, or has no processor at the moment.
 */
#ifndef SHIM_PAGE_LAYOUT_H
#define SHIM_PAGE_LAYOUT_H

#include <stdint.h>

enum {
    PAGE_VERSION = 1,
    PAGE_GPUS_MAX = 32,
    PAGE_SLOTS = 8,
    PAGE_ASK_BYTES = 992,
    PAGE_REPLY_BYTES = 3072,
    PAGE_BODY_BYTES = 57344,
    PAGE_WAIT_MS = 10000, /* the longest wait that a request may ask for */
    PAGE_PARK_MS = 60000, /* .. and that an asker has for parks, which are under way by then */
    PAGE_BOOT_BYTES = 16,
};

#define PAGE_MAGIC "GPUCACHE"
#define PAGE_SUFFIX ".page"

/* What the process has on one GPU, for other processes that need memory. */
struct page_gpu {
    unsigned char uuid[16];
    uint64_t idle_bytes;      /* reserved and not live */
    uint64_t allocated_bytes; /* live */
    uint64_t reserved_bytes;
    uint64_t returned_ns;      /* CLOCK_MONOTONIC: last gave memory to another; 0: never */
    uint64_t regrown_ns;       /* the same: first took memory after that; 0: not yet */
    uint64_t async_idle_bytes; /* in the driver's own pools (shim/driver/async_pool.h) */
};

/* The same, of a park (shim/park/park.h). */
struct page_park {
    uint64_t away_bytes;  /* on the host; not in reserved_bytes */
    uint64_t needs_bytes; /* device memory that it waits for; 0: it waits for none */
};

/* One request and its reply. Both are text. `ask` is a verb of shim/command/command.def and
 * NAME=VALUE words, separated by blanks. `reply` is a JSON object. */
struct page_slot {
    uint32_t ask_sequence;
    uint32_t ask_bytes;
    uint32_t reply_sequence; /* a futex */
    uint32_t reply_bytes;
    uint32_t reply_code;     /* enum page_reply */
    uint32_t parks_sequence; /* the request of this number: a park has begun for it */
    uint64_t reply_value;    /* of flush and give: the bytes that went back */
    char ask[PAGE_ASK_BYTES];
    char reply[PAGE_REPLY_BYTES];
};

enum page_reply {
    PAGE_REPLY_DONE,
    PAGE_REPLY_PARTLY,  /* the time was up before all was done; ask again for the rest */
    PAGE_REPLY_BAD,     /* the request is not understood; the reply says what is wrong */
    PAGE_REPLY_REFUSED, /* understood, but it cannot be done; the reply says why */
};

struct page {
    /* Every version has these at these places. They never change. */
    char magic[8];
    uint32_t version;
    uint32_t size_bytes; /* of the file */
    uint64_t pid;        /* in its own namespace */
    uint64_t start_ticks;
    uint64_t pid_namespace;
    uint64_t uid;
    uint64_t started_unix_ns; /* the library's start, CLOCK_REALTIME */
    char library_version[32];
    unsigned char boot_id[PAGE_BOOT_BYTES]; /* the digits of the text, without its dashes */
    unsigned char zero1[24];
    /* Guarded by `sequence`, as are `gpus` and `body`. */
    uint64_t sequence;          /* odd: being written */
    uint64_t published_ns;      /* CLOCK_MONOTONIC */
    uint64_t published_unix_ns; /* CLOCK_REALTIME */
    uint32_t num_gpus;
    uint32_t body_bytes;
    uint64_t asleep_since_ns; /* CLOCK_MONOTONIC: unused, and may be parked for others; 0: not */
    uint64_t needs_since_ns;  /* the same: waits for memory to come back; 0: it does not */
    unsigned char zero2[80];
    /* Written by readers. */
    uint32_t
        doorbell; /* a futex: goes up with each request, and where a reader wants a new state */
    uint32_t zero3;
    uint64_t watched_until_ns; /* CLOCK_MONOTONIC: a reader looks on; at most 10 s ahead */
    unsigned char zero4[3824];
    /* At 4096. */
    struct page_gpu gpus[PAGE_GPUS_MAX];
    struct page_park parks[PAGE_GPUS_MAX]; /* of the same GPUs */
    unsigned char zero5[1536];
    struct page_slot slots[PAGE_SLOTS]; /* at 8192, 4096 bytes each */
    char body[PAGE_BODY_BYTES];         /* a JSON object, body_bytes long; shim/stats/report.h */
};

_Static_assert(sizeof(struct page_gpu) == 64, "layout");
_Static_assert(sizeof(struct page_park) == 16, "layout");
_Static_assert(sizeof(struct page_slot) == 4096, "layout");
_Static_assert(sizeof(struct page) == 98304, "layout");

#endif
