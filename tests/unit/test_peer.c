/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/entry/peer.c: whenever the driver closes for a park and does not come back, the program has
 * access to all memory of its peer, or an error and access to none. The test stands for the gate,
 * for a driver that knows one pair of contexts, and for what was mapped. */
#include "shim/context/stream_watch.h"
#include "shim/entry/retry.h"
#include "shim/entry/start.h"
#include "shim/park/gate.h"
#include "shim/share/peer.h"
#include "tests/unit/cases.h"

#define PEER ((CUcontext)(uintptr_t)0x100)
#define LOST CUDA_ERROR_OPERATING_SYSTEM

struct hooks_real real;

bool library_is_off(void)
{
    return false;
}

static struct {
    unsigned open_uses;            /* once so many uses have ended, the driver is closed */
    unsigned bad_grants, releases; /* that many are still to come */
    unsigned uses, depth;          /* uses that have ended; that are under way */
    bool enabled, granted;         /* by the driver; of what is mapped */
    unsigned enables;              /* calls of the driver's */
    void (*after_call)(void);      /* what other threads do behind the next of them */
    unsigned changes;              /* of a pair, that are under way */
    unsigned begun;                /* of those, in all */
    bool unfilled;                 /* the table of the driver's functions */
    unsigned calls_of_no_use;      /* of the driver's, and changes of what is mapped */
} world;

static bool is_closed(void)
{
    world.calls_of_no_use += !world.depth;
    return !world.depth && world.uses >= world.open_uses;
}

static CUresult driver_enable(CUcontext peer, unsigned flags)
{
    void (*after_call)(void) = world.after_call;
    CUresult rc = CUDA_SUCCESS;
    world.enables++;
    if (is_closed())
        rc = LOST;
    else if (world.enabled)
        rc = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    else
        world.enabled = true;
    world.after_call = NULL;
    if (after_call)
        after_call();
    return rc;
}

static CUresult driver_disable(CUcontext peer)
{
    if (is_closed())
        return LOST;
    if (!world.enabled)
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    world.enabled = false;
    return CUDA_SUCCESS;
}

bool hooks_init(void)
{
    return !world.unfilled;
}

CUresult gate_use_begin(struct gate_use *use)
{
    if (world.uses >= world.open_uses)
        return LOST;
    world.depth++;
    return CUDA_SUCCESS;
}

void gate_use_end(const struct gate_use *use)
{
    world.depth--;
    world.uses++;
}

void single_stream_disable(void)
{
}

