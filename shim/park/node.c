/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See node.h.
 */
#include "shim/park/node.h"

#include "shim/process/decimal.h"
#include "shim/process/proc_text.h"

#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PATH_BYTES = 256, WORD_BITS = 64 };

void node_allowed(struct node_processors *out)
{
    *out = (struct node_processors){0};
    syscall(SYS_sched_getaffinity, 0, sizeof out->words, out->words);
}

unsigned node_count(const struct node_processors *p)
{
    unsigned count = 0;

    for (unsigned i = 0; i < NODE_WORDS; i++)
        count += (unsigned)__builtin_popcountll(p->words[i]);
    return count;
}

void node_bind(const struct node_processors *p)
{
    syscall(SYS_sched_setaffinity, 0, sizeof p->words, p->words);
}

/* A list as the kernel writes it: 0-3,8,10-11. */
static void read_list(const char *text, struct node_processors *out)
{
    uint64_t first, last;

    while (decimal_read(&text, &first)) {
        last = first;
        if (*text == '-' && (text++, !decimal_read(&text, &last)))
            return;
        for (uint64_t i = first; i <= last && i < NODE_WORDS * WORD_BITS; i++)
            out->words[i / WORD_BITS] |= UINT64_C(1) << i % WORD_BITS;
        text += *text == ',';
    }
}

bool node_near(const char *root, const struct node_place *place,
               const struct node_processors *allowed, struct node_processors *out)
{
    struct node_processors near = {0};
    char path[PATH_BYTES], text[PROC_TEXT_BYTES];
    const char *number = text;
    uint64_t node;

    snprintf(path, sizeof path, "%s/sys/bus/pci/devices/%04x:%02x:%02x.0/numa_node", root,
             place->domain, place->bus, place->device);
    if (!proc_text_read(path, text) || !decimal_read(&number, &node)) /* none is -1 */
        return false;
    snprintf(path, sizeof path, "%s/sys/devices/system/node/node%u/cpulist", root, (unsigned)node);
    if (!proc_text_read(path, text))
        return false;
    read_list(text, &near);
    for (unsigned i = 0; i < NODE_WORDS; i++)
        near.words[i] &= allowed->words[i];
    if (!node_count(&near))
        return false;
    *out = near;
    return true;
}
