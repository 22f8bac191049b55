/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The driver's checkpoint of the own process, with an arena that is away.
 *
 * The questions:
 *   self    can a process lock, checkpoint, restore and unlock itself? Are its bytes right
 *           afterwards, do its graphs run, can a reserved range without memory be mapped?
 *   calls   which calls block while the process is locked, or checkpointed, and which answer?
 *   full    what does a restore do on a device that has no room? Does a later one succeed?
 * What it means:
 *   self fails: the context of a parked process can leave the GPU only with the help of another
 *           process, which needs the right to do so.
 *   calls   a call that answers is safe while checkpointed. A call that blocks must not be made by
 *           the library's own threads; if the library wraps it, the wrapper wakes the process first
 *           or answers from its records; if not, the process sleeps there until somebody else wakes
 *           it. cuCtxGetCurrent blocks: allocations must stay off it.
 *   full    an error, and success later: a wake may try again. No success later, no end: a wake
 *           must never try without room.
 *
 *   park_checkpoint [--limit MS] [--each] [--other] [--bytes N] self|calls|full ..
 * --limit: a call that takes longer blocks (default 150). --each: a checkpoint for each call, so
 * that no call waits for another one's lock (a second for each). --bytes: what `full` saves
 * (default 2 GiB). Each part is a process of its own with a time limit. Exit status: 0, 1 if what
 * was saved is wrong or lost, 77 without checkpoints.
 */
#include "tests/gpu/park_checkpoint.h"

#include "tests/gpu/child.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PART_S = 80 };

struct options options = {.limit_ms = 150, .bytes = 2048 * MIB};
struct shared *shared;

/* --- self ------------------------------------------------------------------------------------ */

static int play_self(void *unused)
{
    bool is_good = true;

    (void)unused;
    prepare(64 * MIB);
    for (int cycle = 0; cycle < 2; cycle++) {
        unsigned wrong;
        CUresult mapped, launched;

        printf("self, cycle %d:", cycle + 1);
        for (int which = LOCK; which <= UNLOCK; which++) {
            int rc = take_step(which);

            if (rc < 0) {
                printf(" %s does not return\n", step_names[which]);
                return 1;
            }
            printf(" %s %d in %.1f ms,", step_names[which], rc, step_ms());
        }
        wrong = wrong_words(64 * MIB);
        launched = driver.cuGraphLaunch(prepared.exec, prepared.stream);
        launched = launched ? launched : driver.cuCtxSynchronize();
        mapped = map_at(prepared.away, 64 * MIB);
        mapped = mapped ? mapped : driver.cuMemsetD32_v2(prepared.away, 2, 64 * MIB / 4);
        mapped = mapped ? mapped : driver.cuCtxSynchronize();
        printf(" wrong words %u, graph %d, the range mapped again %d\n", wrong, launched, mapped);
        is_good &= !wrong && !launched && !mapped;
        if (mapped)
            break;
        DRIVER_CHECK(driver.cuMemUnmap(prepared.away, 64 * MIB));
    }
    return is_good ? 0 : 1;
}

/* --- full ------------------------------------------------------------------------------------ */

/* Takes what is free, down to pieces of 2 MiB, and holds it. Another process than the one that
 * restores. */
static void fill_device(void)
{
    size_t sizes[] = {1024 * MIB, 64 * MIB, 2 * MIB}, sum = 0;
    CUdeviceptr block;

    while (!shared->may_fill)
        usleep(1000);
    driver_start(0);
    for (int i = 0; i < 3; i++)
        while (!driver.cuMemAlloc_v2(&block, sizes[i]))
            sum += sizes[i];
    shared->filled_bytes = sum;
    shared->is_full = true;
    while (!shared->may_end)
        usleep(1000);
}

/* The code; -1: no return. */
static int print_step(const char *when, int which)
{
    int rc = take_step(which);

    if (rc < 0)
        printf("  %s: %s does not return in %d s\n", when, step_names[which], STEP_S);
    else
        printf("  %s: %s %d in %.1f ms\n", when, step_names[which], rc, step_ms());
    fflush(stdout);
    return rc;
}

static int play_full(void *unused)
{
    int state = STATE_FAILED;
    int tight, roomy;
    unsigned wrong;
    pid_t filler;

    (void)unused;
    filler = fork();
    if (filler == 0) {
        fill_device();
        _exit(0);
    }
    prepare(options.bytes);
    printf("full: a process with %zu MiB\n", options.bytes / MIB);
    if (!take_steps(LOCK, CHECKPOINT))
        return 1;
    shared->may_fill = true;
    while (!shared->is_full && waitpid(filler, NULL, WNOHANG) == 0)
        usleep(1000);
    printf("  another one has taken %zu MiB\n", shared->filled_bytes / MIB);
    tight = print_step("no room", RESTORE);
    shared->may_end = true;
    waitpid(filler, NULL, 0);
    /* One that has not returned goes on by itself, or never. */
    roomy = tight < 0 ? await_step() : tight == 0 ? 0 : print_step("with room", RESTORE);
    if (roomy >= 0)
        print_step("with room", UNLOCK);
    call.cuCheckpointProcessGetState((int)getpid(), &state);
    wrong = state == STATE_RUNNING ? wrong_words(options.bytes) : 0;
    printf("restore without room %d, with room %d, then state %d, wrong words %u\n", tight, roomy,
           state, wrong);
    return state != STATE_RUNNING || wrong;
}

/* --------------------------------------------------------------------------------------------- */

static int part(const char *name, int (*play)(void *unused))
{
    int status = child_run(play, NULL, PART_S);

    if (status > 1 && status != EXIT_SKIP)
        printf("%s: %s\n", name, child_words(status));
    return status;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*play)(void *unused);
    } parts[] = {{"self", play_self}, {"calls", play_calls}, {"full", play_full}};
    int worst = 0;

    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 1; i < argc; i++) {
        bool has_value = i + 1 < argc;

        if (!strcmp(argv[i], "--each"))
            options.is_each = true;
        else if (!strcmp(argv[i], "--other"))
            options.is_other = true;
        else if (!strcmp(argv[i], "--limit") && has_value)
            options.limit_ms = (unsigned)atoi(argv[++i]);
        else if (!strcmp(argv[i], "--bytes") && has_value)
            options.bytes = strtoull(argv[++i], NULL, 0);
        else
            for (size_t j = 0; j < sizeof parts / sizeof *parts; j++)
                if (!strcmp(argv[i], parts[j].name)) {
                    int status = part(parts[j].name, parts[j].play);
                    worst = status > worst ? status : worst;
                }
    }
    return worst > EXIT_SKIP ? 1 : worst;
}
