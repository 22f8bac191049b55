/* SPDX-License-Identifier: BSD-2-Clause */
/* Small and large blocks are handed by legacy handles to another process, to one without the cache,
 * and to one that resets its device. */
#include "tests/preload/ipc_peer.h"
#include "tests/preload/observer.h"

/* Small and large blocks are handed to another process. A block has one handle, from each pointer
 * into it, and no other block has that handle. The other process finds the bytes and writes its
 * own. The exporter sees those, and nothing else changed. A handle that is opened twice gives one
 * address, and is closed as often. A block that comes back at the same address has a handle of its
 * own. */

static struct ipc_peer importer;

struct block {
    uint64_t address;
    size_t size_bytes;
    CUipcMemHandle handle;
};

static void make(struct block *b, size_t size_bytes, unsigned char byte)
{
    CUipcMemHandle again;
    b->size_bytes = size_bytes;
    REQUIRE(gpu_malloc(&b->address, size_bytes));
    REQUIRE(gpu_memset(b->address, byte, size_bytes));
    REQUIRE(gpu_sync());
    memset(&b->handle, 0, sizeof b->handle);
    ipc_export(&b->handle, b->address);
    ipc_export(&again, b->address + size_bytes / 2);
    EXPECT(memcmp(&again, &b->handle, sizeof again) == 0);
}

static void share(const struct block *b, unsigned char byte)
{
    struct ipc_message m = {.handle = b->handle, .size_bytes = b->size_bytes, .byte = byte};
    struct ipc_message first = ipc_peer_do(&importer, m), second = ipc_peer_do(&importer, m);
    printf("%zu bytes: opened %d, %zu wrong; again %d, the same %d", b->size_bytes, first.rc,
           first.wrong, second.rc, first.address == second.address);
    m.address = first.address + b->size_bytes / 2;
    struct ipc_message range = ipc_peer_then(&importer, m, IPC_RANGE);
    printf("; range %d, around it %d", range.rc,
           range.base <= first.address &&
               first.address + b->size_bytes <= range.base + range.size_bytes);
    m.address = first.address;
    printf("; closed %d", ipc_peer_then(&importer, m, IPC_CLOSE).rc);
    m.byte = byte + 100;
    printf(", written %d", ipc_peer_then(&importer, m, IPC_FILL).rc); /* the close waits for it */
    printf(", closed %d", ipc_peer_then(&importer, m, IPC_CLOSE).rc);
    printf(", once too often %d\n", ipc_peer_then(&importer, m, IPC_CLOSE).rc);
}

/* A block that the cache puts together from the memory of many smaller ones, and a part of the
 * last. */
static size_t share_pieces(void)
{
    enum { PIECES = 45 };
    uint64_t pieces[PIECES];
    struct block b;
    NEW_BLOCKS(pieces, PIECES, 2 * MIB);
    FREE_ALL(pieces, PIECES);
    make(&b, PIECES * 2 * MIB - MIB, 3);
    share(&b, 3);
    size_t wrong = scene_wrong_bytes(b.address, b.size_bytes, 103);
    REQUIRE(gpu_free(b.address));
    return wrong;
}

ACT(another_process_has_the_same_bytes)
{
    static const size_t sizes[] = {4 * MIB, 512,       64 * KIB, 20 * MIB, 700,
                                   2 * MIB, 300 * KIB, 3 * MIB,  34 * MIB, 33 * KIB};
    enum { COUNT = sizeof sizes / sizeof *sizes };
    struct block blocks[COUNT];
    uint64_t there = 0;
    size_t wrong = 0;
    scene_watchdog(60);
    importer = ipc_peer_fork();
    scene_start(1, 60);
    int fds = ipc_count_fds();
    for (unsigned i = 0; i < COUNT; i++)
        make(&blocks[i], sizes[i], (unsigned char)(i + 1));
    for (unsigned i = 0; i < COUNT; i++)
        for (unsigned j = 0; j < i; j++)
            EXPECT(memcmp(&blocks[i].handle, &blocks[j].handle, sizeof blocks[i].handle) != 0);
    for (unsigned i = 0; i < COUNT; i++)
        share(&blocks[i], (unsigned char)(i + 1));
    for (unsigned i = 0; i < COUNT; i++)
        wrong += scene_wrong_bytes(blocks[i].address, sizes[i], (unsigned char)(i + 101));
    printf("%zu wrong bytes at the exporter\n", wrong);
    printf("in the same process: %d\n", gpu_ipc_open(&there, blocks[0].handle));
    printf("closed what was not opened: %d\n", gpu_ipc_close(blocks[0].address));
    gpu_last_error();
    for (unsigned i = 0; i < COUNT; i++) {
        struct block next;
        REQUIRE(gpu_free(blocks[i].address));
        make(&next, sizes[i], (unsigned char)(i + 11));
        /* The driver tells small allocations apart by their place alone. */
        if (scene_preloaded() || sizes[i] >= 2 * MIB)
            EXPECT(memcmp(&next.handle, &blocks[i].handle, sizeof next.handle) != 0);
        share(&next, (unsigned char)(i + 11));
        wrong += scene_wrong_bytes(next.address, sizes[i], (unsigned char)(i + 111));
        REQUIRE(gpu_free(next.address));
    }
    wrong += share_pieces();
    printf("%zu wrong bytes in all\n", wrong);
    /* The simulated driver keeps memory in files of this process. The control thread closes those
     * of an answer after it has sent the answer. */
    for (int ms = 0; !scene_simulated() && ms < 10000 && ipc_count_fds() > fds; ms++)
        scene_sleep_ms(1);
    EXPECT(scene_simulated() || ipc_count_fds() == fds);
    printf("importer ended with %d\n", ipc_peer_end(&importer));
    return wrong != 0;
}

