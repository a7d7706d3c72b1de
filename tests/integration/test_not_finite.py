"""A loss or a weight that is not finite ends a run, and nothing is written of it; and the words
that a run shows and ends with."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import lightning as L
import pytest
import torch
import yaml
from torch import Tensor

from avatar_v.base import interrupts
from avatar_v.base.launched import RUN, TRY_AGAIN
from avatar_v.callbacks.ema import EMA
from avatar_v.callbacks.finite import FiniteTraining
from avatar_v.callbacks.record import LossCurve, read_losses
from avatar_v.cli import main
from avatar_v.objectives.refiner_adversarial import AdversarialRefiner
from avatar_v.objectives.t2v import T2V
from avatar_v.objectives.vae import TrainVAE
from forked import run_script
from tiny_run import RECIPES, make_shards

FRESH = {"model": {"init_args": {"models": {"vae": None, "init_from": None}}}}
BAD_STEP = 4


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Networks this small only wait for further threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("not_finite")
    make_shards(folder)
    (folder / "fresh.yaml").write_text(yaml.safe_dump(FRESH), encoding="utf-8")
    return folder


@pytest.fixture
def root(shards: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run, of every test another."""
    monkeypatch.chdir(shards)
    return shards / "runs" / f"{abs(hash(request.node.name)):x}"


def run(stage: str, root: Path, *options: str) -> int:
    recipes = [str(RECIPES / f"{stage}.yaml"), str(RECIPES / "tiny.yaml")]
    recipes += [] if "vae" in stage else ["fresh.yaml"]
    few = ["--trainer.limit_val_batches", "0", "--trainer.default_root_dir", str(root)]
    return main(["run", *recipes, *few, *options])


def spoiled(whole: Callable, name: str | None) -> Callable:
    """A stage's step whose loss, or one term of it, is NaN from step `BAD_STEP` on."""

    def step(self, *args):
        step = self.trainer.global_step + 1  # a stage of several roles steps within
        outputs = whole(self, *args)
        if step < BAD_STEP:
            return outputs
        if name is None:
            return {**outputs, "loss": outputs["loss"] * torch.nan}
        return {**outputs, "terms": {**outputs["terms"], name: torch.tensor(torch.inf)}}

    return step


@pytest.mark.parametrize(
    ("stage", "kind", "term", "said"),
    [
        ("0_vae", TrainVAE, None, "step 4: not finite: loss nan"),
        ("1_t2v", T2V, None, "step 4: not finite: loss nan"),
        ("refiner_adversarial", AdversarialRefiner, "error", "step 4: not finite: error inf"),
    ],
)
def test_a_loss_that_is_not_finite_ends_the_run(
    stage: str, kind: type, term: str | None, said: str, root: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(kind, "training_step", spoiled(kind.training_step, term))
    saves = "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint"
    every = "--trainer.callbacks.every_n_train_steps"
    assert run(stage, root, saves, every, "3", "--trainer.callbacks.dirpath", f"{root}/kept") == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"avatar-v: error: {said}; clips of the batch: clip0")
    assert line.count("clip0") == 4
    assert "nothing is exported, the last checkpoint stays" in line
    assert not (root / "weights").exists()
    assert not (root / "vae").exists()
    assert not list(root.glob("*partial*"))
    assert [step for step, _ in read_losses(root / "loss.csv")] == [1, 2, 3]
    (last,) = (root / "kept").glob("*.ckpt")
    state = torch.load(last, weights_only=True)
    assert state["global_step"] == 3
    assert all(bool(x.isfinite().all()) for x in state["state_dict"].values())


