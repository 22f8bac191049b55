/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The other process is one without the cache. It may be refused a block, with an error, or be given
 * the right bytes; and what it exports itself, a program under the cache opens. Also nonsense in the
 * place of a handle is refused.
 */
#include "tests/preload/ipc_peer.h"

#include <string.h>

int main(int argc, char **argv)
{
    static const size_t sizes[] = {4 * MIB, 512, 3000, 80 * KIB, 20 * MIB, 512};
    CUipcMemHandle handle;
    uint64_t there = 0;
    if (argc == 4 && strcmp(argv[1], "serve") == 0) {
        ipc_serve(atoi(argv[2]), atoi(argv[3]));
        return 0;
    }
    scene_watchdog(60);
    struct ipc_peer importer = ipc_peer_start_bare();
    scene_start(1, 60);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct ipc_message m = {.order = IPC_OPEN, .size_bytes = sizes[i], .byte = (unsigned char)(i + 1)};
        uint64_t block = 0;
        REQUIRE(gpu_malloc(&block, sizes[i]));
        REQUIRE(gpu_memset(block, m.byte, sizes[i]));
        REQUIRE(gpu_sync());
        int rc = gpu_ipc_export(&handle, block);
        if (rc == CUDA_ERROR_NOT_FOUND || rc == CUDA_ERROR_NOT_SUPPORTED || rc == 36)
            scene_skip("the driver has no such handles");
        REQUIRE(rc);
        m.handle = handle;
        m = ipc_peer_do(&importer, m);
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
    printf("importer ended with %d\n", ipc_peer_end(&importer));
    return 0;
}
