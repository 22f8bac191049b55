# SPDX-License-Identifier: BSD-2-Clause
"""Spack recipe: packages/libgpucache/package.py of a repository, for Spack 0.23 or newer.
scripts/package writes it to dist/ with the address, the version and the checksum of the sources.
After `spack load libgpucache` programs run under the library."""
# pylint: disable=import-error,unused-wildcard-import,wildcard-import
try:
    from spack_repo.builtin.build_systems.meson import MesonPackage
except ImportError:
    pass  # before Spack 1.0 it is one of the names of spack.package
from spack.package import *


class Libgpucache(MesonPackage):
    """Drop-in GPU memory pool for any CUDA program: no code changes, no rebuild."""

    homepage = "@HOMEPAGE@"
    url = "@HOMEPAGE@libgpucache-@VERSION@.tar.xz"

    license("BSD-2-Clause")

    version("@VERSION@", sha256="@SHA256@")

    depends_on("c", type="build")
    depends_on("meson@1.0:", type="build")
    depends_on("cuda@12.5:", type="build")
    depends_on("python@3.8:", type=("build", "run"))

    def meson_args(self):
        return ["-Dtests=false", "-Db_ndebug=true", f"-Dtoolkit={self.spec['cuda'].prefix}"]

    def setup_run_environment(self, env):
        env.prepend_path("LD_PRELOAD", join_path(self.prefix.lib, "libgpucache.so"))
