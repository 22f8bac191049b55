# SPDX-License-Identifier: BSD-2-Clause
"""gpucache flush: asks processes to give idle memory back, and prints a receipt for each GPU."""
import json
import signal
import time

from gpucache import ask, many, signals, state, tables, text
from gpucache.fault import USAGE, Fault

# The library answers within the time it may wait; this is for a busy machine.
MARGIN_S = 5
ROUND_S = 10  # the longest wait that the library takes in one request
AGAIN_S = 0.1  # between two questions to a process whose packages have not answered
NOT_YET = ("late", "busy")
# What the library says of a framework's own cache.
STATES = {"idle": "it had nothing to give back", "keeps": "it keeps its cache",
          "failed": "its cache could not be emptied", "busy": "it is busy, and is asked again",
          "late": "it has not answered yet; its memory follows"}


class Total:
    """The sum of several replies of one process: what came back adds up, all else is the last.
    all_flushes: what other flushes gave back meanwhile may be in it."""

    def __init__(self):
        self.returned_bytes, self.ns, self.gpus, self.frameworks = 0, 0, {}, {}
        self.all_flushes = False

    def add(self, reply):
        self.returned_bytes += state.number(reply.value)
        self.ns += state.number(reply.body.get("ns"))
        for its_gpu in _list(reply.body, "gpus"):
            if isinstance(its_gpu, dict):
                _add(self.gpus, str(its_gpu.get("uuid")) + str(its_gpu.get("device")), its_gpu)
        said = _frameworks(reply.body)
        names = [str(one.get("name") if isinstance(one, dict) else one) for one in said]
        for name, one in zip(names, said):
            _add(self.frameworks, name, one)
        # A process that did not answer in time could not say which of them it has.
        self.frameworks = {name: one for name, one in self.frameworks.items()
                           if name in names or not _is_late(one)}

    def waits_for_packages(self):
        """Does the last reply say that a package has not answered?"""
        return any(isinstance(one, dict) and one.get("state") in NOT_YET
                   for one in self.frameworks.values())

    def correct(self, before, after):
        """Packages that answered late had their memory given back between two replies, by a flush
        that the library made of itself. before: the process when nothing was asked yet; after: as
        it is now. The library counts the bytes of all flushes together: where two askers wait for
        one package, nobody can know whose memory it was."""
        for its_gpu in after.gpus:
            key = its_gpu.uuid + str(its_gpu.device)
            for past in before.gpus:
                if key in self.gpus and (past.uuid, past.device) == (its_gpu.uuid, its_gpu.device):
                    self._raise(self.gpus[key], its_gpu["flushed_bytes"] - past["flushed_bytes"])
        self.returned_bytes = sum(state.number(its_gpu.get("returned_bytes"))
                                  for its_gpu in self.gpus.values())
        for name, framework in self.frameworks.items():
            came = after.counters().get(f"{name}_returned_bytes", 0) - \
                before.counters().get(f"{name}_returned_bytes", 0)
            if isinstance(framework, dict) and self._raise(framework, came):
                framework["state"] = "done"
                framework.pop("ns", None)

    def _raise(self, entry, returned_bytes):
        """Sets what came back, if it is more than the replies said."""
        if returned_bytes <= state.number(entry.get("returned_bytes")):
            return False
        entry["returned_bytes"], self.all_flushes = returned_bytes, True
        return True


def _frameworks(body):
    """What a reply says of the packages. Where they have not answered, the library cannot know
    which of them are loaded. It says one word, of which this makes a list of one without a name. An
    older library lists all that it knows as late, in a reply that is done."""
    return [{"state": "late"}] if body.get("frameworks") == "late" else _list(body, "frameworks")


def _is_late(framework):
    return isinstance(framework, dict) and framework.get("state") == "late"


def _list(body, name):
    return body[name] if isinstance(body.get(name), list) else []


def _add(entries, key, entry):
    before = entries.get(key)
    if isinstance(entry, dict) and isinstance(before, dict):
        sums = {name: state.number(before.get(name)) + state.number(entry.get(name))
                for name in ("returned_bytes", "ns") if name in before or name in entry}
        entry = {**entry, **sums}
    entries[key] = entry


class Receipt(many.Receipt):
    """What came of the flush of one process."""

    def __init__(self, target, status, why="", total=None):
        super().__init__(target, status, why)
        total = total or Total()
        self.returned_bytes, self.ns = total.returned_bytes, total.ns
        self.gpus, self.frameworks = list(total.gpus.values()), list(total.frameworks.values())
        self.all_flushes = total.all_flushes

    def as_json(self):
        return {**self.numbers, "status": self.status, "why": self.why, "ns": self.ns,
                "returned_bytes": self.returned_bytes, "all_flushes": self.all_flushes,
                "gpus": self.gpus, "frameworks": self.frameworks}

    def lines(self, names):
        """Text for people. names: UUID -> the GPU's number as ps shows it."""
        if self.status == "failed":
            return
        if self.status == "signal":
            yield f"PID {self.pid}: {self.why}"
            return
        for its_gpu in self.gpus:
            shown = names.get(str(its_gpu.get("uuid")), state.number(its_gpu.get("device")))
            yield f"PID {self.pid} GPU {shown}: {_gpu_words(its_gpu, self.ns)}"
        if not self.gpus:
            yield f"PID {self.pid}: it has no memory on a GPU"
        shown = [f for f in self.frameworks
                 if not isinstance(f, dict) or f.get("state") != "absent"]
        if all(map(_is_late, shown)) and (len(shown) > 1 or shown and "name" not in shown[0]):
            # Nothing is known, also not which of them are there.
            shown = []
            yield f"PID {self.pid}: its Python packages have not answered yet; their memory follows"
        for framework in shown:
            yield f"PID {self.pid}: {_framework_words(framework)}"
        if self.all_flushes:
            yield f"PID {self.pid}: its Python packages answered late: what other flushes gave " \
                  "back meanwhile is counted too"


