/* SPDX-License-Identifier: BSD-2-Clause */
/* A program without CUDA that opens plugins with it: each argument pair is a plugin's path and
 * "local", "global" or "deepbind". Each plays the basic scene; then each one's block is freed by
 * the next. */
#include "tests/preload/plugin_host.h"

enum { MOST = 4 };

static int open_plugin(struct plugin *plugin, const char *path, const char *scope)
{
    int flags = RTLD_NOW;
    if (strcmp(scope, "global") == 0)
        flags |= RTLD_GLOBAL;
    else if (strcmp(scope, "deepbind") == 0)
        flags |= RTLD_DEEPBIND;
    return plugin_opened(plugin, dlopen(path, flags));
}

int main(int argc, char **argv)
{
    struct plugin plugins[MOST];
    int n = 0, failed = 0;
    for (int i = 1; i + 1 < argc && n < MOST; i += 2)
        if (open_plugin(&plugins[n++], argv[i], argv[i + 1]) != 0)
            return 1;
    for (int i = 0; i < n; i++) {
        int rc = plugins[i].play();
        if (rc != 0)
            return rc;
    }
    for (uint32_t round = 0; round < 10; round++) {
        for (int i = 0; i < n; i++) {
            uint64_t block = 0;
            failed += plugins[i].give(&block, round) != 0;
            failed += plugins[(i + 1) % n].take(block, round) != 0;
        }
    }
    printf("%d plugins, %d failures\n", n, failed);
    return failed != 0;
}
