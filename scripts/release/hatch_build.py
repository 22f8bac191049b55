# SPDX-License-Identifier: BSD-2-Clause
"""What goes into the wheel. scripts/package names a folder with the library for the machine that it
builds for. Without it, as in `pip install .`, the library is built here, for this machine."""
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Hook(BuildHookInterface):
    def initialize(self, version, build_data):
        self.scratch = tempfile.mkdtemp()
        stage = pathlib.Path(os.environ.get("GPUCACHE_STAGE") or self.build())
        build_data["pure_python"] = False
        build_data["tag"] = os.environ.get("GPUCACHE_TAG") or self.tag()
        include = build_data["shared_data"] = {}
        for path in sorted((stage / "share").rglob("*")):
            if path.is_file():
                include[str(path)] = str(path.relative_to(stage))
        for path in sorted((stage / "gpucache").rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                build_data["force_include"][str(path)] = str(path.relative_to(stage))

    def finalize(self, version, build_data, artifact_path):
        shutil.rmtree(self.scratch, ignore_errors=True)

    @staticmethod
    def tag():
        return "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")

    def build(self):
        """As meson installs it, then as scripts/release/wheel.py lays it out."""
        sys.path.insert(0, str(pathlib.Path(self.root) / "scripts"))
        from release import wheel
        build, stage = (pathlib.Path(self.scratch, name) for name in ("build", "stage"))
        for command in (["meson", "setup", build, self.root, "--buildtype=release",
                         "-Dtests=false", "-Dprefix=/usr", "-Dlibdir=lib"],
                        ["meson", "install", "-C", build, "--destdir", stage]):
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True)
            if done.returncode:
                sys.exit(f"{done.stdout}this failed: {' '.join(map(str, command))}")
        shutil.move(stage / "usr" / "share", stage / "share")
        wheel.unpack_tool(stage / "usr" / "bin" / "gpucache", stage)
        shutil.copyfile(stage / "usr" / "lib" / "libgpucache.so",
                        stage / "gpucache" / "libgpucache.so")
        shutil.copy(stage / "usr" / "libexec" / "gpucache-replay", stage / "gpucache")
        return stage
