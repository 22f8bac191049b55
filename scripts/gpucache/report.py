# SPDX-License-Identifier: BSD-2-Clause
"""gpucache report: what a trace says, for people, and for viewers of other formats."""
import collections
import json
import os
import shutil
import sys
import textwrap

from gpucache import (frame, options, output, outside, replay, report_json, report_page,
                      report_perfetto, snapshot, symbols, tensors, text, together, trace, usage)
from gpucache.fault import DONE, USAGE, Fault, complain, end_in_order, reason
from gpucache.site import LIMIT, TILL_IDLE, select_marks, telling
from gpucache.trace import NAME

BINARY = ("pytorch",)
TOGETHER = ("html", "perfetto")  # of one process, with others beside it
ENDINGS = {".html": "html", ".htm": "html", ".json": "perfetto", ".csv": "csv", ".txt": "text",
           ".folded": "collapsed", ".collapsed": "collapsed", ".pickle": "pytorch"}
ROWS = 10
BEYOND = "all that NVML says beyond what the library held: context, code and other memory"
PATHS_ENOUGH = 300  # sites that get names
CALLERS = 3         # of a path, in a row
PIPE_COLUMNS = 120  # of a table that goes to no terminal
NAME_MOST, SENTENCE_MOST = 100, 200  # letters of a name in a sentence, and of that of the peak
# Columns whose cells may be cut, and whether their ends are kept: of code that is a line number.
CUTS = {"CODE": True, "IN": False, "MOST OF IT": True, "WHAT": False, "": False, "KIND": True,
        "NAME": False}


seconds = text.seconds  # since the trace began


def columns():
    """Of the terminal; 0: there is none."""
    return max(40, shutil.get_terminal_size().columns) \
        if sys.stdout.isatty() or "COLUMNS" in os.environ else 0


def folded(words, before=""):
    """Lines of a sentence, as wide as the terminal; one line in a file or a pipe, where programs
    look for words. before: of the first line; the others have blanks there."""
    width = columns()
    if not width:
        return [before + words]
    return textwrap.wrap(words, width, initial_indent=before, subsequent_indent=" " * len(before),
                         break_long_words=False, break_on_hyphens=False)


