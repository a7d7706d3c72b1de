"""The adversarial refiner, stage 3, distillation, alignment on two gloo processes: train, resume,
export averaged weights; who draws what."""

import copy
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch.distributed.checkpoint import FileSystemReader

from aligning import make_weights
from avatar_v.weights.adapter import load_merged
from avatar_v.weights.card import AdapterSpec, Card
from avatar_v.weights.presets import build
from avatar_v.weights.random import motion_stats
from avatar_v.weights.weights import load_pipeline, save_pipeline
from forked import Script
from random_models import randomise
from tiny_run import RECIPES, losses, make_shards, run_stage

OVERLAY = {
    "model": {
        "init_args": {"models": {"vae": None, "init_from": None, "checkpoint_activations": True}}
    },
    "data": {"init_args": {"batch_size": 1}},
    "trainer": {
        "devices": 2,
        "strategy": {
            "class_path": "avatar_v.parallel.strategy.ShardedStrategy",
            "init_args": {"data_parallel_size": "auto", "tensor_parallel_size": 1},
        },
        "default_root_dir": "run",
        "precision": "bf16-mixed",  # as the full-size recipes
        "callbacks": [
            {
                "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
                "init_args": {"every_n_train_steps": 4, "save_top_k": -1},
            }
        ],
    },
}


STAGE_3 = (
    *("--model.init_args.personality.motion_dropout", "0.5"),
    *("--model.init_args.personality.reference_motion_dropout", "0.5"),
)
"""Steps that leave parts of the network out, on each rank its own."""


RECORDING = """
import sys
from pathlib import Path
from avatar_v.cli import main
from avatar_v.training.engine import Engine

iterate = Engine.iterate

def record(self, batch):
    state = hash(bytes(batch.draws.own.get_state()))
    with open(f"draws_{self.global_rank}.txt", "a") as file:
        print(*batch.clips.key, batch.windows.start.tolist(), state, file=file)
    return iterate(self, batch)

Engine.iterate = record
sys.exit(main(sys.argv[1:]))
"""
"""Leaves the clips of every batch of each rank, and what state its generator is in."""

RECORDING_DMD = """
import sys
from torch.distributed.tensor import DTensor
from avatar_v.cli import main
from avatar_v.objectives.distill_dmd import DistillDMD

iterate = DistillDMD.iterate

def record(self, batch):
    result, windows = iterate(self, batch), batch.windows
    state = hash(bytes(batch.draws.common.get_state()))
    kind = (windows.length, windows.prefix.tolist(), state)
    for name, p in self.named_parameters():
        if "lora_" in name:
            whole = p.full_tensor() if isinstance(p, DTensor) else p
            kind += (float(whole.double().sum()),)
    with open(f"draws_{self.global_rank}.txt", "a") as file:
        print(self.step, *kind, "|", *batch.clips.key, file=file)
    return result

DistillDMD.iterate = record
sys.exit(main(sys.argv[1:]))
"""
"""The kind of window, the state of the common generator, the factors of LoRA and the step behind
every batch, and its clips."""

RECORDING_GRPO = """
import sys
from avatar_v.cli import main
from avatar_v.objectives.align_grpo import AlignGRPO

roll = AlignGRPO.roll

def record(self, batch):
    rollout, trajectory = roll(self, batch)
    state = hash(bytes(batch.draws.common.get_state()))
    kind = ([move.t for move in trajectory.moves], state)
    sums = [value.double().sum().item() for value in trajectory.values.values()]
    with open(f"draws_{self.global_rank}.txt", "a") as file:
        print(*kind, "|", *batch.clips.key, "|", *sums, file=file)
    return rollout, trajectory

AlignGRPO.roll = record
sys.exit(main(sys.argv[1:]))
"""
"""The noisy steps and the state of the common generator at every rollout, its clips, and the sum of
what each reward says of its samples."""


def train(*options: str, recipe: str, script: str = RECORDING) -> tuple[list[str], ...]:
    """Run on two ranks, as a launcher starts them; what each has read and drawn in every batch, of
    stages of one role."""
    for path in Path().glob("draws_*.txt"):
        path.unlink()
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1])}
    recipes = [str(RECIPES / recipe), str(RECIPES / "tiny.yaml"), "overlay.yaml"]
    words = ["run", *recipes, *options, "--debug"]
    ranks = [Script(script, *words, LOCAL_RANK=str(rank), **place) for rank in range(2)]
    for done in [rank.ended() for rank in ranks]:
        assert done.returncode == 0, done.stderr[-3000:]
    return tuple(path.read_text().splitlines() for path in sorted(Path().glob("draws_*.txt")))


