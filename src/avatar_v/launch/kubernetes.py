"""`--on kubernetes`: an indexed Job, a pod for each node, queued by Kueue.

Each pod runs `avatar-v run`, which starts a process for each GPU and answers for them. (torchrun
would give them 30 seconds to end, and says 1 whatever they say.) Kueue admits all pods or none, and
preempts by deleting them: they have `GRACE_S` seconds for the checkpoint. Pods that end with
`TRY_AGAIN`, or whose node is gone, are made again and do not count as failures.
"""

from pathlib import Path
from typing import Any

import yaml

from avatar_v.base.launched import TRY_AGAIN
from avatar_v.launch.job import GRACE_S, PORT, Job, Launched, told

SUFFIX = ".yaml"
INDEX = "batch.kubernetes.io/job-completion-index"
WORK = "/work"
"""Where the volume lies in a pod: recipes, shards, weights and runs/."""
RESTARTS = 3
"""Failures of a node that are tried again."""


def check(job: Job) -> None:
    """ValueError for what a manifest lacks."""
    if job.nodes[0] != job.nodes[1]:
        raise ValueError("--nodes LEAST-MOST is for slurm: a Job has one number of pods")
    for name in ("image", "volume"):
        if not getattr(job.asked, name):
            raise ValueError(f"--on kubernetes needs --{name}")
    if job.root.is_absolute():
        raise ValueError(f"the run's folder lies on the volume, below {WORK}, got {job.root}")


def text(job: Job) -> str:
    """The manifest: a Service, by whose name pods find the first one, and the Job."""
    return yaml.safe_dump_all(manifests(job), sort_keys=False)


def manifests(job: Job) -> list[dict[str, Any]]:
    labels = {"avatar-v/run": job.id}
    if job.asked.team:
        labels["avatar-v/team"] = job.asked.team
    kueue = {
        "kueue.x-k8s.io/queue-name": job.asked.queue or "default",
        "kueue.x-k8s.io/priority-class": job.asked.priority or "training",
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": job.id, "labels": labels},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"avatar-v/run": job.id},
            "ports": [{"port": PORT}],
        },
    }
    batch = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job.id, "labels": {**labels, **kueue}},
        "spec": {
            "suspend": True,  # until Kueue admits it
            "completionMode": "Indexed",
            "completions": job.nodes[0],
            "parallelism": job.nodes[0],
            "backoffLimit": RESTARTS * job.nodes[0],
            "podReplacementPolicy": "Failed",  # none beside one that still writes its checkpoint
            "podFailurePolicy": {
                "rules": [
                    {"action": "Ignore", "onPodConditions": [
                        {"type": "DisruptionTarget", "status": "True"}]},
                    {"action": "Ignore", "onExitCodes": {
                        "containerName": "run", "operator": "In", "values": [TRY_AGAIN]}},
                ]
            },
            "template": _pod(job, labels),
        },
    }  # fmt: skip
    return [service, batch]


def submit(job: Job, path: Path) -> str:
    """The name of the Job."""
    told("kubectl", "apply", "--filename", str(path))
    return job.id


def status(run: Launched) -> str:
    """The number of pods that run and that have ended well, and what Kueue says."""
    found = _shown(run)
    return " ".join(found.split()) if found else "ended, and Kubernetes has forgotten it"


def is_there(run: Launched) -> bool:
    """Whether it waits or runs."""
    found = _shown(run)
    return bool(found) and not any(word in found for word in ("Complete=True", "Failed=True"))


def stop(run: Launched) -> None:
    """Kubernetes gives it its grace for the checkpoint."""
    told("kubectl", "delete", "job,service", run.job, "--wait=false")


def logs(run: Launched, root: Path, *, follow: bool) -> list[str]:
    """The command that shows what the first node says."""
    first = f"avatar-v/run={run.id},{INDEX}=0"
    more = ["--follow"] if follow else []
    return ["kubectl", "logs", "--selector", first, "--tail=-1", *more]


def _pod(job: Job, labels: dict[str, str]) -> dict[str, Any]:
    gpus = {} if job.on_cpu else {"resources": {"limits": {"nvidia.com/gpu": str(job.gpus)}}}
    values = {
        **job.environment,
        "MASTER_ADDR": f"{job.id}-0.{job.id}",
        "MASTER_PORT": str(PORT),
    }
    index = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}
    node_rank = {"name": "NODE_RANK", "valueFrom": index}
    container = {
        "name": "run",
        "image": job.asked.image,
        "workingDir": WORK,
        # the shell's place is taken by the run, which then hears SIGTERM
        "command": ["bash", "-c", f"exec {job.command}"],
        "env": [*({"name": n, "value": v} for n, v in values.items()), node_rank],
        **gpus,
        "volumeMounts": [
            {"name": "work", "mountPath": WORK},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    near = {"kueue.x-k8s.io/podset-preferred-topology": job.asked.topology}
    return {
        "metadata": {"labels": labels, "annotations": near if job.asked.topology else {}},
        "spec": {
            "restartPolicy": "Never",
            "subdomain": job.id,
            "terminationGracePeriodSeconds": GRACE_S,
            "containers": [container],
            "volumes": [
                {"name": "work", "persistentVolumeClaim": {"claimName": job.asked.volume}},
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
            ],
        },
    }


def _shown(run: Launched) -> str:
    form = (
        "{.status.active} running, {.status.succeeded} ended well, {.status.failed} failed "
        "{range .status.conditions[*]}{.type}={.status} {end}"
    )
    return told("kubectl", "get", "job", run.job, "--ignore-not-found", f"--output=jsonpath={form}")
