/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The Python interpreter of the process, if there is one. This file runs the texts of
 * frameworks.def in it, on a thread that may wait for the interpreter's lock. It serves CPython 3.8
 * and later, also free-threaded builds, and interpreters that a program embeds. Nothing here links
 * to libpython: all functions are found by name in the loaded objects.
 *
 * What a run leaves in the program:
 *  1. Each text has a new namespace, which is emptied afterwards. The text imports nothing. It
 *     reads sys.modules. It passes over modules that are still being imported, or that a look would
 *     load (importlib.util.LazyLoader). Without the module `threading`, which every package of the
 *     table imports, no text runs.
 *  2. Exceptions end in the run. No trace or profile function of the program's is called, and no
 *     tool of sys.monitoring. Those of sys.settrace and sys.setprofile belong to other threads.
 *     From 3.11 on the run suspends them all for its thread. An audit hook sees the
 *     event `compile`, since hooks are there to see all code.
 *  3. The thread has no object in threading._active. If a package makes one, the run removes it.
 *  4. Once a run has found a package, three functions of this library stay registered: one that
 *     threading calls at shutdown, and two of os.register_at_fork. Programs see none.
 *  5. If a garbage collection is due, it may run on this thread, as on any thread of Python's.
 *
 * When no text runs (a gate):
 *  6. The phase is OUT, NEAR (from before the first call of Python until after the last), or IN (a
 *     text may run). Phase and the two flags below are sequentially consistent.
 *  7. Shutdown: threading calls hold_exit at the beginning of Py_FinalizeEx, with the interpreter's
 *     lock. It closes the gate, lets the lock go, and waits for OUT. The run sets NEAR, then looks
 *     whether the gate is closed. So one sees the other, and no call of ours is under way when the
 *     interpreter ends. C++ code needs this wait too. Until 3.13 an ending interpreter ends a
 *     thread that comes back into it by pthread_exit. In the destructors of pybind11 and others
 *     that calls std::terminate.
 *  8. hold_exit waits 10 s at most. Then the interpreter ends with the thread in it: pthread_exit,
 *     from 3.14 on an endless sleep. python_interrupted does what remains.
 *  9. The first run has not registered hold_exit yet. It registers the function first, and then
 *     looks whether the shutdown has begun: threading sets its mark before it calls the functions.
 *     If the run finds the mark, it leaves. Until it holds the interpreter's lock it relies on
 *     Py_IsInitialized. Between that call and the next, which attaches the thread, the interpreter
 *     would have to end as a whole, and that takes milliseconds. A thread that is attached and
 *     waits for the lock is in no danger. The interpreter ends such threads as in 8, before they
 *     hold any lock, and there is no C++ code on their stack.
 * 10. Start: Py_IsInitialized is true once the interpreter can attach threads. While it still
 *     imports site, the texts find their packages absent or being imported.
 * 11. fork: os.fork calls hold_fork first, with the interpreter's lock. It bars the gate, lets the
 *     lock go, and waits (1 s at most) while the phase is IN. So no lock of a package's allocator
 *     is held by this thread when the child is made. Several threads may fork at once: the gate
 *     stays barred until the last one is through. In the child the library is off.
 * 12. fork, in two moments that step 11 does not cover. No thread forks in them, whether by
 *     os.fork or not (shim/process/fork_gate.h). Nobody waits for the interpreter's lock in them.
 *     a. The look for the interpreter takes a lock of the loader's. The C library does not free it
 *        in a child, whose next dlopen would wait for it for ever.
 *     b. Until 3.11 the interpreter makes the state of a new thread under a lock H. A thread takes
 *        H without the interpreter's lock, and keeps it for a few stores. A child that was forked
 *        meanwhile would wait for H for ever, inside os.fork. PyGILState_Ensure would take H, and
 *        then wait for the interpreter's lock. So the run makes its state by a call of its own.
 *        While tracemalloc traces, that call waits for the interpreter's lock too, and a fork would
 *        wait for both. A tracemalloc.stop() meanwhile would make the call use freed memory. So
 *        until 3.11 no text runs then.
 *     c. After that the run waits for the interpreter's lock. A fork does no harm there: the child
 *        makes that lock anew, and takes the run's state away. The run takes H again only with the
 *        interpreter's lock held, which os.fork holds too. From 3.12 on os.fork also takes H.
 * 13. After the gate is closed it stays closed. A program that starts an interpreter anew is not
 *     asked any more.
 *
 * Several interpreters: a thread of ours is attached to the main interpreter. The packages of the
 * table do not work in others.
 */
#ifndef SHIM_PYTHON_H
#define SHIM_PYTHON_H

#include <stdbool.h>
#include <stdint.h>

enum framework {
#define FRAMEWORK(name, module, flush, look) FRAMEWORK_##name,
#include "shim/framework/frameworks.def"
#undef FRAMEWORK
    NUM_FRAMEWORKS
};

enum { FRAMEWORK_DEVICES = 64 };

enum framework_state {
    FRAMEWORK_ABSENT, /* the package is not loaded, or is just being imported */
    FRAMEWORK_IDLE,   /* loaded, without a cache on a device */
    FRAMEWORK_DONE,   /* emptied its cache, or told its size */
    FRAMEWORK_KEEPS,  /* its cache cannot be emptied from outside, or it does not tell its size */
    FRAMEWORK_FAILED, /* raised an exception, or has an interpreter without `threading` */
    FRAMEWORK_BUSY,   /* not asked now: a capture is open, the process just forks or ends, or (of a
                         look) a thread waits in the driver */
    FRAMEWORK_LATE,   /* no answer yet: a flush follows it by itself */
};

struct framework_result {
    const char *name;        /* the module's name; static */
    uint64_t returned_bytes; /* device memory that the process held less of afterwards */
    uint64_t ns;             /* the time it took, without the wait for the interpreter's lock */
    enum framework_state state;
};

/* What a package keeps, as a look found it. */
struct framework_cached {
    uint64_t at_ns;                    /* when (CLOCK_MONOTONIC) */
    uint64_t devices;                  /* a bit for each whose figure is known */
    uint64_t bytes[FRAMEWORK_DEVICES]; /* by the number of the device */
};

/* What a run needs of CUDA. All are called on the run's thread. With the interpreter's lock held,
 * but for held_bytes; so the others wait for nothing. */
struct framework_host {
    /* Before the first text: makes a context current. False: texts must not run now. */
    bool (*begin)(void);
    /* After the last text. Also if the thread is ended in the middle. */
    void (*end)(void);
    /* Device memory that the process holds. */
    uint64_t (*held_bytes)(void);
    /* A bit for each device with an active primary context. */
    uint64_t (*devices)(void);
    /* Does no thread of the program wait in the driver, as far as is seen from here? */
    bool (*is_quiet)(void);
};

/* Is there an object with an interpreter in the process? Reads tables of the loaded objects
 * (shim/loader/scope.h says which lock that takes), and calls nothing. */
bool python_is_loaded(void);

/* Runs the texts; fills all NUM_FRAMEWORKS results, and as many of `cached`, which is NULL but
 * for a look. Takes the interpreter's lock, and may take the loader's. One thread at a time,
 * which is not the program's. May end the thread by pthread_exit: python_interrupted is to
 * follow then. */
void python_ask(const struct framework_host *host, struct framework_result *results,
                struct framework_cached *cached);
void python_interrupted(const struct framework_host *host);

#endif
