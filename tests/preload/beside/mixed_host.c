/* SPDX-License-Identifier: BSD-2-Clause */
/* Plugins that go past the cache, beside one that does not: bound to their own libraries first
 * (RTLD_DEEPBIND), or in a namespace of their own (dlmopen). Each plays; then the one frees what
 * the other allocated. What goes past the cache may be refused there, with an error and no harm:
 * then the owner frees. Arguments: a plugin's path, "deepbind" or "namespace". */
#include "tests/preload/plugin_host.h"

int main(int argc, char **argv)
{
    struct plugin plain, past;
    int wrong = 0;
    if (argc != 4)
        return 2;
    void *handle = strcmp(argv[3], "deepbind") == 0
                       ? dlopen(argv[2], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND)
                       : dlmopen(LM_ID_NEWLM, argv[2], RTLD_NOW | RTLD_LOCAL);
    if (plugin_opened(&plain, dlopen(argv[1], RTLD_NOW | RTLD_LOCAL)) != 0 ||
        plugin_opened(&past, handle) != 0)
        return 1;
    int rc = plain.play();
    if (rc == 0)
        rc = past.play();
    if (rc != 0)
        return rc;
    for (uint32_t round = 0; round < 10; round++) {
        uint64_t one = 0, other = 0;
        wrong += plain.give(&one, round) != 0;
        wrong += past.give(&other, round + 100) != 0;
        /* Contents are the same for both: one device, one context. */
        if (strcmp(argv[3], "deepbind") == 0) {
            wrong += plain.take(other, round + 100) != 0;
            int refused = past.take(one, round);
            wrong += refused < 0;
            if (refused > 0)
                wrong += plain.take(one, round) != 0;
        } else {
            wrong += plain.take(one, round) != 0;
            wrong += past.take(other, round + 100) != 0;
        }
    }
    printf("%d wrong\n", wrong);
    return wrong != 0;
}
