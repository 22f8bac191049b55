# SPDX-License-Identifier: BSD-2-Clause
# PYTHON_ARGCOMPLETE_OK
"""The arguments of gpucache. Help, man page and completion are made of this parser."""
import argparse
import difflib
import importlib
import os
import shutil
import signal
import sys
import textwrap

from gpucache import fault, options, page, process, tables, text
from gpucache.fault import Fault, complain

ABOUT = "Run programs under libgpucache; see, empty and steer the GPU memory of running ones."
# Verb -> (module, one line, more).
VERBS = {
    "library": ("library", "print the full name of libgpucache.so",
                "For LD_PRELOAD."),
    "run": ("run", "run a program under the library",
            "Options come as flags, or as words NAME=VALUE before the command, without their "
            "GPUCACHE_. All are checked before anything starts; file names count from here. "
            "Another NAME=VALUE sets a variable for the command. What LD_PRELOAD names already "
            "stays preloaded."),
    "ps": ("ps", "list GPUs, and who holds how much of which",
           "First a line for each GPU, then one for each process on it. LIVE is held by the "
           "program. CACHED is what its Python packages keep of the memory that they took. IDLE is "
           "kept by the library. A flush gives CACHED and IDLE back. RESERVED is taken from the "
           "driver, PEAK is the most of it so far. PARKED went to the host, see gpucache park; "
           "LIVE counts it too. HITS is the share of allocations that needed no driver call; it is "
           "told once one came after a free. On each GPU, who takes most of it comes first. "
           "Processes without the library have what the driver counts of them in the column "
           "RESERVED. ps removes pages of processes that were killed more than ten minutes ago."),
    "top": ("top", "show GPUs and their processes, live",
            "A bar for each GPU is as wide as its memory. The keys up and down, or a click, choose "
            "a process; a box tells more of it. f empties its cache; F those of all; l sets a limit"
            " (a size for MAX_IDLE, or NAME=VALUE); s sorts by the next column; r turns the order; "
            "/ shows some processes alone; ? shows all keys; q ends. A column of small "
            "bars shows the last looks; its full height is the figure in MAX. GROWS is by how much "
            "the lowest value of LIVE rose from one minute to the next, so it shows a leak, and "
            "ALLOCS is allocations a second. On a narrow terminal "
            "some columns are left out. Needs the Python package rich."),
    "stat": ("stat", "show all that is known of one process",
             "Also of a process that was killed: its last state. Where the terminal is too small "
             "for all, --watch shows the figures that matter most, and how many lines are left "
             "out."),
    "flush": ("flush", "give idle memory of processes back to the driver",
              "Prints a receipt for each process and GPU: what was returned in which time, what "
              "is live, and what keeps the rest. Where Python packages answer late, it counts "
              "what all flushes of the process gave back meanwhile, as the library does not know "
              "whose memory it was; a line says so (JSON: all_flushes). While no package has "
              "answered, nobody knows which are loaded: the JSON has one of state late, without a "
              "name. A process without a page is asked by its signal, if it would survive it; "
              "there is no receipt then, and the exit code is 4."),
    "park": ("park", "move device memory of processes that sleep to the host",
             "The memory comes back by itself when the program uses the GPU again; until then "
             "other processes can have it. Prints a receipt for each process and GPU: what went in "
             "which time, how much of it is live, and what stays on the GPU. A process whose GPU "
             "work does not end within --wait is left as it is, and so is one that uses the GPU "
             "meanwhile, or waits for its device memory. Waits up to 5 s for the end of a park or "
             "a wake that another one asked for. GPUCACHE_PARK chooses more, such as idle:5s; off "
             "refuses."),
    "wake": ("park", "bring device memory of parked processes back",
             "They do so by themselves at their next use of the GPU; wake saves them the wait. "
             "Waits up to 5 s for device memory, and as long for the end of a park or a wake that "
             "another one asked for."),
    "trace": ("tracing", "record what a running process does with GPU memory",
              "Writes a file that gpucache report shows. Records each allocation and free with its "
              "time, its thread and the code that asked, what the library does for it, and each "
              "second what NVML says of it and of other processes on its GPU. Ctrl-C ends it "
              "sooner. A process that records a trace already is left alone. If the trace ended "
              "before, as on a full disk, or another took its place, a line says so, and the "
              "exit code is 1. If gpucache itself is killed (SIGKILL), the process goes on "
              "recording: gpucache set PID TRACE=none ends it. A process that waits for the end of "
              "memory (GPUCACHE_TRACE_ON=oom) does so again afterwards, but then knows no holder "
              "of memory from before that. gpucache run --trace FILE records from the start."),
    "report": ("report", "show what a trace says",
               "Who held the memory at the peak, what was freed and asked for again, what grows, "
               "what was live at the end, and what happened beside it. The name of the output "
               "chooses the format, or --format: text; html, one page with pictures that needs "
               "no network; perfetto (.json) for ui.perfetto.dev and "
               "chrome://tracing; collapsed (.folded), bytes at the peak for flame graphs; csv, "
               "as RMM's logging adaptor writes it; pytorch (.pickle), a memory snapshot for "
               "pytorch.org/memory_viz. html and perfetto of several files are of the first "
               "process, with what the others held of the GPU at the same time. CODE is the code "
               "that asked: with call paths (GPUCACHE_TRACE_STACKS) the innermost function of "
               "Python, or else the innermost that is no part of an allocator; IN says through "
               "which library, and who called it. Functions and lines come from llvm-symbolizer "
               "or addr2line, if one is there."),
    "set": ("setting", "change options of running processes",
            "Prints the old and the new value of each option. The library says of an option that "
            "cannot change in a running process why not, and leaves it as it is."),
    "plan": ("plan", "tell whether the programs of some traces fit on one GPU",
             "Says what device memory each program needs at least, by a replay of its trace, and "
             "whether all fit at the same time: as they are; with lending, where idle memory of "
             "one serves another; or one at a time, with the others parked. The exit code is 0 if "
             "they can run at the same time, as they are or with lending, whenever their peaks "
             "come. It is 1 if they cannot, or if that is not known: a request failed for which "
             "there would be no room either, or a trace is a record of GPUCACHE_TRACE_ON=oom, "
             "which has a program's last moments alone. Traces that cannot be read lead to 2."),
    "metrics": ("metrics", "print or serve the figures for Prometheus",
                "Without --listen and --textfile: prints them once. Needs the Python package "
                "prometheus_client."),
    "doctor": ("doctor", "tell what matters of this machine, for a report of a fault",
               "Prints one page to paste: library, loader, driver, GPUs, containers, other "
               "preloads, options, Python packages; and what is wrong, with its remedy. With a PID "
               "it tells of that process too. It needs no GPU and no driver."),
    "completion": ("completion", "print a script that completes commands in a shell",
                   'For example: eval "$(gpucache completion bash)". Needs the Python package '
                   "argcomplete."),
}
RUNNING_PIDS_SHOWN = 50
# Where Python's own would be half a page, or does not know that words are of two kinds.
USAGES = {
    "run": "gpucache run [--json] [--OPTION VALUE]... [NAME=VALUE]... [--] COMMAND",
    "set": "gpucache set [-h] [--json] PID ... NAME=VALUE ...",
}


