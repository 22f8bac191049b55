# SPDX-License-Identifier: BSD-2-Clause
"""The machine as `ps` and `top` show it: its GPUs, and who holds how much of which. A Machine can
be written as JSON and read again, so that `top` can draw what was recorded."""
import os

from gpucache import cached, process, state, text

# What a holder has in JSON, too. Bytes are None where they are not known.
#   live: held by the program. cached: kept by its Python packages. idle: the library's.
#   parked: of live and idle, what is on the host.
#   used: all that the driver counts; known for processes without the library alone.
#   hits: None as well where nothing could be used again yet.
#   rate: allocations a second between the last two states that it published; None: not known yet.
FIELDS = ("key", "pid", "shown_pid", "user", "gpu", "uuid", "name", "note", "command", "job",
          "limits", "live", "cached", "cached_age_s", "idle", "reserved", "parked", "peak",
          "allocs", "hits",
          "used", "options", "flush", "started_unix_ns", "published_unix_ns", "rate", "history")
PARTS = ("live", "cached", "idle", "others")
CARD_FIELDS = ("gpu", "uuid", "name", "total", "used", "num_holders", "history") + PARTS
# The floors of two times of so many seconds are compared. At the start they are shorter, and the
# rise is not made larger for that.
FLOOR_S, FLOOR_LEAST_S = 60.0, 15.0
INITIAL_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO of the kernel
# Notes on processes without a page.
WITHOUT, NO_FIGURES, HIDDEN, ENDED = ("without the library", "with the library, no figures",
                                      "not visible here", "has ended")


class _Record:
    fields = ()

    def __init__(self, **given):
        for field in self.fields:
            setattr(self, field, given.get(field))
        self.history = list(self.history or ())

    def as_json(self):
        return {field: getattr(self, field) for field in self.fields}


