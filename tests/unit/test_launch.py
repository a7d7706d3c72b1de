"""`avatar-v launch`: what is written for each engine, against their schemas, and its refusals."""

import ast
import importlib.util
import json
import re
import signal
import subprocess
import sys
import types
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from avatar_v.base.launched import RUN, TRY_AGAIN
from avatar_v.cli import main
from avatar_v.launch import local
from avatar_v.launch.job import typed
from kubernetes_models import check_model
from loopback_slurm import until
from tiny_run import RECIPES

RECIPE = str(RECIPES / "2_a2v.yaml")
CLOUD = ("--image", "registry/avatar-v:1", "--volume", "work", "--team", "faces")


def dry(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert (
        main(["launch", RECIPE, *words[: place(words)], "--dry-run", *words[place(words) :]]) == 0
    )
    return capsys.readouterr().out


def place(words: tuple[str, ...]) -> int:
    return words.index("--") if "--" in words else len(words)


def test_a_batch_script_keeps_the_clips_of_a_step_on_any_number_of_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three nodes cannot share the 64 batches: the run uses two of them."""
    monkeypatch.chdir(tmp_path)
    words = ("--on", "slurm", "--nodes", "1-4", "--priority", "training", "--time", "24:00:00")
    script = dry(capsys, *words, "--", "--trainer.max_steps", "7")
    assert not list(tmp_path.iterdir())
    said = {int(n): rest for n, rest in re.findall(r"^  (\d)\) (.*) ;;$", script, re.MULTILINE)}
    batches = "--trainer.accumulate_grad_batches"
    found = {n: (rest[:7], typed(rest.split(), batches)) for n, rest in said.items()}
    assert found == {1: ("nodes=1", None), 2: ("nodes=2", "4"), 3: ("nodes=2", "4"),
                     4: ("nodes=4", "2")}  # fmt: skip
    assert "--trainer.val_check_interval 4000" in said[2]  # of 8000 batches
    for line in ("--nodes=1-4", "--gpus-per-node=8", "--requeue", "--qos=training",
                 "--signal=SIGTERM@120", "--time=24:00:00"):  # fmt: skip
        assert f"#SBATCH {line}\n" in script
    assert "2_a2v.yaml --trainer.max_steps 7 --ckpt_path last" in script
    path = tmp_path / "launch.sh"
    path.write_text(script)
    subprocess.run(["bash", "-n", str(path)], check=True)


PREEMPTED, BEFORE = "2026-11-28T08:05:00", "2026-11-28T07:05:00"
SCONTROL = """scontrol() {{
  [ "$1" = requeue ] || echo "JobId=1 StartTime=2026-11-28T08:00:00 PreemptTime={preempted}"
  [ "$1" = show ] || echo "$1"
}}
srun() {{ return {status}; }}
SLURM_JOB_ID=1 SLURM_NNODES=1 SLURM_CPUS_ON_NODE=8
"""


@pytest.mark.parametrize(
    ("status", "preempted", "requeued"),
    [(75, "None", True), (1, PREEMPTED, True), (1, BEFORE, False), (1, "None", False),
     (0, PREEMPTED, False)],
)  # fmt: skip
def test_a_batch_script_requeues_what_was_interrupted_and_no_run_that_fails(
    capsys: pytest.CaptureFixture[str], status: int, preempted: str, requeued: bool
) -> None:
    script = SCONTROL.format(status=status, preempted=preempted) + dry(capsys, "--on", "slurm")
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, "requeue" in done.stdout) == (status, requeued)


def test_a_manifest_is_one_of_kubernetes(capsys: pytest.CaptureFixture[str]) -> None:
    client = pytest.importorskip("kubernetes", reason="needs the package kubernetes").client
    text = dry(capsys, "--on", "kubernetes", "--nodes", "2", *CLOUD, "--topology", "avatar-v/block")
    service, job = yaml.safe_load_all(text)
    check_model(client, "V1Service", service)
    check_model(client, "V1Job", job)
    name = job["metadata"]["name"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "default"
    spec = job["spec"]
    assert (spec["completions"], spec["parallelism"], spec["suspend"]) == (2, 2, True)
    (container,) = spec["template"]["spec"]["containers"]
    names = {one["name"]: one for one in container["env"]}
    assert names[RUN]["value"] == name
    assert names["MASTER_ADDR"]["value"] == f"{name}-0.{service['metadata']['name']}"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    again = [rule for rule in spec["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    assert again[0]["onExitCodes"]["values"] == [TRY_AGAIN]
    spec["template"]["spec"]["restartpolicy"] = "Never"
    with pytest.raises(AssertionError, match="V1PodSpec has no restartpolicy"):
        check_model(client, "V1Job", job)


def test_a_task_file_is_one_of_skypilot(capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schemas = sky_schemas()
    text = dry(capsys, "--on", "skypilot", "--nodes", "2", "--gpu", "H100", *CLOUD)
    task = yaml.safe_load(text)
    schema = schemas.get_task_schema()
    jsonschema.validate(task, schema)
    jsonschema.validate(task["resources"], schemas.get_resources_schema())
    assert task["resources"]["job_recovery"]["recover_on_exit_codes"] == [TRY_AGAIN]
    with pytest.raises(jsonschema.ValidationError, match="nodes"):
        jsonschema.validate({**task, "nodes": 2}, schema)


def sky_schemas() -> Any:
    """SkyPilot's module of schemas, without the hundred packages that it imports beside."""
    spec = importlib.util.find_spec("sky")
    if spec is None or spec.origin is None:
        pytest.skip("needs SkyPilot's wheel (pip install --no-deps skypilot)")
    folder = Path(spec.origin).parent
    constants = Constants()
    for node in ast.parse((folder / "skylet" / "constants.py").read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            with suppress(ValueError):  # it is computed
                setattr(constants, node.targets[0].id, ast.literal_eval(node.value))
    text = (folder / "utils" / "schemas.py").read_text()
    schemas = types.ModuleType("schemas")
    schemas.__dict__.update(
        constants=constants, autostop_lib=Anything(), kubernetes_enums=Anything()
    )
    text = re.sub(r"^from sky.*$", "", text, flags=re.MULTILINE)
    exec(compile(text, "schemas.py", "exec"), schemas.__dict__)
    schemas.__dict__["_task_config_schema"] = dict  # of a part that we do not write
    return schemas


class Constants:
    """Patterns and lists that are computed from others: any text fits."""

    def __getattr__(self, name: str) -> str:
        return ""


class Anything:
    """Stands for modules whose values no task file of ours has."""

    def __getattr__(self, name: str) -> Any:
        return Anything()

    def __call__(self) -> list[str]:
        return []

    def __iter__(self) -> Any:
        return iter(())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nodes", "3"], "3 x 8 ranks cannot share the 8 x 8 batches of a step"),
        (["--nodes", "4-2"], "--nodes is a number such as 4, or LEAST-MOST"),
        (["--nodes", "2"], "--on local is this machine alone"),
        (["--on", "kubernetes"], "--on kubernetes needs --image"),
        (["--on", "kubernetes", "--nodes", "1-2", *CLOUD], "LEAST-MOST is for slurm"),
        (["--on", "skypilot", *CLOUD], "--on skypilot needs --gpu"),
        (["--on", "slurm", "--team", "a b; rm"], "--team is a plain name"),
        (["--", "--ckpt_path", "x.ckpt"], "leave out --ckpt_path"),
        (["--", "--trainer.devices=4"], "--trainer.devices: a launched run has the size of --gpus"),
        (["--on", "kubernetes", *CLOUD, "--", "--trainer.default_root_dir", "/r"], "on the volume"),
    ],
)
def test_what_would_not_run_is_refused_before_it_is_submitted(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["launch", RECIPE, *words]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_engine_that_is_not_installed_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["launch", RECIPE, "--on", "slurm"]) == 2
    assert "sbatch is not installed here: --dry-run shows" in capsys.readouterr().err
    assert main(["launch", "status", "runs/2_a2v"]) == 2
    assert "runs/2_a2v holds no run that was launched" in capsys.readouterr().err


