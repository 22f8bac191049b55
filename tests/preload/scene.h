/* SPDX-License-Identifier: BSD-2-Clause */
/* What the test programs share. A program is one scene, and prints the same lines bare and
 * preloaded. It ends with 0, or with 77 where the machine cannot play it. Brings what most scenes
 * use of the C library. */
#pragma once

#include "tests/preload/gpu.h"
#include "tests/sim/sim.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KIB ((size_t)1024)
#define MIB (1024 * KIB)
#define MS_NS ((uint64_t)1000000) /* nanoseconds of a millisecond */

enum { SCENE_SKIP = 77 };

/* Ends the program with 1, naming the place, unless a call returns 0 or a condition holds. */
#define REQUIRE(call) scene_require(__FILE__, __LINE__, #call, (int)(call))
#define EXPECT(condition) scene_require(__FILE__, __LINE__, #condition, !(condition))
void scene_require(const char *file, int line, const char *what, int rc);

/* What is made, as values, and the free of several blocks; each is required in the same way. A
 * filled block has as many words of that value, by a kernel on the stream. */
#define NEW_BLOCK(size_bytes) scene_new_block(__FILE__, __LINE__, size_bytes)
#define NEW_FILLED(words, value, stream) scene_new_filled(__FILE__, __LINE__, words, value, stream)
#define NEW_STREAM(blocking) scene_new_stream(__FILE__, __LINE__, blocking)
#define NEW_CONTEXT() scene_new_context(__FILE__, __LINE__)
#define NEW_THREAD(run, arg) scene_new_thread(__FILE__, __LINE__, run, arg)
#define NEW_EXEC(graph) scene_new_exec(__FILE__, __LINE__, graph)
#define END_CAPTURE(stream) scene_end_capture(__FILE__, __LINE__, stream)
#define CURRENT_CONTEXT() scene_current_context(__FILE__, __LINE__)
#define FREE_BYTES() scene_free_bytes(__FILE__, __LINE__)
#define TAKE_AND_GIVE(size_bytes) REQUIRE(gpu_free(NEW_BLOCK(size_bytes)))
#define NEW_BLOCKS(blocks, n, size_bytes)                                                          \
    for (size_t new_i = 0; new_i < (size_t)(n); new_i++)                                           \
    (blocks)[new_i] = NEW_BLOCK(size_bytes)
#define NEW_STREAMS(streams, n, blocking)                                                          \
    for (size_t new_i = 0; new_i < (size_t)(n); new_i++)                                           \
    (streams)[new_i] = NEW_STREAM(blocking)
#define FREE_ALL(blocks, n)                                                                        \
    for (size_t free_i = 0; free_i < (size_t)(n); free_i++)                                        \
    REQUIRE(gpu_free((blocks)[free_i]))
uint64_t scene_new_block(const char *file, int line, size_t size_bytes);
uint64_t scene_new_filled(const char *file, int line, uint64_t words, uint32_t value,
                          CUstream stream);
CUstream scene_new_stream(const char *file, int line, bool blocking);
pthread_t scene_new_thread(const char *file, int line, void *(*run)(void *), void *arg);
CUgraphExec scene_new_exec(const char *file, int line, CUgraph graph);
CUgraph scene_end_capture(const char *file, int line, CUstream stream);
size_t scene_free_bytes(const char *file, int line);

/* For scenes that call the driver themselves. */
static inline CUcontext scene_new_context(const char *file, int line)
{
    CUcontext context = NULL;
    scene_require(file, line, "cuCtxCreate", (int)cuCtxCreate(&context, NULL, 0, 0));
    return context;
}

static inline CUcontext scene_current_context(const char *file, int line)
{
    CUcontext context = NULL;
    scene_require(file, line, "cuCtxGetCurrent", (int)cuCtxGetCurrent(&context));
    return context;
}

/* Before the process leaves with threads at work: the driver is gone before they are. From here on
 * a thread of which a call fails stops there, without a word. */
void scene_leave(void);

/* Opens the GPU under a watchdog: a scene that hangs is killed after so many seconds. Skips the
 * scene if there are fewer devices; of peers, if the first two are none. */
void scene_start(int devices, unsigned watchdog_s);
void scene_start_peers(unsigned watchdog_s);

/* The watchdog alone, for a scene that opens the GPU itself. */
void scene_watchdog(unsigned seconds);
void scene_skip(const char *why);

/* Whether the program runs under the cache: whether LD_PRELOAD names it. */
bool scene_preloaded(void);

/* Of the driver, which must be open: a function of that name, or NULL; whether it exports one; and
 * whether it is the simulated driver. */
void *scene_driver_symbol(const char *name);
bool scene_driver_has(const char *name);
bool scene_simulated(void);

