/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See peer.h. A table holds the contexts, with a bit for each pair of them. A lock guards it, and
 * the rights of devices that follow from it (shim/driver/access.h). It is never held over a driver
 * call: a thread changes the rights under the lock, and the mapped ranges after it.
 * 1. One thread at a time changes the access to a range, and nobody unmaps the range meanwhile
 *    (pool/job.h, import_for_each_range). Else running work fails with 719 (two threads), or the
 *    driver frees host memory twice (beside an unmap; two H200, 580.159). A turn is one change. The
 *    wait for it is bounded, because the caller may be a signal handler in the thread whose turn it
 *    is.
 * 2. In its turn a thread reads the right and gives the range that. A later right brings a walk of
 *    its own. So the last turn gives each range the last right.
 * 3. After the walk of a grant the ranges stay in reach as long as a context needs it: a turn that
 *    read that there is no right came before the grant's turn at the same range.
 * 4. A walk leaves out a pool whose record is hidden. Who shows the record calls peer_renew then.
 *    Let another thread change a right. If it does so before peer_renew has the lock, peer_renew
 *    knows the device. Else its walk begins later, and finds the record shown.
 * 5. Several threads may give one context access for copies, and only some of them fail. A thread
 *    that fails takes the right away if no other one is about to give it (`coming`), or has. A
 *    thread that never comes back, as by longjmp out of a signal handler, leaves the right there.
 * 6. One thread at a time changes pairs: the driver's part, the pair and the walk. So the pairs
 *    are the driver's, in the order of its answers, and who is told of access finds it whole. A
 *    signal handler inside such a change does not wait. Others come in the order of their numbers.
 *    Where no change ends for PEER_WAIT_NS, the first one that notices begins its own. Those that
 *    it passes over take new numbers, so no two of them begin at once.
 * 7. A handle of an ended context may come again. `life` tells two contexts with one handle apart.
 */
#include "shim/share/peer.h"

#include "pool/spin.h"
#include "shim/context/context.h"
#include "shim/context/stream_watch.h"
#include "shim/driver/access.h"
#include "shim/driver/pushed.h"
#include "shim/process/cancel.h"
#include "shim/process/clock.h"
#include "shim/process/state.h"
#include "shim/share/import.h"

#include <errno.h>
#include <pthread.h>

/* Longer than a walk waits for a job of a pool. */
#define PEER_WAIT_NS (3 * OOM_WAIT_NS)

enum { SIDES_MAX = 2 * CONTEXTS_MAX, WORDS = SIDES_MAX / 64, TRIES = 4 };

/* A context that the program made, or that has access or gives it. */
static struct side {
    CUcontext ctx;   /* NULL: a free place */
    uint64_t life;   /* counts the contexts that came to be known */
    CUdevice device; /* of one that the program made and that was in no pair: not known */
    bool made;       /* by the program */
    uint64_t copies; /* devices, a bit for each: it has access for copies from and to them */
    unsigned short coming[DEVICES_MAX]; /* threads that are about to give it that, for each */
    uint64_t peers[WORDS]; /* a bit for each place: the program gave it access to that context */
} sides[SIDES_MAX];
static bool overflowed; /* a context found no place: from then on no access is taken away */
/* Of each owner: the devices that had access to it at some time. */
static uint64_t ever[DEVICES_MAX];
/* Walks over ranges. After each one that ends, a copy that was refused is worth another try. */
static unsigned walks_begun, walks_ended;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool turn_is_taken; /* step 1 */

/* Step 6. */
static struct {
    uint64_t next, served; /* who takes number n as the next one waits until n were served */
    bool is_under_way;
    CUcontext accessor, owner;
} pair_change;
static __thread bool changes_pair __attribute__((tls_model("initial-exec")));
static __thread uint64_t pair_number __attribute__((tls_model("initial-exec")));

struct peer_change {
    CUdevice owner, accessor;
    CUresult rc; /* of the first failure */
};

static bool is_allowed(CUdevice owner, CUdevice accessor)
{
    return access_peers(owner) & device_bit(accessor);
}

/* Lock held; a walk_ranges follows. */
static void set_right(CUdevice owner, CUdevice accessor, bool allowed)
{
    access_set_peer(owner, accessor, allowed);
    if (owner >= 0 && owner < DEVICES_MAX)
        ever[owner] |= access_peers(owner);
    walks_begun++;
}