/* The other process is one without the cache. It gets an error or the right bytes. A program under
 * the cache opens what it exports itself. Also nonsense in the place of a handle is refused. */

ACT(a_process_without_the_cache_is_right_or_refused)
{
    static const size_t sizes[] = {4 * MIB, 512, 3000, 80 * KIB, 20 * MIB, 512};
    CUipcMemHandle handle;
    uint64_t there = 0;
    scene_watchdog(60);
    struct ipc_peer bare_importer = ipc_peer_start_bare();
    scene_start(1, 60);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct ipc_message m = {
            .order = IPC_OPEN, .size_bytes = sizes[i], .byte = (unsigned char)(i + 1)};
        ipc_share(&handle, sizes[i], m.byte);
        m.handle = handle;
        m = ipc_peer_do(&bare_importer, m);
        bool right = m.rc == 0 ? m.wrong == 0 : scene_preloaded();
        printf("%zu bytes: %s\n", sizes[i], right ? "right, or refused" : "WRONG");
        if (m.rc != 0)
            fprintf(stderr, "%s", m.rc == CUDA_ERROR_INVALID_VALUE ? "" : "another error\n");
        memset((char *)&handle + 40, 0x3c, 8); /* one of ours that is spoiled is none */
        if (scene_preloaded())
            EXPECT(gpu_ipc_open(&there, handle) != 0);
        gpu_last_error();
    }
    memset(&handle, 0, sizeof handle);
    printf("nothing but zeros: %d\n", gpu_ipc_open(&there, handle));
    gpu_last_error();
    printf("bare_importer ended with %d\n", ipc_peer_end(&bare_importer));
    return 0;
}

/* A process that has opened another one's blocks resets its device. What was opened is gone, and
 * can be opened again. The exporter's bytes have not changed. It never allocates memory of its own.
 * Once it has closed all and the exporter has freed all, the GPU has the memory again. */

enum { BACK_TRIES = 10000 };

static bool comes_back(struct observer *observer, size_t want_bytes)
{
    if (scene_preloaded())
        REQUIRE(raise(SIGUSR1));
    for (int i = 0; i < BACK_TRIES; i++, scene_sleep_ms(1))
        if (observer_free_bytes(observer) >= want_bytes)
            return true;
    return false;
}

ACT(what_was_opened_is_gone_after_a_reset)
{
    static const size_t sizes[] = {64 * MIB, 900};
    uint64_t blocks[2];
    struct ipc_message messages[2];
    struct observer observer;
    size_t wrong = 0;
    scene_watchdog(60);
    observer_start(&observer);
    struct ipc_peer resetting = ipc_peer_fork();
    scene_start(1, 60);
    for (int i = 0; i < 2; i++) {
        struct ipc_message m = {
            .order = IPC_OPEN, .size_bytes = sizes[i], .byte = (unsigned char)(i + 1)};
        blocks[i] = ipc_share(&m.handle, sizes[i], m.byte);
        messages[i] = ipc_peer_do(&resetting, m);
        printf("opened %d, %zu wrong\n", messages[i].rc, messages[i].wrong);
    }
    for (int round = 0; round < 3; round++) {
        struct ipc_message m = {.order = IPC_RESET};
        printf("reset %d", ipc_peer_do(&resetting, m).rc);
        for (int i = 0; i < 2; i++) {
            printf(", range %d", ipc_peer_then(&resetting, messages[i], IPC_RANGE).rc);
            printf(", closed %d", ipc_peer_then(&resetting, messages[i], IPC_CLOSE).rc);
        }
        for (int i = 0; i < 2; i++) {
            messages[i] = ipc_peer_then(&resetting, messages[i], IPC_OPEN);
            printf(", opened %d, %zu wrong", messages[i].rc, messages[i].wrong);
        }
        printf("\n");
    }
    for (int i = 0; i < 2; i++)
        wrong += scene_wrong_bytes(blocks[i], sizes[i], (unsigned char)(i + 1));
    printf("%zu wrong bytes at the exporter\n", wrong);
    size_t full_bytes = observer_free_bytes(&observer);
    for (int i = 0; i < 2; i++) {
        printf("closed %d\n", ipc_peer_then(&resetting, messages[i], IPC_CLOSE).rc);
        REQUIRE(gpu_free(blocks[i]));
    }
    if (!comes_back(&observer, full_bytes + 48 * MIB))
        printf("the memory is not back\n");
    printf("resetting ended with %d\n", ipc_peer_end(&resetting));
    observer_stop(&observer);
    return wrong != 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "serve") == 0) {
        ipc_serve(atoi(argv[2]), atoi(argv[3]));
        return 0;
    }
    return scene_play(argc, argv);
}
