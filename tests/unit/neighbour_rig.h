/* SPDX-License-Identifier: BSD-2-Clause */
/* A process (self) that asks the neighbours of fake_neighbour.h. Their names have a pid namespace
 * of their own, so no code looks for their processes. A folder for each case. */
#ifndef TESTS_UNIT_NEIGHBOUR_RIG_H
#define TESTS_UNIT_NEIGHBOUR_RIG_H

#include "shim/process/clock.h"
#include "shim/share/neighbour.h"
#include "tests/unit/cases.h"
#include "tests/unit/fake_neighbour.h"

#define MIB UINT64_C(1048576)
#define WAIT_NS (3000 * MS_NS)

static struct page_id self = {.pid_namespace = 77, .pid = 1, .start_ticks = 1};

#define CASE(name) TEST_WITH(name, setup, teardown)

static int setup(void **state)
{
    snprintf(folder, sizeof folder, "/tmp/neighbour-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    char command[80];
    end_fakes();
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

static struct neighbour_wish wish(uint64_t bytes)
{
    return (struct neighbour_wish){.folder = folder,
                                   .self = &self,
                                   .uuid = uuid,
                                   .uuid_text = "GPU-30313233",
                                   .bytes = bytes,
                                   .until_ns = clock_now_ns() + WAIT_NS,
                                   .waits = true};
}

static _Thread_local uint64_t given, parked_ns; /* of the thread's latest request */

static enum neighbour_answer ask(const struct neighbour_wish *w)
{
    struct neighbour_reply reply;
    enum neighbour_answer answer = neighbour_ask(w, WAIT_NS, &reply);
    given = reply.bytes;
    parked_ns = reply.parked_ns;
    return answer;
}

#endif
