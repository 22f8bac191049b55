# SPDX-License-Identifier: BSD-2-Clause
"""Fresh systems in a folder, made by debootstrap, in TMPDIR or /var/tmp. Their packages come from
the mirror that is named; else from DEBIAN_MIRROR or UBUNTU_MIRROR; else from where this system's
own do, if it is one of the same kind; else from the public archive. Needs root. Signatures are
checked where this system has the archive's keyring."""
import contextlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

SKIP = 77
# The kernel's table of emulators. Debian's packages call an entry qemu-MACHINE.
EMULATORS = pathlib.Path("/proc/sys/fs/binfmt_misc")
# What the stages `readme` and `systems` of scripts/test go through.
SUITES = ("bookworm", "trixie", "noble")
UBUNTU_SUITES = ("xenial", "bionic", "focal", "jammy", "noble")
PUBLIC = {"debian": "http://deb.debian.org/debian", "ubuntu": "http://archive.ubuntu.com/ubuntu"}
# Ubuntu has other machines than x86 apart.
PORTS = "http://ports.ubuntu.com/ubuntu-ports"
UBUNTU_SCRIPT = "/usr/share/debootstrap/scripts/gutsy"
# Of one command: ten times what the longest takes on a machine without other work.
PATIENCE_S = 3600
# What a machine's owner may have set for apt and pip, and the names of such variables.
SETTINGS = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf")
# Under a name of its own: packages of the new system write the usual one.
CERTIFICATES = "etc/own-certificates.crt"
VARIABLES = re.compile(r"PIP_.*|(https?|no)_proxy", re.IGNORECASE)
# The new system's own processes, /proc, terminals and shared memory, which end with the command.
# Its other devices are those that debootstrap made. Its / is a mount point: rpm 4.20 makes it
# private.
ENTER = """set -e
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc "$1/proc"
mkdir -p "$1/dev/pts" "$1/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 pts "$1/dev/pts"
ln -sf pts/ptmx "$1/dev/ptmx"
mount -t tmpfs -o mode=1777 shm "$1/dev/shm"
root=$1; shift
exec chroot "$root" "$@"
"""


def fail(text, status=1):
    print(f"{pathlib.Path(sys.argv[0]).name}: {text}", file=sys.stderr)
    sys.exit(status)


def emulated(arch):
    """Whether the kernel starts programs of that machine in every root folder. The flag F says that
    it has opened the emulator already, so the folder needs no copy."""
    try:
        entry = (EMULATORS / f"qemu-{arch}").read_text(encoding="ascii")
        lines = [(EMULATORS / "status").read_text(encoding="ascii").strip(), *entry.splitlines()]
    except OSError:
        return False
    return lines[:2] == ["enabled"] * 2 and re.search(r"^flags: \w*F", entry, re.MULTILINE)


def needed(arch=platform.machine()):
    """What makes systems of that machine is here."""
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        fail("needs root and debootstrap", SKIP)
    if arch != platform.machine() and not emulated(arch):
        fail(f"{EMULATORS} has no emulator for {arch} that works in other root folders (flag F). "
             "Please run, on Debian 12:\n"
             "    sudo apt-get install -y qemu-user-static binfmt-support\n"
             "and on Debian 13:\n"
             "    sudo apt-get install -y qemu-user-binfmt", SKIP)


def own_mirror(kind):
    """The first place of packages of a Debian or an Ubuntu that this system's apt knows."""
    for path in [pathlib.Path("/etc/apt/sources.list"),
                 *sorted(pathlib.Path("/etc/apt/sources.list.d").glob("*"))]:
        if path.suffix not in (".list", ".sources") or not path.is_file():
            continue
        found = re.search(rf"^(?:deb (?:\[.*?\] )?|URIs: *)(\S+/{kind}(?:-ports)?/?)(?:\s|$)",
                          path.read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return found[1]
    return None


def usual_mirror(name, architecture=None):
    """Where the packages of a suite come from, if nobody says it."""
    kind = "ubuntu" if name in UBUNTU_SUITES else "debian"
    named = os.environ.get(f"{kind.upper()}_MIRROR")
    if kind == "ubuntu" and architecture not in (None, "amd64"):
        return named or PORTS
    return named or own_mirror(kind) or PUBLIC[kind]


def bootstrap(suite, folder, packages=(), architecture=None):
    """suite: NAME or NAME=MIRROR. architecture: Debian's name, if not this system's own. Returns
    the name of the suite."""
    name, _, mirror = suite.partition("=")
    mirror = mirror or usual_mirror(name, architecture)
    command = ["debootstrap", "--variant=minbase"]
    if architecture:
        command.append(f"--arch={architecture}")
    if packages:
        command.append(f"--include={','.join(packages)}")
    if "ubuntu" in mirror:
        # A usual system has both parts of the archive.
        command.append("--components=main,universe")
    command += [name, folder, mirror]
    if "ubuntu" in mirror:
        # All its releases have one script; an older debootstrap lacks the names of newer ones.
        command.append(UBUNTU_SCRIPT)
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)
    if done.returncode:
        fail(f"debootstrap {name} {mirror}:\n{done.stdout[-2000:]}")
    return name


def give_settings(folder):
    """This system's settings for apt and pip, and its certificates."""
    for name in SETTINGS:
        if os.path.exists(name):
            place = folder / name[1:]
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(name, place)
    own = os.environ.get("PIP_CERT", "/etc/ssl/certs/ca-certificates.crt")
    if os.path.exists(own):
        shutil.copyfile(own, folder / CERTIFICATES)
    for path in pathlib.Path("/etc/apt/apt.conf.d").glob("*"):
        shutil.copy(path, folder / "etc" / "apt" / "apt.conf.d")


def inside(system, *command, **variables):
    """The status of a command in the new system, as root, with the time that it may take. Its end
    ends all its processes."""
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                   "HOME": "/var/empty", "TERM": "dumb", "LC_ALL": "C.UTF-8",
                   **{k: v for k, v in os.environ.items() if VARIABLES.fullmatch(k)}, **variables}
    if (system / CERTIFICATES).exists():
        environment["PIP_CERT"] = f"/{CERTIFICATES}"
    apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh"]
    try:
        return subprocess.run([*apart, system, *command], env=environment, check=False,
                              stdin=subprocess.DEVNULL, timeout=PATIENCE_S).returncode
    except subprocess.TimeoutExpired:
        print(f"{command[0]} did not end in {PATIENCE_S // 60} minutes", flush=True)
        return 1


@contextlib.contextmanager
def scratch(keep):
    # /tmp may be small or refuse programs.
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TMPDIR", "/var/tmp")))
    try:
        yield folder
    finally:
        if keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder)
