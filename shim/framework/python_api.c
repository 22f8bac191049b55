/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See python_api.h.
 */
#include "shim/framework/python_api.h"

#include "shim/loader/object.h"
#include "shim/loader/symbol.h"
#include "shim/process/fork_gate.h"

#include <dlfcn.h>
#include <errno.h>
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

/* The C library is one of the objects that the process started with. They come first. */
static int find_symbols(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct python_symbols *s = arg;
    struct object object;
    uintptr_t at[8] = {0};
    static const char *const names[] = {"PyGILState_GetThisThreadState",
                                        "Py_Version",
                                        "_PyRuntime",
                                        "PyCode_Type",
                                        "PyUnicode_Type",
                                        "PyFrame_Type",
                                        "PyThreadState_GetUnchecked",
                                        "_PyThreadState_UncheckedGet"};
    if (!object_read(info, &object))
        return 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (object_symbol(&object, names[i], &at[i]) != OBJECT_HAS)
            at[i] = 0;
    uintptr_t holder = at[6] ? at[6] : at[7];
    if (!at[0])
        return object_covers(info, (uintptr_t)__errno_location);
    s->this_thread = (void *(*)(void))at[0];
    if (!at[1] || !at[2] || !at[3] || !at[4] || !at[5] || !holder)
        return 1;
    s->holder = (void *(*)(void))holder;
    s->version = (const unsigned long *)at[1];
    s->runtime = (const void *)at[2];
    s->code_type = (const void *)at[3];
    s->unicode_type = (const void *)at[4];
    s->frame_type = (const void *)at[5];
    s->code = (struct stack_code){object_segment(info, at[0]), object_segment_end(info, at[0])};
    return 1;
}

bool python_api_find_symbols(struct python_symbols *out)
{
    *out = (struct python_symbols){0};
    dl_iterate_phdr(find_symbols, out);
    return out->this_thread;
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