def write_overlay(model: dict[str, Any] | None = None, **sizes: int) -> None:
    overlay = copy.deepcopy(OVERLAY)
    if model is not None:
        overlay["model"]["init_args"] = model
    overlay["trainer"]["strategy"]["init_args"].update(sizes)
    Path("overlay.yaml").write_text(yaml.safe_dump(overlay), encoding="utf-8")


@pytest.mark.multi
def test_two_ranks_train_resume_and_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage of two roles: the student is sharded, its discriminator whole on every rank."""
    make_shards(tmp_path)
    monkeypatch.chdir(tmp_path)
    write_overlay()
    few = ("--trainer.max_steps", "4", "--trainer.callbacks.init_args.every_n_train_steps", "2")
    train(*few, recipe="refiner_adversarial.yaml")  # the discriminator counts from step 2 on
    straight = losses("run")
    assert len(straight) == 4
    dit, _ = load_pipeline("run/weights", preset="tiny")
    assert all(bool(p.isfinite().all()) for p in dit.parameters())
    assert bool(dit.head.out.weight.any()), "the head starts at zero"
    (middle,) = Path("run/checkpoints").glob("*step=2*")
    # of the average each rank wrote its own shards, and neither had it whole
    state = torch.load(middle / "meta.pt", weights_only=True)["callbacks"]["EMA"]
    assert state["average"] == {}
    stored = FileSystemReader(middle).read_metadata().state_dict_metadata
    for name in state["sharded"]:
        averaged, weight = (stored[f"state_dict.{place}{name}"] for place in ("average.", ""))
        assert averaged.size == weight.size
        assert [c.offsets for c in averaged.chunks] == [c.offsets for c in weight.chunks]
    assert len(stored["state_dict.average.dit.blocks.0.ffn.up.weight"].chunks) == 2
    train("--ckpt_path", str(middle), *few, recipe="refiner_adversarial.yaml")
    # the same draws, shards and reductions: the rest of the run is repeated to the last bit
    assert losses("run") == straight
    again, _ = load_pipeline("run/weights", preset="tiny")
    assert all(torch.equal(p, dit.get_parameter(name)) for name, p in again.named_parameters())


@pytest.mark.multi
def test_ranks_of_stage_3_draw_differently_and_stay_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_shards(tmp_path)
    monkeypatch.chdir(tmp_path)
    write_overlay()
    draws = train(*STAGE_3, "--trainer.max_steps", "4", recipe="3_sft.yaml")
    assert len(losses("run")) == 4
    assert len(draws[0]) == len(draws[1]) == 4
    assert not set(draws[0]) & set(draws[1])
    dit, _ = load_pipeline("run/weights", preset="tiny")
    fresh = dict(build("tiny", seed=0, motion_stats=motion_stats())[0].named_parameters())
    moved = [n for n, p in dit.named_parameters() if not torch.equal(fresh[n], p)]
    assert any("motion_inject" in name for name in moved)
    assert all(bool(p.isfinite().all()) for p in dit.parameters())


@pytest.mark.multi
def test_a_sequence_group_trains_as_one_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ranks read the same clips and draw the same noise, and each computes half of a video."""
    make_shards(tmp_path)
    monkeypatch.chdir(tmp_path)
    steps = ("--trainer.max_steps", "3", "--trainer.precision", "32-true", *STAGE_3)
    alone = {"models": {"vae": None, "init_from": None}}
    Path("alone.yaml").write_text(yaml.safe_dump({"model": {"init_args": alone}}), encoding="utf-8")
    run_stage("3_sft", "alone.yaml", "--data.init_args.batch_size", "1", *steps)
    want = losses("runs/tiny/3_sft")
    write_overlay(tensor_parallel_size=2)
    draws = train(*steps, recipe="3_sft.yaml")
    assert len(draws[0]) == 3
    assert draws[0] == draws[1]
    assert losses("run")[0] == pytest.approx(want[0], rel=1e-5)  # fp32 sums of halves
    # Muon works in bf16 and gives a vanishing gradient full size
    assert losses("run") == pytest.approx(want, rel=1e-3)


LORA = ("--model.init_args.trainable", "{parts: lora, lora_rank: 2}")
DDP = ("--trainer.strategy", "ddp_find_unused_parameters_true", *LORA)