@pytest.mark.parametrize("place", ["checkpoint", "export"])
def test_weights_that_are_not_finite_are_never_written(
    place: str, root: Path, monkeypatch, capsys
) -> None:
    """The first stage hears nothing, so weights of its audio are not seen by any loss."""

    def spoil(self, trainer, module, *args) -> None:
        if trainer.global_step == (2 if place == "checkpoint" else trainer.max_steps):
            with torch.no_grad():
                module.get_parameter("dit.blocks.0.audio_attention.out.weight")[0, 0] = torch.nan

    monkeypatch.setattr(LossCurve, "on_train_batch_end", spoil)
    never = ["--trainer.enable_checkpointing", "false"] if place == "export" else []
    if place == "export":  # the average, too, would be what is written
        monkeypatch.setattr(EMA, "applied", lambda self, module: torch.no_grad())
        never += ["--trainer.callbacks", "[]"]
        never += ["--trainer.callbacks+=avatar_v.callbacks.record.LossCurve"]
        never += ["--trainer.callbacks+=avatar_v.callbacks.record.Export"]
        never += ["--trainer.callbacks.recipe", "none"]
    assert run("1_t2v", root, "--trainer.max_steps", "4", *never) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "weights are not finite: dit.blocks.0.audio_attention.out.weight" in line
    assert f": {place} " in line
    assert not (root / "weights").exists()
    assert not list(root.rglob("*.ckpt"))


