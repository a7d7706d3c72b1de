"""The Helm chart of `avatar-v serve`: linted and rendered by Helm, its objects those of Kubernetes.

By the helm on the PATH, or by Helm's own library in the package helm-python-sdk (240 MB, so it is
no dependency of ours); without either these tests are skipped.
"""

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from avatar_v.cli import main
from kubernetes_models import check_model

CHART = Path(__file__).resolve().parents[2] / "infra" / "serve" / "chart"
VALUES = {
    "clients": 'acme: {token: "0"}',
    "hosts": ["avatars.example"],
    "options": ["--policy=/served/policy.yaml"],
    "live": {"replicas": 1},
    "monitor": True,
}
pytestmark = pytest.mark.skipif(
    shutil.which("helm") is None and importlib.util.find_spec("helm_python") is None,
    reason="neither helm nor the package helm-python-sdk is there",
)


def helm(tmp_path: Path, *words: str) -> str:
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(VALUES))
    command = ["helm", *words, str(CHART), "-f", str(file)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def rendered(tmp_path: Path) -> list[dict[str, Any]]:
    if shutil.which("helm"):
        text = helm(tmp_path, "template", "demo")
    else:
        import helm_python

        with helm_python.Chart.load(CHART) as chart:
            text = "\n---\n".join(chart.render(VALUES, name="demo").values())
    return [part for part in yaml.safe_load_all(text) if part]


def test_helm_finds_no_fault(tmp_path: Path) -> None:
    if shutil.which("helm"):
        helm(tmp_path, "lint", "--strict")
        return
    import helm_python

    found = helm_python.lint(CHART, VALUES, strict=True)
    assert found["errors"] == []
    assert max(message["severity"] for message in found["messages"]) <= 1  # notes


def test_its_objects_are_those_of_kubernetes_and_its_commands_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = pytest.importorskip("kubernetes", reason="needs the package kubernetes").client
    parts = {(part["kind"], part["metadata"]["name"]): part for part in rendered(tmp_path)}
    names = [("Deployment", f"demo-{name}") for name in ("api", "worker", "live")]
    names += [
        (kind, f"demo-{n}") for kind in ("Service", "ServiceMonitor") for n in ("api", "live")
    ]
    assert set(parts) == {*names, ("Secret", "demo-clients")}
    for (kind, _), part in parts.items():
        if kind != "ServiceMonitor":  # the operator's, of which there is no model
            check_model(client, f"V1{kind}", part)
    assert parts["Secret", "demo-clients"]["stringData"]["clients.yaml"] == VALUES["clients"]
    for name in ("api", "live", "worker"):
        pod = parts["Deployment", f"demo-{name}"]["spec"]["template"]
        (container,) = pod["spec"]["containers"]
        assert main(["serve", *container["args"], "--workers=0"]) == 2  # known up to that one
        assert "--workers is a whole number" in capsys.readouterr().err
        assert ("--live" in container["args"]) == (name == "live")
        if name != "worker":
            assert parts["Service", f"demo-{name}"]["spec"]["selector"] == pod["metadata"]["labels"]
            monitor = parts["ServiceMonitor", f"demo-{name}"]["spec"]
            assert monitor["selector"]["matchLabels"] == pod["metadata"]["labels"]
