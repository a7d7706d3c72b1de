"""infra/: what a cell is made of fits together, and does what it says."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubernetes_models import check_keys

INFRA = Path(__file__).resolve().parents[2] / "infra"
QUEUES = list(yaml.safe_load_all((INFRA / "cell" / "queues.yaml").read_text()))
QUOTA = {"name", "nominalQuota", "borrowingLimit", "lendingLimit"}
KEYS = {
    "Topology": {"levels": {"nodeLabel": ...}},
    "ResourceFlavor": {
        "nodeLabels": ...,
        "nodeTaints": {"key": ..., "value": ..., "effect": {"NoSchedule", "NoExecute"}},
        "tolerations": {"key": ..., "operator": {"Exists", "Equal"}, "value": ..., "effect": ...},
        "topologyName": ...,
    },
    "ClusterQueue": {
        "cohortName": ...,
        "namespaceSelector": ...,
        "queueingStrategy": {"StrictFIFO", "BestEffortFIFO"},
        "preemption": {
            "withinClusterQueue": {"Never", "LowerPriority", "LowerOrNewerEqualPriority"},
            "reclaimWithinCohort": {"Never", "LowerPriority", "Any"},
            "borrowWithinCohort": {
                "policy": {"Never", "LowerPriority"}, "maxPriorityThreshold": ...,
            },
        },
        "flavorFungibility": {
            "whenCanBorrow": {"MayStopSearch", "TryNextFlavor"},
            "whenCanPreempt": {"MayStopSearch", "TryNextFlavor"},
        },
        "resourceGroups": {
            "coveredResources": ...,
            "flavors": {"name": ..., "resources": dict.fromkeys(QUOTA, ...)},
        },
    },
    "LocalQueue": {"clusterQueue": ...},
}  # fmt: skip
"""Keys and words of Kueue's API v1beta2 (kueue/apis/kueue/v1beta2), as far as a cell has them."""


def named(kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in QUEUES if one["kind"] == kind}


def test_queues_are_of_kueue_s_api() -> None:
    for one in QUEUES:
        if one["kind"] in KEYS:
            assert one["apiVersion"] == "kueue.x-k8s.io/v1beta2"
            check_keys(one["spec"], KEYS[one["kind"]], one["kind"])
    with pytest.raises(AssertionError, match="LocalQueue: queue"):
        check_keys({"queue": "a"}, KEYS["LocalQueue"], "LocalQueue")
    with pytest.raises(AssertionError, match="Always"):
        check_keys({"preemption": {"withinClusterQueue": "Always"}}, KEYS["ClusterQueue"], "C")


def test_names_in_the_queues_are_there_and_inference_is_first() -> None:
    flavors, queues = named("ResourceFlavor"), named("ClusterQueue")
    for flavor in flavors.values():
        assert flavor["spec"]["topologyName"] in named("Topology")
    for queue in queues.values():
        for group in queue["spec"]["resourceGroups"]:
            for flavor in group["flavors"]:
                assert flavor["name"] in flavors
                assert [r["name"] for r in flavor["resources"]] == group["coveredResources"]
    assert {one["spec"]["clusterQueue"] for one in named("LocalQueue").values()} == set(queues)
    (of_data,) = queues["data"]["spec"]["resourceGroups"]  # jobs of `avatar-v-data deploy`
    assert set(of_data["coveredResources"]) == {"nvidia.com/gpu", "cpu", "memory"}
    value = {name: one["value"] for name, one in named("WorkloadPriorityClass").items()}
    assert value["inference"] > value["training"] > value["data"]
    for name in ("inference", "training"):  # who borrows takes from those below alone
        policy = queues[name]["spec"]["preemption"]["borrowWithinCohort"]
        assert policy["maxPriorityThreshold"] < value[name]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")