def _pid(words):
    if not process.is_pid(words):
        raise argparse.ArgumentTypeError(f"{words} is no process id")
    return int(words)


def _size(words):
    found = text.parse_size(words)
    if found is None:
        raise argparse.ArgumentTypeError(f"{words} is no size: it takes 2G, 512M, 1.5G or bytes")
    return found


def _place(words):
    place = words if words == "host" else os.path.abspath(words)
    if not words or not place.isprintable() or " " in place or \
            len(os.fsencode(place)) >= options.PLACE_BYTES:
        raise argparse.ArgumentTypeError(
            f"{text.printable(place)}: the name of a folder has no blank, and at most "
            f"{options.PLACE_BYTES - 1} bytes")
    return place


def _file(words):
    if not words:
        raise argparse.ArgumentTypeError("the name of the file is empty")
    return words


def _time(words):
    found = text.parse_time(words)
    if found is None:
        raise argparse.ArgumentTypeError(f"{words} is no time: it takes 5s, 200ms, 1m or 1h")
    if found > 86400:
        raise argparse.ArgumentTypeError(f"{words} is too long: at most 24h")
    return found


def _seconds(words):
    try:
        found = float(words)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"{words[:50]} is no number of seconds: it takes 30 or "
                                         "0.5")
    return found


def _size_of_gpu(words):
    if not _size(words):
        raise argparse.ArgumentTypeError(f"no GPU has {words} of memory")
    return _size(words)


