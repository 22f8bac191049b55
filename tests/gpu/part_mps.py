# SPDX-License-Identifier: BSD-2-Clause
"""Clients of NVIDIA's multi-process service: two at a time, bare and under the shim. The part
starts a service in folders of its own and stops it in any case. It leaves a service of the
machine alone."""
import concurrent.futures
import os
import shutil
import signal
import subprocess
import tempfile
import time

import part_flush
import suite as base
from parked import ending

CONTROL = "nvidia-cuda-mps-control"
START_S, STOP_S = 30, 20


class Service:
    """The control daemon, which starts a server when the first client comes."""

    def __init__(self, suite, control):
        self.suite, self.control = suite, control
        # Short: the sockets in it have names of at most 107 characters.
        self.folder = tempfile.mkdtemp(prefix="mps-", dir="/tmp")
        self.folders = {"CUDA_MPS_PIPE_DIRECTORY": os.path.join(self.folder, "pipe"),
                        "CUDA_MPS_LOG_DIRECTORY": os.path.join(self.folder, "log")}
        self.env = dict(part_flush.shared_env(suite), **self.folders)
        # The daemon starts the server from beside it.
        self.env["PATH"] = os.pathsep.join(filter(None, [os.path.dirname(control),
                                                         self.env.get("PATH")]))
        for path in self.folders.values():
            os.mkdir(path)

    def __enter__(self):
        # Its output goes to a file: the daemon keeps what it inherits, and would keep a pipe open.
        said = os.path.join(self.folder, "said")
        with open(said, "w") as file:
            done = subprocess.run([self.control, "-d"], env=self.env, stdin=subprocess.DEVNULL,
                                  stdout=file, stderr=subprocess.STDOUT, timeout=START_S)
        if done.returncode:
            with open(said) as file:
                text = file.read().strip()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise base.Skip(f"{CONTROL} does not start here: "
                            f"{text[-120:] or f'exit {done.returncode}'}")
        return self

    def ask(self, request, timeout=60):
        done = self.suite.run([self.control], self.env, timeout, stdin=(request + "\n").encode())
        return done.out.strip() if done.rc == 0 else ""

    def pid(self):
        """Of the daemon; 0: it has ended. In a container nobody may wait for it: it then stays as
        a process that has ended."""
        try:
            with open(os.path.join(self.folders["CUDA_MPS_PIPE_DIRECTORY"],
                                   f"{CONTROL}.pid")) as file:
                pid = int(file.read())
            with open(f"/proc/{pid}/stat") as file:
                return 0 if file.read().rpartition(")")[2].split()[0] == "Z" else pid
        except (OSError, ValueError):
            return 0

    def __exit__(self, *_):
        pid = self.pid()
        self.ask("quit -t 5", STOP_S)
        end = time.monotonic() + STOP_S
        while pid and self.pid() and time.monotonic() < end:
            time.sleep(0.05)
        left = self.pid()
        if left:
            os.kill(left, signal.SIGKILL)
        self.suite.row("the service has ended", verdict="FAIL: it had to be killed" if left
                       else "ok")
        shutil.rmtree(self.folder, ignore_errors=True)


def two_at_once(suite, service, name, command):
    """Two processes of the same at a time, twice: bare, then under the shim."""
    def run(env):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda _: suite.run(command, env), range(2)))
    bare = run(service.env)
    if any(result.rc for result in bare):
        worst = max(bare, key=lambda result: result.rc != 0)
        raise base.Skip(f"{name} does not run bare: exit {worst.rc}, "
                        f"{(worst.out + worst.err).strip()[-120:]}")
    for number, pair in enumerate(zip(bare, run(dict(service.env, LD_PRELOAD=suite.lib)))):
        suite.compare(f"{name}, {'first' if number == 0 else 'second'} of two", *pair)


def flush_beside(suite, service):
    """One client's cache is emptied while another one holds memory, whose contents stay."""
    with ending(part_flush.Observer(suite, service.env),
                part_flush.holder(suite, service.env)) as (observer, other):
        part_flush.fill(other)
        other.do("drop")
        servers = service.ask("get_server_list")
        suite.row("served by the service", verdict="ok" if servers
                  else "FAIL: it knows no server with clients")
        part_flush.flush_seen(suite, observer, service.env)
        told = other.do("check"), other.do("end"), other.end()
        suite.row("the other client", verdict="ok" if told == ("sound", "ended", 0) else
                  f"FAIL: {told}")


def find_control(suite):
    """On the path, or where the driver's programs lie beside its libraries."""
    beside = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(suite.libcuda))), "bin")
    return shutil.which(CONTROL) or shutil.which(CONTROL, path=f"/usr/local/nvidia/bin:{beside}")


def mps(suite):
    control = find_control(suite)
    if not control:
        raise base.Skip(f"no {CONTROL}")
    demo = suite.compile("demo-mps", ["demo.c"], static_cudart=True)
    canary = suite.small("canary")
    steps = ["--steps", "3", "--words", "4096"] if suite.simulate else ["--steps", "100"]
    rounds = "4" if suite.simulate else "20" if suite.quick else "100"
    with Service(suite, control) as service:
        two_at_once(suite, service, "demo", [demo, *steps])
        two_at_once(suite, service, "canary", [canary, "--rounds", rounds, "--size", "1048576"])
        flush_beside(suite, service)
