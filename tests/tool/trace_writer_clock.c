/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A scene of trace_writer.c on a machine whose kernel does not trust the processor's own clock, as
 * on one with kvm-clock. There x86-64 has the times of CLOCK_MONOTONIC.
 */
#include "tests/tool/trace_writer.h"

#include "shim/process/proc_text.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TURNS = 400, TURN_NS = 2000, PAUSE_MS = 100 };

static bool has_other_clock;
static atomic_int turn;

bool __real_proc_text_read(const char *path, char text[PROC_TEXT_BYTES]);
bool __wrap_proc_text_read(const char *path, char text[PROC_TEXT_BYTES]);
bool __wrap_proc_text_read(const char *path, char text[PROC_TEXT_BYTES])
{
    if (!has_other_clock || !strstr(path, "/current_clocksource"))
        return __real_proc_text_read(path, text);
    snprintf(text, PROC_TEXT_BYTES, "kvm-clock\n");
    return true;
}

/* Each turn takes more than a step of any clock. */
static void *take_turns(void *first)
{
    for (int i = (int)(uintptr_t)first; i < TURNS; i += 2) {
        while (atomic_load(&turn) != i)
            sched_yield();
        alloc(FIRST + (uint64_t)i * 512, 512, AT(take_turns));
        for (uint64_t since = clock_now_ns(); clock_now_ns() < since + TURN_NS;)
            continue;
        atomic_store(&turn, i + 1);
    }
    return NULL;
}

/* Two threads by turns, then two frees with a pause between them. Says on stderr how many ns there
 * are between these at least, and at most. */
void other_clock(const char *path)
{
    char other[4096];
    pthread_t threads[2];
    uint64_t before[2], after[2];
    struct timespec pause = {.tv_nsec = PAUSE_MS * 1000000L};
    snprintf(other, sizeof other, "%s.2", path);
    has_other_clock = true;
    if (!trace_begin(other))
        abort();
    for (uintptr_t i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, take_turns, (void *)i);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) {
        before[i] = clock_now_ns();
        give(FIRST + (uint64_t)i * 512, AT(other_clock));
        after[i] = clock_now_ns();
        if (i == 0)
            nanosleep(&pause, NULL);
    }
    fprintf(stderr, "%llu %llu\n", (unsigned long long)(before[1] - after[0]),
            (unsigned long long)(after[1] - before[0]));
}
