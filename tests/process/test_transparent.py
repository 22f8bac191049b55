# SPDX-License-Identifier: BSD-2-Clause
"""A process without CUDA cannot tell that the library is preloaded. It has the same output, exit
status, threads, descriptors, signal handlers and environment. The library makes no system call
after the loader's.

test_transparent.py LIBRARY [PROGRAM...] [--self-test]
PROGRAM: also run, after the programs of the system; it ends with 0.
--self-test: LIBRARY is one that does not keep quiet; each check has to notice."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

import programs

PROBE = r"""
import os, re
status = open("/proc/self/status").read()
for key in ("Threads", "SigCgt", "SigBlk", "SigIgn", "FDSize"):
    print(key, re.search(key + r":\s*(\S+)", status)[1])
print("fds", sorted(os.listdir("/proc/self/fd"))[:-1])
print("environment", sorted(k for k in os.environ if k != "LD_PRELOAD"))
print("cwd", os.getcwd(), "umask", os.umask(0))
"""
SHELL = "ls; python3 -c 1; true"
PROGRAMS = {
    "shell": ["bash", "-c", SHELL],
    "failing shell": ["bash", "-c", "ls /no/such/folder; exit 3"],
    "true": ["true"],
    "python": ["python3", "-c", PROBE],
    "pipe": ["bash", "-c", "seq 1000 | sort -r | tail -2; env -i PATH=$PATH true"],
    "signalled": ["bash", "-c", "kill -USR1 $$; echo survived"],
    "ldd": ["bash", "-c", "ldd /bin/ls | sed 's/ (0x.*//' | grep -v gpucache"],
    "chain": ["sh", "-c", "exec env python3 -c "
              "'import os; os.execvp(\"bash\", [\"bash\", \"-c\", \"env true; exit 4\"])'"],
    "fork": ["python3", "-c",
             "import os\npid = os.fork()\nif pid == 0: os._exit(7)\nprint(os.waitpid(pid, 0)[1])"],
}
# What the loader does to map one more library.
LOADER_CALLS = {"access", "openat", "open", "read", "pread64", "fstat", "newfstatat", "mmap",
                "mprotect", "close", "munmap", "readlink", "stat"}


def same_result(name, command, library, **more):
    results = []
    for env in (programs.bare(), programs.bare(library)):
        env.update(more)
        done = subprocess.run(command, env=env, capture_output=True, cwd="/", timeout=60)
        results.append((done.returncode, done.stdout, done.stderr))
    bare, shim = results
    return [f"{name}: bare {bare}, preloaded {shim}"] if bare != shim else []


# Ends at once with 5, without a C library: exit by the 32-bit system call.
NARROW = ".globl _start\n_start: mov $1, %eax\nmov $5, %ebx\nint $0x80\n"


def narrow_child(folder, library):
    """A 32-bit program, started by a preloaded shell: the loader says that the library is not for
    it, and nothing else is different."""
    source, program = os.path.join(folder, "narrow.s"), os.path.join(folder, "narrow")
    with open(source, "w") as file:
        file.write(NARROW)
    command = ["sh", "-c", f"{program}; echo $?"]
    made = shutil.which("gcc") and not subprocess.run(
        ["gcc", "-m32", "-nostdlib", "-pie", "-Wl,-dynamic-linker,/lib/ld-linux.so.2", "-o",
         program, source], capture_output=True, check=False).returncode
    if (not made or not os.path.exists("/lib/ld-linux.so.2")
        or subprocess.run(command, env=programs.bare(), capture_output=True, check=False).stdout
        != b"5\n"):
        print("32-bit programs do not run here: a 32-bit child was not tried")
        return []
    done = subprocess.run(command, env=programs.bare(library), capture_output=True, check=False)
    lines = [line for line in done.stderr.decode().splitlines()
             if "cannot be preloaded" not in line]
    if (done.returncode, done.stdout, lines) != (0, b"5\n", []):
        return [f"32-bit child: exit {done.returncode}, {done.stdout}, {lines}"]
    return []


def compiler(folder, library):
    """nvcc, which starts a dozen programs: as a machine without a GPU runs it."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    source = os.path.join(folder, "empty.cu")
    with open(source, "w") as file:
        file.write("__global__ void f(int *p) { *p = 1; }\n")
    command = [nvcc, "-c", "-o", os.path.join(folder, "empty.o"), source]
    if (not os.path.exists(nvcc)
        or subprocess.run(command, capture_output=True, check=False).returncode):
        print("no nvcc works here: it was not tried")
        return []
    return same_result("nvcc", command, library)


def trace(command, env, folder, library):
    """The system calls of every process of a command, in the order of the processes' start.
    Addresses are not randomised: what the heap asks for would depend on them."""
    for old in os.listdir(folder):
        os.remove(os.path.join(folder, old))
    prefix = os.path.join(folder, "trace")
    fixed = ["setarch", os.uname().machine, "-R"]
    # An environment of the same size either way, and the same order in Python's dictionaries.
    preload = env.pop("LD_PRELOAD", None)
    variable = f"LD_PRELOAD={preload}" if preload else f"XX_PRELOAD={library}"
    inner = ["env", "PYTHONHASHSEED=0", variable] + command
    subprocess.run([*fixed, "strace", "-ff", "-o", prefix, *inner], env=env,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", check=False,
                   timeout=120)
    processes = {}
    for file in os.listdir(folder):
        with open(os.path.join(folder, file), errors="replace") as lines:
            processes[int(file.rsplit(".", 1)[1])] = [line.rstrip("\n") for line in lines]
    first = [pid for pid, lines in processes.items() if lines and "PYTHONHASHSEED=0" in lines[0]]
    with open("/proc/sys/kernel/pid_max", encoding="ascii") as file:
        most = int(file.read())
    # Behind the last number comes a small one.
    return [processes[pid] for pid in sorted(processes, key=lambda pid: (pid - first[0]) % most)]


