# SPDX-License-Identifier: BSD-2-Clause
"""What the GPUs say of themselves (NVML), if nvidia-ml-py and a driver are there."""


class Gpus:
    """The GPUs of this machine. Without NVML there are none, and `why` says so."""

    def __init__(self):
        self.devices = []  # {"index", "uuid", "name", "total_bytes", "used_bytes"}
        self.processes = []  # {"pid", "gpu_uuid", "used_bytes"}
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
        def plain(value):
            return value.decode() if isinstance(value, bytes) else value
        for index in range(nvml.nvmlDeviceGetCount()):
            device = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = plain(nvml.nvmlDeviceGetUUID(device))
            memory = nvml.nvmlDeviceGetMemoryInfo(device)
            self.devices.append({"index": index, "uuid": uuid,
                                 "name": plain(nvml.nvmlDeviceGetName(device)),
                                 "total_bytes": memory.total, "used_bytes": memory.used})
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(device):
                self.processes.append({"pid": process.pid, "gpu_uuid": uuid,
                                       "used_bytes": process.usedGpuMemory})

    def index(self, uuid):
        """The machine's number of a GPU. None: not known."""
        return next((d["index"] for d in self.devices if d["uuid"] == uuid), None)
