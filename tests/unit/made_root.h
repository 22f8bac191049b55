/* SPDX-License-Identifier: BSD-2-Clause */
/* A folder that stands for the root of the file system, with files of the kernel's in it. */
#ifndef TESTS_UNIT_MADE_ROOT_H
#define TESTS_UNIT_MADE_ROOT_H

#include <sys/stat.h>

#include "tests/unit/cases.h"

static char root[64];

/* A file below the root, with its folders. */
static void put(const char *name, const char *text)
{
    char path[512];
    int at = snprintf(path, sizeof path, "%s", root);
    for (const char *p = name; *p; p++) {
        path[at] = '\0';
        if (*p == '/')
            mkdir(path, 0700);
        path[at++] = *p;
    }
    path[at] = '\0';
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int root_begin(void)
{
    snprintf(root, sizeof root, "/tmp/root-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int root_end(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

#endif