/* A function of sim.h, which the simulated driver has. */
#define SIM(name) ((__typeof__(&(name)))(uintptr_t)scene_driver_symbol(#name))
/* Until so many calls wait in it (simHold). */
void scene_await_held(unsigned count);
/* The thread gets the signal, of which the handler sets handled. False: it did not in 5 s. Another
 * signal comes each second, because ThreadSanitizer loses one of a hundred on a busy machine. */
bool scene_handles(pthread_t thread, int number, atomic_bool *handled);
/* Before the GPU is opened: there each call of the function takes so long, unless the environment
 * says otherwise. */
void scene_cost(const char *function, const char *ns);

/* A kernel runs on the stream until the host lets it go, by the word that is returned. */
uint32_t *scene_hold(CUstream stream);
void scene_let_go(uint32_t *word);

/* Blocks come and go, with work on this stream alone: long enough for its order to be found enough.
 * The work of others has to be complete; waits: it is waited for, half way. */
void scene_run_alone(CUstream stream, bool waits);

/* A block of so many words is freed while a kernel on the stream is to write it after so long. */
void scene_free_late(uint64_t words, uint64_t ns, CUstream stream);

/* The open driver's own function, from its symbol table: dlsym gives the wrapper. NULL: there is
 * none, or the table has another form. */
void *scene_drivers_own(const char *name);
/* Is the device given access to mapped memory there, by the driver's own answer? Never so for
 * memory of cuMemAlloc. */
bool scene_is_mapped_for(int device, uint64_t address);

/* How many of the words differ from value, by the check kernel on that stream. */
uint32_t scene_wrong_words(uint64_t ptr, uint64_t n_words, uint32_t value, CUstream stream);

/* The same by a copy to the host, all bytes. */
size_t scene_wrong_bytes(uint64_t ptr, size_t size_bytes, unsigned char byte);

/* The device whose memory is at the address; -1: it is no device memory. */
int scene_device_of(uint64_t address);
/* Whether the driver says that the address lies in that block, and in no larger one. */
bool scene_lies_in(uint64_t address, uint64_t block, size_t size_bytes);

/* Starts n threads of one body, each with its index, and joins them; a body returns its number of
 * failures, their sum is returned. */
int scene_threads(int n, int (*body)(int index, void *context), void *context);

/* Runs one body in another thread. */
int scene_elsewhere(int (*body)(int index, void *context), void *context);

/* Runs the program, or the act, anew in a child, with this variable in its environment, as in those
 * of later children. Returns its exit status. */
int scene_again(const char *variable, const char *value);

/* The same. Returns the report that the library leaves at its end; empty: there is none. It lasts
 * until the next call. */
const char *scene_again_report(const char *variable, const char *value, int *status);

/* Before another program is started: one that was not built for the thread sanitizer does not
 * survive its runtime, so nothing is preloaded there. Without that sanitizer, does nothing. */
void scene_leave_sanitizer(void);

/* Whether the program is built with the address or thread sanitizer. */
bool scene_sanitized(void);

/* What the kernel says of a thread of this process that has not ended: 'S', it sleeps in a call. */
char scene_thread_state(int thread);

/* From here on the process may make neither call: each gives this error. False: the kernel has no
 * such filter. */
bool scene_refuse(long call, long other, int error);

/* What is in the file, until the next call; empty: there is none. */
const char *scene_text(const char *path);
unsigned scene_count(const char *text, const char *words);

/* Host memory of this process. */
size_t scene_resident_bytes(void);

void scene_sleep_ms(unsigned ms);
uint64_t scene_now_ns(void);

/* A child, with none of this process's output. */
pid_t scene_fork(void);

/* Waits for its end; its exit status, or the signal that ended it, negative. */
int scene_wait(pid_t child);

/* Acts: short scenes of one subject in one program. ACT(name) { .. } is an act; its name says what
 * holds. It returns its number of failures, or SCENE_SKIP. It runs in a process of its own, so that
 * it opens the GPU itself and finds the state of a fresh process. Acts list themselves, and play in
 * the order in which they stand. */
void scene_list_act(const char *name, int (*play)(void));

#define ACT(name)                                                                                  \
    static int name(void);                                                                         \
    __attribute__((constructor)) static void list_##name(void)                                     \
    {                                                                                              \
        scene_list_act(#name, name);                                                               \
    }                                                                                              \
    static int name(void)
/* ACT_IS(ACT(name), call): an act that is one call. */
#define ACT_IS(act, call)                                                                          \
    act                                                                                            \
    {                                                                                              \
        return call;                                                                               \
    }

/* Plays all acts, one after the other, or those that the arguments name, and says how each ended.
 * Returns main's exit status: 0; 1 if an act failed; SCENE_SKIP if all skip. If the only argument
 * names an act, this process plays it, and ends as the act does. */
int scene_play(int argc, char **argv);
