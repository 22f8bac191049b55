/* SPDX-License-Identifier: BSD-2-Clause */
/* Loads PTX text. The simulator looks for the names of entries and knows what their kernels do. */
#include "tests/sim/module.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/alloc.h"
#include "tests/sim/api.h"
#include "tests/sim/config.h"
#include "tests/sim/context.h"
#include "tests/sim/handles.h"
#include "tests/sim/thread.h"

#define FUNCTION_MAGIC 0x46554e43u
#define IMAGE_MAGIC 0x494d4147u

/* What modules and libraries have in common. */
struct image {
    uint32_t magic;
    struct CUfunc_st *functions;
    unsigned count;
};

struct CUmod_st {
    struct image image; /* first, as in a library */
    CUcontext context;
    uint64_t context_id;
    struct CUmod_st *next;
};

struct CUlib_st {
    struct image image;
};

static CUmodule modules;
static struct handles libraries = {.size = sizeof(struct CUlib_st)};

/* The names behind each ".entry" of a PTX text. */
static CUresult parse(struct image *image, const char *text, CUmodule module, CUlibrary library)
{
    static const unsigned char elf[] = {0x7f, 'E', 'L', 'F'}, fatbin[] = {0x50, 0xed, 0x55, 0xba};
    REFUSE(text == NULL, INVALID_VALUE);
    REFUSE(memcmp(text, elf, sizeof elf) == 0 || memcmp(text, fatbin, sizeof fatbin) == 0,
           NO_BINARY_FOR_GPU);
    REFUSE(strstr(text, ".version") == NULL || strstr(text, ".target") == NULL, INVALID_IMAGE);
    for (const char *at = text; (at = strstr(at, ".entry")) != NULL;) {
        at += strlen(".entry");
        at += strspn(at, " \t\r\n");
        size_t length = 0;
        while (isalnum((unsigned char)at[length]) || at[length] == '_' || at[length] == '$')
            length++;
        struct CUfunc_st *functions =
            never_null(realloc(image->functions, (image->count + 1) * sizeof *functions));
        image->functions = functions;
        functions[image->count] = (struct CUfunc_st){.magic = FUNCTION_MAGIC,
                                                     .name = strndup(at, length),
                                                     .module = module,
                                                     .library = library};
        functions[image->count].kernel = kernel_by_name(functions[image->count].name);
        image->count++;
    }
    image->magic = IMAGE_MAGIC;
    return CUDA_SUCCESS;
}

static void clear(struct image *image)
{
    for (unsigned i = 0; i < image->count; i++) {
        image->functions[i].magic = 0;
        free(image->functions[i].name);
    }
    free(image->functions);
    image->magic = 0;
}

static CUfunction entry(struct image *image, const char *name)
{
    for (unsigned i = 0; i < image->count; i++)
        if (strcmp(image->functions[i].name, name) == 0)
            return &image->functions[i];
    return NULL;
}

CUfunction module_function(CUfunction handle, CUcontext context)
{
    if ((uintptr_t)handle < 4096 || handle->magic != FUNCTION_MAGIC)
        return NULL;
    if (handle->module != NULL &&
        (context == NULL || handle->module->context != context_owner(context)))
        return NULL;
    return handle;
}

static CUresult load(CUmodule *out, const void *text)
{
    REFUSE(out == NULL, INVALID_VALUE);
    CUmodule module = never_null(calloc(1, sizeof *module));
    module->context = context_owner(thread_current());
    if (!context_take(module->context, config.object_bytes)) {
        free(module);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult rc = parse(&module->image, text, module, NULL);
    if (rc != CUDA_SUCCESS) {
        context_give(module->context, config.object_bytes);
        free(module);
        return rc;
    }
    module->next = modules;
    modules = module;
    *out = module;
    return CUDA_SUCCESS;
}

static CUresult unload(CUmodule module)
{
    CUmodule *link = &modules;
    while (*link != NULL && *link != module)
        link = &(*link)->next;
    REFUSE(*link == NULL, INVALID_HANDLE);
    *link = module->next;
    context_give(module->context, config.object_bytes);
    clear(&module->image);
    free(module);
    return CUDA_SUCCESS;
}

void module_unload_context(CUcontext context)
{
    for (CUmodule module = modules, next; module != NULL; module = next) {
        next = module->next;
        if (module->context == context)
            unload(module);
    }
}

static CUresult get_entry(CUfunction *out, struct image *image, const char *name)
{
    REFUSE(out == NULL || name == NULL, INVALID_VALUE);
    REFUSE((uintptr_t)image < 4096 || image->magic != IMAGE_MAGIC, INVALID_HANDLE);
    *out = entry(image, name);
    return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static CUresult load_library(CUlibrary *out, const void *text)
{
    REFUSE(out == NULL, INVALID_VALUE);
    CUlibrary library = handles_take(&libraries);
    library->image = (struct image){0};
    CUresult rc = parse(&library->image, text, NULL, library);
    if (rc != CUDA_SUCCESS)
        handles_give(&libraries, library);
    else
        *out = library;
    return rc;
}

API(cuModuleLoadData, (CUmodule * out, const void *text), load(out, text))
API(cuModuleUnload, (CUmodule module), unload(module))
API(cuModuleGetFunction, (CUfunction * out, CUmodule module, const char *name),
    get_entry(out, (struct image *)module, name))
API(cuLibraryLoadData,
    (CUlibrary * out, const void *text, CUjit_option *jit, void **jit_values, unsigned jit_count,
     CUlibraryOption *options, void **values, unsigned count),
    load_library(out, text))
API(cuLibraryGetKernel, (CUkernel * out, CUlibrary library, const char *name),
    get_entry((CUfunction *)out, (struct image *)library, name))
