# SPDX-License-Identifier: BSD-2-Clause
"""The small programs of tests/preload and tests/misuse, and one made by nvcc. On the real driver
they have the same output and exit status bare and under the shim."""
import dataclasses
import json
import os
import re
import shlex
import signal
import subprocess
import threading
import time

import suite as base

# Programs that fill the device or look at how full it is see their neighbours.
ALONE = re.compile("oom|capacity|leak|mem_?info|flush|observe|hostile|reset|primary|contexts|"
                   "timing|does_not_wake")


def nvcc(suite):
    """A program as users have it. Without nvcc the C compiler stands in for it."""
    arguments = ["--steps", "100" if suite.quick else "400"]
    if suite.simulate:
        arguments = ["--steps", "10", "--words", "4096"]
    programs = []
    if suite.nvcc:
        source, out = os.path.join(base.HERE, "demo.c"), os.path.join(suite.build, "demo")
        rpath = ["-Xlinker", "-rpath", "-Xlinker", suite.cudart_dir()]
        for name, flags in (("static cudart", ["-cudart", "static"]),
                            ("shared cudart", ["-cudart", "shared", *rpath]),
                            ("per-thread stream", ["-cudart", "static", "--default-stream",
                                                   "per-thread"])):
            path = f"{out}-{name.split()[0]}"
            suite.must([suite.nvcc, "-O2", "-x", "cu", "-I", base.ROOT, "-o", path, source, *flags],
                       f"nvcc, {name}")
            programs.append((f"nvcc, {name}", path))
    else:
        suite.row("nvcc", verdict="skip: no nvcc; the C compiler builds the program instead")
    programs.append(("cc, static cudart", suite.compile("demo-cc", ["demo.c"], static_cudart=True)))
    for name, path in programs:
        results = []
        for kind, env in (("bare", suite.bare_env), ("shim", suite.shim_env())):
            file = f"{path}.{kind}"
            result = suite.run([path, *arguments, "--figures", file], env)
            taken = base.numbers(file)
            if "ns" in taken:
                result.seconds = taken["ns"] / 1e9
            results.append(result)
        row = suite.compare(name, *results)
        if row.verdict == "ok":
            row.verdict = f"ok: {results[0].out.strip()}"
        signalled(suite, f"{name}, signalled", path, arguments, results[0])


