"""`avatar-v launch --on slurm` on a real Slurm: preempted, requeued, finished, and stopped."""

import contextlib
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from avatar_v.cli import main
from avatar_v.recipe.cli import run_words
from loopback_slurm import missing, slurm, until
from tiny_run import RECIPES, losses, make_shards

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
MOST_S = 600.0
"""A start takes 10 s where nothing else runs."""
OVERLAY = """
model: {init_args: {models: {vae: null}}}
trainer:
  max_steps: 40
  val_check_interval: 1000
  strategy: ddp_find_unused_parameters_true
  logger:
    class_path: avatar_v.callbacks.experiment_log.PatientMLFlowLogger
    init_args: {experiment_name: e, run_name: r, tracking_uri: 'sqlite:///runs/mlflow.db'}
"""
RECIPE = [str(RECIPES / "1_t2v.yaml"), str(RECIPES / "tiny.yaml"), "overlay.yaml"]
ROOT = Path("runs/tiny/1_t2v")
COMMAND = (sys.executable, "-m", "avatar_v.cli")


class Cluster:
    """A Slurm of two nodes, which this process knows, and commands in a folder with shards."""

    def told(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def avatar_v(self, *words: str) -> str:
        """In this process: a start takes seconds."""
        with contextlib.redirect_stdout(io.StringIO()) as said:
            assert main(words) == 0
        return said.getvalue()

    def launch(self, *words: str) -> str:
        """The number of the job, which has begun to train."""
        said = self.avatar_v("launch", *RECIPE, "--on", "slurm", *words)
        self.until(lambda: (ROOT / "recipe.yaml").exists())
        return said.partition("slurm has it as ")[2].partition(";")[0]

    def until(self, is_so) -> None:
        log = ROOT / "launch.log"
        try:
            until(is_so, MOST_S)
        except AssertionError as error:
            raise AssertionError(log.read_text() if log.exists() else "no log") from error

    def preempt(self, job: str, num_nodes: int, hold_s: int = 1) -> str:
        """Take so many nodes from ``job``, which ends and is requeued; the job that has them."""
        wrap = ["--exclusive", f"--nodes={num_nodes}", f"--wrap=srun sleep {hold_s}"]
        said = self.told("sbatch", "--parsable", "--partition=inference", "-o", "/dev/null", *wrap)
        self.until(lambda: "PENDING" in self.state(job))
        return said.strip()

    def go_on(self, job: str) -> None:
        """Slurm lets a requeued job wait for two minutes: it need not here."""
        self.told("scontrol", "update", f"JobId={job}", "StartTime=now")

    def state(self, job: str) -> str:
        return self.told("scontrol", "--oneliner", "show", "job", job)

    def finished(self, job: str) -> None:
        self.until(lambda: "JobState=COMPLETED" in self.state(job))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    make_shards(tmp_path)
    (tmp_path / "overlay.yaml").write_text(OVERLAY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")  # node names are no hosts
    with slurm(tmp_path / "slurm", 2) as environment:
        for name in ("PATH", "SLURM_CONF"):
            monkeypatch.setenv(name, environment[name])
        yield Cluster()


def weights(root: Path) -> dict[str, torch.Tensor]:
    return load_file(root / "weights" / "dit" / "model.safetensors")


def num_stopped_at() -> int:
    (step,) = re.findall(r"stopped at step (\d+)", (ROOT / "launch.log").read_text())
    return int(step)


STRAIGHT = ("--trainer.default_root_dir", "straight", "--trainer.logger", "false")


def equal(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_a_preempted_run_is_requeued_and_equals_an_uninterrupted_one(cluster: Cluster) -> None:
    job = cluster.launch()
    cluster.preempt(job, 2)
    assert "PENDING" in cluster.avatar_v("launch", "status", str(ROOT))
    cluster.go_on(job)
    threads, straight = torch.get_num_threads(), Path("straight")
    torch.set_num_threads(1)
    run_words("run", [*RECIPE, *STRAIGHT])
    torch.distributed.destroy_process_group()  # which ddp has left
    torch.set_num_threads(threads)
    cluster.finished(job)
    assert 0 < num_stopped_at() < 40
    assert losses(ROOT) == losses(straight)
    assert equal(ROOT, straight)
    said = cluster.avatar_v("launch", "status", str(ROOT))
    assert "COMPLETED" in said
    assert "requeued 1 times" in said
    logs = (*COMMAND, "launch", "logs", str(ROOT))  # becomes the program that shows them
    assert "40 steps in" in cluster.told(*logs)
    from mlflow.tracking import MlflowClient  # seconds, in each process that collects tests

    from avatar_v.callbacks.experiment_log import TAG

    # Absolute: mlflow keeps a connection for each address that this process has had.
    client = MlflowClient(f"sqlite:///{Path('runs/mlflow.db').absolute()}")
    (run,) = client.search_runs(["1"])
    assert run.info.status == "FINISHED"
    assert said.startswith(run.data.tags[TAG])


@pytest.mark.slow
def test_two_nodes_are_preempted_together_and_go_on_as_two_and_as_one(cluster: Cluster) -> None:
    """Ranks of both nodes end at the same step; a node that is taken for longer is done without,
    with the clips of a step unchanged."""
    two = ("--", "--trainer.accumulate_grad_batches", "1")
    job = cluster.launch("--nodes", "2", *two)
    taker = cluster.preempt(job, 2)
    first = num_stopped_at()
    assert "task 0: Terminated" not in (ROOT / "launch.log").read_text()
    cluster.until(lambda: "COMPLETED" in cluster.state(taker))
    cluster.go_on(job)
    cluster.finished(job)
    straight = Path("straight")
    cluster.told(*COMMAND, "run", *RECIPE, *STRAIGHT, "--trainer.devices", "2")
    assert 0 < first < 40
    assert losses(ROOT) == losses(straight)
    assert equal(ROOT, straight)

    (ROOT / "recipe.yaml").unlink()
    overlay = Path("overlay.yaml")
    overlay.write_text(overlay.read_text() + "  accumulate_grad_batches: 2\n")
    job = cluster.launch("--nodes", "1-2", "--", "--trainer.max_steps", "80")
    cluster.preempt(job, 1, hold_s=1000)
    cluster.go_on(job)
    cluster.finished(job)
    assert "NumNodes=1 " in cluster.state(job)
    assert len(losses(ROOT)) == 80


@pytest.mark.slow
def test_a_run_that_is_stopped_has_its_checkpoint_and_is_not_requeued(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    job = cluster.launch("--", "--trainer.max_steps", "100000")
    with pytest.raises(AssertionError):
        cluster.launch()
    assert f"slurm has this run as {job}; avatar-v launch stop" in capsys.readouterr().err
    cluster.avatar_v("launch", "stop", str(ROOT))
    cluster.until(lambda: "JobState=FAILED" in cluster.state(job))
    assert "ExitCode=75:0" in cluster.state(job)
    assert "Restarts=0" in cluster.state(job)
    assert (ROOT / "checkpoints" / "last.ckpt").exists()
    assert len(losses(ROOT)) == num_stopped_at()
