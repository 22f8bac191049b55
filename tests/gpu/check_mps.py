#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Tests the part `mps` on the simulated driver, with a stand-in for the service's control
daemon. The part must judge a service that works and some that do not, and leave no process
behind. check_mps.py BUILD"""
import os
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import part_mps  # noqa: E402
import suite as base  # noqa: E402

# Starts a process that stands for the daemon, and answers as it does; wrong in the ways that
# STAND_IN names.
CONTROL = """#!/bin/sh
pid_file="$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid"
if [ "$1" = -d ]; then
    [ -d "$CUDA_MPS_LOG_DIRECTORY" ] || exit 1
    if [ "$STAND_IN" = refuses ]; then
        echo "An instance of this daemon is already running"
        exit 1
    fi
    setsid sleep 300 >/dev/null 2>&1 </dev/null & echo $! > "$pid_file"
    cp "$pid_file" "$STARTED"
    exit 0
fi
read -r request
case "$request" in
get_server_list) [ "$STAND_IN" = idle ] || echo 4711;;
quit*) [ "$STAND_IN" = stays ] || kill "$(cat "$pid_file")";;
esac
"""
# How the stand-in is wrong, and what the part has to say then.
CASES = {"": None, "idle": "FAIL: it knows no server", "stays": "FAIL: it had to be killed",
         "refuses": "nvidia-cuda-mps-control does not start here: An instance"}


def is_running(path):
    """Whether the process of that number is more than one that has ended (nobody here waits for
    it)."""
    try:
        with open(path) as file, open(f"/proc/{int(file.read())}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (OSError, ValueError):
        return False


def once(compile_program):
    """The same, but each program is compiled at its first use only."""
    made = {}

    def compile_once(name, *sources, **how):
        if name not in made:
            made[name] = compile_program(name, *sources, **how)
        return made[name]
    return compile_once


def judge(suite, wrong, expected):
    suite.rows.clear()
    with tempfile.TemporaryDirectory() as folder:
        started = os.path.join(folder, "started")
        control = os.path.join(folder, part_mps.CONTROL)
        with open(control, "w") as file:
            file.write(CONTROL)
        os.chmod(control, 0o755)
        os.environ.update(STAND_IN=wrong, STARTED=started)
        suite.bare_env = suite.environment()
        part_mps.find_control = lambda _, path=control: path
        part_mps.STOP_S = 2 if wrong == "stays" else 20
        said = []
        try:
            part_mps.mps(suite)
        except base.Skip as reason:
            said.append(str(reason))
        said += [row.verdict for row in suite.rows
                 if not row.verdict.startswith(("ok", "measured"))]
        good = [text.startswith(expected) for text in said] == [True] if expected else not said
        good = good and (wrong == "refuses") != os.path.exists(started)
        end = time.monotonic() + 60
        while is_running(started) and time.monotonic() < end:
            time.sleep(0.05)
        good = good and not is_running(started) and (expected or len(suite.rows) == 12)
    print(f"{'as it should' if good else 'WRONG'}: {wrong or 'nothing'} wrong, the part says "
          f"{said}, {len(suite.rows)} rows")
    return good


def main():
    failed = 0
    with tempfile.TemporaryDirectory() as programs:
        suite = base.Suite(programs, True, sys.argv[1], False)
        suite.build_library()
        suite.compile = once(suite.compile)
        for wrong, expected in CASES.items():
            failed += not judge(suite, wrong, expected)
    return failed


if __name__ == "__main__":
    sys.exit(main())
