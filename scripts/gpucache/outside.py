# SPDX-License-Identifier: BSD-2-Clause
"""What the driver and NVML say in a trace, each second or so: of the whole GPU, of the process, and
of other processes. What NVML says is there only where the tool traced (gpucache trace PID): it asks
NVML itself. In the process its calls would block during a checkpoint of the driver's, and start
threads and open files in somebody's program."""
import collections

# Another process. name: "" where it was not to be known. steps: [(ns, bytes)], where they change.
Other = collections.namedtuple("Other", "pid name steps")
UUID_END = " "


def at(steps, ns):
    """The value of [(ns, value)] then; 0: there was none yet."""
    return next((value for since, value in reversed(steps) if since <= ns), 0)


def summed(all_steps):
    """The sum of several, as one."""
    changes = sorted((ns, number, value) for number, steps in enumerate(all_steps)
                     for ns, value in steps)
    now, found = [0] * len(all_steps), []
    for ns, number, value in changes:
        now[number] = value
        if found and found[-1][0] == ns:
            found.pop()
        found.append((ns, sum(now)))
    return found


class Outside:
    def __init__(self):
        self.whole = {}   # device -> [(ns, bytes that are not free)] of the GPU
        self.totals = {}  # device -> bytes of the GPU
        self.beyond = []  # [(ns, bytes)] that NVML said the process had, beyond what it held there
        self._own = {}    # uuid -> bytes of the process
        self._others, self._names = collections.defaultdict(list), {}

    def note_gpu(self, event):
        self.totals[event.aux] = event.b
        self.whole.setdefault(event.aux, []).append((event.ns, max(0, event.b - event.a)))

    def note_process(self, event, held):
        """held: the bytes of all GPUs that the process holds there."""
        uuid, _, name = event.text.partition(UUID_END)
        if event.aux:
            self._others[event.aux].append((event.ns, uuid, event.a))
            self._names[event.aux] = name or self._names.get(event.aux, "")
            return
        self._own[uuid] = event.a
        if self.beyond and self.beyond[-1][0] == event.ns:  # of another GPU, at the same look
            self.beyond.pop()
        self.beyond.append((event.ns, max(0, sum(self._own.values()) - held)))

    def median_beyond(self):
        """Bytes; None: NVML was not asked."""
        found = sorted(size for _, size in self.beyond)
        return found[len(found) // 2] if found else None

    def others(self, uuids):
        """[Other] that have memory of these GPUs, the most first."""
        found = []
        for pid, rows in self._others.items():
            its = [[(ns, size) for ns, where, size in rows if where == uuid] for uuid in uuids]
            if any(size for steps in its for _, size in steps):
                found.append(Other(pid, self._names[pid], summed(its)))
        return sorted(found, key=lambda its: (-max(size for _, size in its.steps), its.pid))
