# SPDX-License-Identifier: BSD-2-Clause
"""What the GPUs say of themselves (NVML), if nvidia-ml-py and a driver are there."""


def _plain(value):
    return value.decode() if isinstance(value, bytes) else value


def _ask(nvml, call, *arguments):
    """What a call tells; None where it fails: each package, driver and device lacks some."""
    try:
        return getattr(nvml, call)(*arguments)
    except Exception:  # pylint: disable=broad-except # pynvml makes its classes at run time
        return None


class Gpus:
    """The GPUs of this machine. Without NVML there are none, and `why` says so."""

    def __init__(self):
        # {"index", "uuid", "name", "total_bytes", "used_bytes"}, with None for what is not known.
        # index: a number; of a part (MIG) "GPU:PART", as NVIDIA_VISIBLE_DEVICES takes it.
        self.devices = []
        self.processes = []  # {"pid", "gpu_uuid", "used_bytes"}
        self.listed = set()
        self.why = ""
        try:
            import pynvml  # pylint: disable=import-outside-toplevel
        except ImportError:
            self.why = "the Python package nvidia-ml-py is not installed"
            return
        try:
            pynvml.nvmlInit()
            try:
                self._look(pynvml)
            finally:
                pynvml.nvmlShutdown()
        except Exception as error:  # pylint: disable=broad-except # whatever a driver makes up
            self.why = f"NVML does not answer: {error}"

    def _look(self, nvml):
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

    def _add(self, nvml, device, index):
        """A device, with what it tells: not each one knows all."""
        uuid = _plain(nvml.nvmlDeviceGetUUID(device))
        memory = _ask(nvml, "nvmlDeviceGetMemoryInfo", device)
        self.devices.append({"index": index, "uuid": uuid,
                             "name": _plain(_ask(nvml, "nvmlDeviceGetName", device) or ""),
                             "total_bytes": getattr(memory, "total", None),
                             "used_bytes": getattr(memory, "used", None)})
        gpu = str(index).partition(":")[0]
        for process in _ask(nvml, "nvmlDeviceGetComputeRunningProcesses", device) or ():
            if (process.pid, gpu) not in self.listed or str(index) != gpu:
                self.listed.add((process.pid, gpu))
                self.processes.append({"pid": process.pid, "gpu_uuid": uuid,
                                       "used_bytes": process.usedGpuMemory})

    def index(self, uuid):
        """The machine's number of a GPU. None: not known."""
        return next((d["index"] for d in self.devices if d["uuid"] == uuid), None)
