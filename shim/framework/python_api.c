/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See python_api.h.
 */
#include "shim/framework/python_api.h"

#include "shim/loader/object.h"
#include "shim/loader/symbol.h"
#include "shim/process/fork_gate.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <string.h>

struct python_api python_api;

struct python_object {
    bool found;
    char path[PATH_MAX]; /* "": the program */
};

static int find_python(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct python_object *place = arg;
    struct object object;
    uintptr_t address;
    if (!object_read(info, &object) || strlen(object.path) >= sizeof place->path ||
        object_symbol(&object, "PyGILState_Ensure", &address) == OBJECT_LACKS ||
        object_symbol(&object, "Py_IsInitialized", &address) == OBJECT_LACKS)
        return 0;
    strcpy(place->path, object.path);
    place->found = true;
    return 1;
}

static int note_python(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct object object;
    uintptr_t address;
    *(bool *)arg = object_read(info, &object) &&
                   object_symbol(&object, "PyGILState_Ensure", &address) != OBJECT_LACKS;
    return *(bool *)arg;
}

bool python_api_is_there(void)
{
    bool there = false;
    dl_iterate_phdr(note_python, &there);
    return there;
}

void *python_api_open(void)
{
    static struct python_object place; /* only the run's thread uses it */
    place.found = false;
    fork_gate_enter(); /* step 12 */
    dl_iterate_phdr(find_python, &place);
    fork_gate_leave();
    return place.found ? dlopen(*place.path ? place.path : NULL, RTLD_LAZY | RTLD_NOLOAD) : NULL;
}

bool python_api_find(void *handle)
{
    bool all = true;
#define PY(type, name, parameters)                                                                 \
    python_api.name = (type(*) parameters)(uintptr_t)symbol_lookup(handle, #name);                 \
    all = all && python_api.name;
    PYTHON_NEEDED(PY)
#undef PY
#define PY(type, name, parameters)                                                                 \
    python_api.name = (type(*) parameters)(uintptr_t)symbol_lookup(handle, #name);
    PYTHON_OPTIONAL(PY)
#undef PY
    return all;
}