/* Returns with the lock held. */
static void take_turn(void)
{
    pthread_mutex_lock(&lock);
    for (unsigned turn = 0; turn_is_taken && turn < CONTEXT_AWAIT_TURNS; turn++) {
        pthread_mutex_unlock(&lock);
        spin_pause(turn);
        pthread_mutex_lock(&lock);
    }
    turn_is_taken = true;
}

static CUresult change_once(const struct peer_change *change, uint64_t addr, uint64_t size_bytes)
{
    take_turn();
    bool allowed = is_allowed(change->owner, change->accessor);
    pthread_mutex_unlock(&lock);
    CUresult rc = access_change(change->accessor, allowed, addr, size_bytes);
    pthread_mutex_lock(&lock);
    turn_is_taken = false;
    pthread_mutex_unlock(&lock);
    return rc;
}

/* A call may give the error of other work. */
static void change_range(void *arg, uint64_t addr, uint64_t size_bytes)
{
    struct peer_change *change = arg;
    CUresult rc = change_once(change, addr, size_bytes);
    for (int tries = 1; rc != CUDA_SUCCESS && tries < TRIES; tries++)
        rc = change_once(change, addr, size_bytes);
    if (change->rc == CUDA_SUCCESS)
        change->rc = rc;
}

/* The device `owner` opened memory of another process. That memory may be a third device's, which
 * need not be a peer of this one: a failure means nothing. Natively copies reach memory that was
 * opened on another device. Kernels never do, whatever access peers have (error 700, measured).
 * Here copies need access, and kernels get it with them. */
static void change_import(void *arg, uint64_t addr, uint64_t size_bytes)
{
    change_once(arg, addr, size_bytes);
}

/* Gives the ranges the right that was set. Pools that commit memory meanwhile already know it. */
static CUresult walk_ranges(CUdevice owner, CUdevice accessor)
{
    struct peer_change change = {owner, accessor, CUDA_SUCCESS};
    context_for_each_range(owner, change_range, &change);
    import_for_each_range(owner, change_import, &change);
    pthread_mutex_lock(&lock);
    walks_ended++;
    pthread_mutex_unlock(&lock);
    return change.rc;
}

/* Step 4. */
void peer_renew(const struct context *c)
{
    if (c->device < 0 || c->device >= DEVICES_MAX || !c->pool || !pool_uses_arena(c->pool))
        return;
    pthread_mutex_lock(&lock);
    uint64_t accessors = ever[c->device];
    pthread_mutex_unlock(&lock);
    for (; accessors; accessors &= accessors - 1) {
        struct peer_change change = {c->device, __builtin_ctzll(accessors), CUDA_SUCCESS};
        pool_for_each_range(c->pool, change_range, &change);
    }
}

/* NULL: it is not known. Lock held, as for the functions up to take_back. */
static struct side *find_side(CUcontext ctx)
{
    for (struct side *s = sides; s < sides + SIDES_MAX; s++)
        if (s->ctx == ctx)
            return s;
    return NULL;
}

/* NULL: there is no room for it. */
static struct side *ensure_side(CUcontext ctx)
{
    static uint64_t lives;
    struct side *s = find_side(ctx);
    if (!s && (s = find_side(NULL))) {
        s->ctx = ctx;
        s->life = ++lives;
    }
    overflowed = overflowed || !s;
    return s;
}

static void set_pair(struct side *accessor, const struct side *owner, bool on)
{
    size_t place = (size_t)(owner - sides);
    uint64_t bit = UINT64_C(1) << place % 64;
    uint64_t *word = &accessor->peers[place / 64];
    *word = on ? *word | bit : *word & ~bit;
}

static bool has_pair(const struct side *accessor, const struct side *owner)
{
    size_t place = (size_t)(owner - sides);
    return accessor->peers[place / 64] >> place % 64 & 1;
}

/* The devices to whose memory it has access, a bit for each. */
static uint64_t given_to(const struct side *s)
{
    uint64_t devices = s->copies;
    for (size_t i = 0; i < WORDS; i++)
        for (uint64_t left = s->peers[i]; left; left &= left - 1)
            devices |= device_bit(sides[i * 64 + (size_t)__builtin_ctzll(left)].device);
    return devices;
}

