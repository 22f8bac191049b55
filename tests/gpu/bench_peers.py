# SPDX-License-Identifier: BSD-2-Clause
"""The allocators that the benchmarks compare, the programs that use them, and the requests to a
process of each. A process stays and takes one case after the other, so that peers can take turns
within a round."""
import concurrent.futures
import dataclasses
import os
import threading
import time

import suite as base
from parked import Ended, Talker

FLAGS = ["-O2", "-D_GNU_SOURCE", "-Wno-overlength-strings"]


@dataclasses.dataclass(frozen=True)
class Peer:
    name: str
    route: str                # how it reaches the driver: a program of its own
    allocator: str            # as bench_allocator.h names it
    preload: bool = False
    env: tuple = ()


SHIM = "gpucache"
SHIM_SHARED = "gpucache, shared runtime"
SHIM_DRIVER = "gpucache, driver API"
BARE = "cudaMalloc"
ASYNC = "cudaMallocAsync"
CUB = "CUB"
TORCH = "PyTorch native"
EXPANDABLE = "PyTorch expandable"
LIBRARIES = "libraries"  # what they ask cudaMalloc for beside PyTorch

PEERS = [
    Peer(BARE, "static", "malloc"),
    Peer(ASYNC, "static", "async"),
    Peer(CUB, "static", "cub"),
    Peer(TORCH, "torch", "torch", env=(("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False"),)),
    Peer(EXPANDABLE, "torch", "torch",
         env=(("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),)),
    Peer(SHIM, "static", "malloc", preload=True),
    Peer(SHIM_SHARED, "shared", "malloc", preload=True),
    Peer(SHIM_DRIVER, "driver", "malloc", preload=True),
]

ROUTES = ("static", "shared", "driver", "torch")
# The files bench_NAME.c of every program.
COMMON = ("allocator", "stat", "calls", "cold", "flush", "overlap", "pairs")


class Programs:
    """Builds the program of each route once, whatever threads ask for it; what cannot be built is
    missing, with the reason."""

    def __init__(self, suite):
        self.suite = suite
        self.built = {}
        self.locks = {route: threading.Lock() for route in ROUTES}
        self.cxx = base.shutil.which(os.environ.get("CXX", "c++")) or base.shutil.which("g++")
        sources = [os.path.join(base.HERE, name) for name in os.listdir(base.HERE)
                   if name.endswith((".c", ".h", ".cpp"))]
        self.newest = max(os.path.getmtime(source) for source in sources)

    def path(self, route):
        """The program's path. Raises the Skip that says why there is none."""
        with self.locks[route]:
            if route not in self.built:
                self.built[route] = self.try_build(route)
        if isinstance(self.built[route], base.Skip):
            raise self.built[route]
        return self.built[route]

    def prepare(self):
        """Builds all, side by side."""
        with concurrent.futures.ThreadPoolExecutor(len(ROUTES)) as pool:
            for future in [pool.submit(self.path, route) for route in ROUTES]:
                future.exception()

    def try_build(self, route):
        key = f"bench-{route}"
        if self.suite.simulate:
            out = os.path.join(self.suite.simulate, "tests", "gpu", key)
            return out if os.path.exists(out) else base.Skip(f"{key} is not there")
        out = os.path.join(self.suite.build, key)
        if os.path.exists(out) and os.path.getmtime(out) > self.newest:
            return out
        try:
            return self.build(out, route)
        except base.Skip as reason:
            return reason
        except RuntimeError as reason:
            self.suite.log(str(reason))
            return base.Skip(str(reason).splitlines()[0])

    def object(self, program, source, *flags):
        """A compiled file of this folder, for that program."""
        compiler, standard = self.suite.cc, "-std=c17"
        if source.endswith(".cpp"):
            compiler, standard = self.cxx, "-std=c++20"
        if not compiler:
            raise base.Skip("no C++ compiler")
        out = f"{program}.{source}.o"
        include = os.path.join(self.suite.cuda, "include")
        self.suite.must([compiler, standard, *FLAGS, *flags, "-I", base.ROOT, "-isystem", include,
                         "-isystem", os.path.join(include, "cccl"), "-c", "-o", out,
                         os.path.join(base.HERE, source)], f"compiling {source}")
        return out

    def has_cub(self):
        include = os.path.join(self.suite.cuda, "include")
        headers = [os.path.join(include, sub, "cub", "util_allocator.cuh") for sub in ("", "cccl")]
        return self.cxx and any(map(os.path.exists, headers))

    def build(self, out, route):
        sources, flags, libraries, linker = {}, [], [], self.suite.cc
        if route == "driver":
            sources = {"bench_driver.c": (), "bench_memory.c": (), "driver.c": ()}
            flags = ["-DBENCH_MEMORY"]
        else:
            sources = {"bench_runtime.c": ()}
        if route == "static":
            libraries.append(os.path.join(self.suite.cudart_dir(), "libcudart_static.a"))
        elif route in ("shared", "torch"):
            libraries += [self.suite.shared_cudart(), f"-Wl,-rpath,{self.suite.cudart_dir()}"]
        if route == "static" and self.has_cub():
            sources["bench_cub.cpp"] = ()
            flags, linker = ["-DBENCH_CUB"], self.cxx
        if route == "torch":
            torch = torch_folder(self.suite)
            # Its headers are not written for this set of warnings.
            sources["bench_torch.cpp"] = ("-w", "-isystem", os.path.join(torch, "include"))
            folder = os.path.join(torch, "lib")
            libraries += [f"-L{folder}", "-Wl,--no-as-needed", "-lc10_cuda", "-lc10",
                          f"-Wl,-rpath,{folder}", "-Wl,--allow-shlib-undefined"]
            flags, linker = ["-DBENCH_TORCH"], self.cxx
        sources.update({f"bench_{name}.c": () for name in COMMON})
        sources["bench_allocator.c"] = flags
        objects = [self.object(out, source, *more) for source, more in sources.items()]
        self.suite.must([linker, "-o", out, *objects, *libraries, "-lpthread", "-ldl", "-lrt"],
                        f"linking {os.path.basename(out)}")
        return out


def torch_folder(suite):
    """Where PyTorch is, as the python3 of the machine finds it."""
    python = base.shutil.which("python3") or "python3"
    found = suite.run([python, "-c", "import importlib.util as u; "
                                     "print(u.find_spec('torch').submodule_search_locations[0])"])
    folder = found.out.strip()
    if found.rc or not folder:
        raise base.Skip("no PyTorch")
    if not os.path.exists(os.path.join(folder, "lib", "libc10_cuda.so")):
        raise base.Skip("PyTorch without CUDA")
    return folder


def rounds(suite, seconds, most=5):
    """Numbers of rounds while there is time, to judge by those before: at least one."""
    begin = time.monotonic()
    for number in range(1 if suite.simulate else most):
        yield number
        spent = time.monotonic() - begin
        if spent * (number + 2) / (number + 1) > seconds:
            break


class Process(Talker):
    """A program that answers each line with a line."""

    def __init__(self, suite, program, *arguments, preload=False, env=()):
        environment = dict(suite.shim_env() if preload else suite.bare_env, **dict(env))
        # As many queues as the device has: streams that share one wait for each other.
        environment.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        if suite.simulate:
            # Ours has to be sound here too. CUB lets a block go before it records the event of its
            # last use.
            environment["SIM_HAZARD"] = "abort" if preload else "off"
        super().__init__([program, *arguments], environment, seconds=60)

    def ask(self, request):
        return self.do(request, 60)

    def close(self):
        """Ends the program; raises if it does not end well."""
        status = self.end()
        if status:
            raise RuntimeError(f"{self.process.args[0]}: status {status} at its end")

    def kill(self):
        self.process.kill()
        self.process.wait()


def start(suite, programs, peer, part, env=()):
    """A process of that peer, ready for the requests of that part, with more in its environment.
    Raises Skip."""
    try:
        return Process(suite, programs.path(peer.route), part, peer.allocator,
                       preload=peer.preload, env=(*peer.env, *env))
    except Ended as reason:
        raise base.Skip(f"{peer.name}: {reason}") from reason


def start_all(suite, programs, part, peers=tuple(PEERS)):
    """All of them at once: ({key: process}, {key: why not}). peers: Peers, or (key, Peer)."""
    keyed = [(peer.name, peer) if isinstance(peer, Peer) else peer for peer in peers]
    processes, missing = {}, {}
    with concurrent.futures.ThreadPoolExecutor(len(keyed)) as pool:
        futures = [(key, pool.submit(start, suite, programs, peer, part)) for key, peer in keyed]
        for key, future in futures:
            try:
                processes[key] = future.result()
            except base.Skip as reason:
                missing[key] = str(reason)
    return processes, missing


def close_all(processes):
    """Ends them side by side: a context takes its time to go. Raises if one does not end well."""
    with concurrent.futures.ThreadPoolExecutor(len(processes) + 1) as pool:
        for future in [pool.submit(process.close) for process in processes.values()]:
            future.result()