def _gpu_words(its_gpu, ns):
    def figure(name):
        return state.number(its_gpu.get(name))
    words = f"{text.size(figure('returned_bytes'))} returned in {text.duration(ns)}, " \
            f"{text.size(figure('allocated_bytes'))} live"
    stays = []
    if figure("pending_bytes"):
        stays.append(f"{text.size(figure('pending_bytes'))} wait for GPU work")
    if figure("partly_live_bytes"):
        stays.append(f"{text.size(figure('partly_live_bytes'))} idle beside live blocks")
    rest = figure("idle_bytes") - figure("partly_live_bytes")
    rest = max(0, rest) + figure("async_idle_bytes")
    if rest:
        stays.append(f"{text.size(rest)} kept")
    return words + (f"; {', '.join(stays)}" if stays else "")


def _framework_words(framework):
    if not isinstance(framework, dict):
        return text.printable(str(framework))
    words = text.printable(str(framework.get("name") or "a framework"))
    if state.number(framework.get("returned_bytes")):
        words += f" gave up {text.size(state.number(framework['returned_bytes']))}"
        if "ns" in framework:
            words += f" in {text.duration(state.number(framework['ns']))}"
    said = text.printable(str(framework.get("why") or framework.get("state") or ""))
    if said == "done":
        return words if state.number(framework.get("returned_bytes")) else \
            f"{words}: {STATES['idle']}"
    return f"{words}: {STATES.get(said, said)}" if said else words


def request(args, uuid, wait_s):
    """The words of the request."""
    return " ".join(many.words("flush", args, uuid, wait_s))


def _look(found, line, wait_s=0.0):
    """The process as it is now."""
    line.ask("look", wait_s + MARGIN_S)
    return state.Process(found.page)


def by_page(found, args, uuid=None):
    """The receipt of a process that has a page."""
    total, late = Total(), False
    with ask.Line(found.page) as line:
        before = None if args.no_frameworks else _look(found, line, min(ROUND_S, args.wait))
        start = time.monotonic()
        end = start + args.wait
        while True:
            wait_s = min(ROUND_S, max(0.0, end - time.monotonic()))
            reply = line.ask(request(args, uuid, wait_s), wait_s + MARGIN_S)
            total.add(reply)
            again = reply.code == tables.PAGE_REPLY_PARTLY or total.waits_for_packages()
            if not again or time.monotonic() >= end:
                break
            if total.waits_for_packages():
                late = True
                time.sleep(min(AGAIN_S, max(0.0, end - time.monotonic())))
        if late and before:
            total.correct(before, _look(found, line))
            total.ns = int((time.monotonic() - start) * 1e9)
    if reply.code == tables.PAGE_REPLY_DONE and not again:
        failed = [name for name, one in total.frameworks.items()
                  if isinstance(one, dict) and one.get("state") == "failed"]
        if failed:
            return Receipt(found, "partly", f"{', '.join(failed)} could not empty its cache", total)
        return Receipt(found, "done", total=total)
    if reply.code in (tables.PAGE_REPLY_DONE, tables.PAGE_REPLY_PARTLY):
        waits = sum(state.number(g.get("pending_bytes")) for g in total.gpus.values()
                    if isinstance(g, dict))
        return Receipt(found, "partly", f"not all was done within {args.wait:g} s" +
                       (f": {text.size(waits)} wait for GPU work" if waits else ""), total)
    return Receipt(found, "failed", reply.why())


def by_signal(pid, args, why):
    """For a process that has no page which this tool understands."""
    if args.gpu or args.keep:
        raise Fault(f"{why}, and its signal knows no --gpu or --keep")
    number = signals.send(pid)
    return Receipt(pid, "signal", f"asked by {signal.Signals(number).name}: {why}, so there "
                   "is no receipt" if number < 32 else
                   f"asked by signal {number}: {why}, so there is no receipt")


VERB = many.Verb(by_page, by_signal, lambda target, why: Receipt(target, "failed", why))


def _targets(args):
    if args.pids and (args.all or args.name):
        raise Fault("give process ids, or --all, or --name: not both", USAGE)
    if not args.pids and not args.all and not args.name:
        raise Fault("flush needs process ids, --all or --name", USAGE)
    return many.targets(args, args.pids, [args.name] if args.name else [])


def show(args):
    receipts, code = many.receipts(VERB, args, _targets)
    if args.json:
        print(json.dumps({"receipts": [r.as_json() for r in receipts],
                          "returned_bytes": sum(r.returned_bytes for r in receipts)}))
    return code
