/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See python.h; the numbers below are those of its steps. No lock of ours.
 */
#include "shim/framework/python.h"

#include "shim/framework/python_names.h"
#include "shim/loader/symbol.h"
#include "shim/process/clock.h"
#include "shim/process/fork_gate.h"
#include "shim/process/futex.h"
#include "shim/process/state.h"

#include <stdatomic.h>
#include <stddef.h>

#define EXIT_PATIENCE_NS (10 * SEC_NS)
#define FORK_PATIENCE_NS SEC_NS

enum phase { OUT, NEAR, IN };
static _Atomic uint32_t phase; /* a futex */
static atomic_bool closed;     /* step 7 */
static atomic_uint barred;     /* threads in os.fork: step 11 */
static bool registered;        /* only the run's thread uses it */
static bool has_begun;         /* the same: host->begin was true, and host->end is to follow */

static const char prelude[] = "def find(module, name):\n"
                              "    path = ''\n"
                              "    for part in module.split('.'):\n"
                              "        path = path + '.' + part if path else part\n"
                              "        found = modules.get(path)\n"
                              "        if found is None:\n"
                              "            return None\n"
                              "        names = object.__getattribute__(found, '__dict__')\n"
                              "        if getattr(names.get('__spec__'), '_initializing', False):\n"
                              "            return None\n"
                              "    return names.get(name)\n"
                              "devices = [number for number in range(64) if mask >> number & 1]\n"
                              "cached = {}\n"
                              "state = 0\n";

/* `thread` is the number of the run's thread. 3.8 has no list of functions to call at shutdown, but
 * a set of locks to take. */
static const char enter_text[] =
    "names = modules['threading'].__dict__\n"
    "known = thread in names['_active']\n"
    "exits = names.get('_threading_atexits')\n"
    "if first:\n"
    "    if exits is None:\n"
    "        def lock(): pass\n"
    "        lock.acquire = lock.release = hold_exit\n"
    "        names['_shutdown_locks'].add(lock)\n"
    "    else:\n"
    "        exits.append(hold_exit)\n"
    "    modules['posix'].register_at_fork(before=hold_fork, after_in_parent=release_fork)\n"
    "ends = (names['_main_thread']._is_stopped if exits is None\n"
    "        else names.get('_SHUTTING_DOWN', False))\n";

static const char leave_text[] = "if not known:\n"
                                 "    modules['threading'].__dict__['_active'].pop(thread, None)\n";

static const struct {
    const char *module, *flush, *look;
} frameworks[NUM_FRAMEWORKS] = {
#define FRAMEWORK(name, module, flush, look) {module, flush, look},
#include "shim/framework/frameworks.def"
#undef FRAMEWORK
};

static void set_phase(enum phase to)
{
    atomic_store(&phase, to);
    futex_wake_all(&phase, FUTEX_OF_PROCESS);
}

/* Waits while the phase is at least `least`. The interpreter's lock is let go meanwhile. */
static void wait_below(enum phase least, uint64_t patience_ns)
{
    uint64_t end_ns = clock_now_ns() + patience_ns;
    uint32_t now = atomic_load(&phase);
    if (!state_is_on() || now < least)
        return;
    void *thread = python_api.PyEval_SaveThread();
    while ((now = atomic_load(&phase)) >= least && clock_now_ns() < end_ns)
        futex_wait(&phase, now, end_ns, FUTEX_OF_PROCESS);
    python_api.PyEval_RestoreThread(thread);
}

static py *zero(void)
{
    return python_api.PyLong_FromUnsignedLong(0);
}

static py *call_hold_exit(py *self, py *argument)
{
    atomic_store(&closed, true);
    wait_below(NEAR, EXIT_PATIENCE_NS);
    return zero();
}

static py *call_hold_fork(py *self, py *argument)
{
    atomic_fetch_add(&barred, 1);
    wait_below(IN, FORK_PATIENCE_NS);
    return zero();
}

/* A fork that began before the first run registered the functions has not called hold_fork. */
static py *call_release_fork(py *self, py *argument)
{
    unsigned now = atomic_load(&barred);
    while (now && !atomic_compare_exchange_weak(&barred, &now, now - 1))
        ;
    return zero();
}

/* No other thread gets the interpreter's lock in the loop: a deque's popleft runs no Python code.
 */
static py *call_take(py *self, py *deque)
{
    py *taken = python_api.PyList_New(0),
       *popleft = python_api.PyObject_GetAttrString(deque, "popleft");
    while (taken && popleft && python_api.PyObject_Size(deque) > 1) {
        py *item = python_api.PyObject_CallObject(popleft, NULL);
        if (!item)
            break;
        python_api.PyList_Append(taken, item);
        python_api.Py_DecRef(item);
    }
    if (popleft)
        python_api.Py_DecRef(popleft);
    return taken;
}

