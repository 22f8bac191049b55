/* SPDX-License-Identifier: BSD-2-Clause */
/* See ipc_peer.h. No state. */
#include "tests/preload/ipc_peer.h"

#include <dirent.h>

int ipc_count_fds(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    EXPECT(folder != NULL);
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

void ipc_export(CUipcMemHandle *handle, uint64_t block)
{
    int rc = gpu_ipc_export(handle, block);
    /* 36 is the runtime's word for a function that the driver lacks. */
    if (rc == CUDA_ERROR_NOT_FOUND || rc == CUDA_ERROR_NOT_SUPPORTED || rc == 36)
        scene_skip("the driver has no such handles");
    REQUIRE(rc);
}

uint64_t ipc_filled(size_t size_bytes, unsigned char byte)
{
    uint64_t block = NEW_BLOCK(size_bytes);
    REQUIRE(gpu_memset(block, byte, size_bytes));
    REQUIRE(gpu_sync());
    return block;
}

uint64_t ipc_share(CUipcMemHandle *handle, size_t size_bytes, unsigned char byte)
{
    uint64_t block = ipc_filled(size_bytes, byte);
    ipc_export(handle, block);
    return block;
}

static void obey(struct ipc_message *m)
{
    switch (m->order) {
    case IPC_OPEN:
        m->rc = gpu_ipc_open(&m->address, m->handle);
        if (m->rc == 0)
            m->wrong = scene_wrong_bytes(m->address, m->size_bytes, m->byte);
        break;
    case IPC_LOOK:
        m->wrong = scene_wrong_bytes(m->address, m->size_bytes, m->byte);
        break;
    case IPC_WRITE:
        m->rc = gpu_memset(m->address, m->byte, m->size_bytes);
        REQUIRE(gpu_sync());
        break;
    case IPC_FILL:
        m->rc =
            gpu_spin_fill(m->address, m->size_bytes / 4, 0x01010101u * m->byte, 5 * MS_NS, NULL);
        break;
    case IPC_RANGE:
        m->rc = gpu_address_range(&m->base, &m->size_bytes, m->address);
        break;
    case IPC_CLOSE:
        m->rc = gpu_ipc_close(m->address);
        break;
    case IPC_RESET:
        m->rc = gpu_reset();
        REQUIRE(gpu_open(0));
        break;
    case IPC_END:
        break;
    }
    gpu_last_error();
}

void ipc_serve(int from, int to)
{
    struct ipc_message m;
    scene_start(1, 120);
    while (read(from, &m, sizeof m) == sizeof m && m.order != IPC_END) {
        obey(&m);
        EXPECT(write(to, &m, sizeof m) == sizeof m);
    }
}

struct ipc_peer ipc_peer_fork_work(int (*work)(int from, int to))
{
    int to[2], from[2];
    REQUIRE(pipe(to));
    REQUIRE(pipe(from));
    pid_t pid = scene_fork();
    if (pid == 0) {
        close(to[1]);
        close(from[0]);
        exit(work(to[0], from[1]));
    }
    close(to[0]);
    close(from[1]);
    return (struct ipc_peer){to[1], from[0], pid};
}

static int serve(int from, int to)
{
    ipc_serve(from, to);
    return 0;
}

struct ipc_peer ipc_peer_fork(void)
{
    return ipc_peer_fork_work(serve);
}

static int start_bare(int from, int to)
{
    char in[16], out[16];
    snprintf(in, sizeof in, "%d", from);
    snprintf(out, sizeof out, "%d", to);
    unsetenv("LD_PRELOAD");
    execl("/proc/self/exe", "importer", "serve", in, out, NULL);
    _exit(99);
}

struct ipc_peer ipc_peer_start_bare(void)
{
    return ipc_peer_fork_work(start_bare);
}

struct ipc_message ipc_peer_do(const struct ipc_peer *peer, struct ipc_message order)
{
    struct ipc_message answer = {.rc = -1};
    EXPECT(write(peer->to, &order, sizeof order) == sizeof order);
    EXPECT(read(peer->from, &answer, sizeof answer) == sizeof answer);
    return answer;
}

struct ipc_message ipc_peer_then(const struct ipc_peer *peer, struct ipc_message m,
                                 enum ipc_order order)
{
    m.order = order;
    return ipc_peer_do(peer, m);
}

int ipc_peer_join(const struct ipc_peer *peer)
{
    int status = -1;
    EXPECT(waitpid(peer->pid, &status, 0) == peer->pid);
    close(peer->to);
    close(peer->from);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int ipc_peer_end(const struct ipc_peer *peer)
{
    struct ipc_message end = {.order = IPC_END};
    EXPECT(write(peer->to, &end, sizeof end) == sizeof end);
    return ipc_peer_join(peer);
}

void ipc_share_with(int (*import)(int from, int to), const size_t *sizes_bytes, int count)
{
    enum { COUNT_MAX = 8 };
    CUipcMemHandle handles[COUNT_MAX];
    size_t handles_bytes = (size_t)count * sizeof *handles;
    EXPECT(count <= COUNT_MAX);
    scene_watchdog(60);
    struct ipc_peer importer = ipc_peer_fork_work(import);
    scene_start(1, 60);
    for (int i = 0; i < count; i++)
        ipc_share(&handles[i], sizes_bytes[i], (unsigned char)(i + 1));
    EXPECT(write(importer.to, handles, handles_bytes) == (ssize_t)handles_bytes);
    printf("importer ended with %d\n", ipc_peer_join(&importer));
}
