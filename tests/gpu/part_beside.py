# SPDX-License-Identifier: BSD-2-Clause
"""Processes beside one that is parked: the launches of a neighbour on the same GPU, and the other
rank of NCCL on the next one."""
import os
import tempfile
import time

import part_libraries
import suite as base
from parked import (GIB, MIB, Ended, Parked, Talker, ending, one_gpu, parked_bytes, program, speed,
                    stays)

TARGET_NS = 200_000
TIMES = 3
FEWEST = 20  # launches of a window that says anything
# A sum of two ranks takes milliseconds; one that hangs ends the process.
HANGS_S = 30


# --- launches

class Launches:
    """Of several windows: the slowest launch, and the largest p99.9, in ns."""

    def __init__(self):
        self.most = self.p999 = self.count = self.median = 0

    def window(self, neighbour, work):
        """Measures while work() runs; returns what it gave."""
        neighbour.do("begin")
        given = work()
        count, self.median, p999, most = map(int, neighbour.do("end").split())
        self.count += count
        self.most, self.p999 = max(self.most, most), max(self.p999, p999)
        return given


def say_launches(suite, name, quiet, busy):
    more = busy.most - quiet.most
    verdict = f"measured: {more / 1000:+.0f} us, target {TARGET_NS // 1000}, " + (
        "met" if more <= TARGET_NS else "MISSED")
    suite.row(f"slowest launch to its end, {name}", base.nanoseconds(quiet.most),
              base.nanoseconds(busy.most), "", verdict if busy.count >= FEWEST else
              f"FAIL: {busy.count} launches alone")
    suite.row(f"p99.9, {name}", base.nanoseconds(quiet.p999), base.nanoseconds(busy.p999), "",
              f"measured: {busy.count} launches, median {base.nanoseconds(busy.median)}")


def park_neighbour(suite):
    size = GIB // 16 if suite.simulate else 4 * GIB if suite.quick else 16 * GIB
    command = [suite.compile("beside", ["beside.c", "driver.c"])]
    with one_gpu(suite) as env, tempfile.TemporaryDirectory() as folder:
        with ending(Parked(suite, folder, [program(suite)], "started", **env),
                    Talker(command, dict(suite.bare_env, **env), "started")) as (p, neighbour):
            p.do(f"fill {size // MIB}")
            quiet, out, back = Launches(), Launches(), Launches()
            outs, backs = [], []
            for _ in range(TIMES + 1):
                quiet.window(neighbour, lambda: time.sleep(0.3 if suite.quick else 1.0))
                if len(outs) < TIMES:
                    outs.append(out.window(neighbour, p.park))
                    backs.append(back.window(neighbour, lambda: int(p.do("touch")) / 1e9))
            wrong = p.do("check")
    name = f"{size / GIB:g} GiB"
    say_launches(suite, f"{name} parked {TIMES} times", quiet, out)
    say_launches(suite, f"{name} woken {TIMES} times", quiet, back)
    suite.row(f"{name} out and back beside it", "",
              f"{speed(outs[-1][0], min(o[1] for o in outs))}; "
              f"{speed(outs[-1][0], min(backs))}",
              verdict="measured: the fastest" if wrong == "sound" else f"FAIL: {wrong}")


# --- ranks

# What a rank does, and with which variables of NCCL.
CASES = {"sums": ("sum", {}),
         "sums, no InfiniBand": ("sum", {"NCCL_IB_DISABLE": "1"}),
         "sums, NCCL by IPC": ("sum", {"NCCL_IB_DISABLE": "1", "NCCL_CUMEM_ENABLE": "0"}),
         "CUDA graph": ("replay", {"NCCL_IB_DISABLE": "1"}),
         "CUDA graph, NCCL_GRAPH_REGISTER=1": ("replay", {"NCCL_IB_DISABLE": "1",
                                                          "NCCL_GRAPH_REGISTER": "1"})}