def _gpu(words):
    if not words.strip():
        raise argparse.ArgumentTypeError("it takes the number of a GPU as in ps, or its UUID")
    return words


def _interval(words):
    found = _time(words)
    if found < 0.01:
        raise argparse.ArgumentTypeError(f"{words} is too short: at least 10ms")
    return found


def complete_pids(**_):
    """The processes that a shell offers for PID."""
    from gpucache import state  # pylint: disable=import-outside-toplevel
    found = [p for p in state.running()[0] if p.pid]
    return {str(p.pid): p.name for p in found[:RUNNING_PIDS_SHOWN]}


def complete_settings(**_):
    return [options.short(env) + "=" for env in options.ROWS]


def _with_completer(argument, completer):
    argument.completer = completer
    return argument


# The arguments of each verb that has some.

def _add_run(add):
    for env, row in options.ROWS.items():
        flag = add(options.flag(env), dest=env, metavar=options.kind_of(row),
                   help=options.in_short(row["help"]).replace("%", "%%"))
        flag.full = f"{row['help']} ({row['allowed']})".replace("%", "%%")
    command = add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS,
                  metavar="[NAME=VALUE ...] [--] COMMAND ...")
    command.full = "the command with its arguments"


def _add_top(add):
    add("--interval", type=_interval, default=1.0, metavar="TIME",
        help="time between two looks (default: 1s)")
    add("--sort", choices=("LIVE", "CACHED", "IDLE", "RESERVED", "PEAK", "GROWS", "ALLOCS",
                           "HITS", "PID", "NAME"),
        default="RESERVED", metavar="COLUMN", help="the column to sort by: LIVE, CACHED, IDLE, "
        "RESERVED, PEAK, GROWS, ALLOCS, HITS, PID or NAME (default: RESERVED)")


def _add_trace(add):
    _with_completer(add("pid", type=_pid, metavar="PID", help="the process"), complete_pids)
    add("--seconds", type=_seconds, default=30.0, metavar="N",
        help="how long (default: 30); until the process ends at most")
    add("-o", "--output", type=_file, metavar="FILE",
        help="the file, which must not be there yet (default: gpucache-PID-TIME.gct)")


def _add_report(add):
    add("files", nargs="+", metavar="FILE", help="a trace")
    add("-o", "--output", type=_file, metavar="FILE",
        help="write to this file, - for stdout; an input or a trace is never written over")
    add("--snapshot", metavar="PICKLE",
        help="a snapshot of PyTorch's of the same process (torch.cuda.memory._dump_snapshot): text "
        "and html show what PyTorch keeps in its blocks, by the code that asked for it")
    add("--format", choices=("text", "html", "perfetto", "collapsed", "csv", "pytorch"),
        metavar="FORMAT", help="text, html, perfetto, collapsed, csv or pytorch")


def _add_plan(add):
    add("files", nargs="+", metavar="FILE", help="a trace of each program")
    add("--gpu", type=_size_of_gpu, metavar="SIZE",
        help="the memory of the GPU (default: that of the smallest GPU of the traces)")


def _add_ps(add):
    add("-v", "--verbose", action="store_true", help="say what could not be listed, and why")


def _add_stat(add):
    _with_completer(add("pid", type=_pid, metavar="PID", help="the process"), complete_pids)
    add("--watch", type=_interval, metavar="TIME",
        help="show it again and again, until the process ends")
    add("--owners", action="store_true",
        help="only its live memory by the library whose code asked for it, of the trace that "
        "it records")


def _add_flush(add):
    _with_completer(add("pids", type=_pid, nargs="*", metavar="PID", help="the processes"),
                    complete_pids)
    add("--all", action="store_true", help="all processes of the user under the library")
    add("--name", metavar="GLOB", help="those whose program, the file that runs it, or the script "
        "that a Python runs, has a name that matches a pattern, such as 'python*' or serve.py")
    add("--gpu", type=_gpu, metavar="N|UUID",
        help="only memory of this GPU: its number as in ps, or UUID")
    add("--keep", type=_size, default=0, metavar="SIZE",
        help="leave up to this much idle memory, on each GPU")
    add("--wait", type=_time, default=5.0, metavar="TIME",
        help="how long to wait for memory that GPU work still uses, and for Python packages "
        "that have not answered (default: 5s)")
    add("--no-frameworks", action="store_true",
        help="leave the caches of Python frameworks as they are")


