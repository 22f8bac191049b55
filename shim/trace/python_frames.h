/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The frames of Python functions on the calling thread, read from the interpreter's memory: no lock
 * of Python's, no reference, no object. 2 ns a frame, 20 ns with 3.11. CPython 3.11 and 3.12 by
 * tables of the layouts here, 3.13 by the offsets that the interpreter tells (_Py_DebugOffsets).
 * Other versions, what came before a release, and free-threaded builds have none. Nor has 3.11.0,
 * in which a frame is still to be found while its code ends.
 *
 * Why a plain read is good:
 * 1. The thread is inside a call of this library, so none of its frames begins or ends meanwhile. A
 *    frame holds its code object, and that its names.
 * 2. The first of its frames is found by the state of the thread, PyGILState_GetThisThreadState.
 *    The state goes when the interpreter ends, and only then. That waits for the lock of the
 *    interpreter, so a thread that has the lock is safe. Of others only the first thread of a
 *    process whose program is python is looked at, since that is the thread that ends the
 *    interpreter.
 * 3. The interpreter's object stays loaded: it is of those that the process started with
 *    (shim/framework/python_api.h).
 * 4. The layout is right: the sizes that the interpreter tells of its types are those of the
 *    table, and before the first plain read all fields of the thread's frames are read by the
 *    kernel, which refuses what is no memory, and are compared with what they must be. If anything
 *    differs, there are no Python frames in this process, and one line says so. Of a
 *    subinterpreter's frames 3.11 tells none. Other threads' stores do not matter by 1.
 *
 * A place that is known (python_frame_key) is not read anew, and its code may have ended, with
 * other code at its address. So the key has the number that the interpreter gives to each code
 * object, or in 3.11, which has none, the names and the lines themselves.
 *
 * A thread in a signal handler that interrupted the interpreter may find a frame that is half made.
 * CUDA forbids its calls there.
 */
#ifndef SHIM_PYTHON_FRAMES_H
#define SHIM_PYTHON_FRAMES_H

#include "shim/trace/stack.h"

#include <stdbool.h>
#include <stdint.h>

/* What the interpreter exports. */
struct python_symbols {
    void *(*this_thread)(void); /* PyGILState_GetThisThreadState */
    void *(*holder)(void); /* PyThreadState_GetUnchecked, until 3.12 _PyThreadState_UncheckedGet */
    const unsigned long *version; /* NULL: there is none, and the rest is of no use */
    const void *runtime, *code_type, *unicode_type, *frame_type;
    struct stack_code code; /* the interpreter's own */
};

/* From now on frames are read. False: they are not, and `why` says why. The thread that begins
 * traces. */
bool python_frames_begin(const struct python_symbols *s, const char **why);
void python_frames_end(void);

/* The calling thread's frames, the innermost first, `most` of them at most. *key is mixed with what
 * they are. Returns how many. They are good as long as the call is under way. Keeps errno. */
unsigned python_frames_walk(unsigned most, uint64_t *out, uint64_t *key);
/* The interpreter's code, behind which the frames of a path are Python's; empty: there is none. */
struct stack_code python_frames_code(void);

enum { PYTHON_NAME_BYTES = 96, PYTHON_FILE_BYTES = 160 };
struct python_place {
    uint64_t key;    /* of the place; never 0, and no address */
    unsigned line;   /* 0: not known */
    unsigned length; /* of the text: the function's name, a NUL, and the file's, of which the end */
    char text[PYTHON_NAME_BYTES + PYTHON_FILE_BYTES];
};
/* The key of a frame, and all of it. */
uint64_t python_frame_key(uint64_t frame);
void python_frame_read(uint64_t frame, struct python_place *out);

#endif
