/* SPDX-License-Identifier: BSD-2-Clause */
/* A process whose device memory is parked from outside. It does what its standard input says, line
 * by line, and prints a line after each:
 *   make MIB COUNT   allocates COUNT blocks of 512 bytes to MIB MiB, and fills each
 *   second MIB       a block on the second device, which no other line looks at
 *   check            "right", or how many words are wrong
 *   copies           the same by copies to the host
 *   swap             frees every second block and allocates and fills another of its size
 *   exchange         the same without a fill: allocations and frees alone
 *   refill           fills each block anew
 *   poke OFFSET      changes one byte of the first block
 *   poked            "right" if the first block has its bytes, those of poke among them
 *   drop             frees all
 *   info             the free memory of the device, in KiB
 *   rss              of the process, in KiB
 *   peek             the code of a copy of a block's first word to the host
 *   close            closes all descriptors but the first three
 *   cut FOLDER       the nameless files of the folder that are mapped here, now or as soon as there
 *                    is one, are as if cut off,
 *   mend, forget     .. and no more; or they are gone by now
 *   lose             the disk loses bytes of files: the kernel tells it once
 *   work THREADS     threads begin to fill, copy and check blocks of their own
 *   rest             they end; "right", or how many words were wrong
 *   queries          of an event and a stream, and waits for them
 *   take MIB         allocates a block, and leaves it as it is
 *   managed          allocates managed memory
 *   import           asks for memory of another process, which there is not
 *   step N PID       the checkpoint of a process, its own if PID is 0: 0 lock, 1 checkpoint,
 *                    2 restore, 3 unlock; prints the code
 *   load FILE        opens a library
 *   hold FUNCTION    calls of it wait in the simulated driver,
 *   let FUNCTION     .. and go on
 *   calls FUNCTION   how many there were, those that wait among them
 *   nvml             a thread begins to call NVML,
 *   told             "waits", or the code that it got
 *   reset, exit      the context, or the process, ends */
#include "tests/preload/scene.h"

#include <sys/mman.h>
#include <sys/syscall.h>

enum {
    BLOCKS_MAX = 4096,
    THREADS_MAX = 16,
    WORK_WORDS = 64 * 1024,
    LINE_BYTES = 512,
    CUTS_MAX = 8,
    POKES_MAX = 64
};

static struct block {
    uint64_t addr;
    size_t size_bytes;
    uint32_t value;
} blocks[BLOCKS_MAX];
static unsigned num_blocks;
static uint32_t next_value = 1;

static void fill(struct block *b)
{
    b->value = next_value++ * 2654435761u;
    REQUIRE(gpu_fill(b->addr, b->size_bytes / 4, b->value, NULL));
}

static void make(unsigned mib, unsigned count)
{
    for (unsigned i = 0; i < count && num_blocks < BLOCKS_MAX; i++) {
        struct block *b = &blocks[num_blocks++];
        size_t most = mib * MIB;
        b->size_bytes = i % 7 == 0 ? most : 512u << (i * 5 % 18);
        b->size_bytes = b->size_bytes > most ? most : b->size_bytes;
        b->addr = NEW_BLOCK(b->size_bytes);
        fill(b);
    }
    REQUIRE(gpu_sync());
}

static void second(unsigned mib)
{
    REQUIRE(gpu_open(1));
    REQUIRE(gpu_fill(NEW_BLOCK(mib * MIB), 1, 1, NULL));
    REQUIRE(gpu_sync());
    REQUIRE(gpu_open(0));
}

static uint64_t check(void)
{
    uint64_t wrong = 0;
    for (unsigned i = 0; i < num_blocks; i++)
        if (blocks[i].value)
            wrong +=
                scene_wrong_words(blocks[i].addr, blocks[i].size_bytes / 4, blocks[i].value, NULL);
    return wrong;
}