def _add_processes(add):
    _with_completer(add("words", nargs="*", metavar="PID|NAME", help="process ids, and "
                        "patterns of the names of programs, and of the scripts that a Python "
                        "runs, such as 'python*' or serve.py"), complete_pids)


def _add_park(add):
    _add_processes(add)
    add("--all", action="store_true", help="all processes of the user under the library; those "
        "that used the GPU within the last 2 s are left out")
    add("--gpu", type=_gpu, metavar="N|UUID",
        help="only memory of this GPU: its number as in ps, or UUID")
    add("--keep", type=_size, default=0, metavar="SIZE",
        help="leave up to this much memory, on each GPU")
    add("--to", type=_place, metavar="host|FOLDER",
        help="to host memory, or into a file in this folder, which the process must find "
        "by this name (default: where GPUCACHE_PARK_TO of the process says)")
    add("--wait", type=_time, default=1.0, metavar="TIME",
        help="how long to wait for GPU work that runs (default: 1s; at most 10s)")
    add("--whole", action="store_true",
        help="take the process off the GPU as a whole, by the driver's checkpoint (since 570): "
        "contexts and code, too; not beside --gpu or --keep. It then wakes by itself only at "
        "calls of the library's tables. Refused beside managed memory, memory of other processes, "
        "MPS, MIG and graphics, and without NVML or with a C library older than 2.34")
    add("--no-frameworks", action="store_true",
        help="leave the caches of Python frameworks as they are: what they keep goes to "
        "the host as live memory")


def _add_wake(add):
    _add_processes(add)
    add("--all", action="store_true", help="all processes of the user that are parked")
    add("--gpu", type=_gpu, metavar="N|UUID",
        help="only processes with memory on this GPU, which get back all")
    add("--drop", action="store_true", help="free the copies that the host retains "
        "(GPUCACHE_PARK=retain), also of processes that are not parked")


def _add_set(add):
    _with_completer(add("words", nargs="+", metavar="PID ... NAME=VALUE",
                        help="process ids, then options"), complete_settings)


def _add_metrics(add):
    add("--listen", metavar="HOST:PORT", help="serve them here, such as 127.0.0.1:9465")
    add("--textfile", type=_file, metavar="FILE",
        help="write them into this file, for the textfile collector of node_exporter")
    add("--owners", action="store_true",
        help="live memory by the library whose code asked for it, too, of each process that "
        "records a trace; each time the whole trace is read, and one that takes more than 10 s is "
        "left out")


def _add_doctor(add):
    _with_completer(add("pid", type=_pid, nargs="?", metavar="PID",
                        help="a process to tell of too"), complete_pids)


def _add_completion(add):
    add("shell", choices=("bash", "zsh", "fish"), help="the shell")


ARGUMENTS = {
    "run": _add_run, "top": _add_top, "trace": _add_trace, "report": _add_report,
    "plan": _add_plan, "ps": _add_ps, "stat": _add_stat, "flush": _add_flush, "park": _add_park,
    "wake": _add_wake, "set": _add_set, "metrics": _add_metrics, "doctor": _add_doctor,
    "completion": _add_completion}


class _Formatter(argparse.HelpFormatter):
    """Room for the longest flag beside its help; the epilog has its own lines."""

    def __init__(self, prog):
        super().__init__(prog, max_help_position=27, width=shutil.get_terminal_size().columns)

    def _fill_text(self, text, width, indent):  # pylint: disable=redefined-outer-name
        if "\n" in text:
            return text
        return super()._fill_text(text, width, indent)


def _values():
    """What the values of run's flags may be: each kind once."""
    kinds = {options.kind_of(row): options.grammar(row) for row in options.ROWS.values()
             if row["type"] not in ("PATH", "PATTERN", "DIR", "PLACE", "SWITCH",
                                    "TRACE_ON", "TRACE_STACKS")}
    width = max(map(len, kinds)) + 4
    lines = ["values (man 7 gpucache says more of each option):"]
    for kind, words in kinds.items():
        lines += textwrap.wrap(f"  {kind:<{width - 2}}{words}", 80, subsequent_indent=" " * width)
    return "\n".join(lines)


