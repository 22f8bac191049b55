# SPDX-License-Identifier: BSD-2-Clause
"""The canary: sound bare and under the shim, and able to fail."""
import random
import re

import suite as base

SOURCES = ["canary.c", "canary_round.c", "canary_pool.c", "driver.c"]
FLAGS = ["-Wno-overlength-strings"]


def stats(text):
    found = re.search(r"(\d+) addresses came back, (\d+) with the old work in flight", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def run_shim(suite, name, program, arguments, want_in_flight=True, **env):
    """One run under the shim. It proves nothing if memory never came back while work was in flight."""
    result = suite.run([program, *arguments, "--stats"], suite.shim_env(**env), timeout=180)
    reused, in_flight = stats(result.out)
    verdict = "ok"
    if result.rc != 0:
        lines = [l for l in (result.out + result.err).splitlines() if l]
        verdict = f"FAIL: exit {result.rc}: " + (" / ".join(lines[:2]) or "no output")
    elif want_in_flight and in_flight == 0:
        verdict = "FAIL: no block ever came back with work in flight"
    suite.row(name, "", base.seconds(result.seconds), "", verdict if verdict != "ok" else
              f"ok: {reused} reused, {in_flight} of them with work in flight")


def must_bite(suite, name, result):
    if result.rc == 1:
        count = re.search(r"(\d+) overwritten, (\d+) seen early", result.out)
        suite.row(name, verdict=f"ok: bites ({count[1]} overwritten, {count[2]} seen early)")
    else:
        suite.row(name, verdict=f"FAIL: the canary does not bite (exit {result.rc})")


def canary(suite):
    program = suite.compile("canary", SOURCES, *FLAGS)
    seed = random.SystemRandom().randrange(1, 1 << 31)
    rounds = 150 if suite.quick else 800
    common = ["--seed", str(seed)]
    suite.log(f"  seed {seed}")

    bare = suite.run([program, "--rounds", str(rounds // 4), *common], timeout=180)
    suite.row("bare", base.seconds(bare.seconds), verdict="ok" if bare.rc == 0 else
              f"FAIL: exit {bare.rc}: {(bare.out + bare.err).strip()[:200]}")
    run_shim(suite, "one thread", program, ["--rounds", str(rounds), *common])
    for reuse in ("order", "ready", "wait"):
        run_shim(suite, f"one thread, reuse={reuse}", program,
                 ["--rounds", str(rounds // 4), *common], reuse == "order", GPUCACHE_REUSE=reuse)
    run_shim(suite, "segment backing", program, ["--rounds", str(rounds // 4), *common], True,
             GPUCACHE_BACKING="segment")
    run_shim(suite, "legacy stream only", program, ["--rounds", str(rounds // 4), "--legacy-only", *common])
    run_shim(suite, "flushes meanwhile", program, ["--rounds", str(rounds // 2), "--flush", *common], False)
    run_shim(suite, "8 threads", program, ["--rounds", str(rounds // 4), "--threads", "8", *common])
    run_shim(suite, "8 threads, flushes meanwhile", program,
             ["--rounds", str(rounds // 4), "--threads", "8", "--flush", *common], False)

    must_bite(suite, "pool without fences", suite.run(
        [program, "--rounds", str(rounds // 4), "--broken", *common], timeout=180))
    with open(suite.lib, "rb") as library:
        switch = b"GPUCACHE_TEST_NO_FENCE" in library.read()
    if switch:
        must_bite(suite, "shim without fences", suite.run(
            [program, "--rounds", str(rounds // 4), *common], suite.shim_env(GPUCACHE_TEST_NO_FENCE="1"),
            timeout=180))
