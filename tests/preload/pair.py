# SPDX-License-Identifier: BSD-2-Clause
"""Runs a program bare and with the cache preloaded, and compares the two. Standard output, standard
error and exit status have to be the same, and the status 0. On the simulated driver, which sees
every access, a hazard is a failure too. Without --preload the program runs bare only. In the folder
SCENES_BARE, if there is one, the outcomes of bare runs are kept for tests of the same program.

Exit status: 0 the pair is equal, 1 it is not, 77 the program skips."""
# Hundreds of tests start this. What takes long to import is imported where few of them need it, or
# done without (argparse, json, re, subprocess).
import fcntl
import marshal
import os
import select
import sys
import time
import types
import zlib

SKIP = 77
TIMEOUT_S = 300
# What Python ignores: SIGPIPE, SIGXFSZ
DEFAULT_SIGNALS = 13, 25
# What the driver allocates with: plain memory, and the physical memory of the address space calls.
ALLOCATIONS = ("cuMemAlloc_v2", "cuMemAllocPitch_v2", "cuMemCreate")


class Outcome(types.SimpleNamespace):
    """A run: name, status (None: it ran too long), out, err, calls, figures (of the cache's own
    report)."""

    def describe_status(self):
        if self.status is None:
            return "ran too long"
        if self.status < 0:
            import signal
            return f"ended by {signal.Signals(-self.status).name}"
        return f"exit {self.status}"

    def allocations(self):
        return sum(self.calls.get(name, 0) for name in ALLOCATIONS)


def read_calls(path):
    """The simulated driver's call counts, {function: calls}; empty without a simulated driver."""
    try:
        with open(path, encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH)  # a child may still end
            return {words[-2]: int(words[-1]) for words in map(str.split, file)}
    except FileNotFoundError:
        return {}


def read_figures(path):
    """The figures of the cache's report, {name: sum over all pools}; empty without a report."""
    if not os.path.exists(path):
        return {}
    import json
    with open(path, encoding="utf-8") as file:
        pools = json.load(file)["pools"]
    return {name: sum(pool[name] for pool in pools)
            for name in pools[0] if isinstance(pools[0][name], int)} if pools else {}


def forget_shared(name):
    """Removes what processes on simulated devices share. They leave it: none knows whether it is
    the last one."""
    try:
        os.unlink(f"/dev/shm/simulated-gpu-{name}")
    except FileNotFoundError:
        pass


def environment(options, preload, scratch):
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPUCACHE")}
    env.update(assignment.split("=", 1) for assignment in options.env)
    if preload:
        # Emulators lack process_vm_writev, without which there is no page.
        env["GPUCACHE_DIR"] = "none" if options.run_with else os.path.join(scratch, "pages")
        env.update(assignment.split("=", 1) for assignment in options.preload_env)
    libraries = [options.sanitizer] if options.sanitizer else []
    if preload:
        libraries += [*options.before, preload, *options.beside]
    if libraries:
        env["LD_PRELOAD"] = " ".join(libraries)
    if options.driver:
        os.symlink(os.path.abspath(options.driver), os.path.join(scratch, "libcuda.so.1"))
        options = types.SimpleNamespace(**vars(options))
        options.library_path = scratch + ":" + (options.library_path or "")
    if options.library_path:
        inherited = env.get("LD_LIBRARY_PATH")
        env["LD_LIBRARY_PATH"] = options.library_path + (":" + inherited if inherited else "")
    if preload and (options.figure or options.figure_at_most):
        env["GPUCACHE_STATS"] = "exit-json:" + os.path.join(scratch, "report.json")
    env.setdefault("SIM_HAZARD", "abort")
    env.setdefault("SIM_TRACE", "calls:" + os.path.join(scratch, "calls"))
    env.setdefault("SIM_SHARED", f"scene-{os.urandom(8).hex()}")
    # A process that ends with its allocations is no leak, and several runtimes are one source.
    env["ASAN_OPTIONS"] = ":".join(filter(None, (env.get("ASAN_OPTIONS"),
                                                 "detect_leaks=0:detect_odr_violation=0")))
    env["TSAN_OPTIONS"] = ":".join(filter(None, (env.get("TSAN_OPTIONS"), "atexit_sleep_ms=0")))
    return env


def emulated(options, env):
    """The words before a program that an emulator runs. The emulator may be a program of dynamic
    libraries itself: then the loader of this machine would complain of libraries of another."""
    libraries = env.pop("LD_PRELOAD", None) if options.run_with else None
    return [*options.run_with, *(["-E", f"LD_PRELOAD={libraries}"] if libraries else [])]


