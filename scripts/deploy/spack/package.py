# SPDX-License-Identifier: BSD-2-Clause
"""Spack recipe: packages/libgpucache/package.py of a repository. After `spack load libgpucache`
programs run under the library."""
from spack.package import *  # pylint: disable=import-error,unused-wildcard-import,wildcard-import


class Libgpucache(MesonPackage):
    """Drop-in GPU memory pool for any CUDA program: no code changes, no rebuild."""

    git = "https://libgpucache.invalid/libgpucache.git"

    license("BSD-2-Clause")

    version("0.1.0", tag="v0.1.0")

    depends_on("c", type="build")
    depends_on("meson@1.0:", type="build")
    depends_on("cuda@12.5:", type="build")
    depends_on("python@3.8:", type=("build", "run"))

    def meson_args(self):
        return ["-Dtests=false", "-Db_ndebug=true", f"-Dtoolkit={self.spec['cuda'].prefix}"]

    def setup_run_environment(self, env):
        env.prepend_path("LD_PRELOAD", join_path(self.prefix.lib, "libgpucache.so"))
