"""A plan as a job of a Kubernetes cluster: KubeRay's RayJob, admitted by Kueue.

KubeRay starts a Ray cluster, whose head leads the run (engine.py) and works at no recording itself,
and a group of pods for each kind of worker; all of it is gone when the run has ended. Kueue holds
the job back until its queue has room, and takes that room away for one of a higher priority class:
the pods are deleted then, and the job, admitted again, goes on with what is stored. Field names are
those of `ray.io/v1`. Footage and results lie on one volume that all pods mount.
"""

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from avatar_v.base import checks
from avatar_v_data.curation.on_ray import HEALTH, VERSION
from avatar_v_data.curation.plan import PLANS, CurationPlan, Resources, read_plan

MOST_GROUPS = 7
"""Of workers: Kueue takes eight sets of pods, and the head is one."""
VOLUME = "/footage"
PLAN_FOLDER = "/plan"
GPU = "nvidia.com/gpu"
MEMORY_GB = 6
"""Of a worker whose kind says nothing: two clips of 1080p, an hour of sound, its models."""


@dataclass(frozen=True)
class Cluster:
    """Where a run is to be. ``footage`` and ``out`` are folders of the volume."""

    name: str
    image: str  # with this package and its extras data, faces and ray
    claim: str  # PersistentVolumeClaim that many pods may write
    footage: str
    out: str
    workers: int
    per_pod: int
    queue: str
    priority: str
    namespace: str
    team: str  # "" for none

    def __post_init__(self) -> None:
        checks.count("--workers", self.workers)
        checks.count("--per-pod", self.per_pod)

    @property
    def labels(self) -> dict[str, str]:
        """Of the job and its pods, as `avatar-v launch` has them: by these the cell counts."""
        labels = {"avatar-v/run": self.name, "avatar-v/team": self.team}
        return {name: value for name, value in labels.items() if value}


def manifests(plan_name: str, cluster: Cluster) -> list[dict[str, Any]]:
    """A ConfigMap with the plan, and the RayJob. ValueError for what is no plan."""
    plan = read_plan(plan_name)
    kinds = sorted({plan.kind_of(stage) for stage in plan.stages}, key=str)
    if len(kinds) > MOST_GROUPS:
        raise ValueError(f"{len(kinds)} kinds of workers; Kueue takes {MOST_GROUPS} at most")
    path = Path(plan_name) if Path(plan_name).suffix else PLANS / f"{plan_name}.yaml"
    kueue = {
        "kueue.x-k8s.io/queue-name": cluster.queue,
        "kueue.x-k8s.io/priority-class": cluster.priority,
    }
    about = {"name": cluster.name, "namespace": cluster.namespace}
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": about,
            "data": {"plan.yaml": path.read_text()},
        },
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": {**about, "labels": {**cluster.labels, **kueue}},
            "spec": {
                "entrypoint": _command(cluster),
                "shutdownAfterJobFinishes": True,
                "suspend": True,  # until Kueue admits it
                "backoffLimit": 3,  # a lost head: a new cluster goes on with what is stored
                "rayClusterSpec": _ray_cluster(plan, kinds, cluster),
            },
        },
    ]


def _ray_cluster(plan: CurationPlan, kinds: list[Resources], cluster: Cluster) -> dict[str, Any]:
    groups = []
    for number, kind in enumerate(kinds):
        num = max(int(1 / kind.gpus), 1) if kind.gpus else cluster.per_pod
        pods = math.ceil((kind.workers or cluster.workers) / num)
        groups.append(
            {
                "groupName": f"workers-{number}",
                "replicas": pods,
                "minReplicas": pods,
                "maxReplicas": pods,
                "rayStartParams": {},
                "template": _pod(cluster, _asked(kind, num)),
            }
        )
    return {
        "rayVersion": VERSION,
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0"},
            "template": _pod(cluster, {"cpu": "2", "memory": "8Gi"}),
        },
        "workerGroupSpecs": groups,
    }


def _asked(kind: Resources, num: int) -> dict[str, str]:
    """What a pod of so many workers asks for; Ray keeps some of the memory for itself."""
    asked = {
        "cpu": f"{max(math.ceil(kind.cpus * num), 1)}",
        "memory": f"{2 + math.ceil((kind.memory_gb or MEMORY_GB) * 1.25 * num)}Gi",
    }
    return asked | ({GPU: f"{math.ceil(kind.gpus * num)}"} if kind.gpus else {})


def _pod(cluster: Cluster, asked: Mapping[str, str]) -> dict[str, Any]:
    health = [{"name": f"RAY_{name}", "value": str(value)} for name, value in HEALTH.items()]
    mounts = [
        {"name": "footage", "mountPath": VOLUME},
        {"name": "plan", "mountPath": PLAN_FOLDER},
    ]
    container = {
        "name": "ray",
        "image": cluster.image,
        "workingDir": VOLUME,  # a plan's weights/ lies there
        "env": [*health, {"name": "OMP_NUM_THREADS", "value": "1"}],
        "resources": {"requests": dict(asked), "limits": dict(asked)},
        "volumeMounts": mounts,
    }
    volumes = [
        {"name": "footage", "persistentVolumeClaim": {"claimName": cluster.claim}},
        {"name": "plan", "configMap": {"name": cluster.name}},
    ]
    return {
        "metadata": {"labels": cluster.labels},
        "spec": {"containers": [container], "volumes": volumes},
    }


def _command(cluster: Cluster) -> str:
    words = ["avatar-v-data", "curate", f"{VOLUME}/{cluster.footage}"]
    words += ["--out", f"{VOLUME}/{cluster.out}", "--plan", f"{PLAN_FOLDER}/plan.yaml"]
    return shlex.join([*words, "--ray", "auto", "--workers", str(cluster.workers)])
