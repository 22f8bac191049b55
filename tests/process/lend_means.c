/* SPDX-License-Identifier: BSD-2-Clause */
/* The means of the scene idle_oom, with the idle memory in another process. A child fills the
 * device and frees it. Then this process takes half of it, or a little, by each means. The argument
 * is how many means may fail: 0, or "all". */
#include "tests/preload/idle_oom.h"

#include <dirent.h>

enum { BLOCKS = 4096 };

CUcontext primary;
int wrong;

static int to_child, from_child;
static size_t filled_bytes; /* by the child, of late */

static size_t fill_and_free_here(void)
{
    static uint64_t blocks[BLOCKS];
    size_t piece = 64 * MIB, bytes = 0;
    int n = 0;
    for (; piece >= 2 * MIB; piece /= 2)
        while (n < BLOCKS && gpu_malloc(&blocks[n], piece) == 0) {
            bytes += piece;
            n++;
        }
    REQUIRE(gpu_sync());
    for (int i = 0; i < n; i++)
        REQUIRE(gpu_free(blocks[i]));
    return bytes;
}

static int be_child(int in, int out)
{
    char c;
    scene_start(1, 200);
    while (read(in, &c, 1) == 1) {
        size_t bytes = fill_and_free_here();
        EXPECT(write(out, &bytes, sizeof bytes) == (ssize_t)sizeof bytes);
    }
    return 0;
}

size_t free_bytes(void)
{
    return filled_bytes;
}

void fill_and_free(bool late)
{
    EXPECT(write(to_child, "f", 1) == 1);
    EXPECT(read(from_child, &filled_bytes, sizeof filled_bytes) == (ssize_t)sizeof filled_bytes);
}

/* The control thread of each of the two makes its page soon after the first allocation. */
static void await_pages(void)
{
    int pages = 0;
    for (int i = 0; i < 4000 && pages < 2; i++) {
        DIR *d = opendir(getenv("GPUCACHE_DIR"));
        pages = 0;
        for (struct dirent *e; d && (e = readdir(d));) {
            const char *end = strrchr(e->d_name, '.');
            pages += end && strcmp(end, ".page") == 0;
        }
        if (d)
            closedir(d);
        scene_sleep_ms(5);
    }
    EXPECT(pages == 2);
}

int main(int argc, char **argv)
{
    int in[2], out[2], failed = 0, status;
    bool all = argc > 1 && strcmp(argv[1], "all") == 0;
    uint64_t block = 0;
    EXPECT(pipe(in) == 0 && pipe(out) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(in[1]);
        close(out[0]);
        exit(be_child(in[0], out[1]));
    }
    close(in[0]);
    close(out[1]);
    to_child = in[1];
    from_child = out[0];
    scene_start(1, 200);
    REQUIRE(cuCtxGetCurrent(&primary));
    REQUIRE(gpu_malloc(&block, 4096)); /* the library starts with the first allocation */
    fill_and_free(false);
    await_pages();
    /* The last one needs a stream before it begins. */
    for (size_t i = 0; i + all < NUM_MEANS; i++) {
        fill_and_free(false);
        int rc = means[i].take();
        if ((rc != 0) != all)
            printf("%s: %d\n", means[i].name, rc);
        failed += rc != 0;
    }
    close(to_child);
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    printf("%d of %d failed, %d wrong\n", failed, NUM_MEANS, wrong);
    return wrong != 0 || (all ? failed < NUM_MEANS - 3 : failed != 0);
}