def programs_of(lines):
    """One process's calls, cut at each execve: (calls of the loader, calls of the program)."""
    images, current = [], []
    for line in lines:
        if line.startswith("execve(") and line.endswith("= 0"):
            images.append(current)
            current = []
        current.append(line)
    images.append(current)
    result = []
    for image in images:
        # The loader's last call unmaps the cache of library names.
        end = next((i for i, l in enumerate(image) if l.startswith("munmap(")), -1)
        result.append((image[:end + 1], image[end + 1:]))
    return result


def call_names(lines):
    return [re.match(r"\w+", line)[0] for line in lines if re.match(r"\w+\(", line)]


def run_calls(loader, run):
    """A program's calls. How Python grows its heap depends on the length of paths: left out
    there."""
    names = call_names(run)
    if loader and "python" in loader[0]:
        names = [n for n in names if n not in ("brk", "mmap", "munmap", "mremap")]
    return names


def extra_calls(name, bare, shim, library):
    """Differences in system calls between two traces."""
    faults = []
    if len(bare) != len(shim):
        return [f"{name}: {len(bare)} processes bare, {len(shim)} preloaded"]
    for i, (bare_lines, shim_lines) in enumerate(zip(bare, shim)):
        bare_images, shim_images = programs_of(bare_lines), programs_of(shim_lines)
        if len(bare_images) != len(shim_images):
            faults.append(f"{name}: process {i} runs {len(bare_images)} images bare, "
                          f"{len(shim_images)} preloaded")
            continue
        for (bare_loader, bare_run), (shim_loader, shim_run) in zip(bare_images, shim_images):
            before, after = run_calls(bare_loader, bare_run), run_calls(shim_loader, shim_run)
            if before != after:
                at = next((k for k, (a, b) in enumerate(zip(before, after)) if a != b),
                          min(len(before), len(after)))
                faults.append(f"{name}: process {i} differs after the loader, call {at}: "
                              f"{after[at:at + 3]} instead of {before[at:at + 3]}")
            loader = call_names(shim_loader)
            for call in call_names(bare_loader):
                if call in loader:
                    loader.remove(call)
            foreign = [c for c in loader if c not in LOADER_CALLS]
            if foreign or len(loader) > 16:
                faults.append(f"{name}: process {i}, the loader also calls {loader}")
    if library and not any(os.path.basename(library) in line for lines in shim for line in lines):
        faults.append(f"{name}: the library was not preloaded")
    return faults


def outputs(library, others):
    """What programs see of the library."""
    faults = []
    for program in others:
        faults += same_result(os.path.basename(program), [program], library)
        if subprocess.run([program], env=programs.bare(), check=False).returncode != 0:
            faults.append(f"{program}: fails without the library")
    for name, command in PROGRAMS.items():
        faults += same_result(name, command, library)
        # All symbols of all libraries at the start: one that is nowhere would end the program.
        faults += same_result(name + ", bound at once", command, library, LD_BIND_NOW="1")
    with tempfile.TemporaryDirectory() as folder:
        return faults + narrow_child(folder, library) + compiler(folder, library)


def system_calls(library, folder):
    """What the system sees of it. None: strace does not work here."""
    faults = []
    if not shutil.which("strace") or not trace(["true"], programs.bare(), folder, library):
        return None
    for name in ("true", "shell", "pipe"):
        bare = trace(PROGRAMS[name], programs.bare(), folder, library)
        again = trace(PROGRAMS[name], programs.bare(), folder, library)
        if extra_calls(name, bare, again, None):
            print(f"{name}: two bare runs differ in their system calls: not compared")
            continue
        # What a scheduler does otherwise, it does not do each time.
        for _ in range(3):
            shim = trace(PROGRAMS[name], programs.bare(library), folder, library)
            found = extra_calls(name, bare, shim, library)
            if not found:
                break
            bare = trace(PROGRAMS[name], programs.bare(), folder, library)
        faults += found
    return faults


def main():
    library = os.path.abspath(sys.argv[1])
    others = [os.path.abspath(word) for word in sys.argv[2:] if word != "--self-test"]
    seen = outputs(library, others)
    with tempfile.TemporaryDirectory() as folder:
        traced = system_calls(library, folder)
    if traced is None:
        print("strace does not work here: system calls were not compared")
    if "--self-test" in sys.argv:
        for what, faults in ("output", seen), ("system calls", traced):
            print(f"{what}: {faults and faults[0]}")
        return 0 if seen and traced != [] else 1
    faults = seen + (traced or [])
    print("\n".join(faults) or "nothing to tell them apart")
    return 1 if faults else 0
