# SPDX-License-Identifier: BSD-2-Clause
"""A report as one page of HTML that needs nothing else: no network, and no package. The figures are
those of usage.Usage. Each word of a trace is foreign: here it is escaped, the page's scripts make
text of it, and the page's policy lets no other script run. The pictures are SVG of the page's own
script (report_timeline.js): Plotly's is 4.8 MB in each page, one more package for the tool, and
makes code at run time, which that policy forbids."""
import base64
import collections
import hashlib
import html
import json
import pkgutil
import re
import string

from gpucache import replay, report_data, text, together
from gpucache.report_data import steps
from gpucache.site import select_marks, telling
from gpucache.trace import OTHERS
from gpucache.usage import NATIVE_PAIR_NS, Column

SERIES = 40         # call sites in the picture; the others of a library are one more
ROWS = 8            # of a table
MARKS = 1000
COLOURS = 8         # libraries with a colour of their own
BEFORE_PEAK = 0.15  # of the time: marker A is at the lowest moment of it
OWNERS = 6          # in the first card
OWNERS_MOST = 60    # of the page; the others count as one
DETAIL_MOST = 500   # letters of a whole name
OTHER_OWNERS = "other libraries"
FLAGS = {"FLUSH": "flush", "ALLOC_FAILED": "oom", "OOM_STEP": "oom", "LEND_ASK": "lend",
         "LEND_GIVE": "lend", "PARK": "park", "WAKE": "park"}
LANE_FLAGS = ("FLUSH", "LEND_ASK", "LEND_GIVE", "PARK", "WAKE")
LANE_MARKS = 100
escape = html.escape


def _asset(name):
    """A file of the package."""
    return pkgutil.get_data("gpucache", name).decode()


