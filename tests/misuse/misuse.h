/* SPDX-License-Identifier: BSD-2-Clause */
/* Sins: acts, each with the code that the driver really gives for it. An act fails if its call
 * gives another; the runner also holds bare and preloaded output against each other. */
#pragma once

#include "tests/preload/scene.h"

/* Opens device 0, and allocates and frees once, so that the sin meets a program in its stride. */
void misuse_start(void);

/* Prints the call's code and the runtime's last error, twice asked; counts a code that is not the
 * native one. */
void misuse_expect(const char *what, int rc, int native);

/* The same where no native code is known for both ways of calling: prints only. */
void misuse_report(const char *what, int rc);

/* Plays a round of ordinary work, prints its outcome; the act's result. */
int misuse_end(void);

/* An act of that name: its sin between misuse_start and misuse_end. */
#define SIN(name)                                                                                  \
    static void sin_##name(void);                                                                  \
    ACT(name)                                                                                      \
    {                                                                                              \
        misuse_start();                                                                            \
        sin_##name();                                                                              \
        return misuse_end();                                                                       \
    }                                                                                              \
    static void sin_##name(void)