static uint64_t copies(void)
{
    uint64_t wrong = 0;
    for (unsigned i = 0; i < num_blocks; i++) {
        uint32_t *host = malloc(blocks[i].size_bytes);
        EXPECT(host);
        REQUIRE(gpu_get(host, blocks[i].addr, blocks[i].size_bytes));
        for (size_t j = 0; blocks[i].value && j < blocks[i].size_bytes / 4; j++)
            wrong += host[j] != blocks[i].value;
        free(host);
    }
    return wrong;
}

static void swap(bool fills)
{
    for (unsigned i = 0; i < num_blocks; i += 2) {
        struct block *b = &blocks[i];
        REQUIRE(gpu_free(b->addr));
        b->addr = NEW_BLOCK(b->size_bytes);
        b->value = 0;
        if (fills)
            fill(b);
    }
    if (fills)
        REQUIRE(gpu_sync());
}

static void refill(void)
{
    for (unsigned i = 0; i < num_blocks; i++)
        fill(&blocks[i]);
    REQUIRE(gpu_sync());
}

static struct {
    size_t offset;
    uint8_t byte;
} pokes[POKES_MAX];
static unsigned num_pokes;

static void poke(size_t offset)
{
    uint8_t byte = (uint8_t)(num_pokes * 17 + 5);
    EXPECT(num_pokes < POKES_MAX && offset < blocks[0].size_bytes);
    pokes[num_pokes].offset = offset;
    pokes[num_pokes++].byte = byte;
    REQUIRE(gpu_put(blocks[0].addr + offset, &byte, 1));
    REQUIRE(gpu_sync());
}

static bool poked(void)
{
    size_t words = blocks[0].size_bytes / 4;
    uint32_t *found = malloc(4 * words), *wanted = malloc(4 * words);
    EXPECT(found && wanted);
    REQUIRE(gpu_get(found, blocks[0].addr, 4 * words));
    for (size_t i = 0; i < words; i++)
        wanted[i] = blocks[0].value;
    for (unsigned i = 0; i < num_pokes; i++)
        ((uint8_t *)wanted)[pokes[i].offset] = pokes[i].byte;
    bool right = !memcmp(found, wanted, 4 * words);
    free(found);
    free(wanted);
    return right;
}

static void drop(void)
{
    for (unsigned i = 0; i < num_blocks; i++)
        REQUIRE(gpu_free(blocks[i].addr));
    num_blocks = 0;
}

static int peek(void)
{
    uint32_t word;
    return gpu_get(&word, blocks[0].addr, 4);
}

static void close_all(void)
{
    for (int fd = 3; fd < 1024; fd++)
        close(fd);
}

/* Mappings of files, and second ones of the same files, which keep them. */
static struct cut {
    char *at, *own;
    size_t size_bytes;
} cuts[CUTS_MAX];
static unsigned num_cuts;

/* The library maps a file at one place, and then moves it to another one: what is there at two
 * looks has come to stay. seen: where they were at the last look. */
static void cut_mapped(const char *folder, int empty, unsigned long seen[CUTS_MAX])
{
    unsigned num_seen = 0;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    EXPECT(maps);
    while (fgets(line, sizeof line, maps) && num_cuts < CUTS_MAX) {
        unsigned long from, to;
        if (!strstr(line, folder) || !strstr(line, " rw-s ") ||
            sscanf(line, "%lx-%lx", &from, &to) != 2)
            continue;
        unsigned long *before = &seen[num_seen++ % CUTS_MAX];
        bool stays = *before == from;
        *before = from;
        if (!stays)
            continue;
        struct cut *c = &cuts[num_cuts];
        *c = (struct cut){.at = (char *)from, .size_bytes = to - from};
        c->own = mremap(c->at, 0, c->size_bytes, MREMAP_MAYMOVE);
        if (c->own == MAP_FAILED)
            continue; /* it has moved all the same */
        num_cuts++;
        EXPECT(mmap(c->at, c->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, empty,
                    0) == c->at);
    }
    fclose(maps);
}

static void cut(const char *folder)
{
    unsigned long seen[CUTS_MAX] = {0};
    int empty = memfd_create("empty", 0);
    EXPECT(empty >= 0);
    while (!num_cuts)
        cut_mapped(folder, empty, seen);
    close(empty);
}

