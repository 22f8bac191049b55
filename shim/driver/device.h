/* SPDX-License-Identifier: BSD-2-Clause
 *
 * This file fills the pool's backend on the CUDA driver (backend.h). It also knows a device's
 * identity and its primary context.
 *
 * Note [Frees of segments]. A segment goes back by its address. Once its context has ended the
 * driver may have given that address to another context, whose memory the free would take. Bare no
 * such free is made.
 * 1. A thread that frees a segment raises `segment_frees`, and then reads `enders`. If a call that
 *    may end the context is under way in another thread, it lowers `segment_frees` again and waits.
 * 2. An ender raises `enders` (context.c: begin_end), and then waits until there is no such free.
 *    So one of the two sees the other. A reset and a destruction set `gone` first, so no further
 *    free of a list begins (chunk.c). A record that is made while the call is under way has
 *    `enders` raised before it has a pool, so no free comes before: Note [Ends under way] in
 *    shim/context/README.md.
 * 3. An ender that finds the context over sets `gone` before it lowers `enders`. So a free that
 *    waited finds the context alive, or `gone`. Then the segment stays in the pool. It goes with
 *    its context, or by a later flush if that lives on. An ender that must not ask lowers `enders`
 *    too. It leaves the question to a destroyer, which keeps `enders` raised until the answer.
 * 4. A free may wait for GPU work, as the driver does in a call that ends a context, and that work
 *    for the ender. So a reset and a destruction wait for some 2 s at most, and a release, which
 *    seldom is the last one, for some 5 ms: a free of idle memory takes less than 1 ms. An ender
 *    does not wait for its own thread, whose free or call scope a signal handler interrupted, and a
 *    free in a handler does not wait for the end of that context that it interrupted.
 * 5. A free waits for enders some 2 s at most. Threads that release over and over let it come
 *    first: before a release raises `enders` it waits for `waiting_frees`, some 5 ms at most. Of a
 *    list, no further free waits after one that waited in vain.
 * 6. The record gets no other context while a thread is in a job of its pool (abandon.c). So a free
 *    that waits never finds `enders` and `gone` of another life.
 */
#ifndef SHIM_DEVICE_H
#define SHIM_DEVICE_H

#include "shim/driver/backend.h"

/* Which GPU a device is, for other processes. A part of a GPU (MIG) has an identity of its own. */
struct device_uuid {
    unsigned char bytes[16]; /* all zero: the driver does not tell */
    char text[48];           /* as nvidia-smi prints it: GPU-... or MIG-...; "": not known */
};

/* Asks the driver. */
void device_uuid(CUdevice device, struct device_uuid *out);

/* What a device is, for the life of the process. */
struct device_identity {
    char name[64];
    struct device_uuid uuid;
    uint64_t total_bytes; /* 0: the driver does not tell */
};

/* Asks the driver at the first call. NULL: that was not possible yet, as the process leaves. Any
 * thread. */
const struct device_identity *device_identity(CUdevice device);

/* Fills *d, which must be all zero, for ctx, the calling thread's current context.
 * single_stream: the pool may rely on the order of one stream (pool/backend.h). */
void device_init(struct device_backend *d, CUcontext ctx, CUdevice device, bool single_stream);

/* Fills *d anew, for another context of its device. Nothing of the context before may be in use. */
void device_renew(struct device_backend *d, CUcontext ctx, bool single_stream);

/* What carries out the rows ask_others and ask_in_background (pool/backend.h) for a device. NULL,
 * as at first: nothing does, and no process is asked. */
struct device_lender {
    bool (*ask)(CUdevice device, uint64_t size_bytes, struct lend_attempt *attempt);
    void (*ask_in_background)(CUdevice device, uint64_t size_bytes);
};
void device_set_lender(const struct device_lender *to);

/* Of the calling thread: its calls under way that may end the context of a backend (`number` less
 * one; context.c), and its frees of segments. */
extern __thread unsigned char device_ends_of[BACKENDS_MAX]
    __attribute__((tls_model("initial-exec"), visibility("hidden")));
extern __thread int device_frees_here
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* The device's primary context, alive or not, as a retain by the program gave it. NULL: no retain
 * was seen. */
CUcontext device_primary(CUdevice device);
void device_set_primary(CUdevice device, CUcontext primary);
/* Asks the driver. */
bool device_primary_is_active(CUdevice device);

#endif