def test_a_run_of_this_machine_is_told_to_end_and_keeps_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a program in the place of a training, which takes a start of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local, "by_path", lambda job: f"{sys.executable} -c '{WAITS}'")
    root, log = Path("runs/2_a2v"), Path("runs/2_a2v/launch.log")
    words = ["launch", RECIPE, "--gpus", "8"]
    assert main(words) == 0
    record = json.loads((root / "launch.json").read_text())
    until(lambda: "begun" in log.read_text(), 30)
    assert main(words) == 2
    assert f"local has this run as {record['job']}; avatar-v launch stop" in capsys.readouterr().err
    assert main(["launch", "status", str(root)]) == 0
    assert "running" in capsys.readouterr().out
    assert main(["launch", "stop", str(root)]) == 0
    until(lambda: "told" in log.read_text(), 30)
    until(lambda: not local.is_there(local.Launched(**record)), 30)
    assert main(words) == 0
    again = json.loads((root / "launch.json").read_text())
    assert again["id"] == record["id"]
    assert again["job"] != record["job"]
    until(lambda: log.read_text().count("begun") == 2, 30)
    local.stop(local.Launched(**again))


WAITS = f"""
import signal, sys
def told(*_):
    print("told", flush=True)
    sys.exit({TRY_AGAIN})
signal.signal({int(signal.SIGTERM)}, told)
print("begun", flush=True)
signal.pause()
""".replace("'", '"')
