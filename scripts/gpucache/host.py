# SPDX-License-Identifier: BSD-2-Clause
"""What this machine has that the library depends on: system, container, driver, GPUs, and what the
loader does with a preload. What is not there is "" or an empty list; nothing here raises. Where a
library has to be loaded for an answer, a process of its own loads it."""
import os
import platform
import re
import subprocess
import sys

PATIENCE_S = 20
DRIVER_FILE = "/proc/driver/nvidia/version"
GPU_FILES = "/proc/driver/nvidia/gpus"
KERNEL_FILE = "/proc/version"
PRELOAD_FILE = "/etc/ld.so.preload"
MPS_FOLDER = "/tmp/nvidia-mps"
CONTAINERS = (("/.dockerenv", "Docker"), ("/run/.containerenv", "Podman"),
              ("/.singularity.d", "Apptainer"))
GPU_FIELDS = ("index", "name", "memory.total", "compute_cap", "mig.mode.current", "compute_mode")
# Packages whose allocators meet the library, and what else hooks allocations.
PACKAGES = re.compile(r"(torch|cupy|cupy-cuda.*|numba|numba-cuda|rmm|rmm-cu.*|jax|jaxlib|tensorflow"
                      r"|vllm|sglang|onnxruntime-gpu|kvcached|torch-memory-saver|libgpucache)")
PRELOADED = """
import re
with open("/proc/self/maps") as maps:
    print("\\n".join(sorted(set(re.findall(r"/\\S*/libgpucache\\S*", maps.read())))))
"""
DRIVER = """
import ctypes, re
version = ctypes.c_int()
library = ctypes.CDLL("libcuda.so.1")
status = library.cuDriverGetVersion(ctypes.byref(version))
with open("/proc/self/maps") as maps:
    places = re.findall(r"/\\S*/libcuda\\.so\\S*", maps.read())
print(0 if status else version.value, places[0] if places else "")
"""


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def said(command, **env):
    """(stdout, stderr) of a command; of one that cannot run, or hangs, nothing."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=PATIENCE_S, check=False,
                              env={**os.environ, **env})
    except (OSError, ValueError, subprocess.SubprocessError):
        return "", ""
    return done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def system():
    """Debian GNU/Linux 12 (bookworm), Linux 6.1.0, x86_64."""
    name = re.search(r'^PRETTY_NAME="?([^"\n]*)', read("/etc/os-release"), re.MULTILINE)
    return f"{name[1] if name else 'Linux'}, kernel {platform.release()}, {platform.machine()}"


def c_library():
    """glibc 2.36, or musl, or ""."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return "musl" if "musl" in said(["ldd", "--version"])[1].lower() else ""


def container():
    """Names of what the tool runs in."""
    found = [name for path, name in CONTAINERS if os.path.exists(path)]
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        found.append("Kubernetes")
    if os.environ.get("SLURM_JOB_ID"):
        found.append(f"Slurm job {os.environ['SLURM_JOB_ID']}")
    return found


def is_wsl():
    return "microsoft" in read(KERNEL_FILE).lower()


def driver_version():
    """"580.159.04"; "": not known."""
    version = re.search(r"\b([0-9]{3,}\.[0-9.]+)\b", read(DRIVER_FILE))
    return version[1] if version else ""


def driver():
    """{"version": "580.159.04", "cuda": 13000, "library": file name}; "" and 0: not known."""
    words = said([sys.executable, "-I", "-c", DRIVER], LD_PRELOAD="")[0].split()
    cuda = int(words[0]) if words and words[0].isdecimal() else 0
    return {"version": driver_version(), "cuda": cuda,
            "library": words[1] if len(words) > 1 else ""}


def gpus():
    """A dictionary of GPU_FIELDS for each GPU. Without nvidia-smi only the name is known."""
    out = said(["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader"],
               LD_PRELOAD="")[0]
    rows = [[cell.strip() for cell in line.split(",")] for line in out.splitlines()]
    found = [dict(zip(GPU_FIELDS, row)) for row in rows if len(row) == len(GPU_FIELDS)]
    if found:
        return found
    try:
        names = sorted(os.listdir(GPU_FILES))
    except OSError:
        names = []
    for number, name in enumerate(names):
        model = re.search(r"^Model:\s*(.*)", read(f"{GPU_FILES}/{name}/information"), re.MULTILINE)
        found.append({"index": str(number), "name": model[1].strip() if model else name})
    return found


def mps():
    """The folder of a multi-process service that programs started here would use, or ""."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or MPS_FOLDER
    return folder if os.path.exists(os.path.join(folder, "control")) else ""


def preloads():
    """What the loader puts in front of every program that is started from here."""
    words = [*re.split(r"[:\s]+", os.environ.get("LD_PRELOAD", "")),
             *re.sub(r"#.*", "", read(PRELOAD_FILE)).split()]
    return [word for word in words if word]


def preloaded(name):
    """(file that the loader takes for this name or "", what it says)."""
    out, err = said([sys.executable, "-I", "-c", PRELOADED], LD_PRELOAD=name, GPUCACHE="0")
    line = next((line for line in err.splitlines() if "ld.so" in line), "")
    return out.strip().split("\n")[0], line.strip()


def packages(folders):
    """Name -> version of the Python packages in these folders that matter here."""
    found = {}
    for folder in folders:
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for name in names:
            match = re.fullmatch(r"(.+)-([^-]+)\.dist-info", name)
            plain = match[1].lower().replace("_", "-") if match else ""
            if PACKAGES.fullmatch(plain):
                found.setdefault(plain, match[2])
    return found
