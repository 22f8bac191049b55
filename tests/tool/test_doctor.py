# SPDX-License-Identifier: BSD-2-Clause
"""What doctor says of a machine and of a process, with and without a GPU, and its warnings."""
import os
import struct
import subprocess
import sys
import types
import unittest
import unittest.mock

from fake import TOOL, map_page, put_text, pythons, tool, well
from test_page import Case

from gpucache import doctor, fault, host, process, tables

# Nothing of the machine that runs the test.
PLAIN = {"library": "/lib/libcuda.so.1", "version": "580.159.04", "cuda": 13000}
FACTS = ("library", "loader", "tool", "system", "container", "driver", "GPU", "MPS", "preloads",
         "options", "packages", "pages")


class Told(Case):
    """doctor in this process; the machine's answers are those of a test."""

    def setUp(self):
        super().setUp()
        mine = doctor.library.path()
        for name, value in (("driver", PLAIN), ("gpus", []), ("mps", ""), ("preloads", []),
                            ("container", []), ("preloaded", (mine, "")), ("c_library", "glibc 2"),
                            ("is_wsl", False)):
            self.answer(name, value)
        self.begin(unittest.mock.patch.dict(sys.modules, {
            module: types.ModuleType(module) for module in doctor.NEEDED}))

    def begin(self, patch):
        patch.start()
        self.addCleanup(patch.stop)

    def answer(self, name, value):
        self.begin(unittest.mock.patch.object(host, name, lambda *_: value))

    def told(self, *words, **env):
        done = well("doctor", "--json", *words, **env)
        return {row["name"]: row["text"] for row in done.json["facts"]}, \
            {row["what"]: row["remedy"] for row in done.json["warnings"]}

    def warned(self, what, *words, **env):
        """The only warning is this one; it has a remedy."""
        warnings = self.told(*words, **env)[1]
        self.assertEqual(list(warnings), [what])
        self.assertTrue(warnings[what])

    def test_a_machine_in_order_has_no_warnings(self):
        facts, warnings = self.told()
        self.assertEqual((sorted(facts), warnings), (sorted(FACTS), {}))
        self.assertIn("580.159.04, CUDA 13.0, /lib/libcuda.so.1", facts["driver"])
        self.assertTrue(tool("doctor").out.endswith("\nnothing to warn of\n"))

    def test_a_gpu_with_parts_and_one_that_takes_no_work(self):
        rows = (("0", "NVIDIA H200", "143771 MiB", "9.0", "Enabled", "Default"),
                ("1", "NVIDIA T4", "15360 MiB", "7.5", "[N/A]", "Prohibited"))
        self.answer("gpus", [dict(zip(host.GPU_FIELDS, row)) for row in rows])
        facts, warnings = self.told()
        self.assertEqual(facts["GPU 0"], "NVIDIA H200, 140 GiB, compute 9.0, MIG on")
        self.assertEqual(facts["GPU 1"], "NVIDIA T4, 15 GiB, compute 7.5, compute mode Prohibited")
        self.assertEqual(list(warnings), ["GPU 1 takes no compute work (compute mode Prohibited)"])
        self.answer("gpus", [{"index": "0", "name": "NVIDIA GB10", "memory.total": "[N/A]"}])
        self.assertEqual(self.told()[0]["GPU 0"], "NVIDIA GB10")

    def test_a_loader_that_finds_the_full_name_alone_or_another_file(self):
        mine = doctor.library.path()
        host.preloaded = lambda name: ("", "") if name != mine else (mine, "")
        facts, warnings = self.told()
        self.assertIn("finds it by its full name alone: LD_PRELOAD=" + mine, facts["loader"])
        self.assertEqual(warnings, {})
        host.preloads = lambda: ["libgpucache.so"]
        self.warned("the loader does not find libgpucache.so by its bare name")
        host.preloads = lambda: []
        host.preloaded = lambda name: ("", "ERROR: ld.so: wrong ELF class")
        self.warned(f"the loader does not load {mine}: ERROR: ld.so: wrong ELF class")
        host.preloaded = lambda _: ("/opt/old/libgpucache.so", "")
        self.warned("the loader finds another library by the name libgpucache.so: "
                    "/opt/old/libgpucache.so")

    def test_packages_that_verbs_need(self):
        sys.modules["rich"] = None
        what = "gpucache top does not work: the Python package rich is missing"
        self.warned(what)
        self.assertEqual(self.told()[1][what], fault.remedy("rich"))

    def test_packages_of_a_tool_that_scripts_install_put_there(self):
        """It brings them, unless it had no network."""
        sys.modules["rich"] = sys.modules["argcomplete"] = None
        with unittest.mock.patch.object(doctor.place, "LIBRARY", doctor.library.path()):
            remedies = set(self.told()[1].values())
        self.assertEqual(remedies, {f"scripts/install again; or {fault.remedy(module)}"
                                    for module in ("rich", "argcomplete")})

    def test_what_is_not_in_order(self):
        for name, value, what in (
                ("driver", {"library": "", "version": "", "cuda": 0},
                 "the loader finds no libcuda.so.1"),
                ("driver", {**PLAIN, "cuda": 11080}, "the driver is older than CUDA 12"),
                ("preloads", ["/none/libx.so"],
                 "/none/libx.so is preloaded and is not there: each program says so"),
                ("preloads", ["libgpucache.so", "libasan.so.8"],
                 "libasan.so.8 stands behind libgpucache.so"),
                ("preloads", ["libvgpu.so", "libgpucache.so"],
                 "libvgpu.so hooks allocations as well: not tried together"),
                ("is_wsl", True, "this is WSL, where the library was not tried"),
                ("c_library", "musl", "the C library is musl, for which there is no driver for "
                 "CUDA: the library loads and does nothing")):
            with unittest.mock.patch.object(host, name, lambda *_, value=value: value):
                self.warned(what)
        for name, value, what in (
                ("GPUCACHE_MAX_IDEL", "1G", "GPUCACHE_MAX_IDEL: there is no option "
                 "GPUCACHE_MAX_IDEL; the nearest is MAX_IDLE"),
                ("GPUCACHE", "off", "GPUCACHE turns the library off"),
                ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync",
                 "PyTorch is set to cudaMallocAsync, which bypasses the pool")):
            self.warned(what, **{name: value})

    def test_folders_of_pages_that_the_library_would_refuse(self):
        self.page()
        self.assertEqual(self.told()[0]["pages"], f"{self.folder} (mode 0700, 1 page)")
        os.chmod(self.folder, 0o777)
        self.warned(f"{self.folder} is no folder of this user's own with mode 0700: the library "
                    "makes no page there")
        self.warned("GPUCACHE_DIR=none: ps, stat and set do not see what is started here, and it "
                    "lends no memory", GPUCACHE_DIR="none")
        self.warned("nobody can make a file in /proc/none: ps does not see what is started here",
                    GPUCACHE_DIR="/proc/none/pages")

    def test_words_of_others_do_no_harm(self):
        self.answer("preloads", ["/none/\033[2J\udcff"])
        self.assertNotIn("\033", tool("doctor").out)
        self.assertIn("/none/?[2J?", tool("doctor").out)

    def test_lines_are_no_wider_than_a_report(self):
        self.answer("preloads", [f"/none/lib{n}.so" for n in range(40)])
        out = tool("doctor").out.splitlines()
        self.assertLessEqual(max(map(len, out)), 100)


