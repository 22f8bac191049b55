/* SPDX-License-Identifier: BSD-2-Clause */
/* A libcuda.so.1 that writes down what a runtime asks cuGetProcAddress for, for record.py, and
 * answers as a driver would that has everything and no device. One line for each question in the
 * file that RECORD_FILE names: the way, the generation of the look-up function, the name, its
 * version and the flags. The way is dlsym (by the function that dlsym gave) or self (by the
 * function that cuGetProcAddress gave for itself). A driver function that dlsym gave and that was
 * called has a line of generation 0. State: the file. Runtimes ask from one thread. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NO_DEVICE = 100, NOT_FOUND = 500 };

typedef int lookup_v1(const char *name, void **out, int version, unsigned long long flags);
typedef int lookup_v2(const char *name, void **out, int version, unsigned long long flags,
                      int *status);

__attribute__((visibility("default"))) lookup_v1 cuGetProcAddress;
__attribute__((visibility("default"))) lookup_v2 cuGetProcAddress_v2;
__attribute__((visibility("default"))) int cuDriverGetVersion(int *version);

static FILE *file;

static int no_device(void)
{
    return NO_DEVICE;
}

static int init(unsigned flags)
{
    return SUCCESS;
}

/* No runtime finds this driver too old. */
static int driver_version(int *version)
{
    *version = 99000;
    return SUCCESS;
}

/* The private tables are not imitated, so recording ends here. */
static int export_table(const void **table, const void *id)
{
    return NOT_FOUND;
}

static lookup_v1 self_v1;
static lookup_v2 self_v2;

static void (*answer(const char *name, int version))(void)
{
    if (name[0] == '\0')
        return NULL;
    if (strcmp(name, "cuGetProcAddress") == 0)
        return version >= 12000 ? (void (*)(void))self_v2 : (void (*)(void))self_v1;
    if (strcmp(name, "cuInit") == 0)
        return (void (*)(void))init;
    if (strcmp(name, "cuDriverGetVersion") == 0)
        return (void (*)(void))driver_version;
    if (strcmp(name, "cuGetExportTable") == 0)
        return (void (*)(void))export_table;
    return (void (*)(void))no_device;
}

static void note(const char *way, int generation, const char *name, int version,
                 unsigned long long flags)
{
    if (file == NULL && (file = fopen(getenv("RECORD_FILE"), "w")) == NULL)
        abort();
    fprintf(file, "%s %d \"%s\" %d %llu\n", way, generation, name, version, flags);
    fflush(file);
}

static int ask(const char *way, int generation, const char *name, void **out, int version,
               unsigned long long flags)
{
    note(way, generation, name, version, flags);
    void (*function)(void) = answer(name, version);
    memcpy(out, &function, sizeof function);
    return function != NULL || generation == 2 ? SUCCESS : NOT_FOUND;
}

int cuDriverGetVersion(int *version)
{
    note("dlsym", 0, "cuDriverGetVersion", 0, 0);
    return driver_version(version);
}

static int self_v1(const char *name, void **out, int version, unsigned long long flags)
{
    return ask("self", 1, name, out, version, flags);
}

static int self_v2(const char *name, void **out, int version, unsigned long long flags, int *status)
{
    if (status != NULL)
        *status = name[0] == '\0';
    return ask("self", 2, name, out, version, flags);
}

int cuGetProcAddress(const char *name, void **out, int version, unsigned long long flags)
{
    return ask("dlsym", 1, name, out, version, flags);
}

int cuGetProcAddress_v2(const char *name, void **out, int version, unsigned long long flags,
                        int *status)
{
    if (status != NULL)
        *status = name[0] == '\0';
    return ask("dlsym", 2, name, out, version, flags);
}
