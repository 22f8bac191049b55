/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Which calls of the driver look at the memory that an address names, before any work runs. While
 * a process is parked its addresses stay reserved, but nothing is mapped there.
 *
 * The question: what does each call answer for an arena address
 *   mapped   where memory is mapped;
 *   away     where it was, and is unmapped and released now;
 *   again    where other memory has been mapped since?
 * What it means: a call that answers the same mapped and away may pass while parked. One that
 * differs must wake the process first (submissions do so in any case), or the library answers it
 * from its own records. One that differs again keeps something of the memory itself, which a park
 * then changes for the program.
 *
 *   park_pointers [--seconds S] [--all]
 * prints the calls that differ (--all: every call): the code, what the call gave, the code of the
 * wait behind it, and "sticks" if later calls fail as well. Each case has a time limit; the whole
 * has S seconds (default 60). Exit status 0; 1 if a call makes no difference that must make one.
 */
#include "tests/gpu/park_pointers.h"

#include "tests/gpu/child.h"
#include "tests/preload/kernels.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* No case reads or writes behind the first bytes of the arena. */
enum { CASES_MAX = 128, CASE_S = 15, TOUCHED_BYTES = 128 << 10 };
enum { MAPPED, AWAY, AGAIN, STATES };
static const char *const state_names[] = {"mapped", "away", "again"};

/* What the child has found; the parent reads it when the child has ended. */
struct answer {
    bool is_known;
    int rc, sync, later;
    char out[OUT_BYTES];
    char end[64]; /* the child ended in this case */
};
static struct shared {
    int next; /* the case that runs */
    struct answer answers[STATES][CASES_MAX];
} *shared;

static const struct pointer_case *cases[CASES_MAX];
static int num_cases;

void look_say(struct look *l, const char *format, ...)
{
    size_t used = strlen(l->out);
    va_list args;

    va_start(args, format);
    vsnprintf(l->out + used, sizeof l->out - used, format, args);
    va_end(args);
}

void look_say_address(struct look *l, const char *name, CUdeviceptr at)
{
    if (at >= l->at && at <= l->at + ARENA_BYTES)
        look_say(l, "%s +%zu", name, (size_t)(at - l->at));
    else
        look_say(l, "%s %s", name, at ? "elsewhere" : "0");
}

/* --- one process's cases --------------------------------------------------------------------- */

static CUmemGenericAllocationHandle handle;

static void map(struct look *l)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemAccessDesc access = {.location = prop.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    DRIVER_CHECK(driver.cuMemCreate(&handle, ARENA_BYTES, &prop, 0));
    DRIVER_CHECK(driver.cuMemMap(l->at, ARENA_BYTES, 0, handle, 0));
    DRIVER_CHECK(driver.cuMemSetAccess(l->at, ARENA_BYTES, &access, 1));
}

static void unmap(struct look *l)
{
    DRIVER_CHECK(driver.cuCtxSynchronize());
    DRIVER_CHECK(driver.cuMemUnmap(l->at, ARENA_BYTES));
    DRIVER_CHECK(driver.cuMemRelease(handle));
}

/* Whether a context works: the code of the first call that fails. */
static CUresult later_code(void)
{
    CUdeviceptr block;
    CUresult rc = driver.cuMemAlloc_v2(&block, 4096);

    rc = rc ? rc : driver.cuMemsetD32_v2(block, 1, 64);
    rc = rc ? rc : driver.cuCtxSynchronize();
    return rc ? rc : driver.cuMemFree_v2(block);
}

static void start(struct look *l)
{
    CUmodule module;

    l->context = driver_start(0);
    question_functions();
    graph_functions();
    DRIVER_CHECK(driver.cuModuleLoadData(&module, kernels_ptx));
    DRIVER_CHECK(driver.cuModuleGetFunction(&l->fill, module, "fill"));
    DRIVER_CHECK(driver.cuMemAllocHost_v2(&l->host, 65536));
    DRIVER_CHECK(driver.cuMemAddressReserve(&l->at, 64 << 20, 0, 0, 0));
}

/* Runs the case; false: the context is of no use any more. */
static bool run_case(const struct look *base, const struct pointer_case *c, int state,
                     struct answer *a)
{
    struct look l = *base;