def make_parser():
    codes = "\n".join(f"  {code:<4}{meaning}" for code, meaning in fault.EXIT_CODES)
    parser = argparse.ArgumentParser(
        prog="gpucache", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"exit codes:\n{codes}\n\nOptions of the library: gpucache run --help, and "
               "man 7 gpucache.")
    parser.add_argument("--version", action="version", version=f"gpucache {tables.VERSION}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for verb, (_, line, more) in VERBS.items():
        sub = verbs.add_parser(verb, help=line, usage=USAGES.get(verb),
                               description=f"{line[0].upper()}{line[1:]}. {more}",
                               formatter_class=_Formatter, epilog=_values() if verb == "run" else
                               None)
        ARGUMENTS.get(verb, lambda add: None)(sub.add_argument)
        sub.add_argument("--json", action="store_true", help={
            "run": "print what would be run, as JSON, and do not run it",
            "report": "print JSON: the figures and the sentences of the text, of each trace",
            "top": "print JSON instead, a line for each look; needs neither a terminal nor rich",
        }.get(verb, "print JSON"))
        if verb in ("ps", "top", "stat"):
            sub.add_argument("--no-ask", action="store_true",
                             help="do not ask Python packages what they keep; CACHED is not known "
                             "then, and counts as LIVE")
        if verb in ("ps", "top", "flush", "park", "wake", "metrics"):
            sub.add_argument("--all-users", action="store_true",
                             help="processes of all users (root only); of one user at most "
                             f"{page.PAGES_EACH} are read")
    return parser


def verbs_of(parser):
    """Verb -> its parser."""
    return next(a for a in parser._actions  # pylint: disable=protected-access
                if isinstance(a, argparse._SubParsersAction)).choices


def _take_rest(args, rest, parser):
    """argparse takes process ids and words in one place alone; those behind a flag are left."""
    flags = [word for word in rest if word.startswith("-")]
    try:
        if args.verb in ("set", "park", "wake") and not flags:
            args.words += rest
        elif args.verb == "flush" and not flags:
            args.pids += map(_pid, rest)
        else:
            parser.error(f"unrecognized arguments: {' '.join(flags or rest)}"
                         + _nearest_flag(flags, parser))
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))


def _nearest_flag(flags, parser):
    known = parser._option_string_actions  # pylint: disable=protected-access
    near = difflib.get_close_matches(flags[0].partition("=")[0], known, 1, 0.8) if flags else ()
    return f"; the nearest option is {near[0]}" if near else ""


def _open_closed_streams():
    """With a closed stream the output has no reader. Python has None there, for
    which print takes stdout; and a page would get the stream's descriptor."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))


def _drop_stdout():
    """It takes no more. Python would complain when it closes stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def main(words=None):
    _open_closed_streams()
    parser = make_parser()
    if "_ARGCOMPLETE" in os.environ:
        try:
            import argcomplete  # pylint: disable=import-outside-toplevel,import-error
        except ImportError:
            return fault.MISSING  # a shell asks at each press of a key: nothing may be said
        argcomplete.autocomplete(parser)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a name may have letters that the terminal lacks
            stream.reconfigure(errors="replace")
    args, rest = parser.parse_known_args(words)
    if rest:
        _take_rest(args, rest, verbs_of(parser).get(args.verb, parser))
    if args.verb is None:
        parser.print_help()
        return fault.USAGE
    try:
        status = importlib.import_module("gpucache." + VERBS[args.verb][0]).show(args)
        sys.stdout.flush()
        return status
    except Fault as error:
        complain(error)
        return error.status
    except MemoryError:
        complain("there is not enough memory for it")
        return fault.NOT_DONE
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _drop_stdout()
        return 128 + signal.SIGPIPE
    except OSError as error:
        _drop_stdout()
        ending = fault.ending(error)
        if ending is not None:
            return ending
        complain(f"{error.filename or 'stdout'}: {fault.reason(error)}")
        return fault.NOT_DONE
