/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See python.h; the numbers below are those of its steps. No lock of ours.
 */
#include "shim/framework/python.h"

#include "shim/loader/object.h"
#include "shim/loader/symbol.h"
#include "shim/process/clock.h"
#include "shim/process/fork_gate.h"
#include "shim/process/futex.h"
#include "shim/process/state.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#define EXIT_PATIENCE_NS (10 * SEC_NS)
#define FORK_PATIENCE_NS SEC_NS

/* The interpreter's objects have no layout here. */
struct object_of_python;
typedef struct object_of_python py;

/* PyMethodDef of the stable ABI. */
struct method {
    const char *name;
    py *(*call)(py *self, py *argument);
    int flags;
    const char *help;
};
enum { METH_NOARGS = 4, METH_O = 8, FILE_INPUT = 257 };

/* The functions of the interpreter. */
#define NEEDED(PY)                                                                                 \
    PY(int, Py_IsInitialized, (void))                                                              \
    PY(int, PyGILState_Ensure, (void))                                                             \
    PY(void, PyGILState_Release, (int))                                                            \
    PY(void *, PyEval_SaveThread, (void))                                                          \
    PY(void, PyEval_RestoreThread, (void *))                                                       \
    PY(py *, PyEval_GetBuiltins, (void))                                                           \
    PY(py *, PyImport_GetModuleDict, (void))                                                       \
    PY(py *, PyDict_New, (void))                                                                   \
    PY(py *, PyDict_GetItemString, (py *, const char *))                                           \
    PY(int, PyDict_SetItemString, (py *, const char *, py *))                                      \
    PY(void, PyDict_Clear, (py *))                                                                 \
    PY(py *, PyList_New, (ptrdiff_t))                                                              \
    PY(int, PyList_Append, (py *, py *))                                                           \
    PY(py *, PyLong_FromUnsignedLong, (unsigned long))                                             \
    PY(long, PyLong_AsLong, (py *))                                                                \
    PY(py *, PyCFunction_NewEx, (struct method *, py *, py *))                                     \
    PY(ptrdiff_t, PyObject_Size, (py *))                                                           \
    PY(py *, PyObject_GetAttrString, (py *, const char *))                                         \
    PY(py *, PyObject_CallObject, (py *, py *))                                                    \
    PY(py *, Py_CompileString, (const char *, const char *, int))                                  \
    PY(py *, PyEval_EvalCode, (py *, py *, py *))                                                  \
    PY(void, PyErr_Clear, (void))                                                                  \
    PY(void, Py_DecRef, (py *))                                                                    \
    PY(void *, PyThreadState_Get, (void))                                                          \
    PY(unsigned long, PyThread_get_thread_ident, (void))
#define OPTIONAL(PY)                                                                               \
    PY(int, Py_IsFinalizing, (void))               /* from 3.13 on */                              \
    PY(int, _Py_IsFinalizing, (void))              /* until 3.12 */                                \
    PY(void, PyThreadState_EnterTracing, (void *)) /* from 3.11 on */                              \
    PY(py *, PyErr_GetRaisedException, (void))     /* from 3.12 on; never called */                \
    PY(void *, PyGILState_GetThisThreadState, (void))                                              \
    PY(void *, PyInterpreterState_Main, (void))                                                    \
    PY(void *, PyThreadState_New, (void *))                                                        \
    PY(void, PyThreadState_Clear, (void *))                                                        \
    PY(void, PyThreadState_DeleteCurrent, (void))                                                  \
    PY(int, PyTraceMalloc_Untrack, (unsigned, uintptr_t))

static struct {
#define PY(type, name, parameters) type(*name) parameters;
    NEEDED(PY)
    OPTIONAL(PY)
#undef PY
} api;

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
    void *thread = api.PyEval_SaveThread();
    while ((now = atomic_load(&phase)) >= least && clock_now_ns() < end_ns)
        futex_wait(&phase, now, end_ns, FUTEX_OF_PROCESS);
    api.PyEval_RestoreThread(thread);
}

