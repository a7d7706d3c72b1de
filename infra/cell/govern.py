"""What alerts ask for: a node is cordoned (action: isolate), a run evicted (action: reclaim).

Runs once and ends; Python alone, in a pod of the cell. A cordoned node keeps what runs on it, gets
nothing new, and stays so until a person has looked at it (`kubectl uncordon`). An evicted run is a
Kueue Workload that is set inactive: it has its grace to write a checkpoint, and `kubectl patch
workload NAME --type merge -p '{"spec": {"active": true}}'` lets it go on. Inference is never
evicted. No more than the share MOST_ISOLATED of the nodes is cordoned: an alert that is wrong
everywhere must not empty a cell.
"""

import json
import os
import ssl
import urllib.request
from pathlib import Path

ACCOUNT = Path(os.environ.get("ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))
WHY = "avatar-v/isolated"
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"


def main() -> None:
    with urllib.request.urlopen(f"{os.environ['PROMETHEUS']}/api/v1/alerts", timeout=20) as answer:
        alerts = json.load(answer)["data"]["alerts"]
    firing = [one["labels"] for one in alerts if one["state"] == "firing"]
    isolate([one for one in firing if one.get("action") == "isolate"])
    reclaim([one for one in firing if one.get("action") == "reclaim"])


def isolate(alerts: list[dict[str, str]]) -> None:
    """Cordon the nodes of ``alerts``, as far as the share allows."""
    nodes = {node["metadata"]["name"]: node for node in api("GET", "/api/v1/nodes")["items"]}
    num_out = sum(node["spec"].get("unschedulable", False) for node in nodes.values())
    for alert in alerts:
        node = nodes.get(alert.get("node", ""))
        if node is None or node["spec"].get("unschedulable"):
            continue
        if num_out + 1 > float(os.environ["MOST_ISOLATED"]) * len(nodes):
            print(f"{alert['node']}: {alert['alertname']}, but {num_out} nodes are out already")
            continue
        why = {"annotations": {WHY: alert["alertname"]}}
        change = {"metadata": why, "spec": {"unschedulable": True}}
        api("PATCH", f"/api/v1/nodes/{alert['node']}", change)
        node["spec"]["unschedulable"] = True
        num_out += 1
        print(f"{alert['node']}: isolated, {alert['alertname']}")


def reclaim(alerts: list[dict[str, str]]) -> None:
    """Evict the runs of ``alerts``."""
    for space in sorted({alert["namespace"] for alert in alerts}):
        runs = {alert["run"] for alert in alerts if alert["namespace"] == space}
        place = f"{KUEUE}/namespaces/{space}/workloads"
        for workload in api("GET", place)["items"]:
            owners = {one["name"] for one in workload["metadata"].get("ownerReferences", [])}
            spec = workload["spec"]
            kept = spec.get("priorityClassRef", {}).get("name") == "inference"
            if owners & runs and spec.get("active", True) and not kept:
                api("PATCH", f"{place}/{workload['metadata']['name']}", {"spec": {"active": False}})
                print(f"{', '.join(owners)}: evicted, idle")


def api(method: str, path: str, change: dict | None = None) -> dict:
    """A call of the cluster's API."""
    server = os.environ.get("API", "https://kubernetes.default.svc")
    request = urllib.request.Request(
        server + path,
        method=method,
        data=None if change is None else json.dumps(change).encode(),
        headers={
            "Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}",
            "Content-Type": "application/merge-patch+json",
        },
    )
    trusted = None
    if server.startswith("https"):
        trusted = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, timeout=20, context=trusted) as answer:
        return json.load(answer)


if __name__ == "__main__":
    main()
