"""`--on skypilot`: a task file for a managed job, on whichever cloud has the GPUs.

SkyPilot starts a job again whose spot machine was taken, and one that ends with `TRY_AGAIN`. Clouds
often take a machine without a word; the run then goes on from its last regular checkpoint.
"""

from pathlib import Path
from typing import Any

import yaml

from avatar_v.base.launched import TRY_AGAIN
from avatar_v.launch.job import PORT, PRIORITIES, Job, Launched, told

SUFFIX = ".yaml"
WORK = "/work"


def check(job: Job) -> None:
    """ValueError for what a task lacks."""
    if job.nodes[0] != job.nodes[1]:
        raise ValueError("--nodes LEAST-MOST is for slurm: a task has one number of nodes")
    if not job.on_cpu and not job.asked.gpu:
        raise ValueError("--on skypilot needs --gpu, a kind such as H100")
    if job.root.is_absolute():
        raise ValueError(f"the run's folder lies on the volume, below {WORK}, got {job.root}")
    for name in ("image", "volume"):
        if not getattr(job.asked, name):
            raise ValueError(f"--on skypilot needs --{name}")


def text(job: Job) -> str:
    """The task file."""
    return yaml.safe_dump(task(job), sort_keys=False)


def task(job: Job) -> dict[str, Any]:
    place = PRIORITIES.index(job.asked.priority or "training")
    resources: dict[str, Any] = {
        "image_id": f"docker:{job.asked.image}",
        "use_spot": True,
        "priority": 100 * (len(PRIORITIES) - place),
        "job_recovery": {"recover_on_exit_codes": [TRY_AGAIN]},
    }
    if not job.on_cpu:
        resources["accelerators"] = f"{job.asked.gpu}:{job.gpus}"
    if job.asked.team:
        resources["labels"] = {"team": job.asked.team}
    return {
        "name": job.id,
        "num_nodes": job.nodes[0],
        "resources": resources,
        "volumes": {WORK: job.asked.volume},
        "envs": {**job.environment, "MASTER_PORT": str(PORT)},
        "run": (
            "export NODE_RANK=$SKYPILOT_NODE_RANK\n"
            'export MASTER_ADDR=$(head -n1 <<< "$SKYPILOT_NODE_IPS")\n'
            f"cd {WORK}\nexec {job.command}\n"
        ),
    }


def submit(job: Job, path: Path) -> str:
    """The name of the job."""
    told("sky", "jobs", "launch", "--yes", "--detach-run", "--name", job.id, str(path))
    return job.id


def status(run: Launched) -> str:
    """SkyPilot's line about the job."""
    return _shown(run) or "ended, and SkyPilot has forgotten it"


def is_there(run: Launched) -> bool:
    """Whether it waits or runs."""
    states = ("PENDING", "SUBMITTED", "STARTING", "RUNNING", "RECOVERING", "CANCELLING")
    return any(state in _shown(run) for state in states)


def stop(run: Launched) -> None:
    """The run is told by SIGTERM."""
    told("sky", "jobs", "cancel", "--yes", "--name", run.job)


def logs(run: Launched, root: Path, *, follow: bool) -> list[str]:
    """The command that shows what the run says."""
    return ["sky", "jobs", "logs", "--name", run.job, "--follow" if follow else "--no-follow"]


def _shown(run: Launched) -> str:
    lines = told("sky", "jobs", "queue", "--all").splitlines()
    return next((" ".join(line.split()) for line in lines if run.job in line.split()), "")
