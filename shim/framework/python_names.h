/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Namespaces in which texts run (python.h, step 1). All functions need the interpreter's lock. An
 * exception ends in python_evaluate and python_number_in. No state, no lock of ours.
 */
#ifndef SHIM_PYTHON_NAMES_H
#define SHIM_PYTHON_NAMES_H

#include "shim/framework/python_api.h"

#include <stdbool.h>

/* A new namespace with the builtins and `modules`; NULL: no memory. */
py *python_make_names(py *modules);
/* Empties it too: functions in it refer to it, so it would stay for the garbage collector. */
void python_drop_names(py *names);

/* False: no memory. */
bool python_put_number(py *names, const char *name, unsigned long value);
bool python_put_function(py *names, struct python_method *method);
/* Runs a text. False: it raised an exception. */
bool python_evaluate(const char *text, py *names);
/* -1: there is no number of that name. */
long python_number_in(py *names, const char *name);

#endif