static py *zero(void)
{
    return api.PyLong_FromUnsignedLong(0);
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
    py *taken = api.PyList_New(0), *popleft = api.PyObject_GetAttrString(deque, "popleft");
    while (taken && popleft && api.PyObject_Size(deque) > 1) {
        py *item = api.PyObject_CallObject(popleft, NULL);
        if (!item)
            break;
        api.PyList_Append(taken, item);
        api.Py_DecRef(item);
    }
    if (popleft)
        api.Py_DecRef(popleft);
    return taken;
}

/* The interpreter keeps these addresses. */
static struct method hold_exit = {"hold_exit", call_hold_exit, METH_NOARGS, NULL};
static struct method hold_fork = {"hold_fork", call_hold_fork, METH_NOARGS, NULL};
static struct method release_fork = {"release_fork", call_release_fork, METH_NOARGS, NULL};
static struct method take = {"take", call_take, METH_O, NULL};

/* Takes the reference. */
static bool put_name(py *names, const char *name, py *value)
{
    bool ok = value && api.PyDict_SetItemString(names, name, value) == 0;
    if (value)
        api.Py_DecRef(value);
    return ok;
}

static bool put_number(py *names, const char *name, unsigned long value)
{
    return put_name(names, name, api.PyLong_FromUnsignedLong(value));
}

static bool put_function(py *names, struct method *method)
{
    return put_name(names, method->name, api.PyCFunction_NewEx(method, NULL, NULL));
}

/* A new namespace; NULL: no memory. */
static py *make_names(py *modules)
{
    py *names = api.PyDict_New();
    if (names && api.PyDict_SetItemString(names, "__builtins__", api.PyEval_GetBuiltins()) == 0 &&
        api.PyDict_SetItemString(names, "modules", modules) == 0)
        return names;
    if (names)
        api.Py_DecRef(names);
    return NULL;
}

/* Functions in it refer to it: it would stay for the garbage collector. */
static void drop_names(py *names)
{
    api.PyDict_Clear(names);
    api.Py_DecRef(names);
}

static bool evaluate(const char *text, py *names)
{
    py *code = api.Py_CompileString(text, "<libgpucache>", FILE_INPUT);
    py *value = code ? api.PyEval_EvalCode(code, names, names) : NULL;
    if (code)
        api.Py_DecRef(code);
    if (value)
        api.Py_DecRef(value);
    else
        api.PyErr_Clear();
    return value;
}

static long number_in(py *names, const char *name)
{
    py *value = api.PyDict_GetItemString(names, name);
    long number = value ? api.PyLong_AsLong(value) : -1;
    api.PyErr_Clear();
    return number;
}

static bool put_constants(py *names)
{
    return put_number(names, "IDLE", FRAMEWORK_IDLE) && put_number(names, "DONE", FRAMEWORK_DONE) &&
           put_number(names, "KEEPS", FRAMEWORK_KEEPS) && put_number(names, "BUSY", FRAMEWORK_BUSY);
}

