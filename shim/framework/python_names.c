/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See python_names.h.
 */
#include "shim/framework/python_names.h"

/* Takes the reference. */
static bool put_entry(py *names, const char *name, py *value)
{
    bool ok = value && python_api.PyDict_SetItemString(names, name, value) == 0;
    if (value)
        python_api.Py_DecRef(value);
    return ok;
}

bool python_put_number(py *names, const char *name, unsigned long value)
{
    return put_entry(names, name, python_api.PyLong_FromUnsignedLong(value));
}

bool python_put_function(py *names, struct python_method *method)
{
    return put_entry(names, method->name, python_api.PyCFunction_NewEx(method, NULL, NULL));
}

py *python_make_names(py *modules)
{
    py *names = python_api.PyDict_New();
    if (names &&
        python_api.PyDict_SetItemString(names, "__builtins__", python_api.PyEval_GetBuiltins()) ==
            0 &&
        python_api.PyDict_SetItemString(names, "modules", modules) == 0)
        return names;
    if (names)
        python_api.Py_DecRef(names);
    return NULL;
}

/* Functions in it refer to it: it would stay for the garbage collector. */
void python_drop_names(py *names)
{
    python_api.PyDict_Clear(names);
    python_api.Py_DecRef(names);
}

bool python_evaluate(const char *text, py *names)
{
    py *code = python_api.Py_CompileString(text, "<libgpucache>", PYTHON_FILE_INPUT);
    py *value = code ? python_api.PyEval_EvalCode(code, names, names) : NULL;
    if (code)
        python_api.Py_DecRef(code);
    if (value)
        python_api.Py_DecRef(value);
    else
        python_api.PyErr_Clear();
    return value;
}

long python_number_in(py *names, const char *name)
{
    py *value = python_api.PyDict_GetItemString(names, name);
    long number = value ? python_api.PyLong_AsLong(value) : -1;
    python_api.PyErr_Clear();
    return number;
}
