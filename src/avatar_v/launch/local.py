"""`--on local`: the run as a process of this machine that outlives the terminal.

Nobody preempts it, so nothing starts it again: after `stop` the same command goes on.
"""

import os
import shlex
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from avatar_v.base.launched import RUN
from avatar_v.launch.job import LOG, Job, Launched, by_path

SUFFIX = ".sh"


def check(job: Job) -> None:
    """ValueError for what this machine cannot do."""
    if job.nodes != (1, 1):
        raise ValueError("--on local is this machine alone: --nodes 1")


def text(job: Job) -> str:
    """The script."""
    names = "".join(f"export {name}={shlex.quote(v)}\n" for name, v in job.environment.items())
    return f"#!/usr/bin/env bash\n{names}exec {by_path(job)} {shlex.join(job.sizes[1].options)}\n"


def submit(job: Job, path: Path) -> str:
    """The number of the process."""
    with open(job.root / LOG, "ab") as log:
        process = subprocess.Popen(
            ["bash", str(path)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env={**os.environ, **job.environment}, start_new_session=True,
        )  # fmt: skip
    return str(process.pid)


def status(run: Launched) -> str:
    """``running`` or ``ended``."""
    return "running" if _is_ours(run) else "ended"


def is_there(run: Launched) -> bool:
    """Whether it waits or runs."""
    return _is_ours(run)


def stop(run: Launched) -> None:
    """It writes its checkpoint first."""
    if _is_ours(run):
        os.kill(int(run.job), signal.SIGTERM)


def logs(run: Launched, root: Path, *, follow: bool) -> list[str]:
    """The command that shows all that the run has said."""
    return ["tail", "-n", "+1", *(["-f"] if follow else []), str(root / LOG)]


def _is_ours(run: Launched) -> bool:
    """Whether the process of that number is the run: numbers are used again."""
    with suppress(OSError, ValueError):
        place = Path("/proc") / str(int(run.job))
        is_dead = (place / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return not is_dead and f"{RUN}={run.id}".encode() in (
            (place / "environ").read_bytes().split(b"\0")
        )
    return False
