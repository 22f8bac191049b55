/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See peer.h. A table holds the pairs of contexts. A lock guards it, which is never held over a
 * driver call.
 */
#include "shim/share/peer.h"

#include "shim/context/context.h"
#include "shim/context/stream_watch.h"
#include "shim/driver/access.h"
#include "shim/driver/pushed.h"
#include "shim/process/cancel.h"
#include "shim/process/state.h"
#include "shim/share/import.h"

#include <errno.h>
#include <pthread.h>

enum { GRANTS_MAX = 512, MADE_MAX = 256, TRIES = 4 };

struct side {
    CUcontext ctx;
    CUdevice device;
};

static struct grant {
    struct side accessor, owner;
    bool used;
} grants[GRANTS_MAX];
static bool overflowed;          /* a pair found no room: from then on no access is taken away */
static CUcontext made[MADE_MAX]; /* by the program; NULL: a free place */
static bool made_more;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct peer_change {
    CUdevice peer;
    bool allowed;
    CUresult rc; /* of the first failure */
};

static void change_range(void *arg, uint64_t addr, uint64_t size_bytes)
{
    struct peer_change *change = arg;
    CUresult rc = access_change(change->peer, change->allowed, addr, size_bytes);
    if (change->rc == CUDA_SUCCESS)
        change->rc = rc;
}

/* The device `owner` opened memory of another process. That memory may be a third device's, which
 * need not be a peer of this one: a failure means nothing. Natively copies reach memory that was
 * opened on another device. Kernels never do, whatever access peers have (error 700, measured).
 * Here copies need access, and kernels get it with them. */
static void change_import(void *arg, uint64_t addr, uint64_t size_bytes)
{
    const struct peer_change *change = arg;
    access_change(change->peer, change->allowed, addr, size_bytes);
}

/* Pools that commit memory meanwhile already know the new rights. A pool may give a range back
 * during the walk. Then a failure on it means nothing, and the next try walks over what is left. */
static CUresult change_devices(CUdevice owner, CUdevice accessor, bool allowed)
{
    struct peer_change change = {accessor, allowed, CUDA_SUCCESS};
    access_set_peer(owner, accessor, allowed);
    for (int tries = 0; tries < TRIES; tries++) {
        change.rc = CUDA_SUCCESS;
        context_for_each_range(owner, change_range, &change);
        if (change.rc == CUDA_SUCCESS)
            break;
    }
    import_for_each_range(owner, change_import, &change);
    return change.rc;
}

static bool any_left(CUdevice owner, CUdevice accessor)
{
    if (overflowed)
        return true;
    for (struct grant *g = grants; g < grants + GRANTS_MAX; g++)
        if (g->used && g->owner.device == owner && g->accessor.device == accessor)
            return true;
    return false;
}

static CUresult add_pair(const struct side *accessor, const struct side *owner)
{
    struct grant *free_row = NULL, *g;
    pthread_mutex_lock(&lock);
    for (g = grants; g < grants + GRANTS_MAX; g++) {
        if (g->used && g->accessor.ctx == accessor->ctx && g->owner.ctx == owner->ctx)
            break;
        if (!g->used && !free_row)
            free_row = g;
    }
    if (g == grants + GRANTS_MAX && free_row)
        *free_row = (struct grant){*accessor, *owner, true};
    else if (g == grants + GRANTS_MAX)
        overflowed = true;
    pthread_mutex_unlock(&lock);
    return change_devices(owner->device, accessor->device, true);
}

/* Removes the pairs that match; NULL: any context. Takes access away that no pair needs any
 * more. */
static void remove_pairs(CUcontext accessor, CUcontext owner)
{
    for (;;) {
        struct grant gone = {.used = false};
        bool last = false;
        pthread_mutex_lock(&lock);
        for (struct grant *g = grants; g < grants + GRANTS_MAX && !gone.used; g++)
            if (g->used && (!accessor || g->accessor.ctx == accessor) &&
                (!owner || g->owner.ctx == owner)) {
                gone = *g;
                g->used = false;
                last = !any_left(gone.owner.device, gone.accessor.device);
            }
        pthread_mutex_unlock(&lock);
        if (!gone.used)
            return;
        if (last)
            change_devices(gone.owner.device, gone.accessor.device, false);
    }
}

void peer_forget(CUcontext ctx)
{
    if (!ctx)
        return;
    remove_pairs(ctx, NULL);
    remove_pairs(NULL, ctx);
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < MADE_MAX; i++)
        if (made[i] == ctx)
            made[i] = NULL;
    pthread_mutex_unlock(&lock);
}

