/* SPDX-License-Identifier: BSD-2-Clause */
/* A thread that gives access does not come back from the driver. Others change access, too. */
#include "tests/preload/scene.h"

enum { LATER = 3, WAIT_MS = 40000 }; /* longer than each of them waits for the first one */

static void *enable(void *data)
{
    (void)data;
    REQUIRE(gpu_open(0));
    gpu_peer_enable(1);
    return NULL;
}

static void *disable(void *data)
{
    (void)data;
    REQUIRE(gpu_open(0));
    gpu_peer_disable(1);
    return NULL;
}

ACT(one_change_at_a_time)
{
    pthread_t later[LATER];
    scene_start_peers(120);
    if (!scene_simulated())
        return SCENE_SKIP;
    REQUIRE(gpu_open(1));
    NEW_BLOCK(8 * MIB);
    REQUIRE(gpu_open(0));
    NEW_BLOCK(8 * MIB);
    if (!scene_preloaded())
        return 0;
    REQUIRE(SIM(simHold)("cuMemSetAccess"));
    pthread_t first = NEW_THREAD(enable, NULL);
    scene_await_held(1);
    REQUIRE(SIM(simHold)("cuCtxDisablePeerAccess"));
    for (int i = 0; i < LATER; i++)
        later[i] = NEW_THREAD(disable, NULL);
    unsigned most = 0;
    for (int ms = 0; ms < WAIT_MS; ms += 10, scene_sleep_ms(10))
        most = SIM(simHeld)() > most ? SIM(simHeld)() : most;
    SIM(simLetGo)("cuCtxDisablePeerAccess");
    SIM(simLetGo)("cuMemSetAccess");
    for (int i = 0; i < LATER; i++)
        REQUIRE(pthread_join(later[i], NULL));
    REQUIRE(pthread_join(first, NULL));
    EXPECT(most > 1); /* it goes on without the first one */
    return most > 2;
}
