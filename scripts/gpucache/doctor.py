# SPDX-License-Identifier: BSD-2-Clause
"""gpucache doctor: one page on this machine, or on a process, for a report of a fault. What is
wrong or unusual is told at its end, with its remedy."""
import contextlib
import json
import os
import platform
import re
import shutil
import stat
import sys
import textwrap

from gpucache import (fault, host, library, options, page, place, process, state, tables,
                      text)
from gpucache.fault import DONE, NOT_SHOWN, Fault

WIDTH, NAMES = 100, 13
CUDA_LEAST = 12000
PAGE_BYTES_LEAST = 1 << 20
SITES = re.compile(rb"(/\S+/(?:site|dist)-packages)/")
# Mapped files that say how a program reaches the driver, or that change allocations as well.
TELLING = re.compile(rb"(/\S*/(?:lib(?:cuda|cudart|gpucache|c10_cuda|asan|tsan|jemalloc|mimalloc"
                     rb"|tcmalloc\w*|vgpu|ToolsInjection\w*)|torch_memory_saver\w*)[-.]\S*)")
NEEDED = {"rich": "top", "prometheus_client": "metrics", "argcomplete": "completion"}
ELF_INTERPRETER = 3


class Findings:
    """Facts as (name, text), and warnings as (what, remedy)."""

    def __init__(self):
        self.facts, self.warnings = [], []

    def fact(self, name, words):
        self.facts.append((name, text.printable(words)))

    def warn(self, what, remedy):
        self.warnings.append((text.printable(what), text.printable(remedy)))

    def lines(self):
        """No wider than WIDTH, but for words that are wider themselves."""
        for name, words in self.facts:
            yield from textwrap.wrap(words or "-", WIDTH, initial_indent=name.ljust(NAMES),
                                     subsequent_indent=" " * NAMES, break_long_words=False,
                                     break_on_hyphens=False)
        yield ""
        yield "warnings" if self.warnings else "nothing to warn of"
        for what, remedy in self.warnings:
            for mark, words in (("  - ", what), ("    remedy: ", remedy)):
                yield from textwrap.wrap(words, WIDTH, initial_indent=mark,
                                         subsequent_indent=" " * 4, break_long_words=False,
                                         break_on_hyphens=False)


def _library(found):
    """The library's file; None: there is none."""
    try:
        mine = library.path()
    except Fault as why:
        found.fact("library", "none")
        found.warn(str(why), "scripts/install, or a package of scripts/package")
        return
    found.fact("library", f"{tables.VERSION}, {mine}")
    by_name, _ = host.preloaded("libgpucache.so")
    by_path, says = (by_name, "") if by_name else host.preloaded(mine)
    use = f"LD_PRELOAD={mine}, or gpucache run"
    if by_name and os.path.realpath(by_name) != mine:
        found.warn(f"the loader finds another library by the name libgpucache.so: {by_name}", use)
    if not by_path:
        found.warn(f"the loader does not load {mine}: {says or 'it says nothing'}",
                   "install it for this machine: scripts/install, or a package")
    elif not by_name and "libgpucache.so" in host.preloads():
        found.warn("the loader does not find libgpucache.so by its bare name", use)
    found.fact("loader", f"takes {by_name} for libgpucache.so" if by_name else
               f"finds it by its full name alone: {use}" if by_path else "does not load it")


def _remedy(module):
    """scripts/install brings the packages of the tool that it installs, unless it has no
    network."""
    with contextlib.suppress(Fault):
        if library.path() == os.path.realpath(place.LIBRARY) and \
                not place.LIBRARY.startswith("/usr/lib"):
            return f"scripts/install again; or {fault.remedy(module)}"
    return fault.remedy(module)


def _tool(found):
    tool = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    missing = []
    for module in NEEDED:
        try:
            fault.needed(module, "doctor")
        except Fault:
            missing.append(module)
    found.fact("tool", f"{tables.VERSION}, {tool}, Python {platform.python_version()}")
    for module in missing:
        found.warn(f"gpucache {NEEDED[module]} does not work: the Python package {module} is "
                   "missing", _remedy(module))


def _system(found):
    c_library = host.c_library()
    found.fact("system", f"{host.system()}, {c_library or 'an unknown C library'}")
    if c_library == "musl":
        found.warn("the C library is musl, for which there is no driver for CUDA: the library "
                   "loads and does nothing", "use a system with glibc")
    inside = host.container()
    job = process.job("self")
    found.fact("container", ", ".join([*inside, *([job] if job else [])]) or "none seen")
    if host.is_wsl():
        found.warn("this is WSL, where the library was not tried", "please report how it goes")