static void mend(bool keeps)
{
    for (; num_cuts; num_cuts--) {
        struct cut *c = &cuts[num_cuts - 1];
        if (keeps)
            EXPECT(mremap(c->own, c->size_bytes, c->size_bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
                          c->at) == c->at);
        else
            munmap(c->own, c->size_bytes);
    }
}

static atomic_bool loses;

/* In place of the C library's. */
int msync(void *at, size_t size_bytes, int flags)
{
    if (!atomic_exchange(&loses, false))
        return (int)syscall(SYS_msync, at, size_bytes, flags);
    errno = EIO;
    return -1;
}

static pthread_t threads[THREADS_MAX];
static unsigned num_threads;
static atomic_bool stops;
static _Atomic uint64_t wrong_words;

static void *work(void *arg)
{
    uint32_t value = (uint32_t)(uintptr_t)arg << 24;
    REQUIRE(gpu_open(0));
    CUstream stream = NEW_STREAM(false);
    uint64_t a = NEW_BLOCK(4 * WORK_WORDS), errors = NEW_BLOCK(4), total = 0;
    uint32_t found;
    while (!atomic_load(&stops)) {
        uint64_t b = NEW_BLOCK(4 * WORK_WORDS);
        REQUIRE(gpu_fill(a, WORK_WORDS, ++value, stream));
        REQUIRE(gpu_copy(b, a, WORK_WORDS, stream));
        REQUIRE(gpu_memset_async(errors, 0, 4, stream));
        REQUIRE(gpu_check(b, WORK_WORDS, value, errors, stream));
        REQUIRE(gpu_get_async(&found, errors, 4, stream));
        REQUIRE(gpu_stream_sync(stream));
        REQUIRE(gpu_free(b));
        total += found;
        while (scene_now_ns() / (100 * MS_NS) % 2 && !atomic_load(&stops))
            scene_sleep_ms(1); /* all threads rest at the same time: then a park succeeds */
    }
    REQUIRE(gpu_free(a));
    REQUIRE(gpu_free(errors));
    atomic_fetch_add(&wrong_words, total);
    return NULL;
}

static void start(unsigned count)
{
    atomic_store(&stops, false);
    for (num_threads = 0; num_threads < count && num_threads < THREADS_MAX; num_threads++)
        REQUIRE(pthread_create(&threads[num_threads], NULL, work,
                               (void *)(uintptr_t)(num_threads + 1)));
}

static uint64_t rest(void)
{
    atomic_store(&stops, true);
    while (num_threads)
        REQUIRE(pthread_join(threads[--num_threads], NULL));
    return atomic_load(&wrong_words);
}

static void say_wrong(uint64_t wrong)
{
    if (wrong)
        printf("%llu words are wrong\n", (unsigned long long)wrong);
    else
        puts("right");
}

static CUevent event;
static CUstream stream;

static void queries(void)
{
    REQUIRE(gpu_event_query(event));
    REQUIRE(gpu_stream_query(stream));
    REQUIRE(gpu_event_sync(event));
    REQUIRE(gpu_stream_sync(stream));
    REQUIRE(gpu_sync());
}

static int step(unsigned which, int pid)
{
    CUcheckpointLockArgs args = {.timeoutMs = 2000};
    switch (which) {
    case 0:
        return cuCheckpointProcessLock(pid, &args);
    case 1:
        return cuCheckpointProcessCheckpoint(pid, NULL);
    case 2:
        return cuCheckpointProcessRestore(pid, NULL);
    default:
        return cuCheckpointProcessUnlock(pid, NULL);
    }
}

static atomic_int told;

static void *call_nvml(void *unused)
{
    (void)unused;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    int (*init)(void) = (int (*)(void))(uintptr_t)dlsym(library, "nvmlInit_v2");
    atomic_store(&told, init());
    return NULL;
}

static void start_nvml(void)
{
    pthread_t thread;
    atomic_store(&told, -1);
    REQUIRE(pthread_create(&thread, NULL, call_nvml, NULL));
    REQUIRE(pthread_detach(thread));
}

