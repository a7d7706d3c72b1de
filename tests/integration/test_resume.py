"""A run that is killed and resumed equals one that was not: losses, weights and averages. Its
folder is its own."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from avatar_v.callbacks.record import read_losses
from avatar_v.recipe.cli import merge, run_words
from tiny_run import RECIPES, losses, make_shards

# Epochs of 4 batches: the checkpoint of step 3 lies inside one, and step 7 in the next.
OVERLAY = {
    "model": {"init_args": {"models": {"vae": None}}},
    "data": {"init_args": {"batch_size": 2}},
    "trainer": {
        "max_steps": 7,
        "callbacks": [
            {
                "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
                "init_args": {"every_n_train_steps": 3, "save_top_k": -1},
            }
        ],
    },
}
STOP_AT_STEP_5 = """
import pathlib, sys, time
from avatar_v.callbacks.record import LossCurve
from avatar_v.cli import main
end = LossCurve.on_train_batch_end
def stop(self, trainer, *rest):
    end(self, trainer, *rest)
    if trainer.global_step == 5:
        pathlib.Path("at_step_5").touch()
        time.sleep(600)
LossCurve.on_train_batch_end = stop
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_shards(tmp_path)
    (tmp_path / "overlay.yaml").write_text(yaml.safe_dump(OVERLAY), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def words(stage: str, root: str, *options: str) -> list[str]:
    recipes = [str(RECIPES / f"{stage}.yaml"), str(RECIPES / "tiny.yaml"), "overlay.yaml"]
    return [*recipes, "--trainer.default_root_dir", root, *options]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    parts = {p.parent.name: load_file(p) for p in sorted(folder.rglob("*.safetensors"))}
    return {f"{part}.{name}": x for part, state in parts.items() for name, x in state.items()}


def test_killed_and_resumed_equals_uninterrupted(here: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    run_words("run", words("1_t2v", "straight"))
    workers = ("--data.init_args.cache", "false", "--data.init_args.num_workers", "1")
    killed = words("1_t2v", "killed", *workers)
    command = [sys.executable, "-c", STOP_AT_STEP_5, "run", *killed]
    process = subprocess.Popen(command, env=os.environ)
    deadline = time.monotonic() + 300
    while not Path("at_step_5").exists() and process.poll() is None:
        assert time.monotonic() < deadline, "step 5 was not reached in 5 minutes"
        time.sleep(0.1)
    for options in ((), ("--ckpt_path", "last"), ("--overwrite",)):
        with pytest.raises(ValueError, match="killed: another process trains there; wait until"):
            run_words("run", [*killed, *options])
    process.kill()
    process.wait()
    checkpoints = here / "killed" / "checkpoints"
    before = sorted(checkpoints.iterdir())
    assert (checkpoints / "last.ckpt") in before
    assert not (here / "killed" / "weights").exists()
    with pytest.raises(ValueError, match=r"killed/checkpoints of another run .*--ckpt_path last"):
        run_words("run", killed)
    with pytest.raises(ValueError, match="--overwrite begins anew, --ckpt_path last goes on"):
        run_words("run", [*killed, "--ckpt_path", "last", "--overwrite"])
    assert sorted(checkpoints.iterdir()) == before

    run_words("run", words("1_t2v", "killed", "--ckpt_path", "last"))
    torch.set_num_threads(threads)
    assert losses(here / "killed") == losses(here / "straight")
    assert len(losses(here / "killed")) == 7
    straight, resumed = weights(here / "straight" / "weights"), weights(here / "killed" / "weights")
    assert straight.keys() == resumed.keys()
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)
    assert not list(here.rglob(".lock"))

    for checkpoint in sorted(checkpoints.iterdir()):
        checkpoint.rename(here / checkpoint.name)
    with pytest.raises(ValueError, match=r"killed/weights of another run .* replaced: --trainer.d"):
        run_words("run", words("1_t2v", "killed", "--ckpt_path", "last"))
    (here / "last.ckpt").rename(checkpoints / "of_before.ckpt")
    run_words("run", words("1_t2v", "killed", "--overwrite", "--trainer.max_steps", "3"))
    assert len(losses(here / "killed")) == 3
    assert {path.name for path in checkpoints.iterdir()} == {"last.ckpt", "epoch=0-step=3.ckpt"}


@pytest.mark.slow
def test_the_refiners_discriminator_is_resumed_with_it(here: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    fresh = {"model": {"init_args": {"models": {"init_from": None}}}}
    with (here / "overlay.yaml").open("w", encoding="utf-8") as file:
        yaml.safe_dump(merge(OVERLAY, fresh), file)
    run_words("run", words("refiner_adversarial", "straight"))
    (checkpoint,) = (here / "straight" / "checkpoints").glob("*step=3.ckpt")
    run_words("run", words("refiner_adversarial", "resumed", "--ckpt_path", str(checkpoint)))
    torch.set_num_threads(threads)
    rest, whole = (read_losses(here / run / "loss.csv") for run in ("resumed", "straight"))
    assert rest == whole[3:]
    assert [step for step, _ in rest] == [4, 5, 6, 7]
    straight, again = (weights(here / run / "weights") for run in ("straight", "resumed"))
    assert straight.keys() == again.keys()
    assert not any("discriminator" in name for name in straight)
    assert all(torch.equal(straight[name], again[name]) for name in straight)
