/* SPDX-License-Identifier: BSD-2-Clause */
/* What the kernel says: the state of a thread, and how many entries a folder has, of descriptors
 * too. */
#ifndef TESTS_UNIT_PROC_H
#define TESTS_UNIT_PROC_H

#include <dirent.h>

#include "tests/unit/cases.h"

/* The letter of its state, S for a thread that sleeps; 0: there is no such thread. */
static inline char task_state(int process, int thread)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", process, thread);
    FILE *file = fopen(path, "r");
    const char *end = file && fgets(text, sizeof text, file) ? strrchr(text, ')') : NULL;
    if (file)
        fclose(file);
    return end ? end[2] : '\0';
}

/* False: it has not come there in 20 seconds. */
static inline bool await_task_state(int process, int thread, char state)
{
    for (int ms = 0; ms < 20000 && task_state(process, thread) != state; ms++)
        usleep(1000);
    return task_state(process, thread) == state;
}

/* 0: there is no such folder. */
static inline unsigned entries_of(const char *path)
{
    unsigned count = 0;
    DIR *entries = opendir(path);
    while (entries && readdir(entries))
        count++;
    if (entries)
        closedir(entries);
    return count > 2 ? count - 2 : 0;
}

static inline int count_fds(void)
{
    return (int)entries_of("/proc/self/fd");
}

#endif
