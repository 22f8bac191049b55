/* SPDX-License-Identifier: BSD-2-Clause */
/* Loading of PTX text: the simulator looks for entry names only, and knows what their kernels do.
 */
#include "tests/sim/module.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    struct image image;
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
    if (text == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (memcmp(text, elf, sizeof elf) == 0 || memcmp(text, fatbin, sizeof fatbin) == 0)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (strstr(text, ".version") == NULL || strstr(text, ".target") == NULL)
        return CUDA_ERROR_INVALID_IMAGE;
    for (const char *at = text; (at = strstr(at, ".entry")) != NULL;) {
        at += strlen(".entry");
        at += strspn(at, " \t\r\n");
        size_t length = 0;
        while (isalnum((unsigned char)at[length]) || at[length] == '_' || at[length] == '$')
            length++;
        struct CUfunc_st *functions =
            realloc(image->functions, (image->count + 1) * sizeof *functions);
        if (functions == NULL)
            abort();
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
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUmodule module = calloc(1, sizeof *module);
    if (module == NULL)
        abort();
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

static char *read_file(const char *name)
{
    FILE *file = name != NULL ? fopen(name, "rb") : NULL;
    if (file == NULL)
        return NULL;
    char *text = calloc(1, 1 << 20);
    if (text != NULL && fread(text, 1, (1 << 20) - 1, file) == 0)
        text[0] = '\0';
    fclose(file);
    return text;
}

static CUresult load_file(CUmodule *out, const char *name)
{
    char *text = read_file(name);
    CUresult rc = text != NULL ? load(out, text) : CUDA_ERROR_FILE_NOT_FOUND;
    free(text);
    return rc;
}

static CUresult unload(CUmodule module)
{
    CUmodule *link = &modules;
    while (*link != NULL && *link != module)
        link = &(*link)->next;
    if (*link == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
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

static CUresult get_function(CUfunction *out, CUmodule module, const char *name)
{
    if (out == NULL || name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if ((uintptr_t)module < 4096 || module->image.magic != IMAGE_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    *out = entry(&module->image, name);
    return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static CUresult load_library(CUlibrary *out, const void *text)
{
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUlibrary library = handles_take(&libraries);
    library->image = (struct image){0};
    CUresult rc = parse(&library->image, text, NULL, library);
    if (rc != CUDA_SUCCESS)
        handles_give(&libraries, library);
    else
        *out = library;
    return rc;
}

static bool library_valid(CUlibrary library)
{
    return (uintptr_t)library >= 4096 && library->image.magic == IMAGE_MAGIC;
}

static CUresult unload_library(CUlibrary library)
{
    if (!library_valid(library))
        return CUDA_ERROR_INVALID_HANDLE;
    clear(&library->image);
    handles_give(&libraries, library);
    return CUDA_SUCCESS;
}

static CUresult get_kernel(CUkernel *out, CUlibrary library, const char *name)
{
    if (out == NULL || name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!library_valid(library))
        return CUDA_ERROR_INVALID_HANDLE;
    *out = (CUkernel)entry(&library->image, name);
    return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static CUresult kernel_function(CUfunction *out, CUkernel kernel)
{
    CUfunction function = module_function((CUfunction)kernel, thread_current());
    if (out == NULL || function == NULL)
        return out == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    *out = function;
    return CUDA_SUCCESS;
}

static CUresult get_count(unsigned *out, struct image *image)
{
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if ((uintptr_t)image < 4096 || image->magic != IMAGE_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    *out = image->count;
    return CUDA_SUCCESS;
}

static CUresult get_name(const char **out, CUfunction function)
{
    if (out == NULL || (uintptr_t)function < 4096 || function->magic != FUNCTION_MAGIC)
        return out == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    *out = function->name;
    return CUDA_SUCCESS;
}

static CUresult get_attribute(int *out, CUfunction_attribute attribute, CUfunction function)
{
    if (out == NULL || (uintptr_t)function < 4096 || function->magic != FUNCTION_MAGIC)
        return out == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    *out = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
           : attribute == CU_FUNC_ATTRIBUTE_PTX_VERSION ||
                   attribute == CU_FUNC_ATTRIBUTE_BINARY_VERSION
               ? 90
               : 0;
    return CUDA_SUCCESS;
}

static CUresult get_mode(CUmoduleLoadingMode *out)
{
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *out = CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
}

API(cuModuleLoad, (CUmodule * out, const char *name), load_file(out, name))
API(cuModuleLoadData, (CUmodule * out, const void *text), load(out, text))
API(cuModuleLoadDataEx,
    (CUmodule * out, const void *text, unsigned count, CUjit_option *options, void **values),
    load(out, text))
API(cuModuleLoadFatBinary, (CUmodule * out, const void *image), load(out, image))
API(cuModuleUnload, (CUmodule module), unload(module))
API(cuModuleGetFunction, (CUfunction * out, CUmodule module, const char *name),
    get_function(out, module, name))
API(cuModuleGetFunctionCount, (unsigned *out, CUmodule module),
    get_count(out, module != NULL ? &module->image : NULL))
API(cuModuleGetLoadingMode, (CUmoduleLoadingMode * out), get_mode(out))
API(cuLibraryLoadData,
    (CUlibrary * out, const void *text, CUjit_option *jit, void **jit_values, unsigned jit_count,
     CUlibraryOption *options, void **values, unsigned count),
    load_library(out, text))
API(cuLibraryUnload, (CUlibrary library), unload_library(library))
API(cuLibraryGetKernel, (CUkernel * out, CUlibrary library, const char *name),
    get_kernel(out, library, name))
API(cuLibraryGetKernelCount, (unsigned *out, CUlibrary library),
    get_count(out, library != NULL ? &library->image : NULL))
API(cuKernelGetFunction, (CUfunction * out, CUkernel kernel), kernel_function(out, kernel))
API(cuKernelGetName, (const char **out, CUkernel kernel), get_name(out, (CUfunction)kernel))
API(cuKernelGetAttribute,
    (int *out, CUfunction_attribute attribute, CUkernel kernel, CUdevice device),
    get_attribute(out, attribute, (CUfunction)kernel))
API(cuFuncGetName, (const char **out, CUfunction function), get_name(out, function))
API(cuFuncGetAttribute, (int *out, CUfunction_attribute attribute, CUfunction function),
    get_attribute(out, attribute, function))
API(cuFuncSetAttribute, (CUfunction function, CUfunction_attribute attribute, int value),
    module_function(function, thread_current()) != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE)
