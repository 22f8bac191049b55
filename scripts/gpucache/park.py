# SPDX-License-Identifier: BSD-2-Clause
"""gpucache park and wake: asks processes to move their device memory to the host, or to bring it
back, and prints a receipt for each GPU."""
import json
import threading

from gpucache import ask, host, many, state, tables, text
from gpucache.fault import USAGE, Fault, complain

UNUSED_S = 2.0     # --all leaves out who used the GPU within this time
LONGEST_S = 10     # the longest wait that the library takes in one request
MARGIN_S = 60.0    # to copy the memory of a whole GPU, on a busy machine
WAKE_S = 600.0     # the library's own PARK_WAIT, where the process does not tell it
OLDER = "its library is older, and cannot park"
# With this driver the machine was seen to hang (NVIDIA/cuda-checkpoint, issue 53).
HANGS = "595."
# What of a process stays on the GPU.
STAYS = {"kept": "kept", "exposed": "known to other processes or devices",
         "segments": "in segments", "stream-ordered": "in the driver's own pools",
         "other": "in use by a thread just then"}
# Of a process that leaves the GPU as a whole: what others free meanwhile would count as its own.
_TURN = threading.Lock()


class Receipt(many.Receipt):
    """What came of the park or wake of one process. num_bytes: what went, or came back.
    dropped_bytes: of the copies that were to be freed; None: none were."""

    def __init__(self, target, status, why="", reply=None, drops=False):
        super().__init__(target, status, why)
        body = reply.body if reply else {}
        gpus = body.get("gpus")
        self.num_bytes = state.number(reply.value) if reply else 0
        self.dropped_bytes = state.number(body.get("dropped_bytes")) if drops else None
        self.ns, self.state = state.number(body.get("ns")), state.word(body.get("state"))
        self.times = {name: state.number(body[name]) for name in ("room_ns", "copy_ns")
                      if name in body}
        self.to = body.get("to")
        self.gpus = [g for g in gpus if isinstance(g, dict)] if isinstance(gpus, list) else []
        self.whole, self.whole_bytes = body.get("whole"), state.number(body.get("whole_bytes"))

    def as_json(self):
        return {**self.numbers, "status": self.status, "why": self.why, "state": self.state,
                "ns": self.ns, **self.times, "to": self.to, "bytes": self.num_bytes,
                **({} if self.dropped_bytes is None else {"dropped_bytes": self.dropped_bytes}),
                "gpus": self.gpus, "whole": self.whole is True, "whole_bytes": self.whole_bytes}

    def _copy_words(self):
        if self.dropped_bytes is None:
            return ""
        return (f"; {text.size(self.dropped_bytes)} of its copies on the host are freed"
                if self.dropped_bytes else "; the host kept no copy of its memory")

    def lines(self, names):
        """Text for people. names: UUID -> the GPU's number as ps shows it."""
        if self.status == "failed":
            return
        if self.status == "left out":
            yield f"PID {self.pid}: left out: {self.why}"
        elif self.state == "woken":
            yield f"PID {self.pid}: " + (
                f"{text.size(self.num_bytes)} back in {text.duration(self.ns)}" if self.num_bytes
                else "it was not parked") + self._copy_words()
        elif not self.gpus and self.status == "done" and self.whole is not True:
            yield f"PID {self.pid}: it has no memory on a GPU"
        for its_gpu in self.gpus if self.state == "parked" else ():
            shown = names.get(str(its_gpu.get("uuid")), state.number(its_gpu.get("device")))
            yield f"PID {self.pid} GPU {shown}: {_gpu_words(its_gpu, self.ns, self.to)}"
        if self.whole is True:
            more = f", {text.size(self.whole_bytes)} more" if self.whole_bytes else ""
            yield (f"PID {self.pid}: off the GPU as a whole{more}; it wakes by itself only at "
                   "calls of the library's tables")


def _stays(its_gpu):
    """(kind, bytes) of what is still on the GPU."""
    stays = its_gpu.get("stays")
    return [(str(s.get("what")), state.number(s.get("bytes")))
            for s in (stays if isinstance(stays, list) else []) if isinstance(s, dict)]


def _stay_words(its_gpu):
    return ", ".join(f"{text.size(size)} {STAYS.get(what, text.printable(what))}"
                     for what, size in _stays(its_gpu) if size)