@pytest.mark.multi
@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="three networks sharded", marks=pytest.mark.slow),
        pytest.param(LORA, id="lora sharded"),
        pytest.param(DDP, id="lora", marks=pytest.mark.slow),
    ],
)
def test_ranks_of_distillation_make_the_same_chunks(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kind of a window, the step with the gradient and the ratio of updates are common."""
    make_shards(tmp_path)
    monkeypatch.chdir(tmp_path)
    write_overlay()
    recipe = "4b_distill_dmd.yaml"
    draws = train("--trainer.max_steps", "3", *options, recipe=recipe, script=RECORDING_DMD)
    assert len(losses("run")) == 3
    assert len(draws[0]) == len(draws[1]) == 6  # two updates of the fake score for each step
    for here, there in zip(*draws, strict=True):
        (common, clips), (same, others) = here.split("|"), there.split("|")
        assert common == same
        assert clips != others
    dit, _ = load_pipeline("run/weights", preset="tiny")
    assert all(bool(p.isfinite().all()) for p in dit.parameters())


@pytest.mark.multi
@pytest.mark.parametrize(
    "together", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["a clip", "two clips"]
)
def test_two_ranks_make_groups_as_one_does(
    together: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run ends where the ratio is not exactly 1. Ranks of a sequence group make the samples of a
    clip together, others whole groups of their own, with noise in the same steps."""
    make_shards(tmp_path)
    start = make_weights(tmp_path, num_steps=4)
    monkeypatch.chdir(tmp_path)
    models = {"models": {"init_from": start, "checkpoint_activations": True}}
    write_overlay(models, **({"tensor_parallel_size": 2} if together else {}))
    steps = (
        *("--trainer.max_steps", "2", "--trainer.precision", "32-true"),
        *("--trainer.limit_val_batches", "0", "--model.init_args.optim.num_warmup_steps", "0"),
        *("--trainer.callbacks", "[{class_path: avatar_v.callbacks.record.LossCurve}]"),
        *("--model.init_args.exploration.num_steps", "4"),  # the noise is in one of three
    )
    draws = train(*steps, recipe="5a_grpo_video.yaml", script=RECORDING_GRPO)
    assert len(losses("run")) == len(draws[0]) == len(draws[1]) == 2
    for here, there in zip(*draws, strict=True):
        assert here.split("|")[0] == there.split("|")[0]
        assert (here == there) is together
    if together:  # the loss of a rollout is the weighted rewards of its samples
        alone = ("--model.init_args.models.init_from", start, "--data.init_args.batch_size", "1")
        run_stage("5a_grpo_video", *alone, *steps)
        # fp32: halves of a video are summed in another order
        assert losses("run") == pytest.approx(losses("runs/tiny/5a_grpo_video"), abs=1e-4)


@pytest.mark.slow
@pytest.mark.multi
def test_lora_of_stage_3_is_sharded_and_trains_as_on_one_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks of a sequence group compute one clip, with shards of the factors; the run goes on
    from a checkpoint and leaves the same adapter as one rank does."""
    make_shards(tmp_path)
    monkeypatch.chdir(tmp_path)
    dit, conditioner = build("tiny", seed=0, motion_stats=motion_stats())
    randomise(dit)  # a head of zeros, frozen, would pass no gradient
    save_pipeline("base", dit, conditioner, Card("tiny"))
    steps = ("--trainer.max_steps", "4", "--trainer.precision", "32-true", *STAGE_3, *LORA)
    alone = {"models": {"vae": None, "init_from": "base"}}
    Path("alone.yaml").write_text(yaml.safe_dump({"model": {"init_args": alone}}), encoding="utf-8")
    run_stage("3_sft", "alone.yaml", "--data.init_args.batch_size", "1", *steps)
    want = losses("runs/tiny/3_sft")
    write_overlay(data_parallel_size=1, tensor_parallel_size=2)
    steps = (*steps, "--model.init_args.models.init_from", "base")
    saving = ("--trainer.callbacks.init_args.every_n_train_steps", "2")
    train(*steps, *saving, recipe="3_sft.yaml")
    assert losses("run")[0] == pytest.approx(want[0], rel=1e-5)  # fp32 sums of halves
    # AdamW and Muon give a vanishing gradient full size
    assert losses("run") == pytest.approx(want, rel=1e-3)
    first = load_file("run/adapter/adapter_model.safetensors")
    (middle,) = Path("run/checkpoints").glob("*step=2*")
    train("--ckpt_path", str(middle), *steps, *saving, recipe="3_sft.yaml")
    again = load_file("run/adapter/adapter_model.safetensors")
    assert first.keys() == load_file("runs/tiny/3_sft/adapter/adapter_model.safetensors").keys()
    assert all(torch.equal(value, again[key]) for key, value in first.items())
    assert any(bool(value.any()) for key, value in first.items() if "lora_B" in key)
    run, _ = load_merged("base", [AdapterSpec(Path("run/adapter"))])
    written, _ = load_pipeline("run/weights", preset="tiny")
    assert all(torch.equal(p, written.get_parameter(n)) for n, p in run.named_parameters())
