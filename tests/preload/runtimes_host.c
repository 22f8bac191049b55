/* SPDX-License-Identifier: BSD-2-Clause */
/* A program with many runtimes, and with plugins that come and go at one address, each with a
 * runtime of its own. Every call goes to the caller's runtime. Where the caller cannot be known it
 * goes to any. While a plugin is unloaded it waits for a thread of its own that frees its memory:
 * no call may wait for the loader there. Arguments: a plugin with a runtime in it, of which copies
 * are made; two runtimes; two plugins, one for each. */
#include "tests/preload/scene.h"
#include "tests/preload/small_runtime.h"

#include <limits.h>
#include <link.h>
#include <semaphore.h>

enum { COPIES = 24, ROUNDS = 100 };

static atomic_bool done;

struct code {
    void *handle;
    int (*play)(int n);
    int (*hold)(void);
    int (*hold_apart)(int (*enter)(void));
    int (*jump)(void **p);
    int (*calls)(void);
};

static void *find(void *handle, const char *name)
{
    void *found = dlsym(handle, name);
    EXPECT(found != NULL);
    return found;
}

static struct code open_code(const char *path)
{
    struct code code = {.handle = dlopen(path, RTLD_NOW | RTLD_LOCAL)};
    void *symbol;
    if (code.handle == NULL)
        printf("%s\n", dlerror());
    EXPECT(code.handle != NULL);
    symbol = dlsym(code.handle, "small_plugin_play");
    memcpy(&code.play, &symbol, sizeof symbol);
    symbol = dlsym(code.handle, "small_plugin_hold");
    memcpy(&code.hold, &symbol, sizeof symbol);
    symbol = dlsym(code.handle, "small_plugin_hold_apart");
    memcpy(&code.hold_apart, &symbol, sizeof symbol);
    symbol = dlsym(code.handle, "small_plugin_jump");
    memcpy(&code.jump, &symbol, sizeof symbol);
    symbol = find(code.handle, "small_runtime_calls");
    memcpy(&code.calls, &symbol, sizeof symbol);
    return code;
}

static void copy_file(const char *from, const char *to)
{
    static char bytes[1 << 16];
    int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT, 0700);
    EXPECT(in >= 0 && out >= 0);
    for (ssize_t n; (n = read(in, bytes, sizeof bytes)) > 0;)
        EXPECT(write(out, bytes, (size_t)n) == n);
    close(in);
    close(out);
}

static void *churn(void *code)
{
    REQUIRE(gpu_open(0));
    while (!atomic_load(&done))
        REQUIRE(((struct code *)code)->play(10));
    return NULL;
}

static sem_t held, forked;

static int hold_list(struct dl_phdr_info *info, size_t size, void *unused)
{
    sem_post(&held);
    while (sem_wait(&forked) != 0)
        ;
    return 1;
}

static void *hold_objects(void *unused)
{
    dl_iterate_phdr(hold_list, NULL);
    return NULL;
}

/* While another thread has the loader's list of objects: in the child no thread lets go of it. */
static void call_in_child(const struct code *plugin)
{
    int status = 0;
#ifdef __SANITIZE_THREAD__
    return; /* its own lock around the list would be held in the child for ever, bare too */
#endif
    REQUIRE(sem_init(&held, 0, 0));
    REQUIRE(sem_init(&forked, 0, 0));
    pthread_t thread = NEW_THREAD(hold_objects, NULL);
    while (sem_wait(&held) != 0)
        ;
    pid_t child = scene_fork();
    if (child == 0) {
        alarm(60);
        _exit(plugin->play(1));
    }
    sem_post(&forked);
    EXPECT(child > 0 && waitpid(child, &status, 0) == child);
    REQUIRE(pthread_join(thread, NULL));
    printf("child: status %d, error %d\n", WIFEXITED(status), WEXITSTATUS(status));
}

static int open_gpu(void)
{
    return gpu_open(0);
}

int main(int argc, char **argv)
{
    static struct code copies[COPIES];
    char folder[] = "/tmp/runtimes-XXXXXX", path[PATH_MAX];
    pthread_t threads[2];
    int same_place = 0, wrong = 0;
    void *place = NULL;
    EXPECT(argc == 6 && mkdtemp(folder) != NULL);
    scene_start(1, 60);
    for (int i = 0; i < COPIES; i++) {
        snprintf(path, sizeof path, "%s/copy%d.so", folder, i);
        copy_file(argv[1], path);
        copies[i] = open_code(path);
        unlink(path);
    }
    rmdir(folder);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < COPIES; i++) {
            int rc = copies[i].play(3);
            printf("runtime %d: error %d, calls %d\n", i, rc, copies[i].calls());
        }

    struct code runtimes[] = {open_code(argv[2]), open_code(argv[3])};
    for (int i = 0; i < 2; i++)
        REQUIRE(pthread_create(&threads[i], NULL, churn, &copies[i]));
    for (int round = 0; round < ROUNDS; round++) {
        struct code plugin = open_code(argv[4 + round % 2]);
        void *now = find(plugin.handle, "small_plugin_play");
        same_place += now == place;
        place = now;
        REQUIRE(plugin.play(2));
        wrong += runtimes[round % 2].calls() != 202;
        wrong += runtimes[(round + 1) % 2].calls() != 0;
        if (round == 0) {
            void *block = NULL;
            REQUIRE(plugin.jump(&block));
            REQUIRE(gpu_free((uint64_t)(uintptr_t)block));
            runtimes[0].calls();
            runtimes[1].calls();
        }
        REQUIRE(plugin.hold());
        REQUIRE(plugin.hold_apart(open_gpu));
        REQUIRE(dlclose(plugin.handle));
        wrong += runtimes[round % 2].calls() != 202;
    }
    struct code plugin = open_code(argv[4]);
    call_in_child(&plugin);
    REQUIRE(dlclose(plugin.handle));
    atomic_store(&done, true);
    for (int i = 0; i < 2; i++)
        REQUIRE(pthread_join(threads[i], NULL));
    printf("plugins: %d calls went to another runtime; %s place\n", wrong,
           same_place > 0 ? "one" : "more than one");
    return 0;
}
