/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The object with the Python interpreter, and the functions that it exports. Nothing here links to
 * libpython: all are found by name. The numbers are those of the steps of python.h. The table
 * belongs to the run's thread, which fills it. No lock.
 */
#ifndef SHIM_PYTHON_API_H
#define SHIM_PYTHON_API_H

#include "shim/trace/python_frames.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The interpreter's objects have no layout here. */
struct object_of_python;
typedef struct object_of_python py;

/* PyMethodDef of the stable ABI. */
struct python_method {
    const char *name;
    py *(*call)(py *self, py *argument);
    int flags;
    const char *help;
};
enum { PYTHON_NO_ARGUMENTS = 4, PYTHON_ONE_ARGUMENT = 8, PYTHON_FILE_INPUT = 257 };

/* The functions of the interpreter. */
#define PYTHON_NEEDED(PY)                                                                          \
    PY(int, Py_IsInitialized, (void))                                                              \
    PY(int, PyGILState_Ensure, (void))                                                             \
    PY(void, PyGILState_Release, (int))                                                            \
    PY(void *, PyEval_SaveThread, (void))                                                          \
    PY(void, PyEval_RestoreThread, (void *))                                                       \
    PY(py *, PyEval_GetBuiltins, (void))                                                           \
    PY(py *, PyImport_GetModuleDict, (void))                                                       \
    PY(py *, PyDict_New, (void))                                                                   \
    PY(py *, PyDict_GetItemString, (py *, const char *))                                           \
    PY(int, PyDict_SetItemString, (py *, const char *, py *))                                      \
    PY(void, PyDict_Clear, (py *))                                                                 \
    PY(py *, PyList_New, (ptrdiff_t))                                                              \
    PY(int, PyList_Append, (py *, py *))                                                           \
    PY(py *, PyLong_FromUnsignedLong, (unsigned long))                                             \
    PY(long, PyLong_AsLong, (py *))                                                                \
    PY(py *, PyCFunction_NewEx, (struct python_method *, py *, py *))                              \
    PY(ptrdiff_t, PyObject_Size, (py *))                                                           \
    PY(py *, PyObject_GetAttrString, (py *, const char *))                                         \
    PY(py *, PyObject_CallObject, (py *, py *))                                                    \
    PY(py *, Py_CompileString, (const char *, const char *, int))                                  \
    PY(py *, PyEval_EvalCode, (py *, py *, py *))                                                  \
    PY(void, PyErr_Clear, (void))                                                                  \
    PY(void, Py_DecRef, (py *))                                                                    \
    PY(void *, PyThreadState_Get, (void))                                                          \
    PY(unsigned long, PyThread_get_thread_ident, (void))
#define PYTHON_OPTIONAL(PY)                                                                        \
    PY(int, Py_IsFinalizing, (void))               /* from 3.13 on */                              \
    PY(int, _Py_IsFinalizing, (void))              /* until 3.12 */                                \
    PY(void, PyThreadState_EnterTracing, (void *)) /* from 3.11 on */                              \
    PY(py *, PyErr_GetRaisedException, (void))     /* from 3.12 on; never called */                \
    PY(void *, PyGILState_GetThisThreadState, (void))                                              \
    PY(void *, PyInterpreterState_Main, (void))                                                    \
    PY(void *, PyThreadState_New, (void *))                                                        \
    PY(void, PyThreadState_Clear, (void *))                                                        \
    PY(void, PyThreadState_DeleteCurrent, (void))                                                  \
    PY(int, PyTraceMalloc_Untrack, (unsigned, uintptr_t))

struct python_api {
#define PY(type, name, parameters) type(*name) parameters;
    PYTHON_NEEDED(PY)
    PYTHON_OPTIONAL(PY)
#undef PY
};

extern struct python_api python_api __attribute__((visibility("hidden")));

/* Is there an object with an interpreter in the process? Reads tables of the loaded objects, and
 * calls nothing. */
bool python_api_is_there(void);
/* What shim/trace/python_frames.h needs, of an interpreter that the process started with, which
 * stays loaded. False: there is none. Not in a forked child (shim/loader/scope.h, 3). */
bool python_api_find_symbols(struct python_symbols *out);
/* A handle that keeps the interpreter's object loaded; NULL: there is none. dlopen waits for the
 * loader's lock, so the object is ready for use afterwards. The run's thread only. */
void *python_api_open(void);
/* Fills the table. False: a function that is needed is missing. */
bool python_api_find(void *handle);

#endif