    DRIVER_CHECK(driver.cuStreamCreate(&l.stream, CU_STREAM_NON_BLOCKING));
    map(&l);
    DRIVER_CHECK(driver.cuMemsetD32_v2(l.at, 0, TOUCHED_BYTES / 4));
    DRIVER_CHECK(driver.cuCtxSynchronize());
    if (c->before)
        c->before(&l);
    if (state != MAPPED)
        unmap(&l);
    if (state == AGAIN)
        map(&l);
    alarm(CASE_S);
    a->rc = (int)c->call(&l);
    a->sync = (int)driver.cuCtxSynchronize();
    a->later = (int)later_code();
    alarm(0);
    memcpy(a->out, l.out, sizeof a->out);
    a->is_known = true;
    if (a->sync || a->later)
        return false;
    driver.cuStreamDestroy_v2(l.stream);
    if (state != AWAY)
        unmap(&l);
    return true;
}

static int run_cases(void *arg)
{
    int state = *(int *)arg;
    struct look base = {0};

    start(&base);
    for (; shared->next < num_cases; shared->next++)
        if (!run_case(&base, cases[shared->next], state, &shared->answers[state][shared->next])) {
            shared->next++;
            return 0;
        }
    return 0;
}

/* A new process goes on behind the case that ended the last one. */
static bool run_state(int state, uint64_t end_ns)
{
    shared->next = 0;
    while (shared->next < num_cases) {
        int status;

        if (driver_now_ns() > end_ns)
            return true;
        status = child_run(run_cases, &state, 60);
        if (status == EXIT_SKIP)
            return false;
        if (status) {
            struct answer *a = &shared->answers[state][shared->next++];
            snprintf(a->end, sizeof a->end, "%s", child_words(status));
        }
    }
    return true;
}

/* --- the table ------------------------------------------------------------------------------- */

static void words_of(const struct answer *a, char *words, size_t size)
{
    if (a->end[0])
        snprintf(words, size, "%s", a->end);
    else if (!a->is_known)
        snprintf(words, size, "not asked");
    else if (a->rc == (int)NOT_HERE)
        snprintf(words, size, "no such function");
    else
        snprintf(words, size, "%d%s%s%s", a->rc, a->out[0] ? " (" : "", a->out,
                 a->out[0] ? ")" : "");
    if (a->is_known && a->sync)
        snprintf(words + strlen(words), size - strlen(words), ", sync %d%s", a->sync,
                 a->later ? " sticks" : "");
}

static void print_case(int i, bool is_all, int *differ)
{
    char words[STATES][320];
    bool is_same = true;

    for (int state = 0; state < STATES; state++) {
        words_of(&shared->answers[state][i], words[state], sizeof words[state]);
        is_same &= !strcmp(words[state], words[MAPPED]);
    }
    *differ += !is_same;
    if (!is_same || is_all)
        printf("%-44s  %-30s  %-30s  %s\n", cases[i]->name, words[MAPPED], words[AWAY],
               strcmp(words[AGAIN], words[MAPPED]) ? words[AGAIN] : "as mapped");
}

static void take(const struct pointer_case *list)
{
    for (; list->name && num_cases < CASES_MAX; list++)
        cases[num_cases++] = list;
}

int main(int argc, char **argv)
{
    double seconds = 60;
    bool is_all = false;
    int differ = 0;
    uint64_t end_ns;

    for (int i = 1; i < argc; i++) {
        is_all |= !strcmp(argv[i], "--all");
        if (!strcmp(argv[i], "--seconds") && i + 1 < argc)
            seconds = atof(argv[++i]);
    }
    end_ns = driver_now_ns() + (uint64_t)(seconds * 1e9);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 2;
    take(question_cases);
    take(graph_cases);
    for (int state = 0; state < STATES; state++)
        if (!run_state(state, end_ns))
            return EXIT_SKIP;
    printf("%-44s  %-30s  %-30s  %s\n", "call", state_names[MAPPED], state_names[AWAY],
           state_names[AGAIN]);
    for (int i = 0; i < num_cases; i++)
        print_case(i, is_all, &differ);
    printf("%d of %d calls differ\n", differ, num_cases);
    /* A question about the range must differ, or the arena was not away. */
    return differ > 0 ? 0 : 1;
}
