# SPDX-License-Identifier: BSD-2-Clause
"""Processes under the library with their figures: a page, what /proc says, and a sum for each
GPU."""
import time

from gpucache import ask, options, page, process, tables, text
from gpucache.fault import NOT_SHOWN, Fault

LIMITS = ("MAX_RESERVED", "MAX_IDLE", "MIN_FREE", "IDLE_TIMEOUT")
FIELDS = [row["name"] for row in tables.STATS] + ["idle_bytes", "num_driver_calls_saved",
                                                  "saved_ns"]
PATIENCE_S = 0.3
ENDS_S = 0.1
POOLS_MAX = 128  # of one process: CONTEXTS_MAX of the library
# waiting: a use of the GPU wakes it, and needs device memory that is not there yet.
PARK_STATES = ("running", "parked", "waking", "waiting")
LONGEST = 100  # letters of a word that a page says, where it stands in a table


def number(value):
    """A number of a page; what is none counts as 0."""
    plain = isinstance(value, int) and not isinstance(value, bool)
    return value if plain and 0 <= value < 1 << 64 else 0


def word(value):
    """Text of a page, for a table. A page of another user may say anything."""
    words = text.printable(str(value or ""))
    return words if len(words) <= LONGEST else words[:LONGEST - 3] + "..."


def last_flush(last):
    """Words about the last flush that a page tells."""
    if not isinstance(last, dict) or not number(last.get("count")):
        return "none was asked for yet"
    when = last.get("unix_ns", last.get("unix_time_ns", 0))
    return f"{text.moment(number(when))}, " \
           f"{text.printable(str(last.get('reason') or 'unknown reason'))}, " \
           f"{text.size(number(last.get('bytes')))} in {text.duration(number(last.get('ns')))}; " \
           f"{text.count(number(last.get('count')))} in all"


class Gpu:
    """What a process has on one GPU, in all its contexts together."""

    def __init__(self, uuid, device):
        self.uuid, self.device, self.index = uuid, device, None
        self.name = self.backing = ""
        self.total_bytes, self.num_pools = 0, 0
        self.figures = dict.fromkeys(FIELDS, 0)

    def add(self, pool):
        self.num_pools += 1
        self.name, self.backing = word(pool.get("name")), word(pool.get("backing"))
        self.total_bytes = number(pool.get("total_bytes"))
        for field in FIELDS:
            self.figures[field] += number(pool.get(field))

    def __getitem__(self, field):
        return self.figures[field]

    # With the driver's own pools (cudaMallocAsync, graphs).
    def live(self):
        return self["allocated_bytes"] + max(0, self["async_reserved_bytes"] -
                                             self["async_idle_bytes"])

    def idle(self):
        return self.idle_here() + self["async_idle_bytes"]

    def reserved(self):
        return self.reserved_here() + self["async_reserved_bytes"]

    # Of the pools alone: what is on the device, beside what is parked.
    def idle_here(self):
        return min(self["idle_bytes"], self.reserved_here())

    def reserved_here(self):
        return max(0, self["reserved_bytes"] - self["away_bytes"])

    def hits(self):
        """None: no allocation came after a free, so there was nothing that could be used again."""
        return self["num_hits"] if self["num_hits"] or \
            self["live_blocks_peak"] < self["num_allocs"] else None

    def shown(self):
        """The number of the machine if NVML tells it, else the number in the process."""
        return str(self.device if self.index is None else self.index)

    def answers_to(self, wanted):
        """Is it the GPU of --gpu N, N:PART or UUID?"""
        if wanted.isdecimal():
            return self.shown() == (wanted.lstrip("0") or "0")
        if wanted == self.shown():
            return True
        plain, uuid = wanted.lower(), self.uuid.lower()
        for prefix in "mig-", "gpu-":  # a part's uuid may have both
            plain, uuid = plain.replace(prefix, "", 1), uuid.replace(prefix, "", 1)
        kind = wanted[:4].lower()
        return len(plain) >= 4 and uuid.startswith(plain) and \
            (kind not in ("mig-", "gpu-") or self.uuid.lower().startswith(kind))

    def as_json(self):
        return {"uuid": self.uuid, "index": self.index, "device": self.device, "name": self.name,
                "backing": self.backing, "total_bytes": self.total_bytes,
                "pools": self.num_pools, **self.figures}