/* The same, and those where a thread is about to give it that. */
static uint64_t owners_of(const struct side *s)
{
    uint64_t devices = given_to(s);
    for (CUdevice owner = 0; owner < DEVICES_MAX; owner++)
        devices |= s->coming[owner] ? device_bit(owner) : 0;
    return devices;
}

/* Takes away what no context needs any more. */
static void take_back(void)
{
    uint64_t gone[DEVICES_MAX]; /* of each owner: devices */
    pthread_mutex_lock(&lock);
    for (CUdevice owner = 0; owner < DEVICES_MAX; owner++)
        gone[owner] = overflowed ? 0 : access_peers(owner);
    for (const struct side *s = sides; s < sides + SIDES_MAX; s++)
        for (uint64_t needed = owners_of(s); needed; needed &= needed - 1)
            gone[__builtin_ctzll(needed)] &= ~device_bit(s->device);
    for (CUdevice owner = 0; owner < DEVICES_MAX; owner++)
        for (uint64_t left = gone[owner]; left; left &= left - 1)
            set_right(owner, __builtin_ctzll(left), false);
    pthread_mutex_unlock(&lock);
    for (CUdevice owner = 0; owner < DEVICES_MAX; owner++)
        for (uint64_t left = gone[owner]; left; left &= left - 1)
            walk_ranges(owner, __builtin_ctzll(left));
}

void peer_forget(CUcontext ctx)
{
    if (!ctx)
        return;
    pthread_mutex_lock(&lock);
    struct side *gone = find_side(ctx);
    for (struct side *s = sides; s < sides + SIDES_MAX && gone; s++)
        set_pair(s, gone, false);
    if (gone)
        *gone = (struct side){.ctx = NULL};
    pthread_mutex_unlock(&lock);
    if (gone)
        take_back();
}

/* The device of the context, by way of a push. False: it has ended. */
static bool find_device(CUcontext ctx, CUdevice *device)
{
    struct pushed pushed;
    if (!pushed_begin(&pushed, ctx))
        return false;
    CUresult rc = real.cuCtxGetDevice(device);
    pushed_end(&pushed);
    return rc == CUDA_SUCCESS;
}

static bool find_accessor(CUcontext *ctx, CUdevice *device)
{
    return real.cuCtxGetCurrent(ctx) == CUDA_SUCCESS && *ctx &&
           real.cuCtxGetDevice(device) == CUDA_SUCCESS;
}

bool peer_begin_change(CUcontext peer)
{
    CUcontext ctx = NULL;
    if (changes_pair)
        return false;
    changes_pair = true; /* first: a signal handler here must not wait for this thread */
    real.cuCtxGetCurrent(&ctx);
    pthread_mutex_lock(&lock);
    uint64_t number = pair_change.next++, served = pair_change.served;
    uint64_t until_ns = clock_now_ns() + PEER_WAIT_NS;
    for (unsigned look = 0; pair_change.served != number && clock_now_ns() < until_ns; look++) {
        pthread_mutex_unlock(&lock);
        spin_pause(look);
        pthread_mutex_lock(&lock);
        if (pair_change.served != served)
            until_ns = clock_now_ns() + PEER_WAIT_NS;
        served = pair_change.served;
        if (served > number)
            number = pair_change.next++; /* it was passed over */
    }
    pair_change.served = number;
    pair_change.is_under_way = true;
    pair_change.accessor = ctx;
    pair_change.owner = peer;
    pthread_mutex_unlock(&lock);
    pair_number = number;
    return true;
}

/* Who waited too long may have begun another change. */
void peer_end_change(bool begun)
{
    if (!begun)
        return;
    pthread_mutex_lock(&lock);
    if (pair_change.served == pair_number) {
        pair_change.served++;
        pair_change.is_under_way = false;
    }
    pthread_mutex_unlock(&lock);
    changes_pair = false;
}

bool peer_is_known(CUcontext peer, bool whole)
{
    CUcontext ctx = NULL;
    if (real.cuCtxGetCurrent(&ctx) != CUDA_SUCCESS || !ctx)
        return false;
    pthread_mutex_lock(&lock);
    const struct side *s = find_side(ctx), *of = find_side(peer);
    bool changes =
        pair_change.is_under_way && pair_change.accessor == ctx && pair_change.owner == peer;
    bool is = s && of && has_pair(s, of) && !(whole && changes);
    pthread_mutex_unlock(&lock);
    return is;
}

