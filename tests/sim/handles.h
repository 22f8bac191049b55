/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory for the objects behind handles of the program. It never goes back to the system: the
 * driver must recognise a stale handle by its magic number. So an object that a program does not
 * destroy is no leak of the driver. Driver lock. */
#ifndef SIM_HANDLES_H
#define SIM_HANDLES_H

#include <stddef.h>

struct handles {
    size_t size; /* of one object */
    void **all, **spare;
    size_t count, capacity, spare_count;
};

/* Returns an object: zeroed, or as handles_give got it. */
void *handles_take(struct handles *handles);
void handles_give(struct handles *handles, void *object);

#endif
