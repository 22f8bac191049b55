# SPDX-License-Identifier: BSD-2-Clause
"""Where the threads of a process are that does not go on: by gdb if the machine has it, else by the
kernel's files and the return addresses on the stacks."""
import glob
import os
import shutil
import struct
import subprocess
import sys

STACK_BYTES, FRAMES = 16384, 14
COMMAND_S = 20


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError as error:
        return error.strerror


def code_of(pid):
    """[(from, to, name)] of what the process may run."""
    found = []
    for line in read(f"/proc/{pid}/maps").splitlines():
        words = line.split()
        if len(words) > 5 and "x" in words[1]:
            start, end = (int(word, 16) for word in words[0].split("-"))
            found.append((start - int(words[2], 16), end, os.path.basename(words[5])))
    return found


def place(code, address):
    """MODULE+OFFSET in the file, or None."""
    return next((f"{name}+{address - start:#x}" for start, end, name in code
                 if start <= address < end), None)


def frames(pid, code, call):
    """What of a blocked thread's stack looks like return addresses. call: its file `syscall`."""
    words = call.split()
    if len(words) < 9:
        return []
    stack, at = int(words[7], 16), int(words[8], 16)
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(stack)
            data = memory.read(STACK_BYTES)
    except OSError as error:
        return [str(error)]
    values = [at, *struct.unpack(f"{len(data) // 8}Q", data[:len(data) // 8 * 8])]
    return [found for found in (place(code, value) for value in values) if found][:FRAMES]


def commanded(command, env):
    try:
        done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=COMMAND_S)
        return done.stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)


def tell(suite, pid, pages):
    """All of it, to the log."""
    code = code_of(pid)
    suite.log(f"  PID {pid}: {read(f'/proc/{pid}/cmdline')[:100]!r}")
    for folder in sorted(glob.glob(f"/proc/{pid}/task/*")):
        call = read(f"{folder}/syscall")
        suite.log(f"    {os.path.basename(folder)} {read(f'{folder}/comm')}: "
                  f"{read(f'{folder}/wchan')}; {call}")
        for line in read(f"{folder}/stack").splitlines()[:8]:
            suite.log(f"      kernel {line}")
        for found in frames(pid, code, call):
            suite.log(f"      {found}")
    tool = os.path.join(os.path.dirname(os.path.dirname(suite.lib)), "scripts", "gpucache")
    suite.log(commanded([sys.executable, tool, "stat", str(pid)],
                        dict(suite.bare_env, GPUCACHE_DIR=pages)))
    if shutil.which("gdb"):
        suite.log(commanded(["gdb", "-p", str(pid), "-batch", "-nx", "-ex", "set pagination off",
                             "-ex", "thread apply all bt 16"], suite.bare_env)[-12000:])
