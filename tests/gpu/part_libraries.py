# SPDX-License-Identifier: BSD-2-Clause
"""Programs on NVIDIA's libraries, in C and C++: the same results bare and under the shim, and
how many allocations the pool served. They run side by side, so their times are no measurement."""
import glob
import os
import shutil
import sys

import part_frameworks as frameworks
import suite as base

# Name, and the fewest device allocations that the program makes by itself: several in each round.
NVCC = {"thrust": 160, "cub": 160}
C = {"cublas": 200, "cufft": 80, "cusolver": 190, "cusparse": 320, "nccl": 80}


def packages(suite):
    """Folders of Python packages that bring libraries along."""
    python = shutil.which("python3") or sys.executable
    found = suite.run([python, "-c", "import nvidia; print(*nvidia.__path__, sep='\\n')"])
    return [folder for path in found.out.split("\n") if path
            for folder in sorted(glob.glob(os.path.join(path, "*")))]


def locate(suite, name, header):
    """The shared library and the folder of its header: beside the runtime, or a Python
    package's."""
    include = os.path.join(suite.cuda, "include")
    places = [(suite.cudart_dir(), include), ("/usr/lib/x86_64-linux-gnu", "/usr/include"),
              ("/usr/lib/aarch64-linux-gnu", "/usr/include")]
    places += [(os.path.join(folder, "lib"), os.path.join(folder, "include"))
               for folder in packages(suite)]
    for folder, headers in places:
        libraries = sorted(glob.glob(os.path.join(folder, f"lib{name}.so*")), key=len)
        if libraries and os.path.exists(os.path.join(headers, header)):
            return libraries[0], headers
    raise base.Skip(f"no lib{name}.so with {header}")


def build_c(suite, name):
    header = {"cublas": "cublas_v2.h", "cusolver": "cusolverDn.h"}.get(name, f"{name}.h")
    path, headers = locate(suite, name, header)
    return suite.compile(f"lib_{name}", [f"lib_{name}.c"], path,
                         f"-Wl,-rpath,{os.path.dirname(path)}", "-isystem",
                         headers, "-Wl,--allow-shlib-undefined", "-lm", shared_cudart=True)


def build_nvcc(suite, name):
    return suite.compile_cuda(f"lib_{name}")


def one(suite, name, build, at_least):
    program = build(suite, name)
    # What NCCL may not use on every machine; others ignore it.
    env = {"NCCL_NVLS_ENABLE": os.environ.get("NCCL_NVLS_ENABLE", "0"), "NCCL_DEBUG": "WARN"}
    frameworks.compared(suite, name, f"lib-{name}", [program, "FIGURES"], env, at_least)
    if name == "nccl" and not suite.rows[-1].verdict.startswith("skip"):
        # Without VMM memory of its own NCCL shares cudaMalloc's by legacy IPC, or by peer access.
        frameworks.compared(suite, "nccl, cudaMalloc for itself", "lib-nccl-malloc",
                            [program, "FIGURES"], dict(env, NCCL_CUMEM_ENABLE="0"), at_least)


def libraries(suite):
    if suite.simulate:
        raise base.Skip("NVIDIA's libraries need a real GPU")
    frameworks.side_by_side(suite, {
        name: lambda n=name, b=build, a=least: one(suite, n, b, a)
        for build, names in ((build_nvcc, NVCC), (build_c, C)) for name, least in names.items()})
