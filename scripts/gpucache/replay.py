# SPDX-License-Identifier: BSD-2-Clause
"""What the pool would have done with the requests of a trace under other settings. The program
gpucache-replay beside this tool answers, with the pool's own code on a model of a GPU."""
import atexit
import json
import os
import subprocess

from gpucache import options, place, text, trace

SECONDS = 5         # on a CPU, for each setting; what takes longer is left out
PATIENCE_S = 60     # what is not done by then is left out, too
LEAST = "MAX_RESERVED=least"
SETTINGS = ("", "MAX_IDLE=0", "MAX_IDLE=1G", "IDLE_TIMEOUT=1s", "IDLE_TIMEOUT=10s",
            "BACKING=segment", LEAST)
WORTH = 0.05        # of the memory held: less is not worth a sentence
MISSING = "The program gpucache-replay is not beside this tool: what other settings would have " \
          "done is not known."

LATE = {"state": "late", "max_reserved": None, **dict.fromkeys((
    "mean", "peak", "failed", "first_failed_ns", "first_failed_bytes", "driver_ns", "busy_ns"), 0)}


def program():
    """Its full name: beside this tool in a build folder or an unpacked release, else where it was
    installed. None: it is not there."""
    tool = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    folder = os.path.dirname(tool)
    for name in (os.path.join(folder, "replay", "gpucache-replay"),
                 os.path.join(folder, "..", "libexec", "gpucache-replay"),
                 getattr(place, "REPLAY", "")):
        if os.path.isfile(name) and os.access(name, os.X_OK):
            return os.path.realpath(name)
    return None


def in_force(path):
    """The words of the pools' options that a trace was made with, beside the defaults.
    BACKING=driver is no pool's."""
    with trace.Trace(path) as its:
        told = its.options()
    return " ".join(f"{options.short(env)}={told[env]}" for env in options.POOLS
                    if told.get(env, "driver") != "driver")


class Outcome:
    """What one setting would have done. state: as scripts/replay/rerun.h says. words: what it is
    called; others are in force, too."""

    def __init__(self, words, said):
        self.words, self.state = words, said["state"]
        self.mean, self.peak = said["mean"], said["peak"]
        self.num_failed, self.first_failed_ns = said["failed"], said["first_failed_ns"]
        self.first_failed_bytes = said["first_failed_bytes"]
        self.driver_ns, self.busy_ns = said["driver_ns"], said["busy_ns"]
        self.max_reserved = said["max_reserved"]

    def is_known(self):
        return self.state in ("done", "bounded")

    def serves_all(self):
        return self.is_known() and not self.num_failed

    def has_figures(self):
        """The search for the least limit that serves all ends at a failure."""
        return self.is_known() and not (self.words == LEAST and self.num_failed)

    def name(self):
        if not self.words:
            return "the defaults"
        if self.words == LEAST and self.serves_all():
            return f"MAX_RESERVED={-(-self.max_reserved >> 20)}M"
        return self.words

    def price(self):
        """Time in driver calls, while the GPU is idle and while it works all the time."""
        return f"{text.duration(self.driver_ns)} - {text.duration(self.busy_ns)}"

    def fails(self):
        if not self.is_known():
            return {"late": "no time for it"}.get(self.state, "not known")
        if not self.has_figures():
            return "no limit serves all"
        if not self.num_failed:
            return "none; the least found in the time" if self.state == "bounded" else "none"
        return f"{text.count(self.num_failed)}, first after " \
               f"{text.duration(self.first_failed_ns)} ({text.size(self.first_failed_bytes)})"


class Replay:
    """Runs beside the caller, who asks for the outcomes later. gpu_bytes: 0, as the trace says.
    recorded: the settings change what was in force then; the first is that, and the defaults come
    last."""

    def __init__(self, path, settings=SETTINGS, gpu_bytes=0, recorded=False):
        self.settings, self.process, self.why, self.told = settings, None, "", None
        base = in_force(path) if recorded else ""
        if base:
            others = [words for words in settings[1:] if words not in base.split()]
            self.settings = (base, *others, "")
            settings = (base, *(f"{base} {words}" for words in others), "")
        found = program()
        if not found:
            self.why = MISSING
            return
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # /dev/stdin is another file there
            try:
                self.process = subprocess.Popen(
                    [found, str(SECONDS), str(gpu_bytes), f"/proc/self/fd/{fd}", *settings],
                    text=True, pass_fds=(fd,), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE)
            finally:
                os.close(fd)
            atexit.register(self.close)
        except OSError as error:
            self.why = f"Nothing was replayed: {error.strerror}."

    def outcomes(self):
        """[Outcome] in the order of the settings. None: see why."""
        if self.told is None:
            self.told = self._read() if self.process else []
        return self.told or None

    def _read(self):
        try:
            out, err = self.process.communicate(timeout=PATIENCE_S)
            ended = not self.process.returncode
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            ended = True
        out = out[:out.rfind("\n") + 1]
        if not ended or not out:
            self.why = "Nothing was replayed: " + \
                (text.printable(err.strip().rpartition(": ")[2]) or "the program ended") + "."
            return []
        its, *rows = map(json.loads, out.splitlines())
        if its["gpus"] > 1:
            self.why = f"The trace has memory of {its['gpus']} GPUs, and does not tell of each " \
                       "allocation which: nothing was replayed."
            return []
        if not its["events"]:
            self.why = "There is nothing to replay."
            return []
        told = {row["setting"]: row for row in rows}
        return [Outcome(words, told.get(number, LATE))
                for number, words in enumerate(self.settings)]

    def close(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


def thrifty(outcomes):
    """The setting that would have held the least on average, of those that serve all requests.
    None: there is none, or nothing is known to compare it with."""
    others = [its for its in outcomes[1:] if its.serves_all() and its.words != LEAST]
    return min(others, key=lambda its: its.mean, default=None) if outcomes[0].is_known() else None


def is_worth(best, as_is):
    return best.mean < (1 - WORTH) * as_is.mean


def findings(outcomes):
    """Sentences, each with its price."""
    as_is = outcomes[0]
    if not as_is.is_known():
        return ["The trace is too long: there was no time to replay it."]
    told, best = [], thrifty(outcomes)
    least = next((its for its in outcomes[1:] if its.serves_all() and its.words == LEAST), None)
    if best and is_worth(best, as_is):
        told.append(f"{best.name()} would have held {text.size(best.mean)} on average instead of "
                    f"{text.size(as_is.mean)}; driver calls take {best.price()} instead of "
                    f"{as_is.price()}.")
    elif best:
        told.append(f"None of these settings would have saved {WORTH:.0%} of what is held on "
                    "average.")
    if least:
        known = "is enough for" if least.state == "bounded" else "is the least that serves"
        told.append(f"{least.name()} {known} all requests.")
    cut = [its.name() for its in outcomes if its.state == "late"]
    if cut:
        told.append(f"There was no time for {', '.join(cut)}.")
    return told


ABOUT = "The same requests on the library's pool over a model of a GPU. Times of driver calls " \
        "are those of an H200: with the GPU idle, and at work all the time. GPU work counts as " \
        "done when memory is freed. What failed when it was recorded is not asked for again."
