# SPDX-License-Identifier: BSD-2-Clause
"""Modules named torch, cupy, numba and rmm, whose caches hold memory of the simulated driver. They
have what the library uses of the real ones: the same names in the same places, and the same way to
fail. put() places them in sys.modules."""
import ctypes
import functools
import importlib.machinery
import sys
import threading
import types
from collections import deque

MIB = 1 << 20
cudart = ctypes.CDLL("libcudart.so.13")


def malloc(size):
    address = ctypes.c_void_p()
    rc = cudart.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size))
    assert rc == 0, rc
    return address


def free(address):
    rc = cudart.cudaFree(address)
    assert rc == 0, rc


class Cache:
    """What a caching allocator keeps. A lock of the C library's, which waiters take without the
    interpreter's lock: PyTorch's is taken so."""

    def __init__(self):
        self.kept, self.sizes = [], {}
        self.lock = threading.Lock()
        self.calls = self.looks = 0

    def fill(self, size):
        with self.lock:
            self.kept.append(malloc(size))
            self.sizes[self.kept[-1].value] = size

    def kept_bytes(self):
        with self.lock:
            self.looks += 1
            return sum(self.sizes[address.value] for address in self.kept)

    def empty(self):
        with self.lock:
            self.calls += 1
            while self.kept:
                free(self.kept.pop())


def module(name, **names):
    made = types.ModuleType(name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None)
    made.__dict__.update(names)
    sys.modules[name] = made
    if "." in name:
        parent, _, last = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], last, made)
    return made


def put_torch(cache, empty=None, used=0):
    """used: what tensors hold, on the first device alone."""
    def stats(number):
        kept = 0 if number else cache.kept_bytes()
        return {"reserved_bytes": {"all": {"current": kept + (0 if number else used)}},
                "allocated_bytes": {"all": {"current": 0 if number else used}}}
    module("torch")
    module("torch.cuda", is_initialized=lambda: True, empty_cache=empty or cache.empty,
           memory_stats_as_nested_dict=stats)


class CupyPool:
    """Of the current device only, as CuPy's."""

    def __init__(self, caches):
        self.caches = caches

    def free_all_blocks(self):
        number = ctypes.c_int()
        assert cudart.cudaGetDevice(ctypes.byref(number)) == 0
        if number.value in self.caches:
            self.caches[number.value].empty()

    def free_bytes(self):
        number = ctypes.c_int()
        assert cudart.cudaGetDevice(ctypes.byref(number)) == 0
        return self.caches[number.value].kept_bytes() if number.value in self.caches else 0


class Device:
    def __init__(self, number):
        self.number, self.before = number, ctypes.c_int()

    def __enter__(self):
        assert cudart.cudaGetDevice(ctypes.byref(self.before)) == 0
        assert cudart.cudaSetDevice(self.number) == 0

    def __exit__(self, *_):
        assert cudart.cudaSetDevice(self.before) == 0


def put_cupy(caches, pinned):
    pool, pinned_pool = CupyPool(caches), types.SimpleNamespace(free_all_blocks=pinned.empty)
    module("cupy", get_default_memory_pool=lambda: pool,
           get_default_pinned_memory_pool=lambda: pinned_pool)
    module("cupy.cuda", Device=Device)


class Pending:
    """numba.cuda.cudadrv.driver._PendingDeallocs."""

    def __init__(self):
        self._cons, self._disable_count, self._size = deque(), 0, 0

    def add_item(self, dtor, handle, size):
        self._cons.append((dtor, handle, size))
        self._size += int(size)

    def clear(self):
        if not self.is_disabled:
            while self._cons:
                [dtor, handle, size] = self._cons.popleft()
                assert dtor.__name__
                dtor(handle)
            self._size = 0

    @property
    def is_disabled(self):
        return self._disable_count > 0


class NumbaContext:
    def __init__(self):
        self.memory_manager = types.SimpleNamespace(deallocations=Pending())
        self.depth = 0

    def push(self):
        self.depth += 1

    def pop(self):
        self.depth -= 1


class NumbaDevices:
    """numba.cuda.cudadrv.devices._DeviceList: the first look at `lst` starts CUDA."""

    def __getattr__(self, name):
        if name == "lst":
            raise RuntimeError("this would start CUDA")
        raise AttributeError(name)


class CachedNumbaDevices:
    """The same in numba-cuda 0.30: a property that is computed once."""
    devices = None

    @property
    @functools.lru_cache(maxsize=None)
    def lst(self):
        if self.devices is None:
            raise RuntimeError("this would start CUDA")
        return self.devices


def put_numba(contexts, cached=False):
    gpus = CachedNumbaDevices() if cached else NumbaDevices()
    if contexts is not None:
        devices = [types.SimpleNamespace(_device=types.SimpleNamespace(primary_context=c, id=i))
                   for i, c in enumerate(contexts)]
        if cached:
            gpus.devices = devices
            assert gpus.lst is devices
        else:
            gpus.lst = devices
    for name in ("numba", "numba.cuda", "numba.cuda.cudadrv"):
        module(name)
    module("numba.cuda.cudadrv.devices", gpus=gpus)


class Upstream:
    """A resource over a pool of the driver's, and one that does not shrink over it."""

    def pool_handle(self):
        return 4711


class Pool:
    def get_upstream(self):
        return Upstream()


def put_rmm(trimmed):
    module("rmm")
    module("rmm.mr", get_per_device_resource=lambda number: Pool())
    for name in ("cuda", "cuda.bindings"):
        module(name)
    module("cuda.bindings.driver", CUmemoryPool=lambda handle: ("pool", handle),
           cuMemPoolTrimTo=lambda pool, keep: trimmed.append((pool, keep)))
