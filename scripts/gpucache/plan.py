# SPDX-License-Identifier: BSD-2-Clause
"""gpucache plan: do the programs of some traces fit on one GPU together?"""
import json
import os

from gpucache import replay, text, trace, usage
from gpucache.fault import DONE, NOT_DONE, USAGE, Fault

CONTEXT_BYTES = 500 << 20  # of a CUDA context with its modules, about: no trace tells it
SETTINGS = ("", replay.LEAST)


class Job:
    """One program. The bytes are of the pool and of blocks that the driver served."""

    def __init__(self, path):
        self.path = path
        with trace.Trace(path) as its:
            asked = replay.Replay(path, SETTINGS)
            try:
                used = usage.Usage(its)
                self.name = its.program or os.path.basename(path)
                self.pid, self.start_ns = its.pid, its.start_unix_ns
                self._take(used)
                self._check(used)
                self._ask(asked)
            finally:
                asked.close()

    def _take(self, used):
        self.live, self.span_ns = used.peak, used.span_ns
        self.held = max(self.live, used.memory.whole_peak)  # as if nothing had been parked
        width = used.column_ns
        self.steps = [(column.ns // width * width, column.live) for column in used.columns]
        self.gpus = {(its["device"], its["uuid"]): its["total_bytes"]
                     for its in used.gpus.values()} or \
            {(device, ""): size for device, size in used.outside.totals.items()}
        self.beside, self.not_known = used.beside.most, used.beside.not_known()
        failed = [mark for mark in used.marks if mark.kind == "ALLOC_FAILED"
                  and mark.text == str(usage.OUT_OF_MEMORY)]
        self.num_failed = len(failed)
        self.largest_failed = max((mark.bytes for mark in failed), default=0)
        # What would have been live, had they been served.
        self.asked = max([self.live, *(mark.live + mark.bytes for mark in failed)])
        self.is_last_part = used.oom is not None

    def _check(self, used):
        if len(self.gpus) > 1:
            raise Fault(f"{self.path}: it has memory of {len(self.gpus)} GPUs, and a plan is for "
                        "one", USAGE)
        if not used.peak:
            raise Fault(f"{self.path}: no memory was allocated while the trace was on, so there "
                        "is nothing to plan", USAGE)

    def _ask(self, asked):
        """The least device memory; without a replay what was held."""
        least = next((its for its in asked.outcomes() or () if its.words == replay.LEAST
                      and its.serves_all()), None)
        self.is_replayed = least is not None
        self.why = asked.why
        self.least = max(self.live, least.max_reserved + self.beside if least else self.held)

    def needs(self):
        """[(ns since its start, bytes)]: device memory from then on, once all that is idle is lent
        or given back."""
        return [(ns, live + self.least - self.live) for ns, live in self.steps] + \
            [(self.span_ns, 0)]


def together(jobs, shifts):
    """The most that all need at one moment, if each starts at its shift."""
    changes, now, most = [], [0] * len(jobs), 0
    for number, job in enumerate(jobs):
        changes += [(ns + shifts[number], number, size) for ns, size in job.needs()]
    changes.sort(key=lambda change: change[0])
    for at, (ns, number, size) in enumerate(changes):
        now[number] = size
        if at + 1 == len(changes) or changes[at + 1][0] != ns:
            most = max(most, sum(now))
    return most


class Plan:
    def __init__(self, jobs, gpu_bytes):
        self.jobs = jobs
        sizes = [size for job in jobs for size in job.gpus.values() if size]
        self.gpu_bytes = gpu_bytes or min(sizes, default=0)
        if not self.gpu_bytes:
            raise Fault("no trace says how large the GPU is: --gpu SIZE does", USAGE)
        starts = [job.start_ns for job in jobs]
        self.ran_together = max(starts) < min(job.start_ns + job.span_ns for job in jobs)
        shifts = [start - min(starts) if self.ran_together else 0 for start in starts]
        contexts = len(jobs) * CONTEXT_BYTES
        beside = "side by side as recorded" if self.ran_together else "started at the same moment"
        # Key, words, bytes
        self.ways = [
            ("as_they_are", "as they are", sum(job.held for job in jobs) + contexts),
            ("lending", "with lending, whenever their peaks come",
             sum(job.least for job in jobs) + contexts),
            ("lending_beside", f"with lending, {beside}", together(jobs, shifts) + contexts),
            ("parking", "one at a time, the others parked",
             max(job.least for job in jobs) + contexts)]

    def fits(self, key):
        return next(size for its, _, size in self.ways if its == key) <= self.gpu_bytes

    def may_run(self):
        """At the same time, whatever the moments of their peaks are? Not if that is not known."""
        return (self.fits("as_they_are") or self.fits("lending")) and not self.lacks()

    def asked(self):
        """What all need if what failed is served, too."""
        return sum(max(job.least, job.asked) for job in self.jobs) + len(self.jobs) * CONTEXT_BYTES

    def lacks(self):
        """Words: why it is not known whether they fit, though what is counted does."""
        words = []
        if any(job.is_last_part for job in self.jobs):
            words.append("as far as is known")
        if any(job.num_failed for job in self.jobs) and self.asked() > self.gpu_bytes:
            words.append("without what failed")
        return " and ".join(words)

    def verdict(self):
        said, lacks = self._verdict(), self.lacks()
        if not lacks or min(size for _, _, size in self.ways) > self.gpu_bytes:
            return said
        return f"{lacks[0].upper()}{lacks[1:]}, {said[0].lower()}{said[1:]}"

    def _verdict(self):
        whole = text.size(self.gpu_bytes)
        they, do = ("They", "do") if len(self.jobs) > 1 else ("It", "does")
        fit, are = ("fit", "are") if len(self.jobs) > 1 else ("fits", "is")
        for key, words, size in self.ways:
            if size > self.gpu_bytes:
                continue
            if key == "as_they_are":
                return f"{they} {fit} on {whole} as {they.lower()} {are}: {text.size(size)}."
            if len(self.jobs) == 1:
                return f"It fits on {whole} with a limit or with lending: {text.size(size)}."
            if key == "lending":
                return f"They fit on {whole} {words}: {text.size(size)}."
            if key == "lending_beside":
                return f"They fit on {whole} {words}: {text.size(size)}. If their peaks meet, " \
                       f"they do not: {text.size(self.ways[1][2])}."
            return f"They do not fit on {whole} at the same time. They do {words}: " \
                   f"{text.size(size)}."
        return f"{they} {do} not fit on {whole}: {text.size(self.ways[-1][2])} " \
               f"{'are' if len(self.jobs) > 1 else 'is'} the least."

    def notes(self):
        yield f"A CUDA context with its modules is counted with some {text.size(CONTEXT_BYTES)} " \
              f"each, {text.size(len(self.jobs) * CONTEXT_BYTES)} in all: no trace tells it."
        for job in self.jobs:
            if job.is_last_part:
                yield f"{job.path} is a record of GPUCACHE_TRACE_ON=oom: it has the last " \
                      f"{text.duration(job.span_ns)} alone, so it is not known what else the " \
                      "program needs."
        number = sum(job.num_failed for job in self.jobs)
        if number:
            largest = text.size(max(job.largest_failed for job in self.jobs))
            failed = f"{text.count(number)} requests failed and are not counted, the largest of " \
                     f"{largest}" if number > 1 else \
                     f"A request of {largest} failed and is not counted"
            yield f"{failed}. With what failed {text.size(self.asked())} are needed."
        unknown = [job for job in self.jobs if not job.is_replayed]
        if unknown:
            yield f"The least of {', '.join(job.path for job in unknown)} is what was held: " \
                  f"{unknown[0].why or 'the replay did not end'}"
        beside = sum(job.beside for job in self.jobs)
        if beside:
            yield f"{text.size(beside)} of it is memory that the driver serves beside the pool."
        not_known = sum(job.not_known for job in self.jobs)
        if not_known:
            yield f"Not counted: {text.size(not_known)} of such memory, in all: an older library " \
                  "did not record when it was freed."
        if len({size for job in self.jobs for size in job.gpus.values()}) > 1:
            yield "The traces are of GPUs of several sizes."

    def lines(self):
        yield self.verdict()
        yield ""
        yield text.table(("PID", "PROGRAM", "AT LEAST", "HELD", "LIVE"),
                         [[str(job.pid), job.name, text.size(job.least), text.size(job.held),
                           text.size(job.live)] for job in self.jobs], left=("PROGRAM",))
        yield ""
        yield text.table(("TOGETHER", "NEED", "FITS"),
                         [[words, text.size(size), "yes" if size <= self.gpu_bytes else "no"]
                          for _, words, size in self.ways], left=("TOGETHER", "FITS"))
        yield ""
        yield from self.notes()

    def data(self):
        return {"gpu_bytes": self.gpu_bytes, "context_bytes": CONTEXT_BYTES,
                "may_run_together": self.may_run(), "ran_together": self.ran_together,
                "asked_bytes": self.asked(),
                "jobs": [{"file": job.path, "pid": job.pid, "program": job.name,
                          "least_bytes": job.least, "least_is_replayed": job.is_replayed,
                          "held_bytes": job.held, "live_bytes": job.live,
                          "beside_bytes": job.beside, "num_failed": job.num_failed,
                          "largest_failed_bytes": job.largest_failed,
                          "is_last_part": job.is_last_part} for job in self.jobs],
                "ways": [{"way": key, "bytes": size, "fits": size <= self.gpu_bytes}
                         for key, _, size in self.ways]}


def show(args):
    try:
        plan = Plan([Job(path) for path in args.files], args.gpu)
    except Fault as error:
        raise Fault(str(error), USAGE) from None  # 1 says that they do not fit
    if args.json:
        print(json.dumps(plan.data()))
    else:
        print("\n".join(plan.lines()))
    return DONE if plan.may_run() else NOT_DONE
