# SPDX-License-Identifier: BSD-2-Clause
"""Programs with caches of their own, under the library: framework_scenes.py SCENE LOG FOLDER."""
import atexit
import ctypes
import gc
import importlib.util
import os
import signal
import sys
import threading
import time
import tracemalloc
import types
import warnings

import framework_fakes as fakes
import framework_program
from framework_program import (FOLDER, HAS_GIL, MIB, await_true, count, device_bytes_used, flush,
                               forget, libc, lines_after, ready, settle, slow_empty, torch_of)

# What a flush leaves in the program

def state_of_interpreter():
    import __main__
    return {"modules": sorted(sys.modules), "main": sorted(vars(__main__)),
            "builtins": sorted(vars(sys.modules["builtins"])), "threads": threading.enumerate(),
            "active": sorted(threading._active), "gc": (gc.isenabled(), gc.get_threshold()),
            "warnings": list(warnings.filters), "path": list(sys.path),
            "frames": len(sys._current_frames()), "last": getattr(sys, "last_value", None),
            "error": sys.exc_info(), "switch": sys.getswitchinterval(),
            "garbage": len(gc.garbage), "signal": signal.getsignal(signal.SIGUSR1)}


class Watch:
    """Notes every trace, profile and monitoring call of other threads."""

    def __init__(self):
        self.seen, self.own = [], threading.get_ident()

    def note(self, *arguments):
        if threading.get_ident() != self.own:
            self.seen.append(arguments)

    def start(self):
        sys.settrace(self.note)
        sys.setprofile(self.note)
        threading.settrace(self.note)
        threading.setprofile(self.note)
        if hasattr(threading, "settrace_all_threads"):
            threading.settrace_all_threads(self.note)
        if hasattr(sys, "monitoring"):
            sys.monitoring.use_tool_id(3, "watch")
            events = sys.monitoring.events
            for event in (events.PY_START, events.LINE, events.CALL, events.RAISE):
                sys.monitoring.register_callback(3, event, self.note)
            sys.monitoring.set_events(3, events.PY_START | events.LINE | events.CALL | events.RAISE)

    def stop(self):
        if hasattr(sys, "monitoring"):
            sys.monitoring.set_events(3, 0)
            sys.monitoring.free_tool_id(3)
        if hasattr(threading, "settrace_all_threads"):
            threading.settrace_all_threads(None)
        for setter in (sys.settrace, sys.setprofile, threading.settrace, threading.setprofile):
            setter(None)


def act_leaves_nothing_behind():
    cache = torch_of()

    def empty():
        threading.current_thread()  # makes an object for a thread that threading does not know
        cache.empty()
    fakes.put_torch(cache, empty)
    flush()
    watch, before = Watch(), state_of_interpreter()
    objects = None
    for _ in range(20):
        cache.fill(MIB)
        gc.collect()
        objects = objects or len(gc.get_objects())
        watch.start()
        flush()
        watch.stop()
    gc.collect()
    assert len(gc.get_objects()) < objects + 100, (len(gc.get_objects()), objects)
    assert not watch.seen, watch.seen[:3]
    assert before == state_of_interpreter(), (before, state_of_interpreter())
    assert cache.calls == 21 and not cache.kept


def act_beside_a_busy_main_thread():
    cache = torch_of()
    os.kill(os.getpid(), signal.SIGUSR1)
    end = time.monotonic() + 60
    while not cache.calls and time.monotonic() < end:
        pass
    assert cache.calls == 1


def act_exceptions_end_there():
    for kind in (RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit):
        def empty(kind=kind):
            raise kind("not ours")
        torch_of(MIB, empty)
        before = count("torch: failed")
        flush()
        await_true(lambda: count("torch: failed") == before + 1)


def act_half_imported_modules_are_left_alone():
    cache = torch_of()
    for name in ("torch", "torch.cuda"):
        sys.modules[name].__spec__._initializing = True
        flush()
        assert not cache.calls
        sys.modules[name].__spec__._initializing = False
    hidden = sys.modules.pop("torch.cuda")
    flush()
    assert not cache.calls and "torch.cuda" not in sys.modules
    sys.modules["torch.cuda"] = hidden
    flush()
    assert cache.calls == 1


def act_lazy_modules_stay_unloaded():
    with open(os.path.join(FOLDER, "torch.py"), "w") as file:
        file.write("import sys\nsys.torch_was_loaded = True\n")
    spec = importlib.util.spec_from_file_location("torch", os.path.join(FOLDER, "torch.py"))
    spec.loader = importlib.util.LazyLoader(spec.loader)
    sys.modules["torch"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["torch"])
    flush()
    assert not hasattr(sys, "torch_was_loaded")