/* As it fails: some memory is in reach. */
CUresult peer_grant(CUcontext peer)
{
    if (is_closed())
        return LOST;
    world.granted = true;
    return world.bad_grants && world.bad_grants-- ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

bool peer_begin_change(CUcontext peer)
{
    assert_int_equal(world.changes++, 0);
    world.begun++;
    return true;
}

void peer_end_change(bool begun)
{
    assert_true(begun);
    assert_int_equal(--world.changes, 0);
}

bool peer_is_known(CUcontext peer, bool whole)
{
    return world.granted;
}

void peer_revoke(CUcontext peer)
{
    world.granted = world.granted && is_closed();
}

bool retry_note_error(CUresult rc)
{
    assert_int_equal(world.depth, 0);
    return rc == CUDA_ERROR_OUT_OF_MEMORY;
}

uint64_t devices_peers(CUcontext peer)
{
    return 3;
}

bool retry_release(uint64_t devices, struct retry_steps *steps)
{
    return steps->step++ < world.releases;
}

static void begin(unsigned open_uses, unsigned bad_grants, unsigned releases)
{
    real.cuCtxEnablePeerAccess = driver_enable;
    real.cuCtxDisablePeerAccess = driver_disable;
    memset(&world, 0, sizeof world);
    world.open_uses = open_uses;
    world.bad_grants = bad_grants;
    world.releases = releases;
}

static void expect(CUresult rc)
{
    assert_int_equal(world.enabled, rc == CUDA_SUCCESS);
    assert_int_equal(world.granted, rc == CUDA_SUCCESS);
    assert_int_equal(world.depth, 0);
    assert_int_equal(world.changes, 0);
    assert_int_equal(world.calls_of_no_use, 0);
}

TEST(access_is_whole_or_none_whenever_the_driver_closes)
{
    for (unsigned open_uses = 0; open_uses < 6; open_uses++)
        for (unsigned bad_grants = 0; bad_grants < 3; bad_grants++) {
            begin(open_uses, bad_grants, 3);
            CUresult rc = cuCtxEnablePeerAccess(PEER, 0);
            expect(rc);
            assert_int_equal(rc, open_uses > bad_grants ? CUDA_SUCCESS : LOST);
            world.open_uses = 100;
            if (rc != CUDA_SUCCESS)
                expect(cuCtxEnablePeerAccess(PEER, 0));
        }
}

TEST(access_that_cannot_be_given_is_none)
{
    begin(100, 5, 2);
    assert_int_equal(cuCtxEnablePeerAccess(PEER, 0), CUDA_ERROR_OUT_OF_MEMORY);
    expect(CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(world.uses, 3);
}

/* No other thread is at work, whatever failed before. */
TEST(access_that_is_there_is_told_at_once)
{
    begin(100, 2, 1);
    assert_int_equal(cuCtxEnablePeerAccess(PEER, 0), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(cuCtxEnablePeerAccess(PEER, 0), CUDA_SUCCESS);
    assert_int_equal(world.enables, 3);
    assert_int_equal(cuCtxEnablePeerAccess(PEER, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    assert_int_equal(world.enables, 4);
    expect(CUDA_SUCCESS);
}

/* The pair is known, and another thread has just disabled it. */
TEST(access_that_another_thread_takes_meanwhile_is_given)
{
    begin(100, 0, 0);
    world.granted = true;
    assert_int_equal(cuCtxEnablePeerAccess(PEER, 0), CUDA_SUCCESS);
    assert_int_equal(world.enables, 2);
    expect(CUDA_SUCCESS);
}

static void take_it(void)
{
    world.enabled = world.granted = false;
}

static void find_it_missing(void)
{
    world.granted = false;
}

/* .. and disables it once more after the call gave it. */
TEST(access_that_was_given_and_taken_is_not_given_again)
{
    begin(100, 0, 0);
    world.granted = true;
    world.after_call = take_it;
    assert_int_equal(cuCtxEnablePeerAccess(PEER, 0), CUDA_SUCCESS);
    expect(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
}

/* Other threads take it, and one of them still gives it anew. */
TEST(access_is_told_of_only_if_it_is_still_known)
{
    begin(100, 0, 0);
    world.enabled = world.granted = true;
    world.after_call = find_it_missing;
    assert_int_equal(cuCtxEnablePeerAccess(PEER, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    expect(CUDA_SUCCESS);
}

TEST(access_that_was_given_past_the_wrappers_is_given_here)
{
    begin(100, 0, 0);
    world.enabled = true;
    assert_int_equal(cuCtxEnablePeerAccess(PEER, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    expect(CUDA_SUCCESS);
}

TEST(access_is_taken_whole_or_not_at_all)
{
    for (unsigned open_uses = 1; open_uses < 4; open_uses++) {
        begin(open_uses, 0, 0);
        assert_int_equal(cuCtxEnablePeerAccess(PEER, 0), CUDA_SUCCESS);
        CUresult rc = cuCtxDisablePeerAccess(PEER);
        expect(rc == CUDA_SUCCESS ? CUDA_ERROR_PEER_ACCESS_NOT_ENABLED : CUDA_SUCCESS);
        assert_int_equal(rc, open_uses > 1 ? CUDA_SUCCESS : LOST);
    }
}

TEST(without_the_drivers_functions_calls_pass)
{
    begin(100, 0, 0);
    world.unfilled = true;
    assert_int_equal(cuCtxEnablePeerAccess(PEER, 0), CUDA_SUCCESS);
    assert_int_equal(cuCtxDisablePeerAccess(PEER), CUDA_SUCCESS);
    assert_int_equal(world.begun, 0);
}

PLAY_TESTS
