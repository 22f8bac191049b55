# SPDX-License-Identifier: BSD-2-Clause
"""A Slurm of one node in a folder of its own, with the TaskProlog of scripts/deploy. Tried are
srun, an array of jobs, MPI, and a job that is requeued and cancelled. Needs root: Slurm's daemons
run as root."""
import contextlib
import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time

NEEDS = ("munged", "slurmctld", "slurmd", "srun", "mpirun")
CONFIGURATION = """ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmctldPort=26817
SlurmdPort=26818
KillWait=5
TaskProlog={folder}/task-prolog
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing():
    if os.geteuid() != 0:
        return "not root"
    absent = [name for name in NEEDS if not shutil.which(name)]
    return f"no {absent[0]} here (slurm-wlm, munge, openmpi-bin)" if absent else None


def wait_for(holds, what, seconds=60):
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"slurm: {what} after {seconds} s")
        time.sleep(0.2)


def say(*command, **more):
    done = subprocess.run([str(c) for c in command], text=True, check=False, timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)
    return done.returncode, done.stdout


@contextlib.contextmanager
def cluster(deploy, library):
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        for part in ("munge", "state", "spool"):
            (folder / part).mkdir()
        munge = pwd.getpwnam("munge")
        (folder / "munge" / "key").write_bytes(os.urandom(1024))
        (folder / "munge" / "key").chmod(0o400)
        for path in (folder / "munge", folder / "munge" / "key"):
            os.chown(path, munge.pw_uid, munge.pw_gid)
        host = socket.gethostname().split(".")[0]
        (folder / "slurm.conf").write_text(CONFIGURATION.format(host=host, folder=folder))
        prolog = (deploy / "slurm" / "task-prolog").read_text()
        (folder / "task-prolog").write_text(
            prolog.replace("/usr/lib64/libgpucache.so", str(library)))
        (folder / "task-prolog").chmod(0o755)
        os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
        pids = []
        try:
            options = {"key-file": "key", "socket": "socket", "pid-file": "munged.pid",
                       "log-file": "log", "seed-file": "seed"}
            say("runuser", "-u", "munge", "--", "munged",
                *(f"--{key}={folder}/munge/{value}" for key, value in options.items()))
            say("slurmctld")
            say("slurmd")
            for file in ("munge/munged.pid", "slurmctld.pid", "slurmd.pid"):
                wait_for((folder / file).exists, f"no {file}")
                pids.append(int((folder / file).read_text()))
            wait_for(lambda: "idle" in say("sinfo", "-h")[1], "the node is not idle")
            yield folder
        finally:
            for pid in reversed(pids):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids),
                     "its daemons run")


def run(deploy, library, program, long_program, environment):
    """program: ends by itself. long_program: words of one that does not."""
    with cluster(deploy, library) as folder:
        environment = {**environment, "SLURM_CONF": os.environ["SLURM_CONF"],
                       "GPUCACHE_STATS": f"exit:{folder}/report-%p.txt"}

        def expect(reports, *command):
            status, said = say(*command, env=environment, cwd=folder)
            found = sorted(folder.glob("report-*.txt"))
            if status or len(found) != reports:
                raise AssertionError(f"{command}: status {status}, {len(found)} reports\n{said}")
            for report in found:
                report.unlink()

        expect(1, "srun", "-n1", program)
        expect(0, "srun", "-n1", "--export=ALL,GPUCACHE=0", program)
        (folder / "array").write_text(f"#!/bin/sh\nsrun -n1 {program}\n")
        expect(4, "sbatch", "--wait", "--array=1-4", "array")
        expect(2, "mpirun", "--allow-run-as-root", "--oversubscribe", "-x", "LD_PRELOAD",
               "-np", "2", "env", f"LD_PRELOAD={library}", program)
        requeue(folder, environment, long_program)


def requeue(folder, environment, words):
    """SIGTERM ends the program as without the library and leaves the report of its last state; the
    job starts once more."""
    output = folder / "long.txt"
    (folder / "long").write_text("#!/bin/sh\necho start ${SLURM_RESTART_COUNT:-0}\n"
                                 f"exec srun -n1 {' '.join(map(str, words))}\n")
    job = say("sbatch", "--parsable", "--requeue", "--open-mode=append", "-o", output, "long",
              env=environment, cwd=folder)[1].strip()

    def has(text):
        return lambda: output.exists() and text in output.read_text()

    wait_for(has("start 0"), "the job did not start")

    def reports():
        return [path for path in folder.glob("report-*.txt")
                if "still running then" in path.read_text()]

    wait_for(reports, "no report while the program runs")
    say("scontrol", "requeue", job)
    wait_for(has("task 0: Terminated"), "the job was not ended")
    if not reports():
        raise AssertionError("the report is gone after SIGTERM")

    # slurmd refuses to start a job in the second in which it ended it ("already killed"), and the
    # job then counts as failed.
    time.sleep(2)

    def starts_again():
        say("scontrol", "update", f"jobid={job}", "StartTime=now")
        return has("start 1")()

    wait_for(starts_again, "the job did not start again")
    say("scancel", job)
    wait_for(lambda: not say("squeue", "-h")[1].strip(), "the job runs on")
