# SPDX-License-Identifier: BSD-2-Clause
"""The tool gpucache looks at a process under the shim, and asks it, beside a bare one."""
import json
import os
import subprocess
import sys
import time

import part_lend as lend
import suite as base

MIB = 1 << 20
IDLE = 256 * MIB


class Tool:
    """The built tool, with the folder of the pages of this part."""

    def __init__(self, suite, pages):
        self.path = os.path.join(os.path.dirname(os.path.dirname(suite.lib)), "scripts", "gpucache")
        self.env = dict(suite.bare_env, GPUCACHE_DIR=pages)

    def run(self, *words):
        return subprocess.run([sys.executable, self.path, *map(str, words)], env=self.env,
                              capture_output=True, text=True, timeout=60)

    def json(self, *words):
        done = self.run(*words, "--json")
        return json.loads(done.stdout) if done.stdout else {}


def first_gpu(process):
    return process["gpus"][0] if process and process.get("gpus") else {}


def ps(suite, tool, shim, bare):
    found = tool.json("ps")
    mine = [p for p in found["processes"] if p["pid"] == shim.process.pid]
    gpu = first_gpu(mine[0] if mine else None)
    suite.row("ps: the process under the shim", "", base.mebibytes(gpu.get("idle_bytes", 0)), "",
              "ok" if gpu.get("idle_bytes", 0) >= IDLE else f"FAIL: {mine}")
    if found["nvml"] != "ok":
        suite.row("ps: beside a bare one", verdict=f"skip: {found['nvml']}")
        return
    suite.row("ps: NVML has the GPU under the same UUID", "", str(gpu.get("index")), "",
              "ok" if gpu.get("index") is not None else
              f"FAIL: {gpu.get('uuid')}, not of {[d['uuid'] for d in found['gpus']]}")
    listed = [p for p in found["without_page"] if p["pid"] == bare.process.pid]
    if not listed and not found["without_page"]:
        suite.row("ps: beside a bare one", verdict="skip: NVML lists no process of this namespace")
    else:
        right = listed and listed[0]["library"] is False
        suite.row("ps: beside a bare one", base.mebibytes(listed[0]["used_bytes"] or 0)
                  if listed else "", "", "", "ok" if right else f"FAIL: {found['without_page']}")


def flush(suite, tool, shim, bare):
    shim.seconds(f"turn {IDLE}")
    before = int(bare.do("free").split()[1])
    start = time.monotonic()
    done = tool.run("flush", shim.process.pid)
    took = time.monotonic() - start
    gained = int(bare.do("free").split()[1]) - before
    receipt = done.stdout.strip().splitlines()
    suite.row("flush: its receipt", "", receipt[0] if receipt else "", "",
              "ok" if done.returncode == 0 and " returned in " in done.stdout
              else f"FAIL: {done.stderr}")
    # Other processes on the GPU may change that figure.
    suite.row("flush: as the bare process sees it", base.mebibytes(gained), base.seconds(took), "",
              "ok" if gained >= IDLE // 2 else "FAIL: the driver has no more memory free")


def tool(suite):
    suite.build_library()
    with lend.workers(suite, sys.executable, "driver", 1, True) as (shim,):
        environ = {key: value for key, value in shim.env.items() if key != "LD_PRELOAD"}
        bare = lend.Worker(sys.executable, "driver", environ)
        try:
            bare.do("free")
            shim.seconds(f"turn {IDLE}")
            made = Tool(suite, shim.env["GPUCACHE_DIR"])
            ps(suite, made, shim, bare)
            flush(suite, made, shim, bare)
        finally:
            bare.end()