def _gpu_words(its_gpu, ns, place):
    parked, live, away = (state.number(its_gpu.get(name))
                          for name in ("parked_bytes", "live_bytes", "away_bytes"))
    copied = state.number(its_gpu.get("copied_bytes", live))
    words = f"{text.size(parked)} parked in {text.duration(ns)}, {text.size(live)} of it live"
    if copied < live:
        words += f", {text.size(copied)} of that copied"
    if place and place != "host":
        words += f", in {text.printable(str(place))}"
    if not parked:
        words = "nothing to park"
    if away > parked:
        words += f"; {text.size(away)} parked in all"
    stays = _stay_words(its_gpu)
    return words + (f"; {stays} stay on the GPU" if stays else "")


def _request(args, uuid):
    """The words of the request, and how long the reply may take."""
    if args.verb == "wake":
        return "wake drop=1" if args.drop else "wake", MARGIN_S
    words, seconds = many.words("park", args, uuid, args.wait), MARGIN_S + args.wait
    if args.to:
        words.append(f"to={args.to}")
    if args.all:
        words.append(f"unused={int(UNUSED_S * 1000)}")
        seconds += UNUSED_S
    if args.whole:
        words.append("whole=1")
    return " ".join(words), seconds


def _park_wait(found):
    """How long the process waits for device memory."""
    told = text.parse_time(found.options().get("PARK_WAIT", ""))
    return WAKE_S if told is None else told


def by_page(found, args, uuid=None):
    """The receipt of a process that has a page."""
    if found.options() and "PARK" not in found.options():
        raise Fault(OLDER)
    words, seconds = _request(args, uuid)
    with ask.Line(found.page) as line:
        seconds += _park_wait(found) if args.verb == "wake" else 0
        if args.verb == "park" and args.whole:
            line.ask("look", MARGIN_S)  # who does not answer has no turn
            with _TURN:
                reply = line.ask(words, seconds, lasts=True)
        else:
            reply = line.ask(words, seconds, lasts=True)
    if reply.code == tables.PAGE_REPLY_DONE:
        if reply.body.get("state") == "used":
            return Receipt(found, "left out", f"it used the GPU within the last {UNUSED_S:g} s",
                           reply)
        return Receipt(found, "done", reply=reply,
                       drops=args.verb == "wake" and args.drop)
    if reply.code == tables.PAGE_REPLY_PARTLY:
        receipt = Receipt(found, "partly", "not all is parked", reply)
        stays = list(filter(None, map(_stay_words, receipt.gpus)))
        if reply.body.get("why"):
            stays.append(text.printable(str(reply.body["why"])))
        receipt.why += ": " + "; ".join(stays) if stays else ""
        return receipt
    why = reply.body.get("why")
    return Receipt(found, "failed", text.printable(str(why)) if why else reply.why(), reply)


def _without_page(pid, _, why):
    raise Fault(state.why_no_page(pid) if why == many.NO_PAGE else why)


VERB = many.Verb(by_page, _without_page, lambda target, why: Receipt(target, "failed", why))


def _targets(args):
    if args.words and args.all:
        raise Fault("give process ids and names, or --all: not both", USAGE)
    if not args.words and not args.all:
        raise Fault(f"{args.verb} needs process ids, names or --all", USAGE)
    if args.verb == "park":
        if args.whole and (args.gpu or args.keep):
            raise Fault("--whole takes the process off each GPU with all it has: leave "
                        f"{'--gpu' if args.gpu else '--keep'} out", USAGE)
        if args.wait > LONGEST_S:
            raise Fault(f"--wait is {LONGEST_S}s at most", USAGE)
    pids, patterns = many.split(args.words)
    if args.verb == "wake" and args.all:
        return many.targets(args, [], [], lambda found: args.drop or found.is_parked(),
                            "is parked")
    return many.targets(args, pids, patterns)


def _warn_of_driver():
    version = host.driver_version()
    if version.startswith(HANGS):
        complain(f"driver {version}: a process that is back from the driver's checkpoint must not "
                 "be killed: the machine may hang (NVIDIA/cuda-checkpoint, issue 53). Park it "
                 "with --whole again before you end it")


def show(args):
    if args.verb == "park" and args.whole:
        _warn_of_driver()
    receipts, code = many.receipts(VERB, args, _targets)
    if args.json:
        print(json.dumps({"receipts": [r.as_json() for r in receipts],
                          "bytes": sum(r.num_bytes for r in receipts)}))
    return code