def act_strange_modules_are_left_alone():
    for strange in (None, 7, types.SimpleNamespace(), "torch"):
        sys.modules["torch"] = strange
        flush()


def act_not_without_cuda():
    cache = torch_of()
    sys.modules["torch.cuda"].is_initialized = lambda: False
    flush()
    assert not cache.calls


def act_cupy_on_every_device():
    caches = {0: fakes.Cache(), 1: fakes.Cache()}
    pinned = fakes.Cache()
    fakes.put_cupy(caches, pinned)
    for number, cache in caches.items():
        with fakes.Device(number):
            cache.fill(40 * MIB)
    flush()
    assert [c.calls for c in caches.values()] == [1, 1] and pinned.calls == 1
    await_true(lambda: count("cupy: done, gave 80.0 MiB") == 1)


def act_numba_without_a_context():
    for cached in False, True:
        fakes.put_numba(None, cached)
        flush()
        fakes.put_numba([None, None], cached)
        flush()


def act_numba_pending_memory(cached=False):
    context = fakes.NumbaContext()
    fakes.put_numba([None, context], cached)
    waiting = context.memory_manager.deallocations
    for _ in range(6):
        waiting.add_item(fakes.free, fakes.malloc(20 * MIB), 20 * MIB)
    waiting._disable_count = 1
    flush()
    assert len(waiting._cons) == 6
    waiting._disable_count = 0
    if not HAS_GIL:  # nothing keeps the program's own clear() away meanwhile
        before = count("numba: keeps")
        flush()
        await_true(lambda: count("numba: keeps") > before)
        assert len(waiting._cons) == 6
        return
    for expected in (120, 20):
        before = count(f"numba: done, gave {expected}.0 MiB")
        flush()
        await_true(lambda: count(f"numba: done, gave {expected}.0 MiB") == before + 1)
        assert len(waiting._cons) == 1 and waiting._size == 0 and context.depth == 0
        waiting.add_item(fakes.free, fakes.malloc(20 * MIB), 20 * MIB)
    waiting.clear()
    assert not waiting._cons


def act_numba_pending_memory_of_a_cached_property():
    act_numba_pending_memory(True)


def act_numba_beside_its_own_clear():
    """clear() of the program never finds the deque empty under its hands."""
    context = fakes.NumbaContext()
    fakes.put_numba([context])
    waiting = context.memory_manager.deallocations
    before, switch = count("flush (signal)"), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        os.kill(os.getpid(), signal.SIGUSR1)
        for _ in range(50):
            for _ in range(3):
                waiting.add_item(fakes.free, fakes.malloc(MIB), MIB)
            waiting.clear()
    sys.setswitchinterval(switch)
    await_true(lambda: count("flush (signal)") > before)
    settle()


def act_rmm_trims_what_it_can():
    trimmed = []
    fakes.put_rmm(trimmed)
    flush()
    assert trimmed and trimmed[0] == (("pool", 4711), 0), trimmed
    del sys.modules["cuda.bindings.driver"]
    before = count("rmm: keeps")
    flush()
    await_true(lambda: count("rmm: keeps") > before)


def act_several_interpreters():
    cache = torch_of()
    try:
        import _xxsubinterpreters as interpreters
    except ImportError:
        try:
            import _interpreters as interpreters
        except ImportError:
            return
    run = getattr(interpreters, "run_string", None) or interpreters.exec
    other = interpreters.create()
    run(other, "import sys, threading\nsys.modules['torch'] = sys")
    thread = threading.Thread(target=run, args=(other, "import time\ntime.sleep(0.3)"))
    thread.start()
    flush()
    thread.join()
    await_true(lambda: cache.calls == 1)
    interpreters.destroy(other)
    cache.fill(MIB)
    flush()
    assert cache.calls == 2


def act_a_flush_inside_an_allocation_does_not_wait():
    """The thread holds the interpreter's lock and the allocator's; afterwards the cache goes."""
    cache = torch_of()
    before, late = count("flush (environment)"), count("flush (frameworks)")
    with cache.lock:
        os.environ["GPUCACHE_EMPTY_CACHE"] = "1"
        address = ctypes.c_void_p()
        start = time.monotonic()
        runtime = ctypes.PyDLL("libcudart.so.13")
        assert runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(MIB)) == 0
        assert time.monotonic() - start < 5
        assert count("flush (environment)") == before + 1
    await_true(lambda: cache.calls == 1 and count("flush (frameworks)") > late)
    del os.environ["GPUCACHE_EMPTY_CACHE"]
    fakes.free(address)


