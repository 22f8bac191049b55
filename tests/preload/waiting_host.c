/* SPDX-License-Identifier: BSD-2-Clause */
/* Loads a plugin whose constructor waits for a thread (waiting_plugin.c), which waits for nothing
 * that the loading thread holds. Bare and preloaded the plugin is there before the watchdog
 * strikes. Arguments: the plugin; "cuda" if this program is to open CUDA before. */
#include "tests/preload/scene.h"

int main(int argc, char **argv)
{
    int (*result)(void) = NULL;
    EXPECT(argc >= 2);
    if (argc > 2) {
        scene_start(1, 60);
        TAKE_AND_GIVE(MIB);
    } else {
        scene_watchdog(60);
    }
    void *handle = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        printf("%s\n", dlerror());
    EXPECT(handle != NULL);
    void *symbol = dlsym(handle, "waiting_plugin_result");
    EXPECT(symbol != NULL);
    memcpy(&result, &symbol, sizeof result);
    const char *value = getenv("WAITING_PLUGIN");
    printf("result %d, variable %s\n", result(), value != NULL ? value : "not set");
    return 0;
}