def test_alerts_fire_on_their_faults() -> None:
    command = ["promtool", "test", "rules", str(INFRA / "prometheus" / "rules_test.yaml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_and_every_counter_is_read() -> None:
    rules = yaml.safe_load((INFRA / "prometheus" / "rules.yaml").read_text())
    all_rules = [rule for group in rules["groups"] for rule in group["rules"]]
    tests = yaml.safe_load((INFRA / "prometheus" / "rules_test.yaml").read_text())
    fired = {
        one["alertname"]
        for test in tests["tests"]
        for one in test["alert_rule_test"]
        if one.get("exp_alerts")
    }
    assert fired == {rule["alert"] for rule in all_rules if "alert" in rule}
    recorded = {rule["record"] for rule in all_rules if "record" in rule}
    expressions = [rule["expr"] for rule in all_rules]
    for path in sorted((INFRA / "grafana").glob("*.json")):
        board = json.loads(path.read_text())
        expressions += [t["expr"] for panel in board["panels"] for t in panel["targets"]]
        places = [tuple(p["gridPos"].values()) for p in board["panels"]]
        assert len(places) == len(set(places))
    text = "\n".join(expressions)
    lines = (INFRA / "prometheus" / "counters.csv").read_text().splitlines()
    counters = {line.split(",")[0] for line in lines if line.startswith("DCGM")}
    assert counters == set(re.findall(r"\bDCGM_\w+", text))
    assert set(re.findall(r"\bavatar_v:\w+", text)) <= recorded


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_a_cell_is_rendered_with_its_numbers() -> None:
    command = ["kubectl", "kustomize", str(INFRA / "cells" / "example")]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rendered = [one for one in yaml.safe_load_all(text) if one]
    assert len(rendered) == len(QUEUES) + 5
    quota = {
        one["metadata"]["name"]: one["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]
        for one in rendered
        if one["kind"] == "ClusterQueue"
    }
    assert {name: one["nominalQuota"] for name, one in quota.items()} == {
        "inference": 128, "training": 384, "data": 128,
    }  # fmt: skip


def test_a_cell_is_taken_in_by_one_command() -> None:
    def said(cell: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", str(INFRA / "onboard.sh"), cell]
        environment = {**os.environ, "DRY_RUN": "1"}
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    done = said("example")
    assert done.returncode == 0, done.stderr
    steps = ["gpu-operator", "kube-prometheus-stack", "charts/kueue", "apply --server-side",
             "kind: PrometheusRule", "avatar-v-fleet", "condition=Active"]  # fmt: skip
    places = [done.stdout.index(step) for step in steps]
    assert places == sorted(places)
    assert said("none").returncode == 2
    rules = done.stdout[done.stdout.index("apiVersion: monitoring") :].partition("kubectl create")
    assert len(yaml.safe_load(rules[0])["spec"]["groups"]) == 4


def alert(action: str, state: str = "firing", **labels: str) -> dict[str, Any]:
    return {"state": state, "labels": {"alertname": "X", "action": action, **labels}}


def test_governance_isolates_few_nodes_and_evicts_idle_runs_but_no_inference(
    tmp_path: Path,
) -> None:
    (tmp_path / "token").write_text("secret")
    nodes = [{"metadata": {"name": f"n{i}"}, "spec": {"unschedulable": i == 0}} for i in range(20)]
    owned = {name: {"ownerReferences": [{"name": name}]} for name in ("idle", "busy", "talk")}
    workloads = [
        {"metadata": {"name": f"job-{name}", **owner}, "spec": {"priorityClassRef": {
            "name": "inference" if name == "talk" else "training"}}}
        for name, owner in owned.items()
    ]  # fmt: skip
    alerts = [
        alert("isolate", node="n1"), alert("isolate", node="n1"), alert("isolate", node="n2"),
        alert("isolate", "pending", node="n3"), alert("isolate", node="gone"),
        *(alert("reclaim", namespace="avatar-v", run=run) for run in ("idle", "talk")),
    ]  # fmt: skip
    with answering(alerts, nodes, workloads) as (address, patched):
        done = subprocess.run(
            [sys.executable, str(INFRA / "cell" / "govern.py")], capture_output=True, text=True,
            env={"PROMETHEUS": address, "API": address, "ACCOUNT": str(tmp_path),
                 "MOST_ISOLATED": "0.1"},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [(path.rpartition("/")[2], change["spec"]) for path, change in patched] == [
        ("n1", {"unschedulable": True}),
        ("job-idle", {"active": False}),
    ]
    assert "n2: X, but 2 nodes are out already" in done.stdout


@contextmanager
def answering(alerts: list, nodes: list, workloads: list) -> Iterator[tuple[str, list]]:
    """Prometheus and a cluster at one address, and what was changed there."""
    patched: list[tuple[str, Any]] = []
    found = {
        "/api/v1/alerts": {"data": {"alerts": alerts}},
        "/api/v1/nodes": {"items": nodes},
        "/apis/kueue.x-k8s.io/v1beta2/namespaces/avatar-v/workloads": {"items": workloads},
    }

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(found[self.path])

        def do_PATCH(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            patched.append((self.path, json.loads(body)))
            self.answer({})

        def answer(self, value: Any) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(value).encode())

        def log_message(self, *words: object) -> None:
            """Nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", patched
    finally:
        server.shutdown()
        server.server_close()