def test_a_validation_that_is_not_finite_fails(root: Path, monkeypatch, capsys) -> None:
    whole = T2V.loss

    def loss(self, *args) -> tuple[Tensor, dict]:
        value, logs = whole(self, *args)
        return value * torch.nan, logs

    monkeypatch.setattr(T2V, "loss", loss)
    paths = [RECIPES / "1_t2v.yaml", RECIPES / "tiny.yaml", "fresh.yaml"]
    configs = [word for path in paths for word in ("-c", str(path))]
    assert main(["validate", *configs, "--trainer.default_root_dir", str(root)]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "validation at step 0: not finite: val/loss nan" in line
    assert not list(root.rglob("*.safetensors"))


TWO_RANKS = """
import sys, torch
from avatar_v.cli import main
from avatar_v.objectives.t2v import T2V

whole = T2V.training_step

def step(self, *args):
    outputs = whole(self, *args)
    if self.global_rank == 1 and self.trainer.global_step == 2:
        outputs["terms"] = {"odd": torch.tensor(torch.nan)}
    return outputs

T2V.training_step = step
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.multi
def test_all_ranks_end_where_one_is_not_finite(root: Path, tmp_path: Path) -> None:
    """Nothing of the loss or the weights is bad: only the guard sees it, on one rank of two."""
    script = tmp_path / "two_ranks.py"
    script.write_text(TWO_RANKS)
    recipes = [str(RECIPES / "1_t2v.yaml"), str(RECIPES / "tiny.yaml"), "fresh.yaml"]
    options = ["--trainer.devices=2", "--trainer.strategy=ddp_find_unused_parameters_true"]
    options += ["--data.init_args.batch_size=1", "--trainer.limit_val_batches=0"]
    options += [f"--trainer.default_root_dir={root}"]
    first = f"import sys\nsys.argv[0] = {str(script)!r}\n{TWO_RANKS}"  # what the other rank runs
    done = run_script(first, "run", *recipes, *options, OMP_NUM_THREADS="1")
    assert done.returncode == 2, done.stderr[-3000:]
    said = [line for line in done.stderr.splitlines() if "error" in line]
    assert len(said) == 1
    assert "step 3: not finite: odd nan; clips of the batch: clip0" in said[0]
    assert not list(root.rglob("*.ckpt"))
    assert not (root / "weights").exists()


def test_batches_of_a_gpu_are_looked_at_together() -> None:
    """Which step was bad is said though it is found later; what accumulates is the step's."""
    guard, outputs = FiniteTraining(every_num_batches=3), {"loss": torch.zeros(())}

    asked = []

    class Strategy:
        def reduce_boolean_decision(self, decision: bool) -> bool:
            asked.append(decision)
            return decision

    class OfTwo(L.Trainer):
        world_size, global_step, strategy = 2, 0, Strategy()

        def __init__(self) -> None:
            """Only what the guard asks of a trainer."""

    trainer, module = OfTwo(), L.LightningModule()
    bad = {"loss": torch.tensor(torch.nan), "terms": {"video": torch.tensor(1.0)}}
    for step, given in ((1, outputs), (1, bad), (2, outputs)):
        assert not asked
        trainer.global_step = step
        if step == 2:
            trainer.world_size = 1
            with pytest.raises(ValueError, match=r"^step 2: not finite: loss nan; nothing is exp"):
                guard.on_train_batch_end(trainer, module, given, None, 0)
        else:
            guard.on_train_batch_end(trainer, module, given, None, 0)
    assert asked == [False]


# --- what a run says ---


def test_a_run_shows_its_steps_and_ends_with_where_everything_is(root: Path, capsys) -> None:
    assert run("1_t2v", root) == 0
    shown = capsys.readouterr()
    assert "8/8" in shown.err
    assert "loss 0." in shown.err or "loss 1." in shown.err
    assert "left" in shown.err
    assert "Epoch" not in shown.err + shown.out
    (line,) = [line for line in shown.out.splitlines() if line.startswith("8 steps in ")]
    for words in ("weights in", "checkpoints in", "log in", "plot in", "recipe in"):
        assert f"{words} {root}" in line
    assert (root / "loss.png").stat().st_size > 1000


@pytest.mark.parametrize(("number", "step"), [(signal.SIGINT, 6), (signal.SIGTERM, 2)])
def test_an_interrupted_run_says_how_to_go_on(
    number: signal.Signals, step: int, root: Path, monkeypatch, capsys
) -> None:
    whole = LossCurve.on_train_batch_end

    def end(self, trainer, *args) -> None:
        whole(self, trainer, *args)
        if trainer.global_step == step:
            signal.raise_signal(number)

    monkeypatch.setattr(LossCurve, "on_train_batch_end", end)
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    assert run("1_t2v", root) == 130
    signal.signal(signal.SIGINT, before[1])  # Lightning leaves it ignored
    assert signal.getsignal(signal.SIGTERM) == before[0]
    shown = capsys.readouterr()
    assert "avatar-v: interrupted" in shown.err
    (line,) = [line for line in shown.out.splitlines() if line.startswith("interrupted at step")]
    assert line.startswith(f"interrupted at step {step}: ")
    assert ("--ckpt_path last" in line) == (step == 6)
    assert ("the same command begins again" in line) == (step == 2)
    assert not (root / "weights").exists()
    if step == 6:
        monkeypatch.undo()
        monkeypatch.chdir(root.parents[1])
        assert run("1_t2v", root, "--ckpt_path", "last") == 0
        assert [step for step, _ in read_losses(root / "loss.csv")] == list(range(1, 9))


@pytest.mark.parametrize("keeps", [True, False])
def test_a_launched_run_that_is_told_to_end_has_a_checkpoint_or_is_not_started_again(
    keeps: bool, root: Path, monkeypatch, capsys
) -> None:
    def end(self, trainer, *_) -> None:
        if trainer.global_step == 3:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setenv(RUN, "a")
    monkeypatch.setattr(LossCurve, "on_train_batch_end", end)
    monkeypatch.setattr(interrupts, "_ignored", set())
    if not keeps:
        monkeypatch.setattr(L.Trainer, "checkpoint_callbacks", [])
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    assert run("1_t2v", root) == (TRY_AGAIN if keeps else 130)
    if keeps:
        signal.raise_signal(signal.SIGTERM)  # nobody listens any more
    signal.signal(signal.SIGTERM, before[0])
    signal.signal(signal.SIGINT, before[1])
    said = "stopped at step 3: its checkpoint goes on" if keeps else "interrupted at step 3"
    assert said in capsys.readouterr().out
    assert (root / "checkpoints" / "last.ckpt").exists() == keeps
