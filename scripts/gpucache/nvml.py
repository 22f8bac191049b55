# SPDX-License-Identifier: BSD-2-Clause
"""The driver's library libnvidia-ml.so.1 (NVML), called by ctypes. Its functions have here the
names and results that the package nvidia-ml-py gives them, so gpu.py can use either. Only what
gpu.py needs is here.

The layouts are those of nvml.h, which keeps old symbols: a newer function has a new suffix. A call
takes the newest symbol that the driver has."""
import ctypes

LIBRARY = "libnvidia-ml.so.1"
INSUFFICIENT_SIZE, NOT_FOUND = 7, 6
NAME_BYTES = 96
# More entries than the call said there are: processes start between two calls.
SPARE, PROCESSES_MAX, TRIES = 16, 65536, 5
UNKNOWN = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE


class NVMLError(Exception):
    """A call failed; says what the driver says of the code."""

    def __init__(self, code, words):
        super().__init__(words)
        self.code = code


class _Memory(ctypes.Structure):  # nvmlMemory_t
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong),
                ("used", ctypes.c_ulonglong)]


class _OldProcess(ctypes.Structure):  # nvmlProcessInfo_v1_t
    _fields_ = [("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong)]


class _Process(ctypes.Structure):  # nvmlProcessInfo_v2_t, of the symbols _v2 and _v3
    _fields_ = [("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong),
                ("gpuInstanceId", ctypes.c_uint), ("computeInstanceId", ctypes.c_uint)]


class Process:
    """usedGpuMemory: None where the driver does not tell it."""

    def __init__(self, found):
        self.pid = found.pid
        self.usedGpuMemory = None if found.usedGpuMemory == UNKNOWN else found.usedGpuMemory


class Nvml:
    """The library. OSError: it is not there."""

    def __init__(self, name=LIBRARY):
        self.library = ctypes.CDLL(name)

    def _find(self, *names):
        """The first symbol of these that the driver has."""
        for name in names:
            try:
                return getattr(self.library, name)
            except AttributeError:
                pass
        raise NVMLError(-1, f"{self.library._name} has no {names[0]}")

    def _check(self, code):
        if code:
            try:
                describe = self._find("nvmlErrorString")
                describe.restype = ctypes.c_char_p
                words = (describe(code) or b"").decode(errors="replace")
            except NVMLError:
                words = ""
            raise NVMLError(code, words or f"error {code}")

    def nvmlInit(self):
        self._check(self._find("nvmlInit_v2", "nvmlInit")())

    def nvmlShutdown(self):
        self._check(self._find("nvmlShutdown")())

    def _number(self, names, *arguments):
        found = ctypes.c_uint()
        self._check(self._find(*names)(*arguments, ctypes.byref(found)))
        return found.value

    def _handle(self, names, *arguments):
        found = ctypes.c_void_p()
        self._check(self._find(*names)(*arguments, ctypes.byref(found)))
        return found

    def _words(self, name, device):
        room = ctypes.create_string_buffer(NAME_BYTES)
        self._check(self._find(name)(device, room, ctypes.c_uint(NAME_BYTES)))
        return room.value.decode(errors="replace")

    def nvmlDeviceGetCount(self):
        return self._number(("nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"))

    def nvmlDeviceGetHandleByIndex(self, index):
        return self._handle(("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"),
                            ctypes.c_uint(index))

    def nvmlDeviceGetMaxMigDeviceCount(self, device):
        return self._number(("nvmlDeviceGetMaxMigDeviceCount",), device)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device, index):
        return self._handle(("nvmlDeviceGetMigDeviceHandleByIndex",), device, ctypes.c_uint(index))

    def nvmlDeviceGetUUID(self, device):
        return self._words("nvmlDeviceGetUUID", device)

    def nvmlDeviceGetName(self, device):
        return self._words("nvmlDeviceGetName", device)

    def nvmlDeviceGetMemoryInfo(self, device):
        found = _Memory()
        self._check(self._find("nvmlDeviceGetMemoryInfo")(device, ctypes.byref(found)))
        return found

    def _processes(self, name, device):
        """The driver says how many there are, if the room is too small."""
        try:
            call, kind = self._find(f"{name}_v3", f"{name}_v2"), _Process
        except NVMLError:
            call, kind = self._find(name), _OldProcess
        number = ctypes.c_uint(0)
        for _ in range(TRIES):
            room = (kind * max(1, number.value))()
            code = call(device, ctypes.byref(number), room)
            if code != INSUFFICIENT_SIZE:
                self._check(code)
                return [Process(room[i]) for i in range(min(number.value, len(room)))]
            number.value = min(number.value + SPARE, PROCESSES_MAX)
        self._check(INSUFFICIENT_SIZE)
        return []

    def nvmlDeviceGetComputeRunningProcesses(self, device):
        return self._processes("nvmlDeviceGetComputeRunningProcesses", device)

    def nvmlDeviceGetGraphicsRunningProcesses(self, device):
        return self._processes("nvmlDeviceGetGraphicsRunningProcesses", device)