def _json(data):
    """For a script element: nothing in it ends the element."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _micro(words):
    """The page has letters for microseconds."""
    return re.sub(r"(?<=\d )us\b", "µs", words)


def _duration(ns):
    return _micro(text.duration(ns))


def _price(words):
    """The same, of words with durations from and to: the page has a dash for these."""
    return re.sub(r"(?<=s) - (?=\d)", " – ", _micro(words))


def _part(part, whole):
    return f"{part / whole:.0%}".replace("%", " %") if whole else "-"


def _table(title, about, heads, rows, more=0):
    """rows: HTML. heads: (words, class)."""
    if not rows:
        return ""
    head = "".join(f'<th scope="col" class="{kind}">{escape(words)}</th>' for words, kind in heads)
    body = "\n".join("<tr>" + "".join(f'<td class="{kind.replace("wide", "")}">{cell}</td>'
                                      for cell, (_, kind) in zip(row, heads)) + "</tr>"
                     for row in rows)
    rest = f'<tr><td colspan="{len(heads)}" class="soft">{text.count(more)} more</td></tr>' \
        if more > 0 else ""
    return f'<h2>{escape(title)}</h2><span class="soft">{about}</span>\n' \
           f"<table><thead><tr>{head}</tr></thead><tbody>{body}{rest}</tbody></table>"


class Page:
    """its: a report.Report."""

    def __init__(self, its):
        self.report, self.usage, self.trace = its, its.usage, its.trace
        self.columns = list(self.usage.columns)
        marks = telling(self.usage.marks)
        self.marks = select_marks(marks, MARKS)
        self.num_marks_more = len(marks) - len(self.marks)
        if self.columns and self.usage.span_ns < its.whole_ns - self.usage.column_ns:
            self.columns.append(Column(self.usage.span_ns, {}, 0, 0))  # others go on
        self.moments, self.near = None, self.usage.stretches() if self.columns else []
        self.others = together.others([its, *its.beside])
        self.is_whole = any(each.usage.outside.whole for each in (its, *its.beside))
        self.end = "at exit" if self.trace.ended and not self.usage.oom else "at the end"
        known = dict(self.usage.by_owner(self.usage.at_peak))
        most = collections.Counter()
        for site, found in self.usage.sites.items():
            most[self.usage.owner(site)] += found.most
        self.owners = sorted(most, key=lambda owner: (-known.get(owner, 0), -most[owner], owner))
        if len(self.owners) > OWNERS_MOST:
            self.owners[OWNERS_MOST:] = [OTHER_OWNERS]
        self.colour = {owner: min(n, COLOURS) for n, owner in enumerate(self.owners)}

    def has_lanes(self):
        return bool(self.report.beside or (self.is_whole or self.others) and self.columns)

    # The data of the scripts

    def _series(self):
        """The largest call sites, and one of the others for each library: sums stay true. And a
        function: the number of a site's series."""
        found, sites = self.usage.sites, {}
        largest = set(sorted(found, key=lambda site: -found[site].most)[:SERIES])
        for site in [*found, 0, OTHERS]:
            sites[site] = self.report.first(site) if site in largest else (self._owner(site),)
        names = sorted({*sites.values()}, key=lambda key: (isinstance(key, tuple), str(key)))
        held = {name: [0] * len(self.columns) for name in names}
        for number, column in enumerate(self.columns):
            for site, size in column.held.items():
                held[sites[site]][number] += size
        exits, near = collections.Counter(), {
            sites[site] for its in self.near for column in its.columns for site in column.changes}
        for site, its in found.items():
            exits[sites[site]] += its.live
        names.sort(key=lambda name: -max(held[name], default=0))
        series = [(name, self._one_series(name, held[name], exits[name])) for name in names
                  if any(held[name]) or exits[name] or name in near]
        series.sort(key=lambda row: row[1]["owner"])
        places = {name: place for place, (name, _) in enumerate(series)}
        return [its for _, its in series], lambda site: places[sites[site]]

    def _owner(self, site):
        """As the page names it."""
        owner = self.usage.owner(site)
        if owner not in self.colour and OTHER_OWNERS in self.colour:
            owner = OTHER_OWNERS
        if owner not in self.colour:  # that of OTHERS
            self.colour[owner] = min(len(self.owners), COLOURS)
            self.owners.append(owner)
        return owner

    def _one_series(self, name, held, at_exit):
        if isinstance(name, tuple):
            owner, shown, where = name[0], "other call sites", name[0]
        else:
            owner, (shown, where) = self._owner(name), self.report.where(name)
        path = [] if isinstance(name, tuple) else \
            [str(place) for place in reversed(self.report.symbols.path(name)[1:])]
        detail = "" if isinstance(name, tuple) else self._detail(name)
        return {"name": shown, "where": where, "owner": self.owners.index(owner), "exit": at_exit,
                "held": steps(held), **({"callers": path} if path else {}),
                **({"detail": detail} if detail else {})}

    def _detail(self, site):
        """The whole names of all frames, the innermost first; "": the short name says as much."""
        found = [place.whole() for place in self.report.symbols.whole_path(site)]
        return "\n".join(text.cut(its, DETAIL_MOST) for its in found) \
            if found != [str(self.report.symbols[site])] else ""

    def _told(self, marks):
        told = []
        for mark in marks:
            what, more = self.report.mark(mark)
            told.append([mark.ns, FLAGS.get(mark.kind, "option"), f"{what}: {more}".strip(": ")])
        return told

    def _ends(self):
        """The columns of A and B: the lowest moment before the peak, and the peak."""
        columns = self.columns
        peak = max(range(len(columns)), key=lambda n: columns[n].live, default=0)
        since = columns[peak].ns - BEFORE_PEAK * self.usage.span_ns if columns else 0
        near = [n for n in range(peak + 1) if columns and columns[n].ns >= since]
        return min(near, key=lambda n: (columns[n].live, -n), default=0), peak

    def _lanes(self):
        return report_data.lanes(self.report, self.near, self.others, lambda marks: self._told(
            [mark for mark in telling(marks) if mark.kind in LANE_FLAGS][:LANE_MARKS])) \
            if self.has_lanes() else {}

    def data(self):
        first, peak = self._ends()
        series, place = self._series()
        width, was_any = self.usage.column_ns, self.usage.memory.away.was_any
        return {**self._lanes(), **report_data.nvml(self.report), "width": width, "a": first,
                "b": peak, "peak": peak, "span": max(self.usage.span_ns, self.report.whole_ns),
                "slots": steps([column.ns // width for column in self.columns]),
                "at": steps([column.ns for column in self.columns]),
                **report_data.memory(self.columns, was_any),
                "near": [report_data.near(its, place, was_any) for its in self.near],
                "owners": self.owners, "series": series, "maps": self.maps(),
                "marks": self._told(self.marks)}

    # What is there without scripts

    def _where(self, site):
        name, where = self.report.where(site)
        detail = escape(self._detail(site))
        words = f'<span title="{detail}">{escape(name)}</span>' if detail else escape(name)
        return f'{self._dot(self.usage.owner(site))}{words}' \
               f'<small title="{escape(where)}">{escape(where)}</small>'

    def _dot(self, owner):
        return f'<i class="dot" style="background:var(--c{self.colour.get(owner, COLOURS)})"></i>'

    def facts(self):
        return " · ".join(self.report.facts())

    def headline(self):
        words = escape(_micro(self.report.headline()))
        peak = escape(text.size(self.usage.peak))
        return words.replace(peak, f"<b>{peak}</b>", 1)

    def _card(self, question, inside):
        return f'<div class="card"><h3>{escape(question)}</h3>{inside}</div>'

    def cards(self):
        if not self.usage.peak:
            return ""
        return "\n".join(self._card(question, inside) for question, inside in (
            ("Who held the peak?", self._who()), ("What did it need at once?", self._need()),
            ("Was memory wasted?", self._idle()), ("Does it leak?", self._leak()),
            ("What did allocating cost?", self._cost())))

    def _who(self):
        rows, peak = self.usage.by_owner(self.usage.at_peak), self.usage.peak
        bar = "".join(f'<i style="width:{100 * size / peak:.2f}%;background:'
                      f'var(--c{self.colour.get(owner, COLOURS)})" title="{escape(owner)}"></i>'
                      for owner, size in rows)
        names = "".join(f"<span>{self._dot(owner)}{escape(owner)} {_part(size, peak)}</span>"
                        for owner, size in rows[:OWNERS])
        return f'<div class="bar">{bar}</div><div class="names">{names}</div>'

    def _need(self):
        used = self.usage
        more = used.memory.peak - used.peak
        said = f"at most {text.size(used.memory.peak)} were held on the device"
        said += f", {used.memory.peak / used.peak:.3g} times as much" if more >= used.peak \
            else f", {100 * more / used.peak:.1f} % more" if more > 0 else ""
        return f"<strong>{text.size(used.peak)}</strong><p>{said}</p>"

    def _idle(self):
        idle = self.usage.mean_idle()
        kind = "wastes" if idle > 0.1 * self.usage.memory.peak else "fine"
        return f'<strong class="{kind}">{text.size(idle)} idle</strong><p>on average, of ' \
               f"{text.size(self.usage.mean_held())} held on the device{self._idle_price()}</p>"

    def _idle_price(self):
        """What less idle memory would have cost."""
        outcomes = self.report.replay.outcomes() if self._is_replayed() else None
        best = replay.thrifty(outcomes) if outcomes else None
        if not best:
            pairs = sum(its.num_frees for its in self.usage.sites.values())
            return f"; holding none takes some {_duration(pairs * NATIVE_PAIR_NS)} of native " \
                   "calls" if pairs else ""
        as_is = outcomes[0]
        if not replay.is_worth(best, as_is):
            return "; replayed, no setting holds much less"
        return f"; replayed, <code>{escape(best.name())}</code> holds " \
               f"{text.size(as_is.mean - best.mean)} less, for {_price(best.price())} in driver " \
               f"calls instead of {_price(as_is.price())}"

    def _leak(self):
        grows = self.report.leaks()
        live = f"{text.size(self.usage.live)} live {self.end}"
        if not grows:
            return f'<strong class="fine">No</strong><p>no call site grows all the time; {live}</p>'
        named = "; ".join(f"<code>{escape(str(self.report.symbols[site]))}</code> by "
                          f"{text.size(size)} in the last half{till}"
                          for site, size, till in grows[:3])
        number = f"{text.counted(len(grows), 'call site')} grow{'s' * (len(grows) == 1)}"
        return f'<strong class="wastes">{number}</strong><p>{named}; {live}</p>'

    def _cost(self):
        pairs = sum(its.num_frees for its in self.usage.sites.values())
        natively = f"; natively some {_duration(pairs * NATIVE_PAIR_NS)} for " \
                   f"{text.counted(pairs, 'pair')}" if pairs else ""
        return f"<strong>{_duration(self.usage.memory.driver_ns)}</strong><p>in driver calls " \
               f"that took or gave device memory{natively}</p>"

    def churn(self):
        rows = self.report.churn()
        most = max((its.num_frees for _, its in rows), default=1)
        shown = [[self._where(site), text.count(its.num_frees),
                  text.size(its.bytes_total // max(1, its.num_allocs)),
                  _micro(self.usage.life(its)),
                  f'<span class="figure n">{_duration(its.num_frees * NATIVE_PAIR_NS)}</span>'
                  f'<i class="meter" style="width:{45 * its.num_frees / most:.0f}%"></i>']
                 for site, its in rows[:ROWS]]
        return _table("Churn", "what the pairs of each call site cost natively, at "
                      f"{_duration(NATIVE_PAIR_NS)} a pair",
                      (("call site", ""), ("pairs", "n"), ("each", "n"), ("median life", "n"),
                       ("natively", "wide")), shown, len(rows) - ROWS)

    def live_at_end(self):
        rows, grows = self.report.live_at_end(), self.report.grows()
        blocks = sum(its.blocks for _, its in rows)
        growing = [site for site, _ in rows if site in grows]
        said = f"{text.count(len(growing))} of these call sites " \
            f"grow{'s' * (len(growing) == 1)}" if growing else \
            '<b class="fine">none</b> from a call site that grows'
        shown = [[self._where(site), text.size(its.live), text.count(its.blocks),
                  "≤ " * its.is_sum + text.size(its.most),
                  f'<b class="wastes">{text.change(grows[site])}</b>' if site in grows else "0"]
                 for site, its in rows[:ROWS]]
        return _table(f"Live {self.end}", f"{text.counted(blocks, 'block')}, "
                      f"{text.size(self.usage.live)}; {said}",
                      (("call site", ""), ("bytes", "n"), ("blocks", "n"), ("most", "n"),
                       ("growth", "n")), shown, len(rows) - ROWS)

    def tensors(self):
        its = self.report.tensors
        if not its:
            return f'<section class="card" id="tensors"><p>{escape(self.report.unfit)}.</p>' \
                   "</section>" if self.report.unfit else ""
        sites, blocks = its.rows(2 * ROWS), its.block_rows(ROWS)
        rows = [[f'{escape(where)}<small title="{escape(called)}">{escape(called)}</small>', size,
                 part, number] for size, part, number, where, called in sites]
        said = "".join(f"<p>{escape(words)}</p>" for words in its.sentences())
        made = _table("What PyTorch keeps in its blocks", "bytes of its snapshot's parts, by the "
                      "code that asked PyTorch for them", (("call site", ""), ("bytes", "n"),
                                                          ("part", "n"), ("parts", "n")), rows)
        made += _table("Where PyTorch's segments lie", "the largest first",
                       (("bytes", "n"), ("address", "n"), ("allocated", "n"), ("inactive", "n"),
                        ("most of it", "by")), [list(map(escape, row)) for row in blocks])
        return f'<section class="card" id="tensors">{made}{said}</section>'

    def beside(self):
        rows = [[escape(name), text.count(calls), *sizes]
                for name, calls, *sizes in self.usage.beside.rows(text.size)]
        if self.usage.outside.beyond:
            rows.append(["CUDA context, code, all other memory of the process",
                         '<span class="soft">by NVML</span>', "", "",
                         text.size(self.usage.outside.median_beyond()), ""])
        made = _table("Beside the pool", "memory that the driver served",
                      (("kind", ""), ("calls", "n"), ("at the peak", "n"), ("most", "n"),
                       (self.end, "n"), ("in all", "n")), rows)
        return f'<section class="card" id="beside">{made}</section>' if made else ""

    def _moments(self):
        """[(Moment, its runs)] of the block map."""
        if self.moments is None:
            self.moments = [(its, its.runs(self._owner)) for its in self.usage.moments.all()]
        return self.moments

    def _when(self, its):
        return self.end if its is self.usage.moments.end else \
            f"{its.name} at {text.seconds(its.ns)}"

    def maps(self):
        """For the scripts: of each moment its name, what a cell is, and the cells."""
        told = []
        for its, runs in self._moments():
            cell, cells = its.cells(runs)
            told.append({"name": self._when(its), "cell": cell, "cells": [
                [number, -1 if owner is None else self.owners.index(owner), shade]
                for number, owner, shade in cells]})
        return told

    def block_map(self):
        rows = []
        for its, runs in self._moments():
            empty = [size for size, owner in runs if owner is None]
            sums = collections.Counter()
            for size, owner in runs:
                if owner is not None:
                    sums[owner] += size
            largest = ", ".join(f"{owner} {text.size(size)}"
                                for owner, size in sums.most_common(3))
            rows.append([escape(self._when(its)), text.size(its.live()),
                         text.count(len(its.blocks)), text.size(sum(empty)),
                         text.size(max(empty, default=0)), escape(largest)])
        made = _table("Block map", "device memory in the order of addresses, read like text; "
                      "paler cells are partly used", (("moment", ""), ("live", "n"),
                                                      ("blocks", "n"), ("without a block", "n"),
                                                      ("longest part of it", "n"),
                                                      ("most of it by", "by")), rows)
        return f'<section class="card" id="map">{made}<div class="keys"></div>' \
               '<canvas role="img"></canvas><p class="soft"></p></section>' if made else ""

    def _is_replayed(self):
        """Not a dump, of which the last part is known."""
        return bool(self.report.replay and self.usage.peak and not self.usage.oom)

    def what_if(self):
        if not self._is_replayed():
            return ""
        outcomes = self.report.replay.outcomes()
        if not outcomes:
            why = escape(self.report.replay.why)
            return f'<section class="card" id="what-if"><p class="soft">{why}</p></section>'
        rows = [[f"<code>{escape(each.name())}</code>", *self._outcome(each)] for each in outcomes]
        rows.insert(0, ["as recorded", *map(_micro, self.report.recorded())])
        made = _table("What other settings would have done", escape(replay.ABOUT),
                      (("setting", ""), ("held on average", "n"), ("at most", "n"),
                       ("in driver calls", "n"), ("failed requests", "")), rows)
        said = "".join(f"<p>{escape(_price(words))}</p>" for words in replay.findings(outcomes))
        return f'<section class="card" id="what-if">{made}{said}</section>'

    @staticmethod
    def _outcome(its):
        if not its.has_figures():
            return ["–", "–", "–", f'<span class="soft">{escape(its.fails())}</span>']
        fails = escape(_micro(its.fails()))
        return [text.size(its.mean), text.size(its.peak),
                _price(its.price()),
                f'<b class="fails">{fails}</b>' if its.num_failed else fails]

    def tables(self):
        parts = [part for part in (self.churn(), self.live_at_end()) if part]
        kind = "card half list" if len(parts) > 1 else "card"
        return "\n".join(f'<section class="{kind}">{part}</section>' for part in parts)

    def timeline(self):
        return string.Template(_asset("report_timeline.html")).substitute(
            label=escape(self.report.headline()),
            lanes='<svg id="lanes" role="img"></svg>' if self.has_lanes() else "") \
            if self.columns else ""

    def notes(self):
        its, used = self.trace, self.usage
        yield f"Recorded by libgpucache {its.library_version}, with the clock {its.clock}. The " \
              "owner of memory is the library whose code asked for it, by its return address. A " \
              f"column shows the highest moment of {_duration(used.column_ns)}. Zoomed in, the " \
              "picture has each change next to the peak and to failures for want of memory."
        if self.report.settings():
            yield f"{self.report.settings()}. They are those of the start of the trace."
        if self.report.beside:
            yield "Below the picture: what each process held, and their sum. A column shows the " \
                  "most that each one held in it, so the sum is never too small."
        if self.is_whole:
            yield "Of the whole GPU the grey part is what is not free, as the driver said each " \
                  "second, and not held by the processes of this page: CUDA contexts, code, " \
                  "memory that did not pass through the library, and other processes."
        if self.others:
            yield "Of processes without a trace here the page has what NVML said each second."
        if self.usage.outside.beyond:
            yield "CUDA context, modules: what NVML said each second that the process had, less " \
                  "what it held on the device. nvidia-smi shows both together."
        unseen = "" if self.is_whole or self.usage.outside.beyond else \
            "CUDA contexts, modules and the local memory of kernels, other processes, and "
        yield f"Not seen: {unseen}what tensors of a framework with a cache of its own lie in a " \
              "block."
        if used.num_unknown_frees:
            yield "Frees of memory from before the trace, or not the library's: " \
                  f"{text.count(used.num_unknown_frees)}."
        if not its.ended:
            yield "The trace was cut off: the process was killed, or it still runs."
        for number, words in ((its.num_lost, "Records that were lost"),
                              (its.num_torn, "Parts of the file that are torn and were left out"),
                              (its.num_unknown, "Records of kinds that this tool does not know"),
                              (self.num_marks_more, "Marks more, not in the picture")):
            if number:
                yield f"{words}: {text.count(number)}."

    def write(self, out):
        script = "\n" + "".join(map(_asset, ("report_lanes.js", "report_timeline.js",
                                              "report_map.js", "report.js")))
        told = hashlib.sha256(script.encode()).digest()
        out.write(string.Template(_asset("report.html")).substitute(
            script_hash=base64.b64encode(told).decode(), style=_asset("report.css"),
            script=script, title=escape(f"gpucache report: {self.trace.program}"),
            command=escape(self.trace.command or self.trace.program), facts=escape(self.facts()),
            headline=self.headline(), explained=escape(_micro(self.report.explained())),
            beside=self.beside(), tensors=self.tensors(), timeline=self.timeline(),
            tables=self.tables(), block_map=self.block_map(),
            cards=self.cards(), what_if=self.what_if(),  # last: they wait for the replay
            hidden="" if self.columns else "hidden", at_exit=escape(self.end),
            notes="\n".join(f"<p>{escape(note)}</p>" for note in self.notes()),
            data=_json(self.data())))


def write(its, out):
    """its: a report.Report."""
    Page(its).write(out)