class OfProcess(Told):
    def test_a_process_without_the_library_with_its_packages(self):
        sites = os.path.join(self.folder, "site-packages")
        os.makedirs(os.path.join(sites, "torch", "lib"))
        os.makedirs(os.path.join(sites, "torch-2.11.0+cu130.dist-info"))
        os.makedirs(os.path.join(sites, "requests-2.0.dist-info"))
        path = os.path.join(sites, "torch", "lib", "libc10_cuda.so")
        put_text(path, "\0" * 4096)
        sleeper, _ = self.sleeper(GPUCACHE_LOG="loud")
        map_page(sleeper, types.SimpleNamespace(path=path))
        facts, warnings = self.told(sleeper.pid)
        self.assertEqual(facts["packages"], "torch 2.11.0+cu130")
        self.assertEqual(facts["mapped"], path)
        self.assertIn(f"{sleeper.pid} {sys.executable} -c", facts["process"])
        self.assertIn("it runs without libgpucache", warnings)
        self.assertTrue(any(w.startswith("GPUCACHE_LOG: ") for w in warnings), warnings)

    def test_a_process_under_the_library(self):
        self.page()
        patch = unittest.mock.patch.object(process, "has_library", lambda _: True)
        with patch:
            facts, warnings = self.told(os.getpid())
            self.assertEqual(facts["state"], f"library {tables.VERSION}, 1 GPU(s), job -")
            self.assertEqual(warnings, {})
        with patch, unittest.mock.patch.object(tables, "VERSION", "9.9"):
            self.warned(f"its library has version {tables.VERSION.replace('9.9', '0.1.0')}, the "
                        "tool has 9.9", os.getpid())

    def test_a_process_that_is_not_there(self):
        self.says(tool("doctor", 4194303), 1, "PID 4194303: no such process")

    def test_programs_into_which_nothing_is_preloaded(self):
        path = os.path.join(self.folder, "program")

        def why(bits, *kinds):
            head = b"\x7fELF" + bytes([bits]) + bytes(27) + struct.pack("<Q", 64) + bytes(14) + \
                struct.pack("<HH", 56, len(kinds)) + bytes(6)
            with open(path, "wb") as file:
                file.write(head + b"".join(struct.pack("<I", kind) + bytes(52) for kind in kinds))
            return doctor.elf_fault(path)
        self.assertEqual([why(1), why(2, 6, 1, 1), why(2, 6, 3, 1)],
                         ["it is a program of 32 bits", "it is a static program", ""])
        self.assertEqual(doctor.elf_fault(f"/proc/{os.getpid()}/exe"), "")