/* The current context, and the peer. False: both are of one device, whose memory needs no grant. */
static bool find_sides(CUcontext peer, struct side *accessor, struct side *owner)
{
    struct pushed pushed;
    owner->ctx = peer;
    if (real.cuCtxGetCurrent(&accessor->ctx) != CUDA_SUCCESS ||
        real.cuCtxGetDevice(&accessor->device) != CUDA_SUCCESS || !pushed_begin(&pushed, peer))
        return false;
    CUresult rc = real.cuCtxGetDevice(&owner->device);
    pushed_end(&pushed);
    return rc == CUDA_SUCCESS && owner->device != accessor->device;
}

static bool is_granted(CUcontext accessor, CUcontext owner)
{
    pthread_mutex_lock(&lock);
    bool granted = overflowed; /* unknown then; no use to try again and again */
    for (struct grant *g = grants; g < grants + GRANTS_MAX && !granted; g++)
        granted = g->used && g->accessor.ctx == accessor && g->owner.ctx == owner;
    pthread_mutex_unlock(&lock);
    return granted;
}

/* Contexts of other devices that have memory, one after the other. */
struct elsewhere {
    CUcontext ctx[CONTEXTS_MAX];
    CUdevice device[CONTEXTS_MAX];
};

/* How many grants were missing and could be made. */
static size_t grant_missing(const struct side *accessor, const struct elsewhere *e, size_t count)
{
    size_t granted = 0;
    for (size_t i = 0; i < count; i++) {
        struct side owner = {e->ctx[i], e->device[i]};
        if (is_granted(accessor->ctx, owner.ctx))
            continue;
        single_stream_disable(); /* as cuCtxEnablePeerAccess does */
        if (add_pair(accessor, &owner) == CUDA_SUCCESS)
            granted++;
        else
            remove_pairs(accessor->ctx, owner.ctx);
    }
    return granted;
}

/* There are at most CONTEXTS_MAX pools. Of more contexts with imported memory some stay without a
 * grant. Then the copy fails with the driver's own error. */
bool peer_grant_missing(void)
{
    struct elsewhere e;
    struct side accessor;
    int saved_errno = errno, cancel = cancel_forbid();
    size_t granted = 0;
    if (state_is_on() && real.cuCtxGetCurrent(&accessor.ctx) == CUDA_SUCCESS && accessor.ctx &&
        real.cuCtxGetDevice(&accessor.device) == CUDA_SUCCESS) {
        size_t count = context_arenas_elsewhere(accessor.device, e.ctx, e.device, CONTEXTS_MAX);
        granted = grant_missing(&accessor, &e, count);
        count = import_elsewhere(accessor.device, e.ctx, e.device, CONTEXTS_MAX);
        granted += grant_missing(&accessor, &e, count);
    }
    cancel_allow(cancel);
    errno = saved_errno;
    return granted > 0;
}

CUresult peer_grant(CUcontext peer)
{
    struct side accessor, owner;
    return find_sides(peer, &accessor, &owner) ? add_pair(&accessor, &owner) : CUDA_SUCCESS;
}

void peer_revoke(CUcontext peer)
{
    CUcontext accessor = NULL;
    if (real.cuCtxGetCurrent(&accessor) == CUDA_SUCCESS && accessor)
        remove_pairs(accessor, peer);
}

void peer_note_context(CUcontext ctx)
{
    size_t i = 0;
    pthread_mutex_lock(&lock);
    while (i < MADE_MAX && made[i])
        i++;
    if (i < MADE_MAX)
        made[i] = ctx;
    else
        made_more = true;
    pthread_mutex_unlock(&lock);
}

/* False: there is no room for it. */
static bool add_accessor(CUcontext *list, size_t max, size_t *count, CUcontext ctx)
{
    for (size_t i = 0; i < *count; i++)
        if (list[i] == ctx)
            return true;
    if (*count == max)
        return false;
    list[(*count)++] = ctx;
    return true;
}

bool peer_accessors(CUcontext *ctx, size_t max, size_t *count)
{
    *count = 0;
    pthread_mutex_lock(&lock);
    bool all = !overflowed && !made_more;
    for (const struct grant *g = grants; g < grants + GRANTS_MAX; g++)
        all = (!g->used || add_accessor(ctx, max, count, g->accessor.ctx)) && all;
    for (size_t i = 0; i < MADE_MAX; i++)
        all = (!made[i] || add_accessor(ctx, max, count, made[i])) && all;
    pthread_mutex_unlock(&lock);
    return all;
}
