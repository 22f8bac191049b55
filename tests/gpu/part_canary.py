# SPDX-License-Identifier: BSD-2-Clause
"""The canary: it finds no damage bare and under the shim, and it finds damage where there is
some."""
import random
import re
import tempfile

import suite as base


def stats(text):
    found = re.search(r"(\d+) addresses came back, (\d+) with the old work in flight", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def ending(result):
    return "ran too long" if result.timed_out else f"exit {result.rc}"


def run_shim(suite, name, program, arguments, must_be_in_flight, **env):
    """One run under the shim. Some prove nothing unless memory came back while work was in
    flight."""
    result = suite.run([program, *arguments, "--stats"], suite.shim_env(**env), timeout=180)
    reused, in_flight = stats(result.out)
    verdict = "ok"
    if result.rc != 0:
        lines = [l for l in (result.out + result.err).splitlines() if l]
        verdict = f"FAIL: {ending(result)}: " + (" / ".join(lines[:2]) or "no output")
    elif must_be_in_flight and in_flight == 0:
        verdict = "FAIL: no block ever came back with work in flight"
    suite.row(name, "", base.seconds(result.seconds), "", verdict if verdict != "ok" else
              f"ok: {reused} reused, {in_flight} of them with work in flight")


def runs(suite, program, seed):
    """One stream at a time, so that its order is enough, and then another. A process gives up after
    few such ends, hence many processes."""
    failed, reused, in_flight, times = [], 0, 0, 0
    for i in range(4 if suite.quick else 16):
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            result = suite.run([program, "--rounds", "12", "--runs", "200", "--stats", "--seed",
                                str(seed + i)],
                               suite.shim_env(GPUCACHE_STATS="exit:" + file.name), timeout=60)
            back = stats(result.out)
            reused, in_flight = reused + back[0], in_flight + back[1]
            times += sum(int(n) for n in re.findall(r'"num_single_streams": *(\d+)',
                                                    open(file.name).read()))
        if result.rc != 0:
            failed.append(f"seed {seed + i}: {ending(result)}: "
                          f"{(result.out + result.err).strip()[:150]}")
    verdict = f"FAIL: {failed[0]}" if failed else \
        "FAIL: one stream was never found to be enough again" if not times else \
        f"ok: {times} times one stream again; {reused} reused, {in_flight} of them with work " \
        "in flight"
    suite.row("one stream at a time", verdict=verdict)


def must_bite(suite, name, result):
    if result.rc == 1:
        count = re.search(r"(\d+) overwritten, (\d+) seen early", result.out)
        suite.row(name, verdict=f"ok: bites ({count[1]} overwritten, {count[2]} seen early)")
    else:
        suite.row(name, verdict=f"FAIL: the canary does not bite ({ending(result)})")


def by_hand(suite, source, name):
    """A program that reuses memory under work in flight; by hand, without a free, it must lose
    words."""
    if suite.simulate or not suite.nvcc:
        suite.row(name, verdict="skip: needs a real GPU and nvcc")
        return
    program = suite.compile_cuda(source)
    results = [suite.run([program], suite.bare_env), suite.run([program], suite.shim_env()),
               suite.run([program, "--by-hand"], suite.bare_env)]
    if results[0].rc == 77:
        suite.row(name, verdict="skip: the GPU has none")
        return
    suite.row(name, base.seconds(results[0].seconds), base.seconds(results[1].seconds), "",
              "ok" if not results[0].rc and not results[1].rc else
              f"FAIL: bare exit {results[0].rc}, shim exit {results[1].rc}: "
              f"{results[1].out.strip()}")
    suite.row(f"{name} by hand", verdict="ok: bites" if results[2].rc == 1 else
              f"FAIL: they lose no word (exit {results[2].rc})")


def canary(suite):
    by_hand(suite, "early", "early launches")
    by_hand(suite, "late", "addresses told to running kernels")
    program = suite.small("canary")
    seed = random.SystemRandom().randrange(1, 1 << 31)
    rounds = 100 if suite.quick else 800
    common = ["--seed", str(seed)]
    few = ["--rounds", str(rounds // 2), *common]
    # Many threads with large blocks are what memory can take on a simulated GPU: seen to need 170 s
    # beside others.
    many = [*few, "--threads", "8", *(["--size", str(1 << 20)] if suite.simulate else [])]
    suite.log(f"  seed {seed}")

    bare = suite.run([program, "--rounds", str(rounds // 4), *common], timeout=180)
    suite.row("bare", base.seconds(bare.seconds), verdict="ok" if bare.rc == 0 else
              f"FAIL: {ending(bare)}: {(bare.out + bare.err).strip()[:200]}")
    # Whether memory comes back with work in flight is the pool's choice, but where it has none.
    for name, arguments, must_be_in_flight, env in (
            ("one thread", ["--rounds", str(rounds), *common], False, {}),
            ("emptied before each round", [*few, "--empty"], False, {}),
            ("reuse=order", [*few, "--empty"], True, {"GPUCACHE_REUSE": "order"}),
            ("reuse=ready", [*few, "--empty"], False, {"GPUCACHE_REUSE": "ready"}),
            ("reuse=wait", [*few, "--empty"], False, {"GPUCACHE_REUSE": "wait"}),
            ("segment backing", [*few, "--empty"], True,
             {"GPUCACHE_BACKING": "segment", "GPUCACHE_REUSE": "order"}),
            ("little memory", few, False, {"GPUCACHE_MAX_RESERVED": "180M"}),
            ("synchronous free", few, False, {"GPUCACHE_SYNC_FREE": "1"}),
            ("legacy stream only", [*few, "--legacy-only"], True, {}),
            ("flushes meanwhile", [*few, "--flush"], False, {}),
            ("8 threads", many, False, {}),
            ("8 threads, reuse=order", many, False, {"GPUCACHE_REUSE": "order"}),
            ("8 threads, flushes meanwhile", [*many, "--flush"], False,
             {"GPUCACHE_REUSE": "order"}),
            # Captures of other threads forbid fences just when memory is short.
            ("8 threads, little memory", [*few, "--threads", "8", "--size", "65536"], False,
             {"GPUCACHE_MAX_RESERVED": "24M"})):
        run_shim(suite, name, program, arguments, must_be_in_flight, **env)

    runs(suite, program, seed)
    must_bite(suite, "pool without fences", suite.run(
        [program, "--rounds", str(rounds // 2), "--broken", *common], timeout=180))
