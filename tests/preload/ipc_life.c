/* SPDX-License-Identifier: BSD-2-Clause */
/* Shared blocks outlive what the program does to them. The exporter frees one that the other
 * process has open, and allocates anew: all its bytes stay. They stay also when the exporter exits
 * or is killed. Handles of what is gone give an error at once, also while a child that was forked
 * from the exporter lives on. What the driver makes of these cases by itself is only looked at, not
 * judged. */
#include "tests/preload/ipc_peer.h"

/* Blocks from this size on are the driver's own in segment backing, and their handles too. */
static size_t judged_below = SIZE_MAX;

/* Under the cache it has to hold; bare the driver may do otherwise. */
static void judge(const char *what, size_t size_bytes, bool holds)
{
    bool judged = scene_preloaded() && size_bytes < judged_below;
    printf("%s: %s\n", what, holds || !judged ? "yes" : "NO");
    fflush(stdout);
}

static struct ipc_message open_in(const struct ipc_peer *peer, const CUipcMemHandle *handle,
                                  size_t size_bytes, unsigned char byte)
{
    return ipc_peer_do(
        peer, (struct ipc_message){
                  .order = IPC_OPEN, .handle = *handle, .size_bytes = size_bytes, .byte = byte});
}

static void exporter_frees(const struct ipc_peer *importer, size_t size_bytes)
{
    enum { NEXT = 8 };
    uint64_t next[NEXT];
    CUipcMemHandle handle, other;
    uint64_t block = ipc_filled(size_bytes, 1);
    ipc_export(&handle, block);
    struct ipc_message m = open_in(importer, &handle, size_bytes, 1);
    printf("%zu bytes: opened %d, %zu wrong\n", size_bytes, m.rc, m.wrong);
    REQUIRE(gpu_free(block));
    REQUIRE(gpu_sync());
    /* The cache gives all it can back, so that the address may be another block's, shared as well.
     */
    REQUIRE(setenv("GPUCACHE_EMPTY_CACHE", "1", 1));
    for (int i = 0; i < NEXT; i++) {
        next[i] = ipc_filled(size_bytes, 2);
        ipc_export(&other, next[i]);
    }
    m = ipc_peer_then(importer, m, IPC_LOOK);
    judge("its bytes stay when the exporter frees it", size_bytes, m.wrong == 0);
    m.byte = 3;
    ipc_peer_then(importer, m, IPC_WRITE);
    size_t wrong = 0;
    for (int i = 0; i < NEXT; i++)
        wrong += scene_wrong_bytes(next[i], size_bytes, 2);
    judge("what is written there reaches no other block", size_bytes, wrong == 0);
    struct ipc_message stale = open_in(importer, &handle, size_bytes, 3);
    judge("a second opening finds the first", size_bytes,
          stale.rc == 0 && stale.address == m.address);
    printf("closed %d", ipc_peer_then(importer, m, IPC_CLOSE).rc);
    printf(" %d\n", stale.rc == 0 ? ipc_peer_then(importer, m, IPC_CLOSE).rc : 0);
    stale = open_in(importer, &handle, size_bytes, 3);
    judge("a handle of a freed block is refused", size_bytes, stale.rc != 0);
    if (stale.rc == 0)
        ipc_peer_then(importer, stale, IPC_CLOSE);
    FREE_ALL(next, NEXT);
}

/* An exporter that hands over two handles and, when it is told, ends. */
struct gift {
    CUipcMemHandle opened, unopened;
    pid_t lives_on;
};

enum { GIFT_BYTES = 5 * 1024 * 1024 };

static void give(int to, int until, bool with_child)
{
    struct gift gift = {.lives_on = 0};
    char told;
    scene_start(1, 120);
    ipc_export(&gift.opened, ipc_filled(GIFT_BYTES, 7));
    ipc_export(&gift.unopened, ipc_filled(GIFT_BYTES, 8));
    if (with_child) {
        gift.lives_on = fork();
        if (gift.lives_on == 0) {
            pause();
            _exit(0);
        }
    }
    EXPECT(write(to, &gift, sizeof gift) == sizeof gift);
    EXPECT(read(until, &told, 1) == 1);
    _exit(0);
}

static void exporter_ends(const char *how, bool killed, bool with_child)
{
    int to[2], until[2];
    struct gift gift;
    fflush(stdout);
    REQUIRE(pipe(to));
    REQUIRE(pipe(until));
    struct ipc_peer importer = ipc_peer_fork();
    pid_t exporter = fork();
    if (exporter == 0)
        give(to[1], until[0], with_child);
    EXPECT(read(to[0], &gift, sizeof gift) == sizeof gift);
    struct ipc_message m = open_in(&importer, &gift.opened, GIFT_BYTES, 7);
    printf("%s: opened %d, %zu wrong\n", how, m.rc, m.wrong);
    if (killed)
        kill(exporter, SIGKILL);
    else
        EXPECT(write(until[1], "", 1) == 1);
    scene_wait(exporter);
    m = ipc_peer_then(&importer, m, IPC_LOOK);
    judge("its bytes stay when the exporter ends", GIFT_BYTES, m.wrong == 0);
    uint64_t start_ns = scene_now_ns();
    struct ipc_message late = open_in(&importer, &gift.unopened, GIFT_BYTES, 8);
    judge("its other handle is refused", GIFT_BYTES, late.rc != 0);
    judge("at once", GIFT_BYTES, scene_now_ns() - start_ns < 5000 * MS_NS);
    printf("closed %d", ipc_peer_then(&importer, m, IPC_CLOSE).rc);
    printf(", importer ended with %d\n", ipc_peer_end(&importer));
    if (gift.lives_on > 0)
        kill(gift.lives_on, SIGKILL);
}

int main(void)
{
    const char *backing = getenv("GPUCACHE_BACKING");
    if ((backing != NULL && strcmp(backing, "segment") == 0) || getenv("SIM_VMM") != NULL)
        judged_below = MIB + 1;
    scene_watchdog(120);
    exporter_ends("exporter ends", false, false);
    exporter_ends("exporter is killed", true, false);
    exporter_ends("exporter ends before its child", false, true);
    struct ipc_peer importer = ipc_peer_fork();
    scene_start(1, 120);
    static const size_t sizes[] = {2 * MIB, 600, 400 * KIB, 18 * MIB};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        exporter_frees(&importer, sizes[i]);
    printf("importer ended with %d\n", ipc_peer_end(&importer));
    return 0;
}