/* The interpreter keeps these addresses. */
static struct python_method hold_exit = {"hold_exit", call_hold_exit, PYTHON_NO_ARGUMENTS, NULL};
static struct python_method hold_fork = {"hold_fork", call_hold_fork, PYTHON_NO_ARGUMENTS, NULL};
static struct python_method release_fork = {"release_fork", call_release_fork, PYTHON_NO_ARGUMENTS,
                                            NULL};
static struct python_method take = {"take", call_take, PYTHON_ONE_ARGUMENT, NULL};

static bool put_constants(py *names)
{
    return python_put_number(names, "IDLE", FRAMEWORK_IDLE) &&
           python_put_number(names, "DONE", FRAMEWORK_DONE) &&
           python_put_number(names, "KEEPS", FRAMEWORK_KEEPS) &&
           python_put_number(names, "BUSY", FRAMEWORK_BUSY);
}

/* What a look put into `cached`. */
static void take_cached(py *names, struct framework_cached *out)
{
    py *cached = python_api.PyDict_GetItemString(names, "cached");
    for (int device = 0; cached && device < FRAMEWORK_DEVICES; device++) {
        char key[] = {(char)('0' + device / 10), (char)('0' + device % 10), '\0'};
        long bytes = python_number_in(cached, device < 10 ? key + 1 : key);
        if (bytes >= 0) {
            out->devices |= UINT64_C(1) << device;
            out->bytes[device] = (uint64_t)bytes;
        }
    }
}

/* cached: of a look, else NULL. */
static enum framework_state run_text(const char *text, py *modules, uint64_t devices, bool quiet,
                                     struct framework_cached *cached)
{
    enum framework_state state = FRAMEWORK_FAILED;
    py *names = python_make_names(modules);
    if (names && python_put_number(names, "mask", devices) &&
        python_put_number(names, "quiet", quiet) && python_put_function(names, &take) &&
        put_constants(names) && python_evaluate(prelude, names) && python_evaluate(text, names)) {
        long said = python_number_in(names, "state");
        state = said > FRAMEWORK_ABSENT ? (enum framework_state)said : FRAMEWORK_IDLE;
        if (cached)
            take_cached(names, cached);
    }
    if (names)
        python_drop_names(names);
    python_api.PyErr_Clear();
    return state;
}

/* The driver may make the call wait, so the interpreter's lock is let go. */
static uint64_t ask_held_bytes(const struct framework_host *host)
{
    void *thread = python_api.PyEval_SaveThread();
    uint64_t bytes = host->held_bytes();
    python_api.PyEval_RestoreThread(thread);
    return bytes;
}

static void flush_framework(const struct framework_host *host, const char *text, py *modules,
                            uint64_t devices, struct framework_result *r)
{
    uint64_t before = ask_held_bytes(host), start_ns = clock_now_ns();
    r->state = run_text(text, modules, devices, false, NULL);
    r->ns = clock_now_ns() - start_ns;
    uint64_t after = ask_held_bytes(host);
    if (r->state == FRAMEWORK_DONE && before > after)
        r->returned_bytes = before - after;
}

static void run_texts(const struct framework_host *host, py *modules,
                      struct framework_result *results, struct framework_cached *cached)
{
    uint64_t devices = host->devices();
    for (int i = 0; i < NUM_FRAMEWORKS; i++) {
        if (!python_api.PyDict_GetItemString(modules, frameworks[i].module))
            continue;
        if (!cached) {
            flush_framework(host, frameworks[i].flush, modules, devices, &results[i]);
            continue;
        }
        results[i].state =
            run_text(frameworks[i].look, modules, devices, host->is_quiet(), &cached[i]);
        cached[i].at_ns = clock_now_ns();
    }
}

static void set_loaded(py *modules, struct framework_result *results, enum framework_state state)
{
    for (int i = 0; i < NUM_FRAMEWORKS; i++)
        if (python_api.PyDict_GetItemString(modules, frameworks[i].module))
            results[i].state = state;
}