class Process:
    """status: running, ended, or elsewhere (in a pid namespace that is not visible here). cached:
    what its Python packages keep, as cached.Answer; None: they were not asked."""
    cached = None

    def __init__(self, its_page, gpus=None):
        self.page, self.pid, self.inner_pid = its_page, its_page.pid, its_page.inner_pid
        contents = its_page.read()
        self.contents, self.body, self.note = contents, contents.body, contents.note
        self.status = "running" if self.pid else "ended" if its_page.is_ours() else "elsewhere"
        uid = process.uid(self.pid) if self.pid else None
        # None: it just ended. What the page says of its user proves nothing.
        self.user = process.user_name(its_page.folder.owner if uid is None else uid)
        body = self.body
        # The names that GPUCACHE_ONLY knows: what the program was started as, and the file that
        # runs. What the process calls itself since may be anything.
        program, file = body.get("program"), self.pid and process.name(self.pid)
        self.name = word(program) if isinstance(program, str) and program else file or "?"
        self._file = file or self.name
        self.command = (self.pid and process.command(self.pid)) or \
            text.printable(str(body.get("command") or self.name))
        self.job = process.job(self.pid) if self.pid else ""
        self.gpus = []
        pools = body.get("pools")
        for pool in pools[:POOLS_MAX] if isinstance(pools, list) else []:
            if isinstance(pool, dict):
                self._gpu(word(pool.get("uuid")), number(pool.get("device")), gpus).add(pool)

    def _gpu(self, uuid, device, gpus):
        for gpu in self.gpus:
            if gpu.uuid == uuid and (uuid or gpu.device == device):
                return gpu
        gpu = Gpu(uuid, device)
        gpu.index = gpus.index(uuid) if gpus else None
        self.gpus.append(gpu)
        return gpu

    def names(self):
        """What a user may type for it: these, and the script that a Python runs. The last is what
        its arguments say now."""
        return {self.name, self._file, self.pid and process.script(self.pid) or self.name}

    def shown_pid(self):
        """A pid of another namespace has a mark, as it is no pid here."""
        return f"{self.pid or self.inner_pid}{'*' if self.status == 'elsewhere' else ''}"

    def options(self):
        """Name without prefix -> value, of all options in force."""
        found = self.body.get("options")
        return {options.short(text.printable(str(name))): text.printable(str(value)) or "none"
                for name, value in found.items()} if isinstance(found, dict) else {}

    def changed_options(self):
        """The options that are not at their default."""
        defaults = {options.short(row["env"]): row["default"] for row in tables.OPTIONS}
        return {name: value for name, value in self.options().items()
                if value.lower() != (defaults.get(name) or "none").lower()}

    def limits(self):
        changed = self.changed_options()
        return " ".join(f"{name}={word(changed[name])}" for name in LIMITS if name in changed)

    def parked_bytes(self):
        return sum(gpu["away_bytes"] for gpu in self.gpus)

    def is_parked(self):
        told = self.body.get("park")
        return bool(self.parked_bytes() or isinstance(told, dict) and told.get("whole") is True)

    def park_state(self):
        """Of PARK_STATES."""
        told = self.body.get("park")
        now = told.get("state") if isinstance(told, dict) else None
        if now == "waits":
            return "waiting"
        if now == "waking":
            return "waking"
        return "parked" if self.is_parked() else "running"

    def park_words(self):
        """parked 12min, parked 12min, off the GPU, waking, waits for 14.2 GiB; "" of a process
        that is not parked."""
        told, now = self.body.get("park"), self.park_state()
        told = told if isinstance(told, dict) else {}
        if now == "waiting":
            return f"waits for {text.size(number(told.get('needs_bytes')))}"
        if now != "parked":
            return "" if now == "running" else now
        since_ns = number(told.get("since_unix_ns"))
        whole = ", off the GPU" if told.get("whole") is True else ""
        age_ns = self.contents.published_unix_ns + self.contents.age_ns() - since_ns
        age = f" {text.age(age_ns / 1e9)}" if since_ns and age_ns >= 0 else ""
        return f"parked{age}{whole}"

    def counters(self):
        found = self.body.get("counters")
        return {row["name"]: number(found.get(row["name"])) for row in tables.COUNTERS} \
            if isinstance(found, dict) else {}

    def as_json(self):
        contents = self.contents
        return {"pid": self.pid, "namespace_pid": self.inner_pid, "status": self.status,
                "user": self.user, "name": self.name, "command": self.command, "job": self.job,
                "library_version": contents.library_version, "page_version": contents.version,
                "started_unix_ns": contents.started_unix_ns,
                "published_unix_ns": contents.published_unix_ns, "age_ns": contents.age_ns(),
                "note": self.note, "options": self.options(), "counters": self.counters(),
                "flush": self.body.get("flush"), "park": self.park_words(),
                "gpus": [{**gpu.as_json(), **self._cached(gpu)} for gpu in self.gpus]}

    def _cached(self, gpu):
        """What its packages keep on a GPU; None: not asked, or not known."""
        answer = self.cached
        size = answer.of(gpu.device) if answer else None
        return {"cached_bytes": size,
                "cached_age_ns": None if size is None else int(answer.age_s() * 1e9)}


