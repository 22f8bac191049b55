/* SPDX-License-Identifier: BSD-2-Clause */
/* The basic scene played before main, by a constructor. Its result is main's. */
#include "tests/preload/plugin.h"

static int result = -1;

__attribute__((constructor)) static void play(void)
{
    result = plugin_main();
}

int main(void)
{
    return result;
}
