/* SPDX-License-Identifier: BSD-2-Clause */
/* Two arrays: all objects ever made, and those that are free. */
#include "tests/sim/handles.h"

#include "tests/sim/alloc.h"

void *handles_take(struct handles *handles)
{
    if (handles->spare_count > 0)
        return handles->spare[--handles->spare_count];
    if (handles->count == handles->capacity) {
        handles->capacity = handles->capacity * 2 + 16;
        handles->all = never_null(realloc(handles->all, handles->capacity * sizeof *handles->all));
        handles->spare =
            never_null(realloc(handles->spare, handles->capacity * sizeof *handles->spare));
    }
    void *object = never_null(calloc(1, handles->size));
    handles->all[handles->count++] = object;
    return object;
}

void handles_give(struct handles *handles, void *object)
{
    handles->spare[handles->spare_count++] = object;
}
