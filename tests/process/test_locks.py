# SPDX-License-Identifier: BSD-2-Clause
"""Two Python processes that run out of memory while each holds the interpreter's lock and its
package's allocator lock, as PyTorch does around cudaMalloc.

test_locks.py LIBRARY FOLDERS_OF_THE_SIMULATED_DRIVER_AND_RUNTIME
What meets there, in the letters of shim/framework/README.md, for each of the two:
 1. The main thread takes A (cache.lock) and keeps G (calls through PyDLL), then calls cudaMalloc.
 2. Its own pool takes P, tries what it has, lets P go, and has too little.
 3. It takes the lock of those that ask (neighbour.c) and a slot S of the other process.
 4. There C serves the slot. It takes P for the idle memory, and asks F for the package's.
 5. F waits for G, which that main thread holds in its own step 3. C looks for F's answer for a
    bounded time, then replies.
 6. So each main thread has its reply long before its bound; it returns, and lets A and G go.
 7. Then F goes on: it takes G, then A, and what the package kept follows by a second flush."""
import os
import sys
import time

import page_client
import programs
import waiting

LIBRARY, FOLDERS = os.path.realpath(sys.argv[1]), sys.argv[2]
HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20
NO_MEMORY = 2
# Nobody waits so long: each has its reply after a fraction of a second.
SHARE_S = 60
LATE_S = 20

PROGRAM = """
import ctypes, sys, time
sys.path.insert(0, sys.argv[1])
import framework_fakes as fakes
cache = fakes.Cache()
fakes.put_torch(cache)
runtime, libc = ctypes.PyDLL("libcudart.so.13"), ctypes.PyDLL(None)  # these keep the lock
sys.setswitchinterval(1000)  # no other thread gets it in between
def idle(mib):
    "Memory that only the pool keeps."
    blocks = [fakes.malloc(16 << 20) for _ in range(mib // 16)]
    for block in blocks:
        fakes.free(block)
    return 0
def keep(mib):
    "Memory that the package keeps."
    cache.fill(mib << 20)
    return 0
def until(path):
    "Waits in C for a folder."
    while libc.access(path, 0):
        libc.usleep(1000)
def take(mib, mine=None, other=None):
    # As a package would: (code, seconds, pieces that it kept meanwhile). Keeps both locks until
    # another process is through, too.
    address = ctypes.c_void_p()
    with cache.lock:
        kept = len(cache.kept)
        start = time.monotonic()
        code = runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(mib << 20))
        took = time.monotonic() - start
        if mine:
            libc.mkdir(mine, 0o700)
            until(other)
    if not code:
        fakes.free(address)
    return code, took, kept
def hold(path):
    "Keeps both locks until the folder is there."
    with cache.lock:
        print("inside", flush=True)
        until(path)
    return cache.calls
for line in sys.stdin:
    print(eval(line), flush=True)
"""


def start(test, gpu, folder):
    env = programs.environ(LIBRARY, FOLDERS, PYTHONDONTWRITEBYTECODE="1", SIM_SHARED=gpu,
                           SIM_CAPACITY="1G", SIM_DEVICES="1", GPUCACHE_DIR=folder,
                           GPUCACHE_SHARE=f"{SHARE_S}s")
    python = programs.Talker([sys.executable, "-c", PROGRAM, HERE], env, stderr=None)
    test.addCleanup(python.end)
    return python


def taken(line):
    code, seconds, kept = line.strip("()").split(",")
    return int(code), float(seconds), int(kept)


class Locks(waiting.Waiting):
    def setUp(self):
        self.folder, gpu = self.scratch(), self.shared_gpu()
        folder = os.path.join(self.folder, "pages")
        self.both = [start(self, gpu, folder) for _ in range(2)]
        for python in self.both:
            python.do("idle(64)")
            self.wait_for(lambda p=python: page_client.page_of(folder, p.pid), "no page")

    def test_both_get_the_error_where_neither_has_enough_and_the_caches_follow(self):
        """Own idle memory, free memory and the other's idle memory are less than 600 MiB. The rest
        is the packages', which cannot let go while both locks are held in both processes."""
        rounds = 0
        for turn in range(50):
            for python in self.both:
                python.do("idle(160)")
                python.do("keep(220)")
            names = [os.path.join(self.folder, f"{turn}-{i}").encode() for i in range(2)]
            start = time.monotonic()
            for python, mine, other in zip(self.both, names, reversed(names)):
                python.send(f"take(700, {mine}, {other})")
            results = [taken(python.read()) for python in self.both]
            self.assertLess(time.monotonic() - start, LATE_S, results)
            # A flush that follows the round before may have come in between.
            if [kept for _, _, kept in results] == [1, 1]:
                self.assertEqual([code for code, _, _ in results], 2 * [NO_MEMORY])
                rounds += 1
            if rounds == 3:
                break
            self.wait_for(lambda: taken(self.both[0].do("take(700)"))[0] == 0, "the caches")
        self.assertEqual(rounds, 3)

    def test_both_get_memory_that_lies_idle_in_the_pools(self):
        """One after the other takes what both have idle; nothing waits for a package."""
        for python in self.both:
            python.do("keep(100)")
        for _ in range(10):
            for python in self.both:
                python.send("take(300)")
            self.assertEqual([taken(python.read())[0] for python in self.both], [0, 0])

    def test_who_sits_in_c_with_both_locks_gives_what_its_pools_have(self):
        holder, asker = self.both
        holder.do("keep(300)")
        holder.do("idle(480)")
        self.assertEqual(asker.do("idle(16)"), "0")
        through = os.path.join(self.folder, "through").encode()
        holder.send(f"hold({through})")
        self.assertEqual(holder.read(), "inside")
        # 640 MiB are idle or free; the rest is the package's.
        code, seconds, _ = taken(asker.do("take(560)"))
        self.assertEqual(code, 0, seconds)
        code, seconds, _ = taken(asker.do("take(900)"))
        self.assertEqual(code, NO_MEMORY)
        self.assertLess(seconds, LATE_S)
        os.mkdir(through)
        self.assertEqual(holder.read(), "0")  # its cache was not touched meanwhile
        self.wait_for(lambda: taken(asker.do("take(900)"))[0] == 0, "the cache")