class Holder(_Record):
    """A process on one GPU. process: its state.Process, None without the library."""
    fields = FIELDS
    # kept: of `cached` what lies in the pools. gpu_known: does the page tell any GPU? interval_s:
    # between two values of the history.
    process, kept, gpu_known, interval_s = None, 0, True, 1.0

    def held(self):
        """What is seen of it in the column LIVE."""
        return self.used if self.live is None else self.live

    def takes(self):
        """Of the GPU's memory, in all."""
        return self.used if self.live is None else self.reserved

    @property
    def grows(self):
        """Bytes a minute by which the lowest value of LIVE has risen, from the last minute but one
        to the last one. A leak lifts it; a peak does not. None: it was not seen for long enough."""
        looks = min(max(1, int(FLOOR_S / self.interval_s)), len(self.history) // 2)
        past = self.history[len(self.history) - 2 * looks:]
        if not looks or looks * self.interval_s < FLOOR_LEAST_S or None in past:
            return None
        rise = min(past[looks:]) - min(past[:looks])
        return int(rise * FLOOR_S / max(FLOOR_S, looks * self.interval_s))

    def cached_words(self):
        """The cell of CACHED."""
        if self.live is None:
            return "-"
        if self.cached is None:
            return "?" if self.cached_age_s is not None else "-"
        age = self.cached_age_s or 0.0
        return text.size(self.cached) + (f" {text.age(age)}" if age >= cached.OLD_S else "")


class Card(_Record):
    """A GPU, or a part of one. others: what neither the program nor the pools have, such as
    contexts and processes without the library."""
    fields = CARD_FIELDS

    @property
    def free(self):
        return None if self.total is None or self.used is None else max(0, self.total - self.used)

    def back(self):
        """What a flush would give back at most."""
        return (self.cached or 0) + (self.idle or 0)


def _holder(found, gpu):
    """A process under the library."""
    allocated, answer = gpu.live(), found.cached
    size = answer.of(gpu.device) if answer else None
    kept = min(size or 0, allocated)
    holder = Holder(
        key=f"{found.page.name}/{gpu.uuid}/{gpu.device}", pid=found.pid,
        shown_pid=found.shown_pid(), user=found.user, gpu=gpu.shown(), uuid=gpu.uuid,
        name=found.name, note=found.note or found.park_words(), command=found.command,
        job=found.job,
        limits=found.limits(), live=allocated - kept,
        cached=size if answer and answer.names else None,
        cached_age_s=answer.age_s() if answer and (answer.names or answer.late) else None,
        idle=gpu.idle(), reserved=gpu.reserved(), parked=gpu["away_bytes"],
        peak=gpu["reserved_peak_bytes"],
        allocs=gpu["num_allocs"], hits=gpu.hits(), options=found.changed_options(),
        flush=found.body.get("flush"), started_unix_ns=found.contents.started_unix_ns,
        published_unix_ns=found.contents.published_unix_ns)
    holder.process, holder.kept, holder.gpu_known = found, kept, bool(found.gpus)
    return holder


def in_container():
    """Are process ids here other numbers than those of the host, which the driver may tell? None:
    not to be known."""
    mine = process.namespace("self")
    return None if mine is None else mine != INITIAL_NAMESPACE


def _is_it(pid):
    """Does the driver mean this process by the number? A number of the host may be another
    process's here."""
    if process.uid(pid) is None:
        return False
    return not in_container() or process.maps(pid, "nvidia") is not False


def name_of(pid):
    """Of a process that the driver lists, with a word on the library; "": it is not visible here.
    """
    if not _is_it(pid):
        return ""
    name = process.script(pid) or process.name(pid) or ""
    return name + f", {WITHOUT}" * (process.has_library(pid) is False and bool(name))


def without_page(gpus, found):
    """Processes on a GPU that have no page that the caller sees, as the driver lists them. user is
    None of one that is not visible here. library: is it loaded? None: not to be known. ended: the
    driver still counts the memory of one that is no more; known where its numbers are those
    here."""
    known = {p.pid for p in found}
    listed = []
    for entry in gpus.processes:
        pid = entry["pid"]
        if pid in known:
            continue
        seen = _is_it(pid)
        uid = process.uid(pid) if seen else None
        listed.append({"pid": pid, "user": None if uid is None else process.user_name(uid),
                       "name": (process.name(pid) if seen else None) or "?",
                       "job": process.job(pid) if seen else "", "gpu_uuid": entry["gpu_uuid"],
                       "gpu": gpus.index(entry["gpu_uuid"]), "used_bytes": entry["used_bytes"],
                       "library": process.has_library(pid) if seen else None,
                       "ended": in_container() is False and process.has_ended(pid)})
    return listed


def _stranger(entry):
    """A holder without a page."""
    if entry["ended"]:
        note = ENDED
    elif entry["user"] is None:
        note = HIDDEN
    else:
        note = {True: NO_FIGURES, False: WITHOUT}.get(entry["library"], "")
    shown = "?" if entry["gpu"] is None else str(entry["gpu"])
    return Holder(key=f"{entry['pid']}/{entry['gpu_uuid']}", pid=entry["pid"],
                  shown_pid=str(entry["pid"]), user=entry["user"] or "?", gpu=shown,
                  uuid=entry["gpu_uuid"], name=entry["name"], note=note, command=entry["name"],
                  job=entry["job"], limits="", used=entry["used_bytes"])


def place(shown):
    """GPUs in the order of their numbers."""
    return [(0, int(n)) if n.isdecimal() else (1, n) for n in shown.split(":")]


class Machine:
    """cards, holders. why: why the driver tells nothing, or nothing new; else "". complaints:
    sentences about pages."""

    def __init__(self):
        self.cards, self.holders = [], []
        self.why, self.complaints = "", []
        self.host, self.unix_ns, self.interval_s = os.uname().nodename, 0, 1.0

    def add(self, found, gpus):
        """found: the processes under the library."""
        for its in found:
            for gpu in its.gpus or [state.Gpu("", 0)]:
                self.holders.append(_holder(its, gpu))
        self.holders += map(_stranger, without_page(gpus, found))
        self.why = gpus.why
        parts = {str(d["index"]).partition(":")[0] for d in gpus.devices if ":" in str(d["index"])}
        for device in gpus.devices:
            if str(device["index"]) not in parts:  # the parts stand for it
                self.cards.append(Card(gpu=str(device["index"]), uuid=device["uuid"],
                                       name=device["name"], total=device["total_bytes"],
                                       used=device["used_bytes"]))
        for its in found:
            for gpu in its.gpus:  # the driver tells nothing of it: the page does
                if all(card.uuid != gpu.uuid for card in self.cards):
                    self.cards.append(Card(gpu=gpu.shown(), uuid=gpu.uuid, name=gpu.name,
                                           total=gpu.total_bytes or None))
        for card in self.cards:
            self._sum(card)
        self.cards.sort(key=lambda card: place(card.gpu))

    def _sum(self, card):
        its = [holder for holder in self.holders if holder.uuid == card.uuid]
        card.num_holders = len(its)
        mine = [holder for holder in its if holder.live is not None]
        card.idle = sum(holder.idle for holder in mine)
        card.cached = sum(holder.kept for holder in mine)
        reserved = sum(holder.reserved for holder in mine)
        # What GPU work still uses counts as live here: the parts add up to the whole.
        live = sum(max(0, holder.live - (holder.parked or 0)) for holder in mine)
        card.live = max(live, reserved - card.idle - card.cached)
        if card.used is not None:
            card.others = max(0, card.used - reserved)

    def as_json(self):
        return {"host": self.host, "unix_ns": self.unix_ns, "interval_s": self.interval_s,
                "why": self.why, "cards": [card.as_json() for card in self.cards],
                "holders": [holder.as_json() for holder in self.holders]}

    @classmethod
    def of_json(cls, told):
        """The same again, without the processes."""
        made = cls()
        made.host, made.unix_ns = told["host"], told["unix_ns"]
        made.interval_s, made.why = told["interval_s"], told["why"]
        made.cards = [Card(**card) for card in told["cards"]]
        made.holders = [Holder(**holder) for holder in told["holders"]]
        for holder in made.holders:
            holder.interval_s = made.interval_s
        return made
