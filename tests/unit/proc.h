/* SPDX-License-Identifier: BSD-2-Clause */
/* What the kernel says: the state of a thread, how many entries a folder has, of descriptors too,
 * and how much memory the process has. */
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

/* Memory of the host that the process has. */
static inline uint64_t resident_bytes(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_true(file && fscanf(file, "%*u %llu", &pages) == 1);
    fclose(file);
    return pages * 4096;
}

static inline int count_fds(void)
{
    return (int)entries_of("/proc/self/fd");
}

#endif