class Scratch:
    """A folder that goes with its contents."""

    def __enter__(self):
        self.path = os.path.join(os.environ.get("TMPDIR") or "/tmp",
                                 f"scene-{os.urandom(8).hex()}")
        os.mkdir(self.path, 0o700)
        return self.path

    def __exit__(self, *error):
        for folder, folders, names in os.walk(self.path, topdown=False):
            for path in (os.path.join(folder, name) for name in names + folders):
                try:
                    (os.rmdir if os.path.isdir(path) and not os.path.islink(path) else
                     os.unlink)(path)
                except FileNotFoundError:  # a process that still ends removed it
                    pass
        os.rmdir(self.path)


def play(program, env):
    """Status, standard output and standard error of a program in a session of its own."""
    pipes = [os.pipe(), os.pipe()]
    pid = os.posix_spawnp(program[0], program, env, setsid=True, setsigdef=DEFAULT_SIGNALS,
                          file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                                        (os.POSIX_SPAWN_DUP2, pipes[0][1], 1),
                                        (os.POSIX_SPAWN_DUP2, pipes[1][1], 2)])
    said, poll, deadline = {}, select.poll(), time.monotonic() + TIMEOUT_S
    for reads, writes in pipes:
        os.close(writes)
        said[reads] = b""
        poll.register(reads, select.POLLIN)
    status, is_late, open_pipes = None, False, set(said)
    while open_pipes or status is None:
        if not is_late and time.monotonic() > deadline:
            is_late = True
            os.killpg(pid, 9)
        for reads, _ in poll.poll(1000) if open_pipes else ():
            data = os.read(reads, 1 << 16)
            said[reads] += data
            if not data:
                poll.unregister(reads)
                os.close(reads)
                open_pipes.discard(reads)
        if not open_pipes:
            ended, status = os.waitpid(pid, 0 if is_late else os.WNOHANG)
            if not ended:
                status = None
                time.sleep(0.002)
    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return (None if is_late else code, *said.values())


def run(options, name, preload):
    program = list(options.program)
    if options.against and not preload:
        program[0] = options.against
    with Scratch() as scratch:
        env = environment(options, preload, scratch)
        status, out, err = play(emulated(options, env) + program, env)
        calls = read_calls(os.path.join(scratch, "calls"))
        figures = read_figures(os.path.join(scratch, "report.json"))
        if env["SIM_SHARED"].startswith("scene-"):
            forget_shared(env["SIM_SHARED"])
    return Outcome(name=name, status=status, out=out.decode(errors="replace"),
                   err=err.decode(errors="replace"), calls=calls, figures=figures)


def kept_place(options):
    """What a bare run depends on, as one text, and the file for its outcome; no file where none is
    kept. Builds of the same sources have it in common: an emulator, a sanitizer and the build's
    folder are no part of it."""
    folder = os.environ.get("SCENES_BARE")
    if not folder or options.bites:
        return "", None
    driver_options = sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith("SIM_"))
    text = repr((options.program, options.env, driver_options, options.driver, options.against,
                 options.library_path)).replace(os.getcwd() + os.sep, "")
    name = f"{os.path.basename(options.program[0])}-{zlib.crc32(text.encode()):08x}"
    return text, os.path.join(folder, name)


def kept_bare(options):
    """The outcome of an earlier bare run, or None."""
    text, path = kept_place(options)
    if not path or not os.path.exists(path):
        return None
    with open(path, "rb") as file:
        kept_text, outcome = marshal.load(file)
    return Outcome(**outcome) if kept_text == text else None


def keep_bare(options, bare):
    text, path = kept_place(options)
    if not path:
        return
    with open(f"{path}.{os.getpid()}", "wb") as file:
        marshal.dump((text, vars(bare)), file)
    os.rename(file.name, path)


def show(outcome):
    print(f"--- {outcome.name}: {outcome.describe_status()}")
    for name, text in (("stdout", outcome.out), ("stderr", outcome.err)):
        if text:
            print(f"  {name}:")
            sys.stdout.writelines(f"    {line}\n" for line in text.splitlines()[-40:])


def differences(name, bare, preloaded):
    if bare == preloaded:
        return []
    import difflib
    return list(difflib.unified_diff(bare.splitlines(), preloaded.splitlines(), f"bare {name}",
                                     f"preloaded {name}", lineterm="", n=1))


