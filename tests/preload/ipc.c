/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A block handed to another process: it opens the handle, finds the bytes, writes its own, and the
 * exporter sees them; the block is freed and its address may come back with a handle of its own.
 * Such handles need memory of cuMemAlloc, which the program asks the cache for in its environment.
 */
#include "tests/preload/scene.h"

#include <sys/wait.h>
#include <unistd.h>

struct parcel {
    CUipcMemHandle handle;
    size_t size_bytes;
    unsigned char byte;
    bool last;
};

static int import(int from, int to)
{
    struct parcel parcel;
    scene_start(1, 60);
    while (read(from, &parcel, sizeof parcel) == sizeof parcel && !parcel.last) {
        uint64_t address = 0;
        int rc = gpu_ipc_open(&address, parcel.handle);
        unsigned wrong = 1;
        if (rc == 0) {
            wrong = scene_wrong_bytes(address, parcel.size_bytes, parcel.byte) != 0;
            REQUIRE(gpu_memset(address, parcel.byte + 100, parcel.size_bytes));
            REQUIRE(gpu_sync());
            REQUIRE(gpu_ipc_close(address));
        }
        unsigned answer = rc != 0 ? (unsigned)rc : wrong;
        EXPECT(write(to, &answer, sizeof answer) == sizeof answer);
    }
    return 0;
}

int main(void)
{
    static const size_t sizes[] = {2 * MIB, 4 * MIB, 20 * MIB, 64 * KIB};
    int to[2];
    int from[2];
    unsigned failed = 0;
    scene_watchdog(60);
    REQUIRE(setenv("GPUCACHE_BACKING", "segment", 0));
    REQUIRE(setenv("GPUCACHE_MIN_BLOCK", "1048577", 0));
    REQUIRE(pipe(to));
    REQUIRE(pipe(from));
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        close(to[1]);
        close(from[0]);
        exit(import(to[0], from[1]));
    }
    close(to[0]);
    close(from[1]);
    scene_start(1, 60);
    for (unsigned i = 0; i < 8; i++) {
        struct parcel parcel = {.size_bytes = sizes[i % 4], .byte = (unsigned char)(i + 1)};
        uint64_t block = 0;
        unsigned answer = 0;
        REQUIRE(gpu_malloc(&block, parcel.size_bytes));
        REQUIRE(gpu_memset(block, parcel.byte, parcel.size_bytes));
        REQUIRE(gpu_sync());
        int rc = gpu_ipc_export(&parcel.handle, block);
        /* 36 is the runtime's word for a function that the driver lacks. */
        if (rc == CUDA_ERROR_NOT_FOUND || rc == CUDA_ERROR_NOT_SUPPORTED || rc == 36)
            scene_skip("the driver has no such handles");
        REQUIRE(rc);
        EXPECT(write(to[1], &parcel, sizeof parcel) == sizeof parcel);
        EXPECT(read(from[0], &answer, sizeof answer) == sizeof answer);
        size_t wrong = scene_wrong_bytes(block, parcel.size_bytes, parcel.byte + 100);
        printf("%zu bytes: importer %u, %zu wrong bytes\n", parcel.size_bytes, answer, wrong);
        failed += answer != 0 || wrong != 0;
        REQUIRE(gpu_free(block));
    }
    struct parcel last = {.last = true};
    int status = -1;
    EXPECT(write(to[1], &last, sizeof last) == sizeof last);
    EXPECT(waitpid(child, &status, 0) == child);
    printf("importer ended with %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    return failed != 0;
}