def act_others_hold_the_allocators_lock():
    cache = torch_of()
    before = count("flush (frameworks)")
    with cache.lock:
        flush(patient=False)
        flush(patient=False)  # joins the request that waits
        assert not cache.calls
    await_true(lambda: cache.calls and count("flush (frameworks)") > before)


def act_others_hold_the_loaders_lock():
    """And, in most releases, the interpreter's: a plugin asks for a flush, and starts for a
    second. On a busy machine the flush may come only after that."""
    cache = torch_of()
    before = count("flush (signal)")
    os.environ["SLOW_START"] = "yes"
    ctypes.CDLL(os.environ["SLOW_PLUGIN"])
    del os.environ["SLOW_START"]
    await_true(lambda: cache.calls and
               any("flush (frameworks)" in line
                   for line in lines_after("flush (signal)", before) or []))


def act_a_request_beside_a_flush_loses_nothing():
    """The program sets the variable while a package is at work for a flush. What the package caches
    after that goes back too."""
    cache = fakes.Cache()
    inside = threading.Event()

    def empty():
        with cache.lock:
            cache.calls += 1
            mine, cache.kept = cache.kept, []
        for address in mine:
            fakes.free(address)
        inside.set()
        if cache.calls == 1:
            libc.usleep(60000)
    fakes.put_torch(cache, empty)
    flush()
    before = device_bytes_used()
    inside.clear()
    cache.calls = 0
    cache.fill(32 * MIB)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert inside.wait(60)
    cache.fill(64 * MIB)
    os.environ["GPUCACHE_EMPTY_CACHE"] = "1"
    small = fakes.malloc(MIB)
    del os.environ["GPUCACHE_EMPTY_CACHE"]
    await_true(lambda: not cache.kept)
    await_true(lambda: device_bytes_used() < before + 8 * MIB)
    fakes.free(small)


def act_without_the_module_threading_it_is_asked_once():
    """A program may have a module of such a name, and none of the interpreter's own for threads."""
    fakes.module("rmm")
    taken, before = sys.modules.pop("threading"), count("rmm: failed")
    try:
        flush()
        time.sleep(0.3)
    finally:
        sys.modules["threading"] = taken
    assert count("rmm: failed") == before + 1 and not count("busy")


def acts():
    for name, act in list(globals().items()):
        if name.startswith("act_"):
            fakes.free(fakes.malloc(MIB))
            act()
            forget()


def off():
    cache = torch_of()
    fakes.free(fakes.malloc(MIB))
    flush(patient=False)
    assert cache.calls == 0 and not count("torch")
    assert threading.active_count() == 1


# Scenes that another process directs

def idle():
    cache = torch_of()
    ready()
    sys.stdin.readline()
    assert cache.calls == 1


def held():
    """Keeps the interpreter's lock until it is told."""
    torch_of()
    holding = ctypes.PyDLL(os.environ["SLOW_PLUGIN"])  # its calls keep the interpreter's lock
    ready()
    holding.hold()
    print("awake", flush=True)
    sys.stdin.readline()


def stops_tracing():
    """tracemalloc.stop frees what an allocation needs that waits for the interpreter's lock. So no
    thread of the library's makes such an allocation. From 3.12 on the interpreter is to see to it.
    """
    if sys.version_info >= (3, 12):
        return
    torch_of()
    fakes.free(fakes.malloc(MIB))
    sys.setswitchinterval(10)
    for _ in range(5):
        tracemalloc.start()
        os.kill(os.getpid(), signal.SIGUSR1)
        end = time.monotonic() + 0.05  # keeps the interpreter's lock
        while time.monotonic() < end:
            pass
        tracemalloc.stop()
        time.sleep(0.1)
    sys.setswitchinterval(0.005)
    flush()


def ends():
    """Ends soon after a signal, or while empty_cache is at work. What has begun is over when the
    functions of atexit run, which comes after the threads' shutdown."""
    cache = torch_of()
    slow_empty(cache, int(os.environ["SLOW_US"]))
    atexit.register(lambda: cache.calls == cache.begun or os._exit(3))
    if os.environ["BEFORE"]:
        flush()
    begun = cache.begun
    os.kill(os.getpid(), signal.SIGUSR1)
    if "DELAY_US" in os.environ:
        libc.usleep(int(os.environ["DELAY_US"]))
    else:
        await_true(lambda: cache.begun > begun)


framework_program.play(globals())