def judge_pair(options, bare, preloaded):
    """What is wrong with the preloaded run, as lines; none if it equals the bare one."""
    wrong = []
    if bare.status != preloaded.status:
        wrong.append(f"bare {bare.describe_status()}, preloaded {preloaded.describe_status()}")
    wrong += differences("stdout", bare.out, preloaded.out)
    wrong += differences("stderr", bare.err, preloaded.err)
    if options.off and bare.allocations() != preloaded.allocations():
        wrong.append(f"the driver was asked for memory {bare.allocations()} times bare, "
                     f"{preloaded.allocations()} preloaded")
    if options.at_most is not None:
        asked, served = bare.allocations(), preloaded.allocations()
        if asked < 2 * options.at_most:
            wrong.append(f"bare, the driver was asked for memory {asked} times only: the scene "
                         "shows nothing")
        if served > options.at_most:
            wrong.append(f"preloaded, the driver was asked for memory {served} times, more than "
                         f"{options.at_most}: a route escapes the cache")
        if not preloaded.calls:
            wrong.append("the simulated driver left no call counts")
    for name, most in options.figure_at_most:
        if preloaded.figures.get(name, 0) > int(most):
            wrong.append(f"the report says {name} {preloaded.figures.get(name)}, which is more "
                         f"than {most}")
    for name, least in options.figure:
        if preloaded.figures.get(name, -1) < int(least):
            wrong.append(f"the report says {name} {preloaded.figures.get(name)}, which is less "
                         f"than {least}")
    return wrong


def loadable(library):
    return b"cannot be preloaded" not in play(["true"], {**os.environ, "LD_PRELOAD": library})[2]


# What an option is before it is given: None takes a value, [] a value each time, False none.
OPTIONS = {
    "--preload": None,       # the cache; without it, bare only
    "--before": [],          # libraries that are preloaded before the cache, with it
    "--beside": [],          # .. and after it
    "--library-path": None,  # folders, first in LD_LIBRARY_PATH
    "--driver": None,        # a library, the libcuda.so.1 of both runs
    "--needs": None,         # a library: skip where the loader cannot preload it
    "--sanitizer": None,     # a runtime that has to be preloaded first
    "--env": [],             # NAME=VALUE of both runs
    "--sim-env": [],         # .. of both, which only the simulated driver knows
    "--preload-env": [],     # .. of the preloaded run
    "--against": None,       # the bare run's program, for another build of it
    "--bites": None,         # a test of a test: the pair has to differ, with this text in it
    "--off": False,          # the driver has to be asked for memory as often as bare
    "--at-most": None,       # times that the driver may be asked for memory when preloaded
    "--figure": [],          # NAME=N: the least that it may be in the preloaded run's report
    "--figure-at-most": [],  # .. the most
    "--run-with": [],        # what runs programs of another machine: it takes -E NAME=VALUE, as
                             # qemu-user does
}


def parse(arguments):
    """Options, then -- and the program with its arguments."""
    found = {name: [] if default == [] else default for name, default in OPTIONS.items()}
    words = iter(arguments)
    for name in words:
        if name == "--":
            break
        if name not in found:
            sys.exit(f"{name}: an option is one of {' '.join(OPTIONS)}")
        if found[name] is False:
            found[name] = True
        elif OPTIONS[name] is None:
            found[name] = next(words)
        else:
            found[name].append(next(words))
    options = types.SimpleNamespace(
        program=list(words), **{name[2:].replace("-", "_"): value for name, value in found.items()})
    if not options.program:
        sys.exit("no -- PROGRAM")
    options.env += options.sim_env
    options.at_most = options.at_most and int(options.at_most)
    for figures in options.figure, options.figure_at_most:
        figures[:] = [text.split("=") for text in figures]
    # A program, or a child of its, may start from another folder (so does pyenv's python3).
    if options.preload:
        options.preload = os.path.abspath(options.preload)
    for names in options.before, options.beside:
        names[:] = [os.path.abspath(name) if "/" in name else name for name in names]
    # Programs get none of what this process may have been given.
    for fd in os.listdir("/proc/self/fd"):
        if int(fd) > 2:
            try:
                os.set_inheritable(int(fd), False)
            except OSError:  # the folder's own
                pass
    return options


def main(arguments):
    options = parse(arguments)
    if options.needs and not loadable(options.needs):
        print(f"skipped: no {options.needs}")
        return SKIP
    bare = kept_bare(options) if options.preload else None
    preloaded = bare and run(options, "preloaded", options.preload)
    # What differs from a kept run may be right in this build: its own bare run decides.
    wrong = not bare or judge_pair(options, bare, preloaded)
    if wrong:
        bare = run(options, "bare", None)
        if bare.status == SKIP:
            print(bare.out.strip() or "skipped")
            return SKIP
        if bare.status != 0:
            show(bare)
            print("FAIL: bare")
            return 1
        keep_bare(options, bare)
        if not options.preload:
            print("ok: bare only")
            return 0
        preloaded = preloaded or run(options, "preloaded", options.preload)
        wrong = judge_pair(options, bare, preloaded)
    if options.bites:
        if any(options.bites in line for line in wrong):
            print(f"ok: it bites, {options.bites}")
            return 0
        wrong.append(f"nothing like \"{options.bites}\" was found")
    if wrong:
        show(preloaded)
        print("\n".join(wrong))
        print("FAIL: bare and preloaded differ")
        return 1
    served = f", the driver asked {preloaded.allocations()} times for {bare.allocations()}" \
        if options.at_most is not None else ""
    print(f"ok: equal{served}")
    return 0
