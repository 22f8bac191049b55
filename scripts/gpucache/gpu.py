# SPDX-License-Identifier: BSD-2-Clause
"""What the GPUs say of themselves. The first of these tells it that is there: the Python package
nvidia-ml-py, the driver's library by ctypes (nvml.py), the program nvidia-smi.

A driver may take seconds for a call, or for ever. So a thread asks it, and nobody waits for it
longer than PATIENCE_S."""
import csv
import importlib
import os
import subprocess
import threading
import time

from gpucache import nvml as nvml_module
from gpucache.fault import start_thread

PATIENCE_S = 3.0
SMI_S = 10.0  # after this nvidia-smi is ended
MIB = 1 << 20


def _plain(value):
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _ask(nvml, call, *arguments):
    """What a call tells; None where it fails: each package, driver and device lacks some."""
    try:
        return getattr(nvml, call)(*arguments)
    except Exception:  # pylint: disable=broad-except # pynvml makes its classes at run time
        return None


class Look:
    """What one look at the GPUs found."""

    def __init__(self):
        # {"index", "uuid", "name", "total_bytes", "used_bytes"}, with None for what is not known.
        # index: a number; of a part (MIG) "GPU:PART", as NVIDIA_VISIBLE_DEVICES takes it.
        self.devices = []
        self.processes = []  # {"pid", "gpu_uuid", "used_bytes"}
        self.listed = set()

    def by_nvml(self, nvml):
        for number in range(nvml.nvmlDeviceGetCount()):
            device = nvml.nvmlDeviceGetHandleByIndex(number)
            # The processes of a part are its GPU's, too: the parts come first.
            places = len(self.devices)
            for part in range(_ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", device) or 0):
                handle = _ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", device, part)
                if handle is not None:
                    self._add(nvml, handle, f"{number}:{part}")
            self._add(nvml, device, number)
            self.devices.insert(places, self.devices.pop())
        return self

    def _add(self, nvml, device, index):
        """A device, with what it tells: not each one knows all."""
        uuid = _plain(nvml.nvmlDeviceGetUUID(device))
        memory = _ask(nvml, "nvmlDeviceGetMemoryInfo", device)
        self.devices.append({"index": index, "uuid": uuid,
                             "name": _plain(_ask(nvml, "nvmlDeviceGetName", device) or ""),
                             "total_bytes": getattr(memory, "total", None),
                             "used_bytes": getattr(memory, "used", None)})
        for call in "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses":
            for found in _ask(nvml, call, device) or ():
                self._process(found.pid, uuid, index, found.usedGpuMemory)

    def _process(self, pid, uuid, index, used_bytes):
        """A process may compute and draw on one GPU, and is the whole GPU's as well as a part's."""
        gpu, is_part = str(index).partition(":")[::2]
        if (pid, uuid) not in self.listed and (is_part or (pid, gpu) not in self.listed):
            self.listed |= {(pid, uuid), (pid, gpu)}
            self.processes.append({"pid": pid, "gpu_uuid": uuid, "used_bytes": used_bytes})

    def by_smi(self):
        """OSError: there is no nvidia-smi. It knows no parts."""
        for index, uuid, name, total, used in _smi("--query-gpu=index,uuid,name,memory.total,"
                                                   "memory.used", 5):
            self.devices.append({"index": int(index) if index.isdecimal() else index, "uuid": uuid,
                                 "name": name, "total_bytes": _mebibytes(total),
                                 "used_bytes": _mebibytes(used)})
        for uuid, pid, used in _smi("--query-compute-apps=gpu_uuid,pid,used_memory", 3):
            if pid.isdecimal():
                self._process(int(pid), uuid, uuid, _mebibytes(used))
        return self


def _mebibytes(words):
    """nvidia-smi says [N/A] of what it does not know."""
    return int(words) * MIB if words.isdecimal() else None


def _smi(query, columns):
    done = subprocess.run(["nvidia-smi", query, "--format=csv,noheader,nounits"], timeout=SMI_S,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)
    words = done.stdout.decode(errors="replace")
    if done.returncode:
        raise RuntimeError(" ".join(words.split())[:200] or f"exit code {done.returncode}")
    rows = ([cell.strip() for cell in row] for row in csv.reader(words.splitlines()))
    return [row for row in rows if len(row) == columns]


class _Source:
    """Who tells of the GPUs. Found at the first look, and kept."""

    def __init__(self):
        self.nvml = None
        self.calls = threading.Lock()  # a look that is late may still be under way

    def look(self):
        """Faults with a sentence where nobody tells."""
        with self.calls:
            if self.nvml is None:
                self.nvml = _start()
            return Look().by_nvml(self.nvml) if self.nvml else Look().by_smi()

    def close(self):
        if self.nvml and self.calls.acquire(blocking=False):
            try:
                _ask(self.nvml, "nvmlShutdown")
                self.nvml = None
            finally:
                self.calls.release()


def _start():
    """NVML, ready for use. False: nvidia-smi is to be asked. RuntimeError: nobody tells."""
    sources = [lambda: importlib.import_module("pynvml"), nvml_module.Nvml]
    for source in sources:
        try:
            found = source()
        except (ImportError, OSError):
            continue
        try:
            found.nvmlInit()
        except Exception as error:  # pylint: disable=broad-except # whatever a driver makes up
            raise RuntimeError(f"NVML does not answer: {error}") from None
        return found
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if any(os.access(os.path.join(folder, "nvidia-smi"), os.X_OK) for folder in folders):
        return False
    raise RuntimeError("there is no NVIDIA driver: neither libnvidia-ml.so.1 nor nvidia-smi is "
                       "here")


class Gpus:
    """The GPUs of this machine, of the last look that ended. `why`: a sentence if it is none, or
    is old; else ""."""

    def __init__(self, stays=False):
        """stays: refresh will be called."""
        self.source, self.thread = _Source(), None
        self.now = Look()
        self.why, self.at = "", None
        self.refresh()
        if not stays:
            self.close()

    def refresh(self, patience_s=None):
        """Looks anew, and waits that long for it at most. A look that is late is taken once it has
        ended."""
        if self.thread is None or not self.thread.is_alive():
            self.thread = start_thread(self._look)
        patience_s = PATIENCE_S if patience_s is None else patience_s
        self.thread.join(patience_s)
        old = self.at is None or time.monotonic() - self.at > PATIENCE_S
        if self.thread.is_alive() and old:
            self.why = f"the driver has not answered within {patience_s:g} s"

    def _look(self):
        try:
            self.now, self.why, self.at = self.source.look(), "", time.monotonic()
        except Exception as error:  # pylint: disable=broad-except # whatever a driver makes up
            self.now, self.why = Look(), str(error) or type(error).__name__

    def close(self):
        self.source.close()

    @property
    def devices(self):
        return self.now.devices

    @property
    def processes(self):
        return self.now.processes

    def index(self, uuid):
        """The machine's number of a GPU. None: not known."""
        return next((d["index"] for d in self.devices if d["uuid"] == uuid), None)