/* The interpreter's lock is held, and the phase is IN. */
static void run_all(const struct framework_host *host, py *modules,
                    struct framework_result *results, struct framework_cached *cached)
{
    py *names = python_make_names(modules);
    bool ready = names && python_put_number(names, "first", !registered) &&
                 python_put_number(names, "thread", python_api.PyThread_get_thread_ident()) &&
                 python_put_function(names, &hold_exit) && python_put_function(names, &hold_fork) &&
                 python_put_function(names, &release_fork) && python_evaluate(enter_text, names);
    registered |= ready;
    if (ready && python_number_in(names, "ends") != 0)
        atomic_store(&closed, true); /* step 9 */
    has_begun = ready && !atomic_load(&closed) && !atomic_load(&barred) && host->begin();
    if (has_begun)
        run_texts(host, modules, results, cached);
    else /* what the interpreter lacks (step 1) does not come by waiting */
        set_loaded(modules, results, ready ? FRAMEWORK_BUSY : FRAMEWORK_FAILED);
    if (has_begun)
        host->end();
    has_begun = false;
    if (ready)
        python_evaluate(leave_text, names);
    if (names)
        python_drop_names(names);
}

static bool any_loaded(py *modules)
{
    for (int i = 0; modules && i < NUM_FRAMEWORKS; i++)
        if (python_api.PyDict_GetItemString(modules, frameworks[i].module))
            return true;
    return false;
}

static bool interpreter_is_ready(void)
{
    return python_api.Py_IsInitialized() &&
           !(python_api.Py_IsFinalizing && python_api.Py_IsFinalizing()) &&
           !(python_api._Py_IsFinalizing && python_api._Py_IsFinalizing());
}

/* Is the state of a new thread made under a lock that os.fork does not take (step 12)? Not if this
 * thread has one, as a package may have left it. */
static bool makes_own_state(void)
{
    return !python_api.PyErr_GetRaisedException && python_api.PyGILState_GetThisThreadState &&
           python_api.PyInterpreterState_Main && python_api.PyThreadState_New &&
           python_api.PyThreadState_Clear && python_api.PyThreadState_DeleteCurrent &&
           !python_api.PyGILState_GetThisThreadState();
}

/* Does tracemalloc trace? Then it takes the interpreter's lock for each allocation. Untracks no
 * memory, and takes a lock of tracemalloc's for a moment. */
static bool is_traced(void)
{
    enum { NOT_TRACING = -2 };
    return python_api.PyTraceMalloc_Untrack &&
           python_api.PyTraceMalloc_Untrack(0, 0) != NOT_TRACING;
}

/* The state that this thread gets by it. NULL: no memory, or the interpreter is not ready, or it
 * traces allocations. */
static void *make_own_state(void)
{
    void *own = NULL;
    fork_gate_enter();
    if (interpreter_is_ready() && !is_traced())
        own = python_api.PyThreadState_New(python_api.PyInterpreterState_Main());
    fork_gate_leave();
    return own;
}

/* Tracing stays suspended: the thread's state ends with the run, and what it owns with it. */
static void run_attached(const struct framework_host *host, struct framework_result *results,
                         struct framework_cached *cached)
{
    bool makes_own = makes_own_state();
    void *own = makes_own ? make_own_state() : NULL;
    int attached = 0;
    if (makes_own && !own)
        return;
    if (own)
        python_api.PyEval_RestoreThread(own);
    else
        attached = python_api.PyGILState_Ensure();
    void *thread = python_api.PyThreadState_EnterTracing ? python_api.PyThreadState_Get() : NULL;
    if (thread)
        python_api.PyThreadState_EnterTracing(thread);
    py *modules = python_api.PyImport_GetModuleDict();
    if (any_loaded(modules)) {
        set_phase(IN);
        run_all(host, modules, results, cached);
    }
    if (own) {
        python_api.PyThreadState_Clear(own);
        python_api.PyThreadState_DeleteCurrent();
    } else {
        python_api.PyGILState_Release(attached);
    }
}

bool python_is_loaded(void)
{
    return !atomic_load(&closed) && python_api_is_there();
}

void python_ask(const struct framework_host *host, struct framework_result *results,
                struct framework_cached *cached)
{
    for (int i = 0; i < NUM_FRAMEWORKS; i++) {
        results[i] = (struct framework_result){.name = frameworks[i].module};
        if (cached)
            cached[i] = (struct framework_cached){0};
    }
    set_phase(NEAR);
    void *handle = atomic_load(&closed) ? NULL : python_api_open();
    if (handle && (registered || python_api_find(handle)) && interpreter_is_ready())
        run_attached(host, results, cached);
    set_phase(OUT);
    if (handle)
        symbol_close(handle);
}

void python_interrupted(const struct framework_host *host)
{
    atomic_store(&closed, true);
    if (has_begun)
        host->end();
    set_phase(OUT);
}