def signalled(suite, name, path, arguments, bare):
    """The same under the shim with flushes all along."""
    process = subprocess.Popen([path, *arguments], env=suite.shim_env(), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    sent = 0

    def catches():
        """Whether SIGUSR1 has a handler: before the pool starts it would end the process."""
        try:
            with open(f"/proc/{process.pid}/status") as status:
                mask = next(int(l.split()[1], 16) for l in status if l.startswith("SigCgt"))
            return mask >> (signal.SIGUSR1 - 1) & 1
        except (OSError, StopIteration):
            return False

    def send():
        nonlocal sent
        while process.poll() is None:
            if catches():
                process.send_signal(signal.SIGUSR1)
                sent += 1
            time.sleep(0.02)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        out, err = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    sender.join()
    if process.returncode != bare.rc or out != bare.out:
        verdict = (f"FAIL: exit {process.returncode}, {base.first_difference(bare.out, out)} "
                   f"{err[-200:]}")
    elif sent == 0:
        verdict = "FAIL: no SIGUSR1 handler was ever installed"
    else:
        verdict = f"ok: {sent} times SIGUSR1"
    suite.row(name, verdict=verdict)


class Relinker:
    """Links the project's test programs again, against the machine's own libcuda and libcudart in
    place of the simulated ones. The rest of the link command stays."""

    def __init__(self, suite, tree, programs, out="real"):
        """Builds what the programs need. On the simulated driver all of it is there."""
        self.suite, self.tree = suite, tree
        self.out = os.path.join(suite.build, out)
        self.made = {}
        os.makedirs(self.out, exist_ok=True)
        targets = json.loads(suite.must(["meson", "introspect", "--targets", tree],
                                        "meson introspect"))
        self.targets = {path: os.path.relpath(path, tree)
                        for target in targets for path in target["filename"]}
        if not suite.simulate:
            paths = {self.path_of(word) for p in programs for word in p.command}
            suite.must(["ninja", "-C", tree, *sorted(self.targets[path] for path in paths
                                                     if path in self.targets)], "the build")

    def path_of(self, word):
        return os.path.normpath(os.path.join(self.tree, word))

    def command(self, words):
        """The same command of what was linked again; on the simulated driver, of what was built."""
        paths = [self.path_of(word) for word in words]
        return [word if path not in self.targets else path if self.suite.simulate
                else self.link(self.targets[path]) for word, path in zip(words, paths)]

    def replace(self, word):
        """The real library for a simulated one, None to leave the word out."""
        name = os.path.basename(word)
        if word.startswith("-Wl,-rpath"):
            return None
        if name.startswith("libcuda.so"):
            return self.suite.libcuda
        if name == "libcudart_static.a":
            return os.path.join(self.suite.cudart_dir(), name)
        if re.fullmatch(r"libcudart\.so(\.\d+)*", name):
            return self.suite.shared_cudart()
        return word

    def runtime_folders(self):
        """Where the program that was just linked finds its runtime."""
        return [self.suite.cudart_dir()]

    def link(self, target):
        """The program (or plugin) `target`, relative to the tree, linked again; its new path."""
        if target in self.made:
            return self.made[target]
        lines = self.suite.must(["ninja", "-C", self.tree, "-t", "commands", target],
                                "ninja").splitlines()
        command = next(l for l in reversed(lines) if re.search(r"-o " + re.escape(target) +
                                                               r"(\s|$)", l))
        words = [self.replace(w) for w in shlex.split(command)]
        words = [w for w in words if w is not None]
        new = os.path.join(self.out, target.replace("/", "_"))
        words[words.index("-o") + 1] = new
        if any(w.endswith("libcudart_static.a") for w in words):
            words += ["-lpthread", "-ldl", "-lrt"]
        words.append("-Wl,-rpath," + ":".join([*self.runtime_folders(),
                                               os.path.dirname(self.suite.libcuda)]))
        self.suite.must(words, f"linking {target}", cwd=self.tree)
        self.made[target] = new
        return new


# Before the project's own list of tests: what is not there for the suite has no need of these.
ABSENT = """foreach absent : ['cmocka', 'liblzma']
  meson.override_dependency(absent, declare_dependency())
endforeach
"""


def scenes_tree(suite):
    """Configures the small programs in a tree of links to the sources: the project with those of
    its tests alone that are wanted here. Returns the build folder."""
    source = os.path.join(suite.build, "scenes-source")
    os.makedirs(os.path.join(source, "tests"), exist_ok=True)
    links = [(os.path.join(base.ROOT, name), os.path.join(source, name))
             for name in ("pool", "shim", "scripts", "meson.build", "meson_options.txt",
                          "README.md")]
    links += [(os.path.join(base.ROOT, "tests", name), os.path.join(source, "tests", name))
              for name in ("sim", "preload", "misuse")]
    for target, link in links:
        if not os.path.islink(link):
            os.symlink(target, link)
    with open(os.path.join(base.ROOT, "tests", "meson.build"), encoding="utf-8") as file:
        tests = file.read()
    with open(os.path.join(source, "tests", "meson.build"), "w", encoding="utf-8") as file:
        file.write(ABSENT + tests)
    tree = os.path.join(suite.build, "scenes")
    if not os.path.exists(os.path.join(tree, "build.ninja")):
        suite.must(["meson", "setup", tree, source, "-Dtests=true", "--buildtype=release"],
                   "meson setup")
    return tree


def programs(suite):
    tree = suite.simulate or scenes_tree(suite)
    tests = json.loads(suite.must(["meson", "introspect", "--tests", tree], "meson introspect"))
    first = len(suite.rows)
    # Made-up lives are many processes one after the other, each with contexts to make: only if
    # asked for.
    chosen = {"preload", "misuse"} | ({"preload-lives"} if suite.match.pattern else set())
    pairs = [p for t in tests if chosen & suites_of(t) or "--needs" in t["cmd"]
             for p in program_of(t, suite)]
    if not pairs:
        raise base.Skip("the build has no preload or misuse programs of that name")
    linker = Relinker(suite, tree, pairs)
    found = [dataclasses.replace(p, command=linker.command(p.command)) for p in pairs]
    suite.log(f"  {len(found)} programs")
    suite.run_pairs(found, jobs=max(2, min(12, (os.cpu_count() or 2) // 2)))
    fold(suite, first)


def fold(suite, first):
    """One row for all programs that are equal, one for those that skip for the same reason."""
    rows, same = suite.rows[first:], {}
    suite.rows[first:] = [row for row in rows if not row.verdict.startswith(("ok", "skip"))]
    for row in rows:
        if row.verdict.startswith(("ok", "skip")):
            same.setdefault(row.verdict, []).append(row.name)
    for verdict, names in same.items():
        text = f"{len(names)} programs" if len(names) > 3 else ", ".join(names)
        suite.row(text, verdict=verdict)


def suites_of(test):
    return {name.split(":")[-1] for name in test["suite"]}


def library_of(name, suite):
    """A library that is preloaded beside the shim: the one in the folder that TEST_LIBRARIES names,
    or the machine's. None: there is none, which a row says."""
    carried = os.path.join(os.environ.get("TEST_LIBRARIES", ""), name)
    path = os.path.abspath(carried) if os.path.exists(carried) else name
    done = suite.run(["true"], dict(suite.bare_env, LD_PRELOAD=path))
    return None if "cannot be preloaded" in done.err else path


def acts_of(name):
    """The acts of a scene (tests/preload/scene.h), by its test's name; most scenes have none."""
    path = os.path.join(base.ROOT, "tests", "preload", name.split("-")[0] + ".c")
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return re.findall(r"\bACT\((\w+)\)", file.read())


def program_of(test, suite):
    """What a test that runs one program bare and preloaded runs, as a list; empty for other tests.
    The program and its arguments follow "--" on the runner's command line. On a real GPU, tests
    that only simulate in another way are left out. Each act is a program of its own, because the
    driver may not survive one of them bare."""
    words = test["cmd"]
    if "run_pair.py" not in [os.path.basename(w) for w in words] or "--" not in words or \
            not suite.match.search(test["name"]):
        return []
    split = words.index("--")
    env, preloaded = suite.library_path(suite.bare_env), {"--before": [], "--beside": []}
    for option, value in zip(words[:split], words[1:split]):
        name, _, text = value.partition("=")
        if option in ("--env", "--preload-env") or option == "--sim-env" and suite.simulate:
            if name.startswith("SIM_") and not suite.simulate:
                return []
            env[name] = text
        elif option in preloaded:
            library = library_of(value, suite)
            if not library:
                suite.row(test["name"], verdict=f"skip: no {value}, nor in the folder that "
                                                f"TEST_LIBRARIES names")
                return []
            preloaded[option].append(library)
    alone = "lonely" in suites_of(test) or bool(ALONE.search(test["name"]))
    command = words[split + 1:]
    acts = acts_of(test["name"]) if len(command) == 1 and not suite.simulate else []
    around = tuple(preloaded["--before"]), tuple(preloaded["--beside"])
    if not acts:
        return [base.Program(test["name"], command, env, alone, *around)]
    return [base.Program(f"{test['name']} {act}", [*command, act], env,
                         alone or bool(ALONE.search(act)), *around) for act in acts]
