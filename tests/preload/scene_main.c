/* SPDX-License-Identifier: BSD-2-Clause */
/* main of a program that is nothing but acts. */
#include "tests/preload/scene.h"

int main(int argc, char **argv)
{
    return scene_play(argc, argv);
}
