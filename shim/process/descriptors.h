/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Descriptors that are none of the program's. A thread of the library's own can have a table for
 * itself: nothing in it is seen, closed or replaced by the program, and no forked child has it. No
 * state, no lock.
 */
#ifndef SHIM_DESCRIPTORS_H
#define SHIM_DESCRIPTORS_H

enum descriptors {
    DESCRIPTORS_OWN,
    DESCRIPTORS_SHARED, /* the kernel allows no table of one's own, as in some sandboxes */
    DESCRIPTORS_SPOILT, /* a copy of the program's, which could not be emptied */
};

/* Leaves the descriptor table to the other threads and goes on with an empty one, if the kernel
 * allows that. Own threads only. No driver call may follow on the thread: the driver has
 * descriptors in the program's table. Sets errno. */
enum descriptors descriptors_leave(void);

#endif
