/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A process that has opened another one's blocks resets its device: what was opened is gone, and can be
 * opened again; the exporter's bytes have not changed. It never allocates memory of its own.
 */
#include "tests/preload/ipc_peer.h"

int main(void)
{
    static const size_t sizes[] = {6 * MIB, 900};
    uint64_t blocks[2];
    struct ipc_message messages[2];
    size_t wrong = 0;
    scene_watchdog(60);
    struct ipc_peer importer = ipc_peer_fork();
    scene_start(1, 60);
    for (int i = 0; i < 2; i++) {
        struct ipc_message m = {.order = IPC_OPEN, .size_bytes = sizes[i], .byte = (unsigned char)(i + 1)};
        REQUIRE(gpu_malloc(&blocks[i], sizes[i]));
        REQUIRE(gpu_memset(blocks[i], m.byte, sizes[i]));
        REQUIRE(gpu_sync());
        int rc = gpu_ipc_export(&m.handle, blocks[i]);
        if (rc == CUDA_ERROR_NOT_FOUND || rc == CUDA_ERROR_NOT_SUPPORTED || rc == 36)
            scene_skip("the driver has no such handles");
        REQUIRE(rc);
        messages[i] = ipc_peer_do(&importer, m);
        printf("opened %d, %zu wrong\n", messages[i].rc, messages[i].wrong);
    }
    for (int round = 0; round < 3; round++) {
        struct ipc_message m = {.order = IPC_RESET};
        printf("reset %d", ipc_peer_do(&importer, m).rc);
        for (int i = 0; i < 2; i++) {
            m = messages[i];
            m.order = IPC_RANGE;
            printf(", range %d", ipc_peer_do(&importer, m).rc);
            m = messages[i];
            m.order = IPC_CLOSE;
            printf(", closed %d", ipc_peer_do(&importer, m).rc);
        }
        for (int i = 0; i < 2; i++) {
            m = messages[i];
            m.order = IPC_OPEN;
            messages[i] = ipc_peer_do(&importer, m);
            printf(", opened %d, %zu wrong", messages[i].rc, messages[i].wrong);
        }
        printf("\n");
    }
    for (int i = 0; i < 2; i++)
        wrong += scene_wrong_bytes(blocks[i], sizes[i], (unsigned char)(i + 1));
    printf("%zu wrong bytes at the exporter\n", wrong);
    printf("importer ended with %d\n", ipc_peer_end(&importer));
    return wrong != 0;
}