def must_answer(ranks, line, wanted, pause=0.0):
    """Both; the second one is told a little later."""
    ranks[0].say(line)
    for rank in ranks[1:]:
        time.sleep(pause)
        rank.say(line)
    for number, words in enumerate([rank.hear(HANGS_S) for rank in ranks]):
        if words != wanted:
            raise Ended(f"rank {number} answers {line!r} by {words!r}")


def join(ranks, verb):
    name = ranks[0].do("id", HANGS_S)
    for number, rank in enumerate(ranks):
        rank.say(f"join {number} {name}")
    for rank in ranks:
        if rank.hear(60) != "joined":
            raise Ended("NCCL does not begin")
    if verb == "replay":
        must_answer(ranks, "capture", "captured")
    for _ in range(3):
        must_answer(ranks, verb, "right")


def parks(ranks, verb, rounds):
    """Parks one rank, then the other, then both, before each sum: what each park said. One rank
    alone is parked each time."""
    said = []
    for number in range(rounds):
        place = min(number % 3, len(ranks) - 1)
        for rank in ranks if number % 3 == 2 else ranks[place:place + 1]:
            code, reply, _ = rank.ask("park")
            if code == rank.tables.PAGE_REPLY_REFUSED:
                said.append(f"refused: {reply['why']}")
            elif code == rank.tables.PAGE_REPLY_DONE:
                said.append(f"{base.mebibytes(parked_bytes(reply))} parked")
            else:
                said.append(f"{base.mebibytes(parked_bytes(reply))} parked, {stays(reply)} stay")
        # The one that is not parked waits inside its kernel, as for a rank that sleeps.
        must_answer(ranks if number % 3 else ranks[::-1], verb, "right", 0.2)
    return said


def one_case(suite, name, command, verb, env, num_ranks, rounds):
    with tempfile.TemporaryDirectory() as folder, ending() as ranks:
        said = []
        try:
            for device in range(num_ranks):
                ranks.append(Parked(suite, folder, [*command, str(device), str(num_ranks)],
                                    **env))
            join(ranks, verb)
            said = parks(ranks, verb, rounds)
        except Ended as reason:
            states = [rank.process.poll() for rank in ranks]
            for rank in ranks:  # one that waits for the other would do so for long
                rank.process.kill()
            suite.row(name, verdict=f"FAIL: {reason}; the ranks' statuses: {states}")
            return
    different = sorted(set(said), key=said.index)
    words = "; ".join(f"{said.count(one)} times {one}" for one in different)
    suite.row(name, "", f"{rounds} sums", "", f"ok: right; {words}")


def works_bare(suite, command, env, num_ranks):
    with ending() as ranks:
        try:
            for device in range(num_ranks):
                ranks.append(Talker([*command, str(device), str(num_ranks)],
                                    dict(suite.bare_env, **env)))
            join(ranks, "replay")
        except Ended as reason:
            for rank in ranks:
                rank.process.kill()
            raise base.Skip(f"NCCL does not run here bare: {reason}") from None


def park_nccl(suite):
    if suite.simulate:
        raise base.Skip("NCCL needs real GPUs")
    path, headers = part_libraries.locate(suite, "nccl", "nccl.h")
    command = [suite.compile("park_nccl", ["park_nccl.c"], path,
                             f"-Wl,-rpath,{os.path.dirname(path)}", "-isystem", headers,
                             "-Wl,--allow-shlib-undefined", shared_cudart=True)]
    # What NCCL says must not come between the answers.
    common = {"NCCL_NVLS_ENABLE": os.environ.get("NCCL_NVLS_ENABLE", "0"), "NCCL_DEBUG": "WARN",
              "NCCL_DEBUG_FILE": os.path.join(suite.build, "park-nccl-%p.log")}
    num_ranks = 2 if suite.run([*command, "1", "2"]).rc == 0 else 1  # it ends with its input
    works_bare(suite, command, common, num_ranks)
    for name, (verb, env) in CASES.items():
        one_case(suite, name if num_ranks > 1 else f"{name}, one rank", command, verb,
                 {**common, **env}, num_ranks, 6 if suite.quick else 60)