static bool obey(const char *line)
{
    unsigned mib, count;
    size_t offset;
    char folder[256], file[LINE_BYTES];
    int pid;
    CUdeviceptr block;
    if (sscanf(line, "make %u %u", &mib, &count) == 2) {
        make(mib, count);
    } else if (sscanf(line, "second %u", &mib) == 1) {
        second(mib);
    } else if (sscanf(line, "work %u", &count) == 1) {
        start(count);
    } else if (!strncmp(line, "check", 5)) {
        say_wrong(check());
        return true;
    } else if (!strncmp(line, "copies", 6)) {
        say_wrong(copies());
        return true;
    } else if (!strncmp(line, "rest", 4)) {
        say_wrong(rest());
        return true;
    } else if (!strncmp(line, "info", 4)) {
        printf("%zu\n", FREE_BYTES() / KIB);
        return true;
    } else if (!strncmp(line, "rss", 3)) {
        printf("%zu\n", scene_resident_bytes() / KIB);
        return true;
    } else if (!strncmp(line, "peek", 4)) {
        printf("%d\n", peek());
        return true;
    } else if (!strncmp(line, "close", 5)) {
        close_all();
    } else if (sscanf(line, "cut %255s", folder) == 1) {
        cut(folder);
    } else if (!strncmp(line, "mend", 4)) {
        mend(true);
    } else if (!strncmp(line, "forget", 6)) {
        mend(false);
    } else if (!strncmp(line, "lose", 4)) {
        atomic_store(&loses, true);
    } else if (!strncmp(line, "swap", 4) || !strncmp(line, "exchange", 8)) {
        swap(*line == 's');
    } else if (!strncmp(line, "queries", 7)) {
        queries();
    } else if (sscanf(line, "take %u", &mib) == 1) {
        blocks[num_blocks++] = (struct block){NEW_BLOCK(mib * MIB), mib * MIB, 0};
    } else if (!strncmp(line, "managed", 7)) {
        REQUIRE(cuMemAllocManaged(&block, MIB, CU_MEM_ATTACH_GLOBAL));
    } else if (!strncmp(line, "import", 6)) {
        CUmemGenericAllocationHandle handle;
        cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)-1,
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    } else if (sscanf(line, "step %u %d", &count, &pid) == 2) {
        printf("%d\n", step(count, pid ? pid : (int)getpid()));
        return true;
    } else if (!strncmp(line, "drop", 4)) {
        drop();
    } else if (sscanf(line, "load %s", file) == 1) {
        EXPECT(dlopen(file, RTLD_NOW));
    } else if (sscanf(line, "hold %s", file) == 1) {
        REQUIRE(SIM(simHold)(file));
    } else if (sscanf(line, "let %s", file) == 1) {
        SIM(simLetGo)(file);
    } else if (sscanf(line, "calls %s", file) == 1) {
        printf("%llu\n", (unsigned long long)SIM(simCallCount)(file));
        return true;
    } else if (!strncmp(line, "nvml", 4)) {
        start_nvml();
    } else if (!strncmp(line, "told", 4)) {
        printf(atomic_load(&told) < 0 ? "waits\n" : "%d\n", atomic_load(&told));
        return true;
    } else if (!strncmp(line, "refill", 6)) {
        refill();
    } else if (sscanf(line, "poke %zu", &offset) == 1) {
        poke(offset);
    } else if (!strncmp(line, "poked", 5)) {
        puts(poked() ? "right" : "wrong");
        return true;
    } else if (!strncmp(line, "reset", 5)) {
        REQUIRE(gpu_reset());
        num_blocks = 0;
        REQUIRE(gpu_open(0));
    } else {
        return false;
    }
    puts("done");
    return true;
}

int main(void)
{
    char line[LINE_BYTES];
    scene_start(1, 600);
    stream = NEW_STREAM(true);
    REQUIRE(gpu_event_create(&event));
    REQUIRE(gpu_event_record(event, stream));
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin) && obey(line))
        ;
    return 0;
}
