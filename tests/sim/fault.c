/* SPDX-License-Identifier: BSD-2-Clause */
/* The fault plan is a short list. Calls look at it only if it is not empty. */
#include "tests/sim/fault.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/alloc.h"
#include "tests/sim/config.h"
#include "tests/sim/context.h"
#include "tests/sim/thread.h"

struct fault {
    enum function function;
    uint64_t nth; /* calls still to come until it strikes, 1 = the next */
    bool onward;  /* strikes at every call after the first */
    bool sticky;
    double probability; /* used when nth is 0 */
    CUresult code;
    struct fault *next;
};

static struct fault *faults;
static _Atomic bool armed;
static uint64_t random_state = 2654435770u;

void fault_read(void)
{
    if (config.fail == NULL)
        return;
    char *copy = strdup(config.fail), *rest = copy;
    for (char *spec; (spec = strsep(&rest, ",")) != NULL;)
        if (*spec != '\0' && !fault_add(spec))
            fprintf(stderr, "sim: SIM_FAIL: cannot understand \"%s\"\n", spec);
    free(copy);
}

bool fault_add(const char *spec)
{
    char name[96], when[32], mark = '\0';
    int code, fields = sscanf(spec, "%95[^:]:%31[^:]:%d%c", name, when, &code, &mark);
    struct fault fault = {.function = fields >= 3 ? api_by_name(name) : FUNCTION_COUNT};
    if (fault.function == FUNCTION_COUNT || code <= 0)
        return false;
    char *end = when;
    if (*when == 'p')
        fault.probability = strtod(when + 1, &end);
    else
        fault.nth = strtoull(when, &end, 10);
    fault.onward = *end == '+';
    if (end[fault.onward] != '\0' || (fault.nth == 0 && fault.probability <= 0))
        return false;
    fault.code = (CUresult)code;
    fault.sticky = mark == '!';
    fault.next = faults;
    faults = never_null(malloc(sizeof *faults));
    *faults = fault;
    atomic_store(&armed, true);
    return true;
}

void fault_clear(enum function function)
{
    for (struct fault **link = &faults; *link != NULL;) {
        struct fault *fault = *link;
        if (function == FUNCTION_COUNT || fault->function == function) {
            *link = fault->next;
            free(fault);
        } else {
            link = &fault->next;
        }
    }
    atomic_store(&armed, faults != NULL);
}

bool fault_armed(void)
{
    return atomic_load_explicit(&armed, memory_order_relaxed);
}

static double random_unit(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (double)(random_state >> 11) / (double)(1ull << 53);
}

static bool strikes(struct fault *fault)
{
    if (fault->probability > 0)
        return random_unit() < fault->probability;
    if (fault->nth > 1) {
        fault->nth--;
        return false;
    }
    bool now = fault->nth == 1;
    if (!fault->onward)
        fault->nth = 0;
    return now;
}

CUresult fault_check(enum function function)
{
    CUresult code = CUDA_SUCCESS;
    if (!fault_armed())
        return code;
    for (struct fault *fault = faults; fault != NULL; fault = fault->next) {
        if (fault->function != function || !strikes(fault))
            continue;
        code = fault->code;
        if (fault->sticky && thread_current() != NULL)
            context_fail(thread_current(), code);
    }
    return code;
}
