"""Stages 1 and 3 under FSDP2 on two gloo processes: train, resume, export averaged weights."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from avatar_v.models.presets import build
from avatar_v.models.weights import load_pipeline
from tiny_run import RECIPES, losses, make_shards

OVERLAY = {
    "model": {"init_args": {"models": {"vae": None, "checkpoint_activations": True}}},
    "data": {"init_args": {"batch_size": 1}},
    "trainer": {
        "devices": 2,
        "strategy": {
            "class_path": "lightning.pytorch.strategies.ModelParallelStrategy",
            "init_args": {"data_parallel_size": 2, "tensor_parallel_size": 1},
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


def train(*options: str, recipe: str = "1_t2v.yaml") -> None:
    recipes = [str(RECIPES / recipe), str(RECIPES / "tiny.yaml"), "overlay.yaml"]
    words = [sys.executable, "-m", "avatar_v.cli", "run", *recipes, *options, "--debug"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.multi
def test_two_ranks_train_resume_and_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_shards(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("overlay.yaml").write_text(yaml.safe_dump(OVERLAY), encoding="utf-8")
    train()
    straight = losses("run")
    assert len(straight) == 8
    dit, _ = load_pipeline("run/weights", preset="tiny")
    assert all(bool(p.isfinite().all()) for p in dit.parameters())
    moved = dict(build("tiny", seed=0)[0].named_parameters())
    assert any(not torch.equal(moved[name], p) for name, p in dit.named_parameters())
    (middle,) = Path("run/checkpoints").glob("*step=4*")
    train("--ckpt_path", str(middle))
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
    overlay = copy.deepcopy(OVERLAY)
    overlay["model"]["init_args"]["models"]["init_from"] = None
    Path("overlay.yaml").write_text(yaml.safe_dump(overlay), encoding="utf-8")
    train(*STAGE_3, recipe="3_sft.yaml")
    assert len(losses("run")) == 8
    dit, _ = load_pipeline("run/weights", preset="tiny")
    fresh = dict(build("tiny", seed=0)[0].named_parameters())
    moved = [n for n, p in dit.named_parameters() if not torch.equal(fresh[n], p)]
    assert any("motion_head" in name for name in moved)
    assert all(bool(p.isfinite().all()) for p in dit.parameters())