def _driver(found):
    driver = host.driver()
    cuda = driver["cuda"]
    if not driver["library"]:
        found.fact("driver", driver["version"] or "none")
        found.warn("the loader finds no libcuda.so.1", "install NVIDIA's driver; start a container "
                   "with its GPUs (docker run --gpus all)")
    else:
        shown = f"CUDA {cuda // 1000}.{cuda % 1000 // 10}" if cuda else "CUDA unknown"
        found.fact("driver", f"{driver['version'] or 'version unknown'}, {shown}, "
                   f"{driver['library']}")
    if 0 < cuda < CUDA_LEAST:
        found.warn("the driver is older than CUDA 12", "install driver 525 or newer")
    gpus = host.gpus()
    for gpu in gpus:
        size, mode = text.parse_size(gpu.get("memory.total", "")), gpu.get("compute_mode")
        more = [size and text.size(size),
                gpu.get("compute_cap") and "compute " + gpu["compute_cap"],
                "MIG on" if gpu.get("mig.mode.current") == "Enabled" else "",
                mode and mode != "Default" and "compute mode " + mode]
        found.fact(f"GPU {gpu['index']}", ", ".join([gpu["name"], *filter(None, more)]))
        if gpu.get("compute_mode") == "Prohibited":
            found.warn(f"GPU {gpu['index']} takes no compute work (compute mode Prohibited)",
                       "nvidia-smi -c DEFAULT")
    if not gpus:
        found.fact("GPU", "none seen")
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        found.fact("visible", f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']}")
    found.fact("MPS", host.mps() or "no service seen")


def _preloads(found, words):
    """words: what is preloaded, in order."""
    found.fact("preloads", " ".join(words) or "none")
    for word in words:
        if "/" in word and not os.path.exists(word):
            found.warn(f"{word} is preloaded and is not there: each program says so",
                       "take it out of LD_PRELOAD or /etc/ld.so.preload")
    names = [os.path.basename(word) for word in words]
    ours = next((i for i, name in enumerate(names) if name.startswith("libgpucache")), None)
    for i, name in enumerate(names):
        if name.startswith(("libasan", "libtsan")) and ours is not None and ours < i:
            found.warn(f"{name} stands behind libgpucache.so", "it has to come first in LD_PRELOAD")
        if name.startswith(("libvgpu", "torch_memory_saver", "libnvshare")):
            found.warn(f"{name} hooks allocations as well: not tried together",
                       "if something fails, leave one of the two away")


def _options(found, variables):
    """variables: the environment, as a dictionary."""
    ours = {name: value for name, value in sorted(variables.items())
            if name.startswith("GPUCACHE")}
    found.fact("options", " ".join(f"{name}={value}" for name, value in ours.items()) or "none set")
    for name, value in ours.items():
        try:
            options.checked(name, value)
        except Fault as why:
            found.warn(f"{name}: {why}", "gpucache run --help and man 7 gpucache have all options")
    if ours.get("GPUCACHE", "").strip().lower() in options.OFF.split("|"):
        found.warn("GPUCACHE turns the library off", "unset GPUCACHE")
    if "cudaMallocAsync" in variables.get("PYTORCH_CUDA_ALLOC_CONF", "") + \
            variables.get("PYTORCH_ALLOC_CONF", ""):
        found.warn("PyTorch is set to cudaMallocAsync, which bypasses the pool",
                   "take the backend out of PYTORCH_CUDA_ALLOC_CONF")


def _pages(found):
    """The folder for pages, as the library chooses it."""
    wanted = os.environ.get("GPUCACHE_DIR") or ""
    if wanted.lower() == "none":
        found.fact("pages", "none (GPUCACHE_DIR=none)")
        found.warn("GPUCACHE_DIR=none: ps, stat and set do not see what is started here, and it "
                   "lends no memory", "unset GPUCACHE_DIR")
        return
    folders = [wanted] if wanted else [f"{place}/gpucache-{os.geteuid()}" for place in page.PLACES]
    found.fact("pages", ", ".join(_page_folder(found, folder) for folder in folders))
    parents = [os.path.dirname(folder) for folder in folders]
    usable = [p for p in parents if os.access(p, os.W_OK | os.X_OK)]
    if not usable:
        found.warn(f"nobody can make a file in {' or '.join(parents)}: ps does not see what is "
                   "started here", "mount a tmpfs on /dev/shm, or set GPUCACHE_DIR")
    elif shutil.disk_usage(usable[0]).free < PAGE_BYTES_LEAST:
        found.warn(f"{usable[0]} is full", "make room there, or set GPUCACHE_DIR")


def _page_folder(found, folder):
    try:
        its = os.lstat(folder)
    except OSError as error:
        return f"{folder} ({fault.reason(error)})"
    if not stat.S_ISDIR(its.st_mode) or its.st_uid != os.geteuid() or its.st_mode & 0o022:
        found.warn(f"{folder} is no folder of this user's own with mode 0700: the library makes no "
                   "page there", "remove it, or set GPUCACHE_DIR")
    number = len([name for name in os.listdir(folder) if page.NAME.fullmatch(name)]) \
        if os.access(folder, os.R_OK | os.X_OK) else 0
    return f"{folder} (mode {its.st_mode & 0o7777:04o}, {text.counted(number, 'page')})"


def _packages(found, folders):
    packages = host.packages(folders)
    found.fact("packages", ", ".join(f"{n} {v}" for n, v in packages.items()) or "none that matter")


def elf_fault(path):
    """Why the loader preloads nothing into a program, or ""."""
    try:
        with open(path, "rb") as file:
            head = file.read(64)
            if head[:4] != b"\x7fELF":
                return ""
            if head[4] == 1:
                return "it is a program of 32 bits"
            file.seek(int.from_bytes(head[32:40], "little"))
            size, number = (int.from_bytes(head[i:i + 2], "little") for i in (54, 56))
            rows = [file.read(size) for _ in range(min(number, 256))]
    except OSError:
        return ""
    kinds = [int.from_bytes(row[:4], "little") for row in rows]
    return "" if ELF_INTERPRETER in kinds else "it is a static program"


def _process(found, pid):
    """What concerns one process."""
    if process.has_ended(pid):
        raise Fault(f"PID {pid}: no such process")
    why = page.why_foreign(process.uid(pid))
    if why:
        raise Fault(f"PID {pid}: {why}")
    loaded = process.has_library(pid)
    if loaded is None:
        raise Fault(f"PID {pid}: {NOT_SHOWN}")
    found.fact("process", f"{pid} {process.command(pid)}")
    mapped = sorted(process.mapped(pid, TELLING) or ())
    found.fact("mapped", " ".join(mapped) or "nothing of CUDA")
    variables = process.environment(pid)
    words = [word for word in re.split(r"[:\s]+", variables.get("LD_PRELOAD", "")) if word]
    if words:
        found.fact("its preloads", " ".join(words))
    _options(found, variables)
    if not loaded:
        why = elf_fault(f"/proc/{pid}/exe")
        if any("libgpucache" in word for word in words):
            found.warn("the library was asked for and is not loaded"
                       + (f": {why}" if why else ""),
                       "the loader preloads nothing into static, 32-bit and set-user-ID programs; "
                       "otherwise give the full path of the library")
        else:
            found.warn("it runs without libgpucache", "start it by gpucache run -- COMMAND")
    else:
        try:
            its = state.one(pid)
            note = f", {its.note}" if its.note else ""
            found.fact("state", f"library {its.contents.library_version}, "
                       f"{len(its.gpus)} GPU(s), job {its.job or '-'}{note}")
            if its.contents.library_version != tables.VERSION:
                found.warn(f"its library has version {its.contents.library_version}, the tool has "
                           f"{tables.VERSION}", "install both from one release")
        except Fault as why:
            found.fact("state", "no page")
            found.warn(str(why), "gpucache stat needs a page; the rest works without")
    sites = process.mapped(pid, SITES) or ()
    _packages(found, [f"/proc/{pid}/root{site}" for site in sorted(sites)])


def show(args):
    found = Findings()
    _library(found)
    _tool(found)
    _system(found)
    _driver(found)
    if args.pid is None:
        _preloads(found, host.preloads())
        _options(found, os.environ)
        _packages(found, sys.path)
    _pages(found)
    if args.pid is not None:
        _process(found, args.pid)
    if args.json:
        print(json.dumps({"facts": [{"name": n, "text": t} for n, t in found.facts],
                          "warnings": [{"what": w, "remedy": r} for w, r in found.warnings]}))
    else:
        print("\n".join(["gpucache doctor", "", *found.lines()]))
    return DONE