def refresh(pages):
    """Asks the processes for a new state, and waits a moment for all of them together. A process
    that does not answer keeps its old state."""
    waiting = []
    for its_page in pages:
        try:
            version, published_ns = its_page.head()
            if version == tables.PAGE_VERSION:
                with ask.Line(its_page) as line:
                    line.watch()
                waiting.append((its_page, published_ns))
        except (Fault, OSError):
            pass  # whoever shows it says what is wrong
    end = time.monotonic() + PATIENCE_S
    while waiting and time.monotonic() < end:
        time.sleep(0.005)
        left = []
        for its_page, published_ns in waiting:
            try:
                if its_page.head()[1] == published_ns:
                    left.append((its_page, published_ns))
            except (Fault, OSError):
                pass
        waiting = left


def _is_old(its_page):
    """Is it of a process that is not visible here, and a day old?"""
    try:
        return time.time_ns() - its_page.read().published_unix_ns > page.DAY_NS
    except (Fault, OSError):
        return False


def _stale(pages):
    """Those whose process has ended, as far as one can know."""
    hidden = [p for p in pages if not p.pid and not p.is_ours() and _is_old(p)]
    return {p for p in pages if not p.pid and p.is_ours()} | set(ask.without_waiter(hidden))


def _far(pages):
    """Those of other machines that share the folder: nothing here can ask their processes. A
    container may show a boot of its own, but its processes hear."""
    return set(ask.without_waiter([p for p in pages if not p.pid and p.is_foreign()]))


def _clean(its_page):
    """Removes the page of a process that has ended, once its last state is some minutes old."""
    try:
        contents = its_page.read()
        last_ns = contents.published_unix_ns or contents.started_unix_ns
    except FileNotFoundError:
        return
    except Fault:
        last_ns = 0
    # /proc says that a process of this namespace is gone; the doorbell is a second witness.
    if abs(time.time_ns() - last_ns) > page.KEEP_NS and not ask.has_waiter(its_page):
        its_page.remove()


def running(all_users=False, gpus=None, clean=False):
    """(processes, complaints): all that run, their state at most a second old if they answer.
    page.sum_up makes sentences of the complaints. clean: pages of processes that have ended are
    removed."""
    pages, complaints = page.find_all(all_users)
    stale = _stale(pages)
    far = _far([its_page for its_page in pages if its_page not in stale])
    alive = [its_page for its_page in pages if its_page not in stale | far]
    for its_page in stale if clean else ():
        _clean(its_page)
    refresh(alive)
    found = []
    for its_page in alive:
        try:
            found.append(Process(its_page, gpus))
        except FileNotFoundError:
            pass  # it has just ended
        except Fault as fault:
            complaints.append(fault)
    found.sort(key=lambda p: (p.pid or 1 << 32, p.inner_pid))
    return found, complaints


def _ends_now(pid):
    """The memory of a process that ends goes first: what /proc says of it is then cut off, or
    empty. The end follows."""
    end = time.monotonic() + ENDS_S
    while not process.has_ended(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def why_no_page(pid):
    """The sentence about a process that has no page."""
    if process.has_ended(pid):
        return "no such process"
    loaded = process.has_library(pid)
    if not loaded and _ends_now(pid):
        return "it has ended"
    if loaded is None:
        return NOT_SHOWN
    if not loaded:
        return "it runs without libgpucache"
    folder = process.environ(pid, "GPUCACHE_DIR") or ""
    if folder.lower() == "none":
        return "it has no page of live state: it was started with GPUCACHE_DIR=none"
    return "it has no page of live state: it has allocated no device memory yet, is about to " \
           f"end, could make no file in {folder or 'the usual folders'}, or has an older library"


def one(pid, gpus=None, fresh=True):
    """The Process of a pid, also of one that has ended. Faults if there is no page."""
    page.Contents.patience = {}
    try:
        its_page, complaints = page.find(pid)
        if its_page is None:
            raise Fault(str(complaints[0]) if complaints else why_no_page(pid))
        if fresh and its_page.pid:
            refresh([its_page])
        return Process(its_page, gpus)
    except FileNotFoundError:
        raise Fault(f"PID {pid}: it has ended") from None
    except Fault as fault:
        raise Fault(f"PID {pid}: {fault}") from None
