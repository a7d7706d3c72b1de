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

from avatar_v_data.curation.on_ray import HEALTH, VERSION
from avatar_v_data.curation.plan import PLANS, CurationPlan, Resources, read_plan

MOST_GROUPS = 7
"""Of workers: Kueue takes eight sets of pods, and the head is one."""
VOLUME = "/footage"
PLAN_FOLDER = "/plan"
GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class Cluster:
    """Where a run is to be. ``footage`` and ``out`` are folders of the volume."""

    name: str
    image: str  # with this package and its extras data, faces and ray
    claim: str  # PersistentVolumeClaim that many pods may write
    footage: str
    out: str
    workers: int
    per_pod: int = 1
    queue: str = "default"
    priority: str = ""
    namespace: str = "default"

    def __post_init__(self) -> None:
        if min(self.workers, self.per_pod) < 1:
            raise ValueError(f"workers are at least 1, got {self.workers}, {self.per_pod} a pod")


def manifests(plan_name: str, cluster: Cluster) -> list[dict[str, Any]]:
    """A ConfigMap with the plan, and the RayJob. ValueError for what is no plan."""
    plan = read_plan(plan_name)
    kinds = sorted({plan.kind_of(stage) for stage in plan.stages}, key=str)
    if len(kinds) > MOST_GROUPS:
        raise ValueError(f"{len(kinds)} kinds of workers; Kueue takes {MOST_GROUPS} at most")
    path = Path(plan_name) if Path(plan_name).suffix else PLANS / f"{plan_name}.yaml"
    labels = {"kueue.x-k8s.io/queue-name": cluster.queue}
    if cluster.priority:
        labels["kueue.x-k8s.io/priority-class"] = cluster.priority
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
            "metadata": {**about, "labels": labels},
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
        pods = math.ceil((kind.workers or cluster.workers) / cluster.per_pod)
        groups.append(
            {
                "groupName": f"workers-{number}",
                "replicas": pods,
                "minReplicas": pods,
                "maxReplicas": pods,
                "rayStartParams": {},
                "template": _pod(cluster, _asked(kind, cluster.per_pod)),
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
        "memory": f"{2 + math.ceil(max(kind.memory_gb, 2) * 1.25 * num)}Gi",
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
        "env": [*health, {"name": "OMP_NUM_THREADS", "value": "1"}],
        "resources": {"requests": dict(asked), "limits": dict(asked)},
        "volumeMounts": mounts,
    }
    volumes = [
        {"name": "footage", "persistentVolumeClaim": {"claimName": cluster.claim}},
        {"name": "plan", "configMap": {"name": cluster.name}},
    ]
    return {"spec": {"containers": [container], "volumes": volumes}}


def _command(cluster: Cluster) -> str:
    words = ["avatar-v-data", "curate", f"{VOLUME}/{cluster.footage}"]
    words += ["--out", f"{VOLUME}/{cluster.out}", "--plan", f"{PLAN_FOLDER}/plan.yaml"]
    return shlex.join([*words, "--ray", "auto", "--workers", str(cluster.workers)])