/* What a look put into `cached`. */
static void take_cached(py *names, struct framework_cached *out)
{
    py *cached = api.PyDict_GetItemString(names, "cached");
    for (int device = 0; cached && device < FRAMEWORK_DEVICES; device++) {
        char key[] = {(char)('0' + device / 10), (char)('0' + device % 10), '\0'};
        long bytes = number_in(cached, device < 10 ? key + 1 : key);
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
    py *names = make_names(modules);
    if (names && put_number(names, "mask", devices) && put_number(names, "quiet", quiet) &&
        put_function(names, &take) && put_constants(names) && evaluate(prelude, names) &&
        evaluate(text, names)) {
        long said = number_in(names, "state");
        state = said > FRAMEWORK_ABSENT ? (enum framework_state)said : FRAMEWORK_IDLE;
        if (cached)
            take_cached(names, cached);
    }
    if (names)
        drop_names(names);
    api.PyErr_Clear();
    return state;
}

/* The driver may make the call wait, so the interpreter's lock is let go. */
static uint64_t ask_held_bytes(const struct framework_host *host)
{
    void *thread = api.PyEval_SaveThread();
    uint64_t bytes = host->held_bytes();
    api.PyEval_RestoreThread(thread);
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
        if (!api.PyDict_GetItemString(modules, frameworks[i].module))
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
        if (api.PyDict_GetItemString(modules, frameworks[i].module))
            results[i].state = state;
}

/* The interpreter's lock is held, and the phase is IN. */
static void run_all(const struct framework_host *host, py *modules,
                    struct framework_result *results, struct framework_cached *cached)
{
    py *names = make_names(modules);
    bool ready = names && put_number(names, "first", !registered) &&
                 put_number(names, "thread", api.PyThread_get_thread_ident()) &&
                 put_function(names, &hold_exit) && put_function(names, &hold_fork) &&
                 put_function(names, &release_fork) && evaluate(enter_text, names);
    registered |= ready;
    if (ready && number_in(names, "ends") != 0)
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
        evaluate(leave_text, names);
    if (names)
        drop_names(names);
}

static bool any_loaded(py *modules)
{
    for (int i = 0; modules && i < NUM_FRAMEWORKS; i++)
        if (api.PyDict_GetItemString(modules, frameworks[i].module))
            return true;
    return false;
}

static bool interpreter_is_ready(void)
{
    return api.Py_IsInitialized() && !(api.Py_IsFinalizing && api.Py_IsFinalizing()) &&
           !(api._Py_IsFinalizing && api._Py_IsFinalizing());
}

/* Is the state of a new thread made under a lock that os.fork does not take (step 12)? Not if this
 * thread has one, as a package may have left it. */
static bool makes_own_state(void)
{
    return !api.PyErr_GetRaisedException && api.PyGILState_GetThisThreadState &&
           api.PyInterpreterState_Main && api.PyThreadState_New && api.PyThreadState_Clear &&
           api.PyThreadState_DeleteCurrent && !api.PyGILState_GetThisThreadState();
}

/* Does tracemalloc trace? Then it takes the interpreter's lock for each allocation. Untracks no
 * memory, and takes a lock of tracemalloc's for a moment. */
static bool is_traced(void)
{
    enum { NOT_TRACING = -2 };
    return api.PyTraceMalloc_Untrack && api.PyTraceMalloc_Untrack(0, 0) != NOT_TRACING;
}

/* The state that this thread gets by it. NULL: no memory, or the interpreter is not ready, or it
 * traces allocations. */
static void *make_own_state(void)
{
    void *own = NULL;
    fork_gate_enter();
    if (interpreter_is_ready() && !is_traced())
        own = api.PyThreadState_New(api.PyInterpreterState_Main());
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
        api.PyEval_RestoreThread(own);
    else
        attached = api.PyGILState_Ensure();
    void *thread = api.PyThreadState_EnterTracing ? api.PyThreadState_Get() : NULL;
    if (thread)
        api.PyThreadState_EnterTracing(thread);
    py *modules = api.PyImport_GetModuleDict();
    if (any_loaded(modules)) {
        set_phase(IN);
        run_all(host, modules, results, cached);
    }
    if (own) {
        api.PyThreadState_Clear(own);
        api.PyThreadState_DeleteCurrent();
    } else {
        api.PyGILState_Release(attached);
    }
}

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

bool python_is_loaded(void)
{
    bool loaded = false;
    if (!atomic_load(&closed))
        dl_iterate_phdr(note_python, &loaded);
    return loaded;
}

/* A handle that keeps the interpreter's object loaded; NULL: there is none. dlopen waits for the
 * loader's lock, so the object is ready for use afterwards. */
static void *open_python(void)
{
    static struct python_object place; /* only the run's thread uses it */
    place.found = false;
    fork_gate_enter(); /* step 12 */
    dl_iterate_phdr(find_python, &place);
    fork_gate_leave();
    return place.found ? dlopen(*place.path ? place.path : NULL, RTLD_LAZY | RTLD_NOLOAD) : NULL;
}

static bool find_api(void *handle)
{
    bool all = true;
#define PY(type, name, parameters)                                                                 \
    api.name = (type(*) parameters)(uintptr_t)symbol_lookup(handle, #name);                        \
    all = all && api.name;
    NEEDED(PY)
#undef PY
#define PY(type, name, parameters)                                                                 \
    api.name = (type(*) parameters)(uintptr_t)symbol_lookup(handle, #name);
    OPTIONAL(PY)
#undef PY
    return all;
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
    void *handle = atomic_load(&closed) ? NULL : open_python();
    if (handle && (registered || find_api(handle)) && interpreter_is_ready())
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
