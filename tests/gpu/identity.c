/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Prints which function each way of looking up a driver function gives, a line for each question:
 *   proc NAME VERSION FLAG RESULT STATUS PLACE   cuGetProcAddress_v2, the questions of all runtimes
 *   proc1 NAME VERSION FLAG RESULT PLACE         cuGetProcAddress, the same
 *   sym NAME PLACE                               dlsym, for the names on stdin
 * PLACE is an offset in the driver, a symbol of another library, or null. It is equal in every run,
 * so that two runs can be compared.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef CUresult resolve_v1(const char *, void **, int, cuuint64_t);
typedef CUresult resolve_v2(const char *, void **, int, cuuint64_t,
                            CUdriverProcAddressQueryResult *);

static const struct entry {
    const char *name;
    int version;
    cuuint64_t flags;
} entries[] = {
    {"", 0, 0},
#define ENTRY(name, version, flags, first, last) {#name, version, flags},
#include "tests/sim/entries.def"
};

static const char *place(const void *address)
{
    static char text[512];
    Dl_info info;
    const char *file;

    if (!address)
        return "null";
    if (!dladdr(address, &info) || !info.dli_fname)
        return "nowhere";
    file = strrchr(info.dli_fname, '/') ? strrchr(info.dli_fname, '/') + 1 : info.dli_fname;
    if (!strncmp(file, "libcuda.so", 10))
        snprintf(text, sizeof text, "driver+%#tx",
                 (const char *)address - (const char *)info.dli_fbase);
    else
        snprintf(text, sizeof text, "%s:%s", file, info.dli_sname ? info.dli_sname : "?");
    return text;
}

int main(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    resolve_v1 *v1;
    resolve_v2 *v2;
    char name[128];

    if (!driver) {
        puts("no driver");
        return 77;
    }
    *(void **)&v1 = dlsym(driver, "cuGetProcAddress");
    *(void **)&v2 = dlsym(driver, "cuGetProcAddress_v2");
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        const struct entry *e = &entries[i];
        CUdriverProcAddressQueryResult status = 99;
        void *address = NULL;
        CUresult result = v2(e->name, &address, e->version, e->flags, &status);

        printf("proc %s %d %llu %d %d %s\n", *e->name ? e->name : "(empty)", e->version,
               (unsigned long long)e->flags, (int)result, (int)status, place(address));
        address = NULL;
        result = v1(e->name, &address, e->version, e->flags);
        printf("proc1 %s %d %llu %d %s\n", *e->name ? e->name : "(empty)", e->version,
               (unsigned long long)e->flags, (int)result, place(address));
    }
    while (scanf("%127s", name) == 1)
        printf("sym %s %s\n", name, place(dlsym(driver, name)));
    return 0;
}
