/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory for objects that the program holds handles of. It is never returned to the system: a stale
 * handle must be recognised by its magic number, not crash, and what a program forgets to destroy
 * is no leak of the driver's. Driver lock. */
#ifndef SIM_HANDLES_H
#define SIM_HANDLES_H

#include <stddef.h>

struct handles {
    size_t size; /* of one object */
    void **all, **spare;
    size_t count, capacity, spare_count;
};

/* An object: zeroed, or as handles_give got it. */
void *handles_take(struct handles *handles);
void handles_give(struct handles *handles, void *object);

#endif
