"""A Slurm of several nodes on this machine, as root: munged, slurmctld, and a slurmd for each node.

Two partitions on the same nodes: what comes to `inference` preempts what runs in `training`, which
has its grace time to end.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel")
PATH = f"{os.environ['PATH']}:/usr/sbin"
CONFIG = """
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
NodeName=n[0-{last}] NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PartitionName=training Nodes=ALL Default=YES PriorityTier=1 GraceTime=60
PartitionName=inference Nodes=ALL PriorityTier=2 PreemptMode=OFF
"""


def missing() -> str:
    """Why there can be none; "" where it can."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if absent:
        return f"needs Slurm (apt-get install slurm-wlm munge): no {', '.join(absent)}"
    return "" if os.geteuid() == 0 else "slurmd starts jobs of others: needs root"


@contextmanager
def slurm(folder: Path, num_nodes: int) -> Iterator[dict[str, str]]:
    """The environment in which commands find it. All its processes end with the block."""
    daemons = []
    for name in ("state", *(f"n{i}" for i in range(num_nodes))):
        (folder / name).mkdir(parents=True)
    ports = free_ports(2 + num_nodes)
    last = num_nodes - 1
    ports[2] = f"{ports[2]}-{ports[2] + last}" if last else ports[2]
    config, key = folder / "slurm.conf", folder / "key"
    host = socket.gethostname()
    config.write_text(CONFIG.format(host=host, folder=folder, ports=ports, last=last))
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(config)}
    munge = [f"--{name}={folder}/munge.{name}" for name in ("socket", "pid-file", "log-file",
             "seed-file")]  # fmt: skip
    commands = [
        ["munged", "--foreground", "--force", f"--key-file={key}", *munge],
        ["slurmctld", "-D"],
        *(["slurmd", "-D", "-N", f"n{i}"] for i in range(num_nodes)),
    ]
    try:
        for command in commands:
            with open(folder / "said", "ab") as said:
                daemons.append(subprocess.Popen(command, env=environment, stdout=said, stderr=said))
            if command[0] == "munged":
                until((folder / "munge.socket").exists, 10)
        until(lambda: states(environment).count("idle") == num_nodes, 30)
        yield environment
    finally:
        told = {"env": environment, "capture_output": True, "text": True, "check": False}
        subprocess.run(["scancel", "--user=root"], **told)
        until(lambda: not subprocess.run(["squeue", "--noheader"], **told).stdout, 60)
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(20)


def states(environment: dict[str, str]) -> list[str]:
    """Of the nodes."""
    words = ["sinfo", "--Node", "--noheader", "--partition=training", "--format=%T"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    return done.stdout.split()


def free_ports(num: int) -> list:
    """The first of so many ports in a row that nobody uses, and those behind it."""
    for first in range(21000, 30000, num):
        held = [socket.socket() for _ in range(num)]
        try:
            for i, one in enumerate(held):
                one.bind(("127.0.0.1", first + i))
        except OSError:
            continue
        finally:
            for one in held:
                one.close()
        return list(range(first, first + num))
    raise OSError("no free ports")


def until(is_so: Callable[[], object], most_s: float) -> None:
    end = time.monotonic() + most_s
    while not is_so():
        assert time.monotonic() < end, f"not within {most_s} s"
        time.sleep(0.1)
