"""Runs beyond one machine: workers that are Ray's actors, and the job that deploys them."""

import sys
from pathlib import Path

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
from kubernetes_models import check_keys, check_model

ROOT = Path(__file__).resolve().parents[2]
GROUP = {"rayStartParams": ..., "template": ...}
WORKERS = {"groupName": ..., "replicas": ..., "minReplicas": ..., "maxReplicas": ..., **GROUP}
CLUSTER = {"rayVersion": ..., "headGroupSpec": GROUP, "workerGroupSpecs": WORKERS}
RAY_JOB = {
    "entrypoint": ..., "shutdownAfterJobFinishes": ..., "suspend": ..., "backoffLimit": ...,
    "rayClusterSpec": CLUSTER,
}  # fmt: skip
"""Keys of ray.io/v1, as KubeRay publishes them (rayjob_types.go, raycluster_types.go), as far as a
run may use them."""
WORDS = (
    "--image",
    "registry/curate:1",
    "--claim",
    "films",
    "--out",
    "curated",
    "--workers",
    "2000",
)


def test_a_plan_becomes_a_job_that_kueue_admits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "mine.yaml"
    plan.write_text(
        "stages: {probe: {}, shots: {}, faces: {}, speech: {}, clips: {}, captions: {}}\n"
        "resources: {captions: {cpus: 2, gpus: 0.5, memory_gb: 16, workers: 4}}\n"
    )
    words = ["deploy", str(plan), *WORDS, "--footage", "raw films", "--per-pod", "8"]
    assert main([*words, "--team", "faces"]) == 0
    config, job = yaml.safe_load_all(capsys.readouterr().out)
    assert config["data"]["plan.yaml"] == plan.read_text()
    check_keys(job["spec"], RAY_JOB, "RayJob")
    queues = yaml.safe_load_all((ROOT / "infra" / "cell" / "queues.yaml").read_text())
    there = {(one["kind"], one["metadata"]["name"]): one["metadata"] for one in queues}
    own = {"avatar-v/run": "curate", "avatar-v/team": "faces"}
    kueue = {"kueue.x-k8s.io/queue-name": "data", "kueue.x-k8s.io/priority-class": "data"}
    assert job["metadata"]["labels"] == own | kueue
    assert there["LocalQueue", "data"]["namespace"] == job["metadata"]["namespace"]
    assert ("WorkloadPriorityClass", "data") in there
    cluster = job["spec"]["rayClusterSpec"]
    head, pods = cluster["headGroupSpec"], {}
    for group in (head, *cluster["workerGroupSpecs"]):
        client = pytest.importorskip("kubernetes", reason="needs the package kubernetes").client
        check_model(client, "V1PodTemplateSpec", group["template"])
        (container,) = group["template"]["spec"]["containers"]
        pods[group.get("replicas", 0)] = container
        assert group["template"]["metadata"]["labels"] == own
        assert container["workingDir"] == "/footage", "a plan names its weights from there"
        assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/footage", "/plan"}
    assert pods[250]["resources"]["limits"] == {"cpu": "8", "memory": "62Gi"}
    asked = {"cpu": "4", "memory": "42Gi", "nvidia.com/gpu": "1"}
    assert pods[2]["resources"]["limits"] == asked, "two to a GPU, not eight to four"
    assert head["rayStartParams"] == {"num-cpus": "0"}
    health = {one["name"]: one["value"] for one in pods[0]["env"]}
    notice_s = (
        int(health["RAY_health_check_period_ms"]) + int(health["RAY_health_check_timeout_ms"])
    ) * int(health["RAY_health_check_failure_threshold"])
    assert notice_s < 30_000, "a node that hangs is noticed"
    entry = "avatar-v-data curate '/footage/raw films' --out /footage/curated"
    assert job["spec"]["entrypoint"].startswith(entry)
    assert main(["deploy", "reel", *words[2:]]) == 2
    assert "no plan 'reel'" in capsys.readouterr().err
    assert main([*words, "--per-pod", "0"]) == 2
    assert "--per-pod is a whole number from 1" in capsys.readouterr().err


def test_a_cluster_may_have_thousands_of_workers_and_this_machine_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # it is not installed
    (tmp_path / "films").mkdir()
    (tmp_path / "films" / "a.mp4").write_bytes(b"x")
    words = ["curate", str(tmp_path / "films"), "--out", str(tmp_path / "out"), "--plan", "world"]
    assert main([*words, "--workers", "2000"]) == 2
    assert "--workers is a whole number from 1 to" in capsys.readouterr().err
    assert main([*words, "--workers", "2000", "--ray", "auto"]) == 2
    error = capsys.readouterr().err
    assert "pip install 'avatar_v[ray]'" in error
    assert "Traceback" not in error


def test_rays_actors_come_to_the_results_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some die at recordings that kill them, or their GPU."""
    pytest.importorskip("ray", reason="needs the extra ray")
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    found = []
    for ray, name in ((None, "deadly"), ("local", "deadly"), ("local", "burnt")):
        plan = CurationPlan((Count(deaths=str(deaths)), Double()))
        tasks = desired(plan, recordings("a", name, "bad", "bb", "ccc"))
        store = CurationStore(tmp_path / f"{ray} {name}")
        perform_all(plan, tasks, store, 2, ray, lambda done, num: None)
        found.append([store.result(task.key) for task in tasks])
        assert len(list(deaths.iterdir())) == MOST_DEATHS
        for path in deaths.iterdir():
            path.unlink()
    assert found[0] == found[1] == found[2]
    assert found[2][2] == {FAILED: f"count: its worker died {MOST_DEATHS} times (memory?)"}
    assert [found[1][n]["twice"] for n in (1, 7, 9)] == [2, 4, 6]