class Machine(Case):
    """What the machine itself says."""

    def test_of_nvidia_smi_and_without_it(self):
        program = os.path.join(self.folder, "nvidia-smi")
        put_text(program, "#!/bin/sh\necho '0, NVIDIA L4, 23034 MiB, 8.9, [N/A], Default'\n", 0o755)
        with unittest.mock.patch.dict(os.environ, {"PATH": self.folder + ":" + os.environ["PATH"]}):
            self.assertEqual(host.gpus()[0]["compute_cap"], "8.9")
            os.unlink(program)
            info = os.path.join(self.folder, "gpus", "0000:01:00.0")
            os.makedirs(info)
            put_text(info + "/information", "Model: \t\t NVIDIA L4\nIRQ: 7\n")
            with unittest.mock.patch.object(host, "GPU_FILES", self.folder + "/gpus"), \
                    unittest.mock.patch.dict(os.environ, {"PATH": self.folder}):
                self.assertEqual(host.gpus(), [{"index": "0", "name": "NVIDIA L4"}])

    def test_of_a_name_that_the_loader_does_not_find(self):
        path, words = host.preloaded("libgpucache-none.so")
        self.assertEqual(path, "")
        if "glibc" in host.c_library():
            self.assertIn("cannot be preloaded", words)

    def test_of_a_program_that_hangs(self):
        with unittest.mock.patch.object(host, "PATIENCE_S", 0.2):
            self.assertEqual(host.said(["sleep", "60"]), ("", ""))
        self.assertEqual(host.said(["/none/program"]), ("", ""))

    def test_of_the_service_and_the_file_of_preloads(self):
        with unittest.mock.patch.dict(os.environ, {"CUDA_MPS_PIPE_DIRECTORY": self.folder}):
            self.assertEqual(host.mps(), "")
            put_text(self.folder + "/control")
            self.assertEqual(host.mps(), self.folder)
        put_text(self.folder + "/preload", "# a word\n/b.so /c.so\n")
        with unittest.mock.patch.object(host, "PRELOAD_FILE", self.folder + "/preload"), \
                unittest.mock.patch.dict(os.environ, {"LD_PRELOAD": "/a.so"}):
            self.assertEqual(host.preloads(), ["/a.so", "/b.so", "/c.so"])


class Anywhere(Case):
    def test_each_python_without_a_terminal_a_home_or_letters(self):
        for python in pythons():
            done = subprocess.run([python, TOOL, "doctor"], stdin=subprocess.DEVNULL, timeout=60,
                                  capture_output=True, check=False,
                                  env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "PYTHONUTF8": "0",
                                       "PYTHONCOERCECLOCALE": "0",
                                       "CUDA_VISIBLE_DEVICES": "\u00fc"})
            self.assertEqual((done.returncode, done.stderr), (0, b""), python)
            self.assertTrue(done.stdout.isascii())
            lines = done.stdout.decode().splitlines()
            names = {line[:doctor.NAMES].split(" ")[0] for line in lines}
            self.assertLessEqual(set(FACTS) - {"GPU"}, names)
