"""Runs beyond one machine: workers that are Ray's actors, and the job that deploys them."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from avatar_v_data.cli import main
from avatar_v_data.curation.engine import MOST_DEATHS
from avatar_v_data.curation.plan import CurationPlan
from avatar_v_data.curation.reconcile import desired
from avatar_v_data.curation.run import perform_all
from avatar_v_data.curation.stages import FAILED
from avatar_v_data.curation.store import CurationStore
from curation_stubs import Count, Double, recordings

# Field names of ray.io/v1, as KubeRay publishes them (rayjob_types.go, raycluster_types.go), as far
# as a run may use them; the other names are those of Kubernetes' PodTemplateSpec.
FIELDS: dict[str, Any] = {
    "apiVersion": str,
    "kind": str,
    "metadata": {"name": str, "namespace": str, "labels": {str: str}},
    "spec": {
        "entrypoint": str,
        "shutdownAfterJobFinishes": bool,
        "suspend": bool,
        "backoffLimit": int,
        "rayClusterSpec": {
            "rayVersion": str,
            "headGroupSpec": {"rayStartParams": {str: str}, "template": "pod"},
            "workerGroupSpecs": [
                {
                    "groupName": str,
                    "replicas": int,
                    "minReplicas": int,
                    "maxReplicas": int,
                    "rayStartParams": {str: str},
                    "template": "pod",
                }
            ],
        },
    },
}
POD: dict[str, Any] = {
    "spec": {
        "containers": [
            {
                "name": str,
                "image": str,
                "env": [{"name": str, "value": str}],
                "resources": {"requests": {str: str}, "limits": {str: str}},
                "volumeMounts": [{"name": str, "mountPath": str}],
            }
        ],
        "volumes": [
            {"name": str, "persistentVolumeClaim": {"claimName": str}},
            {"name": str, "configMap": {"name": str}},
        ],
    }
}


def check(value: Any, schema: Any, where: str = "") -> None:
    """Exactly these fields, of these types."""
    if schema == "pod":
        schema = POD
    if isinstance(schema, list):
        assert isinstance(value, list), where
        for number, item in enumerate(value):
            check(item, schema[min(number, len(schema) - 1)], f"{where}[{number}]")
    elif isinstance(schema, dict):
        assert isinstance(value, dict), where
        if str in schema:
            assert all(type(k) is type(v) is str for k, v in value.items()), where
            return
        assert set(value) == set(schema), where
        for name, item in value.items():
            check(item, schema[name], f"{where}.{name}")
    else:
        assert type(value) is schema, where


def test_a_plan_becomes_a_job_that_kueue_admits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "mine.yaml"
    plan.write_text(
        "stages: {probe: {}, shots: {}, faces: {}, speech: {}, clips: {}, captions: {}}\n"
        "resources: {captions: {cpus: 2, gpus: 0.5, memory_gb: 16, workers: 4}}\n"
    )
    words = ["deploy", str(plan), "--image", "registry/curate:1", "--claim", "films"]
    words += ["--footage", "raw films", "--out", "curated", "--workers", "64", "--per-pod", "8"]
    assert main([*words, "--queue", "team", "--priority", "urgent"]) == 0
    config, job = yaml.safe_load_all(capsys.readouterr().out)
    assert config["data"]["plan.yaml"] == plan.read_text()
    check(job, FIELDS)
    assert job["metadata"]["labels"] == {
        "kueue.x-k8s.io/queue-name": "team",
        "kueue.x-k8s.io/priority-class": "urgent",
    }
    cluster = job["spec"]["rayClusterSpec"]
    groups = {g["replicas"]: g["template"]["spec"] for g in cluster["workerGroupSpecs"]}
    asked = {n: spec["containers"][0]["resources"]["limits"] for n, spec in groups.items()}
    assert asked[8] == {"cpu": "8", "memory": "22Gi"}
    assert asked[1] == {"cpu": "16", "memory": "162Gi", "nvidia.com/gpu": "4"}
    head = cluster["headGroupSpec"]
    assert head["rayStartParams"] == {"num-cpus": "0"}
    health = {e["name"]: e["value"] for e in head["template"]["spec"]["containers"][0]["env"]}
    notice_s = (
        int(health["RAY_health_check_period_ms"]) + int(health["RAY_health_check_timeout_ms"])
    ) * int(health["RAY_health_check_failure_threshold"])
    assert notice_s < 30_000, "a node that hangs is noticed"
    entry = "avatar-v-data curate '/footage/raw films' --out /footage/curated"
    assert job["spec"]["entrypoint"].startswith(entry)
    mounted = {m["mountPath"] for m in groups[8]["containers"][0]["volumeMounts"]}
    assert mounted == {"/footage", "/plan"}
    for wrong, message in ((["deploy", "reel"], "no plan 'reel'"),):
        assert main([*wrong, *words[2:], "--queue", "team"]) == 2
        assert message in capsys.readouterr().err


def test_rays_actors_come_to_the_results_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them dies at a recording that kills it, another at one that fails."""
    pytest.importorskip("ray", reason="needs the extra ray")
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    found = []
    for ray in (None, "local"):
        plan = CurationPlan((Count(deaths=str(deaths)), Double()))
        tasks = desired(plan, recordings("a", "deadly", "bad", "bb", "ccc"))
        store = CurationStore(tmp_path / str(ray))
        perform_all(plan, tasks, store, 2, ray, lambda done, num: None)
        found.append([store.result(task.key) for task in tasks])
        assert len(list(deaths.iterdir())) == MOST_DEATHS
        for path in deaths.iterdir():
            path.unlink()
    assert found[0] == found[1]
    assert found[1][2] == {FAILED: f"count: its worker died {MOST_DEATHS} times (memory?)"}
    assert [found[1][n]["twice"] for n in (1, 7, 9)] == [2, 4, 6]
