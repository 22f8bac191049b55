/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A program that embeds Python: embed LIBPYTHON. It loads the interpreter with RTLD_LOCAL, starts
 * it, ends it, and starts another, with a flush by signal before, between and after. A module named
 * torch has a cache; its empty_cache is a function of this program.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BLOCKS = 8, BLOCK_BYTES = 20 << 20, METH_NOARGS = 4, TURNS = 2000 };

struct method {
    const char *name;
    void *(*call)(void *self, void *argument);
    int flags;
    const char *help;
};

static void *python;
static CUcontext context;
static CUdeviceptr cache[BLOCKS];
static atomic_int calls;

static void check(int ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

static void *function(const char *name)
{
    void *found = dlsym(python, name);
    check(found != NULL, name);
    return found;
}

#define CALL(type, name, parameters, ...)                                                          \
    (((type(*) parameters)(uintptr_t)function(#name))(__VA_ARGS__))

static void *empty_cache(void *self, void *argument)
{
    for (int i = 0; i < BLOCKS; i++) {
        CUcontext now = NULL;
        check(cuCtxGetCurrent(&now) == CUDA_SUCCESS && now == context, "another context");
        check(!cache[i] || cuMemFree(cache[i]) == CUDA_SUCCESS, "cuMemFree");
        cache[i] = 0;
    }
    atomic_fetch_add(&calls, 1);
    return CALL(void *, PyLong_FromLong, (long), 0);
}

static struct method method = {"empty_cache", empty_cache, METH_NOARGS, NULL};

static const char module[] = "import sys, threading\n"
                             "torch, cuda = type(sys)('torch'), type(sys)('torch.cuda')\n"
                             "cuda.empty_cache, cuda.is_initialized = empty_cache, lambda: True\n"
                             "sys.modules['torch'], sys.modules['torch.cuda'] = torch, cuda\n";

static void fill(void)
{
    for (int i = 0; i < BLOCKS; i++)
        check(cuMemAlloc(&cache[i], BLOCK_BYTES) == CUDA_SUCCESS, "cuMemAlloc");
}

static void flush(int expected)
{
    raise(SIGUSR1);
    for (int i = 0; i < TURNS && (i < 20 || atomic_load(&calls) < expected); i++)
        usleep(5000);
    check(atomic_load(&calls) == expected, "wrong number of calls");
}

static void start(void)
{
    CALL(void, Py_InitializeEx, (int), 0);
    void *main_module = CALL(void *, PyImport_AddModule, (const char *), "__main__");
    void *f =
        CALL(void *, PyCFunction_NewEx, (struct method *, void *, void *), &method, NULL, NULL);
    check(CALL(int, PyObject_SetAttrString, (void *, const char *, void *), main_module,
               "empty_cache", f) == 0,
          "PyObject_SetAttrString");
    check(CALL(int, PyRun_SimpleString, (const char *), module) == 0, "PyRun_SimpleString");
}

/* While the main thread waits, it does not hold the interpreter's lock. */
static void flush_in_python(int expected)
{
    void *thread = CALL(void *, PyEval_SaveThread, (void), );
    flush(expected);
    CALL(void, PyEval_RestoreThread, (void *), thread);
}

int main(int argc, char **argv)
{
    CUdevice device;
    check(argc == 2 && cuInit(0) == CUDA_SUCCESS && cuDeviceGet(&device, 0) == CUDA_SUCCESS &&
              cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS &&
              cuCtxSetCurrent(context) == CUDA_SUCCESS,
          "cuInit");
    check(cuMemAlloc(&cache[0], BLOCK_BYTES) == CUDA_SUCCESS && cuMemFree(cache[0]) == CUDA_SUCCESS,
          "cuMemFree");
    fill();
    flush(0);
    python = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    check(python != NULL, "dlopen");
    flush(0);
    start();
    flush_in_python(1);
    CALL(int, Py_FinalizeEx, (void), );
    fill();
    flush(1);
    start();
    flush_in_python(1); /* an interpreter that was started anew is not asked */
    CALL(int, Py_FinalizeEx, (void), );
    puts("done");
    return 0;
}
