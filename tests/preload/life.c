/* SPDX-License-Identifier: BSD-2-Clause */
/* Lives made up at random. Memory comes and goes on several streams, threads work meanwhile, and
 * processes are forked and started. Signals arrive. Captures, contexts, peers and resets come in
 * between. In the end the process leaves in one of seven ways, busy or not. `life FIRST-LAST` plays
 * these seeds, each in a process of its own; `life SEED` one of them. */
#include "tests/preload/life.h"

struct life life;

uint32_t life_draw(uint32_t below)
{
    life.random_state = life.random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(life.random_state >> 33) % below;
}

uint64_t life_draw_words(void)
{
    static const uint32_t most[] = {64, 4000, 100000, 600000};
    return life_draw(most[life_draw(4)]) + 1;
}

static void step(char *self)
{
    uint32_t rounds = 4 + life_draw(40);
    struct birth birth = {0, self};
    uint32_t what = life_draw(60);
    if (what > 16) {
        for (uint32_t i = 0; i < rounds; i++)
            life_give_or_take();
        return;
    }
    printf("%u\n", what);
    switch (what) {
    case 0:
    case 1:
        life_check_all();
        break;
    case 2:
    case 3:
    case 4:
        life_change_streams();
        break;
    case 5:
        printf("  threads, wrong words: %d\n", scene_threads(3, life_work_a_while, &rounds));
        break;
    case 6:
        life_add_busy();
        break;
    case 7:
        life_end_busy();
        break;
    case 8:
        life_be_signalled();
        break;
    case 9:
        life_ask_by_environment();
        break;
    case 10:
        birth.how = life_draw(32);
        printf("  child %u: %d\n", birth.how, life_give_birth(0, &birth));
        break;
    case 11:
        birth.how = life_draw(32);
        printf("  child %u of a thread: %d\n", birth.how, scene_elsewhere(life_give_birth, &birth));
        break;
    case 12:
        printf("  another program: %d\n", life_start(self, "tiny"));
        break;
    case 13:
        life_capture();
        break;
    case 14:
        life_live_in_a_context();
        break;
    case 15:
        life_draw(2) != 0 ? life_reset() : life_commit_sins();
        break;
    case 16:
        life_visit_a_peer();
        break;
    }
}

static void *leave_later(void *context)
{
    scene_sleep_ms(2);
    exit(LEFT_CODE);
}

static int leave(char *self)
{
    printf("leaves");
    if (life_draw(2) != 0)
        life_end_busy();
    fflush(stdout);
    scene_leave();
    switch (life_draw(7)) {
    case 0:
        exit(LEFT_CODE);
    case 1:
        quick_exit(LEFT_CODE);
    case 2:
        _exit(LEFT_CODE);
    case 3:
        NEW_THREAD(leave_later, NULL);
        pthread_exit(NULL);
    case 4:
        scene_leave_sanitizer();
        execl("/proc/self/exe", self, "tiny", (char *)NULL);
        return 127;
    case 5:
        if (life.num_busy == 0)
            gpu_reset();
        return LEFT_CODE;
    default:
        return LEFT_CODE;
    }
}

static int live(char *self, uint64_t seed)
{
    life.random_state = seed * 0x9e3779b97f4a7c15u + 1;
    if (life_draw(2) != 0)
        life_listen_to_signals();
    scene_start(1, 100);
    REQUIRE(gpu_device_count(&life.num_devices));
    for (int i = 0; i < STEPS; i++)
        step(self);
    life_check_all();
    return leave(self);
}

static int be_tiny(void)
{
    struct block b = {.words = 5000, .value = 12};
    scene_start(1, CHILD_S);
    REQUIRE(gpu_malloc(&b.at, b.words * 4));
    REQUIRE(gpu_fill(b.at, b.words, b.value, NULL));
    return life_wrong_in(&b) == 0 && gpu_free(b.at) == 0 ? TINY_CODE : 1;
}

int main(int argc, char **argv)
{
    unsigned long seed = 0, last = 0;
    int failed = 0;
    EXPECT(argc == 2);
    if (strcmp(argv[1], "tiny") == 0)
        return be_tiny();
    if (sscanf(argv[1], "%lu-%lu", &seed, &last) < 2)
        return live(argv[0], seed);
    for (; seed <= last; seed++) {
        char text[32];
        snprintf(text, sizeof text, "%lu", seed);
        int code = life_start(argv[0], text);
        if (code == SCENE_SKIP)
            scene_skip("not enough devices");
        printf("seed %lu: left with %d\n", seed, code);
        failed += code != LEFT_CODE && code != TINY_CODE;
    }
    return failed != 0;
}
