"""`--on slurm`: a batch script with a task for each GPU, which Lightning takes over.

SIGTERM comes `GRACE_S` seconds before the limit of time, at a preemption (in the partition's
GraceTime, or else KillWait) and from scancel. A run that ends with `TRY_AGAIN` is requeued by its
script: Slurm itself leaves a job that ends within its grace time where it is. What else sbatch
knows comes from its variables, such as SBATCH_PARTITION and SBATCH_ACCOUNT.
"""

import shlex
from pathlib import Path

from avatar_v.base.launched import TRY_AGAIN
from avatar_v.launch import local
from avatar_v.launch.job import GRACE_S, LOG, PLAIN, Job, Launched, by_path, told

SUFFIX = ".sh"
_AGAIN = f"""
preempted() {{  # since this start
  local said start
  said=$(scontrol --oneliner show job "$SLURM_JOB_ID")
  [[ $said =~ \\ StartTime=([0-9][^\\ ]*) ]] && start=${{BASH_REMATCH[1]}}
  [[ $said =~ \\ PreemptTime=([0-9][^\\ ]*) && ! ${{BASH_REMATCH[1]}} < $start ]]
}}
if ((status == {TRY_AGAIN})) || {{ ((status)) && preempted; }}; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
"""


def check(job: Job) -> None:
    """ValueError for a folder that a batch script's header cannot name."""
    if not PLAIN.fullmatch(str(job.root)):
        raise ValueError(f"sbatch takes a folder of a plain name, got {job.root}")


def text(job: Job) -> str:
    """The batch script."""
    asked, (fewest, most) = job.asked, job.nodes
    lines = [
        f"--job-name={job.id}",
        f"--nodes={fewest}-{most}",
        *([] if job.on_cpu else [f"--gpus-per-node={job.gpus}"]),
        "--exclusive",
        "--requeue",
        "--open-mode=append",
        f"--signal=SIGTERM@{GRACE_S}",
        f"--output={job.root / LOG}",
        *([f"--qos={asked.priority}"] if asked.priority else []),
        *([f"--comment=team={asked.team}"] if asked.team else []),
        *([f"--time={asked.time}"] if asked.time else []),
    ]
    names = [f"export {name}={shlex.quote(value)}" for name, value in job.environment.items()]
    sizes = [
        f"  {n}) nodes={size.nodes} size=({shlex.join(size.options)}) ;;"
        for n, size in job.sizes.items()
    ]
    return "\n".join([
        "#!/usr/bin/env bash",
        *(f"#SBATCH {line}" for line in lines),
        "set -u",
        *names,
        'case "$SLURM_NNODES" in',
        *sizes,
        "esac",
        f"cpus=$((SLURM_CPUS_ON_NODE / {job.gpus}))",
        # tasks are srun's: told to sbatch, Slurm takes as few nodes as they fit on
        f'srun --kill-on-bad-exit=1 --nodes="$nodes" --ntasks-per-node={job.gpus} \\',
        f'  --ntasks=$((nodes * {job.gpus})) --cpus-per-task=$((cpus > 0 ? cpus : 1)) \\',
        f'  {by_path(job)} "${{size[@]}}"',
        "status=$?",
    ]) + _AGAIN  # fmt: skip


def submit(job: Job, path: Path) -> str:
    """The number of the job."""
    return told("sbatch", "--parsable", str(path)).partition(";")[0]


def status(run: Launched) -> str:
    """The job's state, why it waits or where it runs, and how often it was requeued."""
    found = _shown(run)
    if not found:
        return "ended, and Slurm has forgotten it"
    where = found.get("NodeList", "").replace("(null)", "")
    more = [where or found.get("Reason", ""), f"requeued {found.get('Restarts', '0')} times"]
    return f"{found['JobState']} ({', '.join(word for word in more if word)})"


def is_there(run: Launched) -> bool:
    """Whether it waits or runs."""
    state = _shown(run).get("JobState", "")
    return state in ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "REQUEUED")


def stop(run: Launched) -> None:
    """It has all the time that it needs for its checkpoint, and its script cannot requeue it."""
    told("scontrol", "update", f"JobId={run.job}", "Requeue=0")
    running = _shown(run).get("JobState") == "RUNNING"
    told("scancel", *(["--signal=TERM"] if running else []), run.job)


logs = local.logs


def _shown(run: Launched) -> dict[str, str]:
    try:
        text = told("scontrol", "--oneliner", "show", "job", run.job)
    except ValueError as error:
        if "Invalid job id" in str(error):
            return {}
        raise
    return dict(word.split("=", 1) for word in text.split() if "=" in word)