/* Memory of one device needs no grant. */
CUresult peer_grant(CUcontext peer)
{
    CUcontext ctx;
    CUdevice device, owner;
    if (!find_accessor(&ctx, &device) || !find_device(peer, &owner) || owner == device)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    struct side *s = ensure_side(ctx), *of = ensure_side(peer);
    if (s && of) {
        s->device = device;
        of->device = owner;
        set_pair(s, of, true);
    }
    set_right(owner, device, true);
    pthread_mutex_unlock(&lock);
    return walk_ranges(owner, device);
}

void peer_revoke(CUcontext peer)
{
    CUcontext ctx = NULL;
    if (real.cuCtxGetCurrent(&ctx) != CUDA_SUCCESS || !ctx)
        return;
    pthread_mutex_lock(&lock);
    struct side *s = find_side(ctx), *of = find_side(peer);
    if (s && of)
        set_pair(s, of, false);
    pthread_mutex_unlock(&lock);
    take_back();
}

/* Steps 5 and 7. Returns whether all ranges are in reach. life: 0 if the context has no place. */
static bool end_grant(CUcontext ctx, uint64_t life, CUdevice owner, CUresult rc)
{
    pthread_mutex_lock(&lock);
    struct side *s = find_side(ctx);
    if (s && s->life != life)
        s = NULL;
    if (s)
        s->coming[owner]--;
    if (s && rc == CUDA_SUCCESS && !(given_to(s) & device_bit(owner)))
        s->copies |= device_bit(owner);
    pthread_mutex_unlock(&lock);
    if (rc != CUDA_SUCCESS)
        take_back();
    return rc == CUDA_SUCCESS;
}

/* True: the context got access for copies. False: it had it, or cannot have it. While another
 * thread walks, this one walks too, because it does not know how far the other one is. */
static bool grant_copies(CUcontext ctx, CUdevice device, CUdevice owner)
{
    pthread_mutex_lock(&lock);
    struct side *s = ensure_side(ctx);
    bool had = is_allowed(owner, device) && (!s || (given_to(s) & device_bit(owner)));
    bool walks = !had || walks_begun != walks_ended;
    uint64_t life = s ? s->life : 0;
    if (s && walks) {
        s->device = device;
        s->coming[owner]++;
    }
    if (walks)
        set_right(owner, device, true);
    pthread_mutex_unlock(&lock);
    if (!walks)
        return false;
    single_stream_disable(); /* as cuCtxEnablePeerAccess does */
    return end_grant(ctx, life, owner, walk_ranges(owner, device));
}

/* Has a walk ended since this thread asked last? */
static bool any_walk_ended(void)
{
    static __thread unsigned seen __attribute__((tls_model("initial-exec")));
    pthread_mutex_lock(&lock);
    bool any = seen != walks_ended;
    seen = walks_ended;
    pthread_mutex_unlock(&lock);
    return any;
}

bool peer_grant_missing(void)
{
    CUcontext ctx;
    CUdevice device;
    int saved_errno = errno, cancel = cancel_forbid();
    bool granted = false;
    if (state_is_on() && find_accessor(&ctx, &device)) {
        uint64_t owners = (context_arena_devices() | import_devices()) & ~device_bit(device);
        for (; owners; owners &= owners - 1)
            granted = grant_copies(ctx, device, __builtin_ctzll(owners)) || granted;
        granted = any_walk_ended() || granted; /* as another thread's may have, since the refusal */
    }
    cancel_allow(cancel);
    errno = saved_errno;
    return granted;
}

void peer_note_context(CUcontext ctx)
{
    pthread_mutex_lock(&lock);
    struct side *s = ensure_side(ctx);
    if (s)
        s->made = true;
    pthread_mutex_unlock(&lock);
}

bool peer_accessors(CUcontext *ctx, size_t max, size_t *count)
{
    *count = 0;
    pthread_mutex_lock(&lock);
    bool all = !overflowed;
    for (const struct side *s = sides; s < sides + SIDES_MAX; s++) {
        if (!s->made && !owners_of(s))
            continue;
        all = all && *count < max;
        if (*count < max)
            ctx[(*count)++] = s->ctx;
    }
    pthread_mutex_unlock(&lock);
    return all;
}
