# SPDX-License-Identifier: BSD-2-Clause
"""What verbs that ask many processes at once have in common: whom to ask, and the receipts."""
import collections
import concurrent.futures
import contextlib
import fnmatch
import os
import queue
import resource
import sys

from gpucache import ask, gpu, page, process, state, tables
from gpucache.fault import (DONE, NO_RECEIPT, NOT_DONE, USAGE, Fault, complain, end_in_order,
                            reason, start_thread)

AT_ONCE = 256  # processes that are asked at the same time, so that one wait is enough for all
DESCRIPTORS_EACH, DESCRIPTORS_BESIDE = 6, 12  # a folder, a page, two mappings and a look at /proc
NO_PAGE = "it has no page of live state"

# by_page(state.Process, args, uuid): the receipt of a process with a page. without_page(pid, args,
# why): of one without. failed(target, why): the receipt of a fault.
Verb = collections.namedtuple("Verb", "by_page without_page failed")


class Receipt:
    """What came of the request to one process. status: done, partly, signal, left out or failed.
    target: a pid, or a state.Process."""

    def __init__(self, target, status, why=""):
        known = not isinstance(target, int)
        self.pid = target.shown_pid() if known else str(target)  # for people
        self.numbers = {"pid": target.pid if known else target,
                        "namespace_pid": target.inner_pid if known else None}
        self.status, self.why = status, why


def words(name, args, uuid, wait_s):
    """What the requests flush and park have in common, as a list."""
    found = [name, f"wait={int(wait_s * 1000)}"]
    if uuid:
        found.append(f"gpu={uuid}")
    if args.keep:
        found.append(f"keep={args.keep}")
    if args.no_frameworks:
        found.append("frameworks=0")
    return found


def one(verb, target, args):
    """A receipt, whatever happens. target: a pid, or a state.Process."""
    found = target
    try:
        if isinstance(target, int):
            its_page, complaints = page.find(target)
            if its_page is None or not its_page.pid:
                if complaints:
                    complain(complaints[0])
                return verb.without_page(target, args, NO_PAGE)
            found = state.Process(its_page, args.gpus)
        if found.contents.version != tables.PAGE_VERSION and found.pid:
            return verb.without_page(found.pid, args, found.note)
        uuid = None
        if args.gpu:
            uuids = [g.uuid or str(g.device) for g in found.gpus if g.answers_to(args.gpu)]
            if not uuids:
                raise Fault(f"it has no memory on GPU {args.gpu}")
            uuid = uuids[0]
        return verb.by_page(found, args, uuid)
    except FileNotFoundError:
        return verb.failed(found, "it has ended")
    except OSError as error:
        return verb.failed(found, reason(error))
    except Fault as fault:
        return verb.failed(found, str(fault))


def _at_once():
    """How many processes the descriptors are enough for, with as many as the system gives."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (sys.maxsize if limit == resource.RLIM_INFINITY else limit for limit in limits)
    wanted = min(hard, AT_ONCE * DESCRIPTORS_EACH + DESCRIPTORS_BESIDE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, limits[1]))
    return max(1, (wanted - DESCRIPTORS_BESIDE) // DESCRIPTORS_EACH)


def each(verb, targets, args):
    """The receipts in the order of their targets, each once it is there. The threads are daemons:
    the tool can end (ctrl-C) while they wait."""
    waiting, results = queue.SimpleQueue(), []
    for target in targets:
        results.append(concurrent.futures.Future())
        waiting.put((target, results[-1]))

    def work():
        while not waiting.empty():
            try:
                target, result = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                result.set_result(one(verb, target, args))
            except BaseException as error:  # pylint: disable=broad-except # the main thread has it
                result.set_exception(error)
    for _ in targets[:_at_once()]:
        start_thread(work)
    for result in results:
        yield result.result()


def split(words):
    """(pids, patterns) of the words PID|NAME. A word of digits alone is meant as a process id."""
    pids, patterns = [], []
    for word in words:
        if word.isdecimal() and not process.is_pid(word):
            raise Fault(f"{word} is no process id", USAGE)
        if process.is_pid(word):
            pids.append(int(word))
        else:
            patterns.append(word)
    return pids, patterns


def _named(args, patterns, wanted, what):
    """The processes whose name matches, or all, and complaints. wanted: is it one of them? what:
    the words of these."""
    found, complaints = state.running(args.all_users, args.gpus)
    complaints = page.sum_up(complaints)
    chosen = []
    whose = "" if args.all_users else f" of {process.user_name(os.geteuid())}"
    for pattern in patterns or [None]:
        its = [p for p in found if wanted(p)
               and (pattern is None or any(fnmatch.fnmatchcase(n, pattern) for n in p.names()))
               and (not args.gpu or any(g.answers_to(args.gpu) for g in p.gpus))]
        if not its:
            which = f"whose name matches {pattern}" if pattern else what
            complaints.append(f"no process{whose} {which}"
                              + (f" on GPU {args.gpu}" if args.gpu else ""))
        chosen += its
    return chosen, complaints


def targets(args, pids, patterns, wanted=lambda _: True, what="under libgpucache"):
    """(targets, complaints): processes of --all, else those of the pids and patterns."""
    chosen = list(dict.fromkeys(pids))
    if not args.all and not patterns:
        return chosen, []
    named, complaints = _named(args, patterns, wanted, what)
    named = [found for found in named if found.pid not in chosen]  # each is asked once
    return list(dict.fromkeys(chosen + named)), complaints


def _withdraw():
    begun = [str(page.pid or f"{page.inner_pid}*") for page in ask.withdraw_all()]
    if begun:
        with contextlib.suppress(OSError):  # the terminal may be gone
            complain(f"interrupted: what PID {', '.join(begun)} has begun goes on")


def receipts(verb, args, choose):
    """Asks those that choose(args) gives, prints and complains. Returns (receipts, exit code)."""
    end_in_order()
    args.gpus = gpu.Gpus()
    chosen, complaints = choose(args)
    for sentence in complaints:
        complain(sentence)
    names = {device["uuid"]: device["index"] for device in args.gpus.devices}
    made = []
    try:
        for receipt in each(verb, chosen, args):
            made.append(receipt)
            for line in () if args.json else receipt.lines(names):
                print(line, flush=True)
            if receipt.status in ("failed", "partly"):
                complain(f"PID {receipt.pid}: {receipt.why}")
    except BaseException:  # ctrl-C, or the reader of the output has left
        _withdraw()
        raise
    if complaints or any(r.status in ("failed", "partly") for r in made):
        return made, NOT_DONE
    return made, NO_RECEIPT if any(r.status == "signal" for r in made) else DONE