class Report:
    """A trace with all that is said of it."""

    def __init__(self, path, beside=(), what_if=False, pytorch=None):
        """beside: traces of other processes of the GPU. what_if: also under other settings.
        pytorch: the file of a snapshot of PyTorch."""
        self.replay, self._traces = None, []
        try:
            for one in (path, *beside):
                self._traces.append(trace.Trace(one))
            self.trace, *others = self._traces
            self.whole_ns = together.align(self._traces) if others else 0
            self.replay = replay.Replay(path, recorded=True) if what_if else None
            self.usage = usage.Usage(self.trace, whole_ns=self.whole_ns)
            self.beside = [together.Process(its, self.whole_ns) for its in others]
            self.gpus = together.gpus([self, *self.beside]) if others else {}
            self.tensors, self.unfit = self._tensors(path, pytorch) if pytorch else (None, "")
        except BaseException:
            self.close()
            raise
        self.symbols = symbols.Symbols(self.trace, self._shown())
        self._firsts = {}  # of first(), by site and by path

    def _tensors(self, path, pytorch):
        """Tensors, or a sentence that says why there are none."""
        with trace.Trace(path) as its:
            its.begin_at(self.trace.lead_ns)
            try:
                return tensors.Tensors(its, pytorch), ""
            except tensors.Unfit as unfit:
                return None, str(unfit)

    def _shown(self):
        """The sites that the report may name: those of marks, and the largest in any respect."""
        sites = self.usage.sites
        found = {its.site for its in [*self.usage.marks, self.usage.oom] if its}
        found.update(self.usage.at_peak)
        for figure in "bytes_total", "most", "live", "num_frees":
            found.update(sorted(sites, key=lambda site, name=figure: -getattr(sites[site], name))
                         [:PATHS_ENOUGH])
        return found

    def close(self):
        for its in self._traces:
            its.close()
        if self.replay:
            self.replay.close()

    def facts(self):
        """What was recorded: words and figures."""
        its, used = self.trace, self.usage
        gpus = ", ".join(f"GPU {gpu['device']} {gpu['name']}, {text.size(gpu['total_bytes'])}"
                         for gpu in used.gpus.values())
        lost = f"{text.count(its.num_lost)} lost" if its.num_lost else "none lost"
        return [f"PID {its.pid}", gpus or "no pool", text.moment(its.start_unix_ns),
                seconds(used.own_ns), f"{text.count(used.num_events)} events, {lost}"
                + ("" if its.ended else ", cut off")]

    def settings(self):
        """The options that it ran with; "": the trace does not tell."""
        told = {options.short(name): value for name, value in self.usage.options.items()}
        words = " ".join(f"{name}={value}" for name, value in told.items()
                         if name not in ("TRACE", "TRACE_ON"))
        changed = sum(mark.kind == "OPTION" for mark in self.usage.marks)
        more = f", {text.count(changed)} changed while it ran" if changed else ""
        return f"Options: {words or 'the defaults'}{more}" if told else ""

    def headline(self):
        """The sentences that explain the peak."""
        used = self.usage
        if used.oom:
            return self._out_of_memory()
        if not used.peak:
            return "No memory was allocated while the trace was on."
        lasted = "where the trace ends" if used.peak_ns >= used.span_ns else \
            f"for {text.duration(used.peak_lasted_ns())}"
        first = f"Live memory peaked at {text.size(used.peak)} at {seconds(used.peak_ns)}, " \
                f"{lasted}."
        enough = used.enough()
        if enough < 0.97 * used.peak:
            first += f" {usage.ENOUGH:.0%} of the time {text.size(enough)} was enough."
        return first

    def _out_of_memory(self):
        used, oom = self.usage, self.usage.oom
        others = sum(size for _, _, size in used.neighbours)
        said = "Out of memory" if used.limit is None else "At the limit"
        said += f": {self._name(oom.site)} asked for {text.size(oom.b)}, "
        if used.limit is not None:
            said += f"which {LIMIT} of {text.size(used.limit)} refused, "
        said += f"while {text.size(oom.a)} of the GPU were free and this process had " \
               f"{text.size(used.live)} live"
        number = len(used.neighbours)
        more = " or more" * any(not pid for pid, _, _ in used.neighbours)
        return said + (f", {text.count(number)} other process{'es' * (number > 1)}{more} "
                       f"{text.size(others)}." if number else ".")

    def _who_holds(self):
        """Of a dump at the end of memory."""
        used = self.usage
        said = f"It is a record of GPUCACHE_TRACE_ON=oom: the last {seconds(used.own_ns)} of " \
               "all threads, and what was live by then."
        if used.oom.text:
            said += f" Not all is known: {used.oom.text}."
        owners = used.by_owner(used.held_at_end())[:4]
        if owners:
            said += f" This process: {', '.join(f'{n} {text.size(b)}' for n, b in owners)}; " \
                    f"{text.size(max(0, used.reserved - used.live))} held and not live."
        if used.neighbours:
            said += " Other processes: " + ", ".join(
                f"{f'PID {pid} ' * bool(pid)}{name} {text.size(size)}".replace("  ", " ")
                for pid, name, size in used.neighbours) + "."
        gpu = next((its for its in used.gpus.values() if its["device"] == used.oom.aux), None)
        rest = gpu and gpu["total_bytes"] - used.oom.a - used.reserved - sum(
            size for _, _, size in used.neighbours)
        if rest and rest > 0:
            said += f" {text.size(rest)} of the GPU are neither: CUDA contexts, code, other " \
                    "memory of these processes, and processes without this library."
        return said

    def explained(self):
        """Sentences: who held most of the peak, and what it rests on."""
        used = self.usage
        if used.oom:
            return self._who_holds()
        if not used.peak:
            return ""
        site, size = max((row for row in self.told(used.at_peak).items()
                          if row[0] != trace.OTHERS),
                         key=lambda row: row[1])
        said = f"{text.size(size)} of it, {size / used.peak:.0%}, were "
        if site == trace.BEFORE:
            said += trace.FROM_BEFORE + "."
        else:
            said += f"asked for by {self._name(site)} ("
            said += text.cut(self.where(site)[1], SENTENCE_MOST - len(said) - len(").")) + ")."
        less = used.after_peak.other_order(used.peak)
        if used.after_peak.freed and less < 0.99 * used.peak:
            ns, site, change = used.after_peak.freed
            by = "by " * (site != trace.BEFORE)
            said += f" The last block came {text.duration(ns - used.peak_ns)} before the next " \
                    f"free, of {text.size(-change)} {by}{self._name(site)}; in the other order " \
                    f"the peak is {text.size(less)}."
        highest = max(used.columns, key=lambda column: column.live)
        idle = together.idle_of(highest)
        if idle > 0:
            said += f" {text.size(highest.reserved)} of the device were held then, " \
                    f"{text.size(idle)} of it idle."
        return said

    def answers(self):
        """[(question, answer)]."""
        used = self.usage
        told = []
        if used.peak:
            whole = sum(used.at_peak.values()) or 1
            told.append(("Who held the peak?", ", ".join(
                f"{owner} {size / whole:.0%}" for owner, size in
                used.by_owner(used.at_peak)[:4])))
        told.append(("What did it need?", f"{text.size(used.peak)} at once; at most "
                     f"{text.size(used.memory.peak)} were held on the device"))
        told.append(("Was memory idle?", f"{text.size(used.mean_idle())} on average"))
        told.append(("Does it leak?", "; ".join(
            f"{self._name(site)} grew by {text.size(size)} in the last half{till}"
            for site, size, till in self.leaks()[:3]) or "no code asks for ever more"))
        pairs = sum(its.num_frees for its in used.sites.values())
        cost = f"{text.duration(used.memory.driver_ns)} in calls that took or gave device memory"
        if pairs:
            take = "takes" if pairs == 1 else "take"
            cost += f"; without the library {text.counted(pairs, 'pair')} of cudaMalloc and " \
                    f"cudaFree {take} some {text.duration(pairs * usage.NATIVE_PAIR_NS)}"
        told.append(("What did it cost?", cost))
        return told

    def churn(self):
        """[(site, Site)] that free what they ask for again and again, the most first."""
        rows = [row for row in self.told(self.usage.sites).items() if row[1].num_frees > 1]
        return sorted(rows, key=lambda row: -row[1].num_frees)

    def live_at_end(self):
        rows = [row for row in self.told(self.usage.sites).items() if row[1].live > 0]
        return sorted(rows, key=lambda row: -row[1].live)

    def first(self, site):
        """The first site that was told whose path differs from this one's in plumbing alone."""
        if site < trace.FIRST_PATH:
            return site
        if site not in self._firsts:
            through = self.symbols.through(site)
            path = through and through.object, *map(id, self.symbols.path(site))
            self._firsts[site] = self._firsts.setdefault(path, site)
        return self._firsts[site]

    def told(self, figures):
        """{site: figure} of {site: figure}, as a table has it: call paths that differ in plumbing
        alone are one, with the sum."""
        found = {}
        for site, figure in figures.items():
            first = self.first(site)
            found[first] = found[first] + figure if first in found else figure
        return found

    def grows(self):
        return self.told(self.usage.grows())

    def leaks(self):
        """[(site, bytes, what else it may be)] of those that grow, the most first."""
        till_idle = self.usage.floors.till_idle
        sure = self.told({site: size for site, size in self.usage.grows().items()
                          if site not in till_idle})
        return [(site, size, TILL_IDLE * (site not in sure))
                for site, size in sorted(self.grows().items(), key=lambda item: -item[1])]

    def where(self, site):
        """(function, the rest) of the code that asked: the rest is its object and line, the library
        through which it asked, and who called it."""
        if site == trace.BEFORE:
            return trace.FROM_BEFORE, "-"
        place, *callers = self.symbols.path(site)
        through = self.symbols.through(site)
        said = [f"{place.object} {place.line}".strip()] if not place.is_python else []
        if through:
            said.append(f"through {through.object}")
        callers = frame.callers(callers)
        if callers:
            more = ", .." * (len(callers) > CALLERS)
            said.append(f"called by {', '.join(map(str, callers[:CALLERS]))}{more}")
        return str(place), ", ".join(said) or place.object

    def _name(self, site):
        """In a sentence."""
        return text.cut(str(self.symbols[site]), NAME_MOST, keep_end=True)

    def lines(self):
        used = self.usage
        yield self.trace.command or self.trace.program
        yield from folded(", ".join(self.facts()))
        yield from folded(self.settings())
        yield ""
        yield from folded(self.headline())
        yield from folded(self.explained())
        yield ""
        for question, answer in self.answers():
            yield from folded(answer, f"{question:<20}")
        rows = [[text.size(size), f"{size / used.peak:.0%}", *self.where(site)]
                for site, size in sorted(self.told(used.at_peak).items(),
                                         key=lambda item: -item[1])[:ROWS]]
        yield from self._table("Live at the peak", ("BYTES", "PART", "CODE", "IN"), rows)
        rows = [[text.count(its.num_frees), used.life(its),
                 text.size(its.bytes_total // max(1, its.num_allocs)), *self.where(site)]
                for site, its in self.churn()[:ROWS]]
        yield from self._table("Freed and asked for again", ("PAIRS", "LIFE", "EACH", "CODE", "IN"),
                               rows)
        rows = [[text.size(its.live), text.count(its.blocks), *self.where(site)]
                for site, its in self.live_at_end()[:ROWS]]
        yield from self._table("Live at the end", ("BYTES", "BLOCKS", "CODE", "IN"), rows)
        yield from self._in_pytorch()
        rows = [[seconds(mark.ns), *self.mark(mark)]
                for mark in select_marks(telling(used.marks), ROWS)]
        yield from self._table("What happened", ("AT", "WHAT", ""), rows)
        rows = [[name, text.count(calls), *sizes]
                for name, calls, *sizes in used.beside.rows(text.size)]
        if self.usage.outside.beyond:
            rows.append([BEYOND, "-", "-", "-", text.size(self.usage.outside.median_beyond()),
                         "-"])
        yield from self._table("Other memory, which the driver served",
                               ("KIND", "CALLS", "AT PEAK", "MOST", "AT END", "IN ALL"), rows)
        rows = [[str(its.pid or "-"), *map(text.size, self._sizes_of(its)), its.name or "-"]
                for its in together.others([self, *self.beside])]
        yield from self._table("Other processes of the GPU, as NVML says",
                               ("PID", "AT PEAK", "MOST", "AT END", "NAME"), rows)
        yield from self.what_if()

    def _sizes_of(self, other):
        """Of another process: at the peak, at most, at the end."""
        sizes = [size for _, size in other.steps]
        return outside.at(other.steps, self.usage.peak_ns), max(sizes), sizes[-1]

    def _in_pytorch(self):
        if self.unfit:
            yield ""
            yield from folded(self.unfit + ".")
        if self.tensors:
            yield ""
            for words in self.tensors.sentences():
                yield from folded(words)
            yield from self._table("What PyTorch keeps in its blocks",
                                   ("BYTES", "PART", "BLOCKS", "CODE", "IN"),
                                   self.tensors.rows(ROWS))
            yield from self._table("Where PyTorch's segments lie",
                                   ("BYTES", "ADDRESS", "ALLOCATED", "INACTIVE", "MOST OF IT"),
                                   self.tensors.block_rows(ROWS))

    def recorded(self):
        """What Outcome says of a setting, of the program as it ran, without what is beside the
        pool."""
        used = self.usage
        failed = sum(mark.kind == "ALLOC_FAILED" for mark in used.marks)
        return (text.size(used.mean_pool()), text.size(used.memory.pool_peak),
                text.duration(used.memory.driver_ns), text.count(failed) if failed else "none")

    def what_if(self):
        """Lines: what other settings would have done."""
        if not self.replay or not self.usage.peak or self.usage.oom:
            return
        outcomes = self.replay.outcomes()
        rows = [[its.name(), text.size(its.mean), text.size(its.peak), its.price(), its.fails()]
                if its.has_figures() else [its.name(), "-", "-", "-", its.fails()]
                for its in outcomes or ()]
        if rows:
            rows.insert(0, ["as recorded", *self.recorded()])
        yield from self._table("What other settings would have done",
                               ("SETTING", "MEAN", "PEAK", "DRIVER CALLS", "FAILED"), rows)
        yield ""
        for words in (*replay.findings(outcomes), replay.ABOUT) if rows else (self.replay.why,):
            yield from folded(words)

    @staticmethod
    def _table(title, heads, rows):
        if rows:
            yield ""
            yield title
            rows = text.fitted(heads, rows, CUTS, columns() or PIPE_COLUMNS)
            yield text.table(heads, rows, left=(*CUTS, "SETTING", "FAILED"))

    def mark(self, mark):
        size = text.size(mark.bytes)
        if mark.limit is not None:
            return ("limit", f"{size} were asked for by {self._name(mark.site)}, and "
                             f"{LIMIT} of {text.size(mark.limit)} refused it")
        return {"FLUSH": ("flush", f"{size} went back ({mark.text})"),
                "ALLOC_FAILED": ("out of memory" if mark.text == "2" else f"error {mark.text}",
                                 f"{size} were asked for by {self._name(mark.site)}"),
                "OOM_STEP": ("the GPU was full", mark.text),
                "LEND_ASK": ("other processes were asked", f"{size}, {mark.text}"),
                "PARK": ("parked", f"{size} went to the host"),
                "WAKE": ("woken", f"{size} came back from the host"),
                "LEND_GIVE": ("lent", size), "OPTION": ("option", mark.text),
                "EXPOSED": ("known outside", f"a block of {size}"),
                "IPC_OPEN": ("memory of another process", "got an address here"),
                "CONTEXT_END": ("a context ended", "")}.get(mark.kind, (mark.kind, size))

    def names(self, site):
        """Of a whole path, outwards."""
        return " < ".join(place.whole() for place in self.symbols.whole_path(site))

    def html(self, out):
        report_page.write(self, out)

    def perfetto(self, out):
        report_perfetto.write(self, out)

    def collapsed(self, out):
        """Bytes at the peak, for flame graphs: owner;code bytes, or main;..;code bytes."""
        for site, size in sorted(self.usage.at_peak.items(), key=lambda item: -item[1]):
            path = self.symbols.path(site)
            names = [place.whole() for place in reversed(path)]
            if len(path) == 1 and site != trace.BEFORE:
                names.insert(0, (self.symbols.through(site) or path[0]).object)
            out.write(f"{';'.join(name.replace(';', ':') for name in names)} {size}\n")

    def pytorch(self, out):
        """A memory snapshot of PyTorch."""
        snapshot.Snapshot(self).write(out)

    def csv(self, out):
        """As RMM's logging adaptor writes it."""
        out.write("Thread,Time,Action,Pointer,Size,Stream\n")
        live, contexts = {}, set()  # address -> whether the driver served it; those that are there

        def tell(event, action, addr, size):
            us = event.ns // 1000
            out.write(f"{event.tid},{us // 3_600_000_000:02}:{us // 60_000_000 % 60:02}:"
                      f"{us // 1_000_000 % 60:02}:{us % 1_000_000:06},{action},"
                      f"0x{addr:x},{size},0x0\n")
        for event in self.trace.events():
            kind, addr = event.kind, event.a
            if kind in usage.ALLOCS:
                live[addr] = kind == usage.ALLOC_DRIVER
                tell(event, "allocate", addr if event.b else 0, event.b)
            elif kind == usage.FREE or kind == usage.FREE_ASYNC and live.get(addr):
                live.pop(addr, None)
                tell(event, "free", addr, 0)
            elif NAME[kind] == "ALLOC_FAILED":
                tell(event, "allocate failure", 0, event.b)
            elif NAME[kind] == "CONTEXT":
                contexts.add(event.context)
            elif NAME[kind] == "CONTEXT_END":  # as usage does
                contexts.discard(event.context)
                while live and not contexts:
                    tell(event, "free", live.popitem()[0], 0)


def _format(args):
    if args.json and args.format:
        raise Fault("report takes one of --json and --format", USAGE)
    if args.json:
        return "json"
    if args.format:
        return args.format
    return ENDINGS.get(os.path.splitext(args.output or "")[1].lower(), "text")


def _write(out, own, first, made, what_if):
    """own: the traces that it is made of. first: the Report of the first."""
    told = []
    for number, name in enumerate(own):
        report = Report(name, what_if=what_if) if number else first
        try:
            if made == "text":
                out.write("\n\n" * bool(number) + "\n".join(report.lines()) + "\n")
            elif made == "json":
                told.append(report_json.data(report))
            else:
                getattr(report, made)(out)
        finally:
            report.close()
    if told:
        out.write(json.dumps({"traces": told}) + "\n")


def show(args):
    made, path = _format(args), None if args.output == "-" else args.output
    if len(args.files) > 1 and made not in ("text", "json", *TOGETHER):
        raise Fault(f"{made} is made of one trace at a time", USAGE)
    if args.snapshot and (made not in ("text", "html") or made == "text" and len(args.files) > 1):
        raise Fault("--snapshot is for a text of one trace, or for html", USAGE)
    if made in BINARY and not path and sys.stdout.isatty():
        raise Fault(f"{made} is not made for a terminal: name a file with -o", USAGE)
    output.check(path, [*args.files, *filter(None, [args.snapshot])])
    own, beside = args.files, ()
    if made in TOGETHER:
        own, beside = args.files[:1], args.files[1:]
    what_if = made in ("text", "html")
    first = Report(own[0], beside, what_if, args.snapshot)
    if first.unfit:
        complain(first.unfit)
    if not path:
        _write(sys.stdout.buffer if made in BINARY else sys.stdout, own, first, made, what_if)
        return DONE
    end_in_order()
    try:
        with output.written(path, made in BINARY) as out:
            _write(out, own, first, made, what_if)
    except OSError as error:
        name = error.filename if error.filename2 is None else error.filename2
        raise Fault(f"{name or path}: {reason(error)}") from None
    complain(f"{path}: {text.size(os.path.getsize(path))}")
    return DONE
