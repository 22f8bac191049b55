# SPDX-License-Identifier: BSD-2-Clause
"""Such programs that fork: framework_forks.py SCENE LOG FOLDER."""
import ctypes
import os
import signal
import sys
import threading
import time
import warnings

import framework_fakes as fakes
import framework_program
from framework_program import MIB, await_true, count, flush, slow_empty, torch_of


def forks():
    """Children find the allocator's lock free. The cache takes its time with the lock held."""
    cache = torch_of()
    slow_empty(cache, 3000)
    warnings.simplefilter("ignore")  # of a fork beside threads, from 3.12 on
    for turn in range(12):
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.0004 * turn)
        pid = os.fork()
        if not pid:
            os._exit(0 if cache.lock.acquire(timeout=50) else 1)
        assert os.waitpid(pid, 0)[1] == 0
    # a child that ends as a Python program does
    os.kill(os.getpid(), signal.SIGUSR1)
    if not os.fork():
        sys.exit(0)
    assert os.wait()[1] == 0
    flush()


def forks_together():
    """One thread forks while another is about to. In between no package is asked, which would take
    its allocator's lock."""
    about, go, statuses = threading.Event(), threading.Event(), []

    def before():
        if threading.current_thread() is other:
            about.set()
            go.wait(60)

    def fork():
        pid = os.fork()
        if not pid:
            os._exit(0 if cache.lock.acquire(timeout=30) else 1)
        statuses.append(os.waitpid(pid, 0)[1])

    warnings.simplefilter("ignore")
    os.register_at_fork(before=before)  # before the library's, which runs first then
    other = threading.Thread(target=fork)
    cache = torch_of()
    slow_empty(cache, 200000)
    flush()
    other.start()
    assert about.wait(60)
    fork()
    busy, begun = count("torch: busy"), cache.begun
    os.kill(os.getpid(), signal.SIGUSR1)
    await_true(lambda: count("torch: busy") > busy or cache.begun > begun)
    go.set()
    other.join()
    assert statuses == [0, 0], statuses
    await_true(lambda: cache.begun > begun)


def forks_near():
    """Children are forked while threads of the library look for the interpreter and come to it, the
    first time too. A preload (long_near.c) makes that last. Each child loads a library."""
    torch_of()
    fakes.free(fakes.malloc(MIB))
    warnings.simplefilter("ignore")
    for turn in range(24):
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.005 * turn)
        pid = os.fork()
        if not pid:
            ctypes.CDLL(os.environ["SLOW_PLUGIN"])
            os._exit(0)
        try:
            await_true(lambda: os.waitpid(pid, os.WNOHANG) == (pid, 0), 10)
        except AssertionError:
            os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"the child of turn {turn} hangs") from None
    flush()


def slow_forks(turns):
    """Those that took nearly as long as the library waits at most."""
    slow = []
    for turn in range(turns):
        os.kill(os.getpid(), signal.SIGUSR1)
        end = time.monotonic() + 0.0005 * (turn % 20)
        while time.monotonic() < end:
            pass
        start = time.monotonic()
        pid = os.fork()
        if not pid:
            os._exit(0)
        seconds = time.monotonic() - start
        assert os.waitpid(pid, 0)[1] == 0
        if seconds >= 0.8:
            slow.append(f"the fork of turn {turn} took {seconds:.1f} s")
    return slow


def forks_traced():
    """While tracemalloc traces, the interpreter allocates the state of a thread with its own lock
    held. No fork waits for a thread of the library's that waits for that lock: it would for a
    second. On a busy machine one may take as long, so another round has to do without."""
    torch_of()
    fakes.free(fakes.malloc(MIB))
    warnings.simplefilter("ignore")
    sys.setswitchinterval(0.02)
    slow = "no round"
    for _ in range(3):
        slow = slow and slow_forks(30)
    assert not slow, slow
    sys.setswitchinterval(0.005)
    flush()


framework_program.play(globals())
