/* SPDX-License-Identifier: BSD-2-Clause */
/* A library opened RTLD_LOCAL that looks names up the ways that depend on who asks, and that calls
 * its own runtime. Its dependency (dependency.c) defines next_of_plugin too. */
#include <dlfcn.h>
#include <stddef.h>

int cudaMalloc(void **p, size_t size);
int cudaFree(void *p);
int next_of_plugin(void);
int only_in_dependency(void);
int plugin_needs_it(void);
void *plugin_next(const char *name);
void *plugin_default(const char *name);
int plugin_malloc(void **p, size_t size);
int plugin_free(void *p);
int plugin_malloc_elsewhere(void **p, size_t size);

int next_of_plugin(void)
{
    return 1;
}

int plugin_needs_it(void)
{
    return only_in_dependency();
}

/* Volatile, so that the call is no tail call: whose return address it has is what is tested. */
void *plugin_next(const char *name)
{
    void *volatile found = dlsym(RTLD_NEXT, name);
    return found;
}

void *plugin_default(const char *name)
{
    void *volatile found = dlsym(RTLD_DEFAULT, name);
    return found;
}

int plugin_malloc(void **p, size_t size)
{
    volatile int rc = cudaMalloc(p, size);
    return rc;
}

int plugin_malloc_elsewhere(void **p, size_t size)
{
    volatile int rc = cudaMalloc(p, size);
    return rc;
}

int plugin_free(void *p)
{
    volatile int rc = cudaFree(p);
    return rc;
}
