"""The size of pictures, length of windows and shift of times that a run was trained with are those
of generation: its card says them."""

from pathlib import Path

import pytest
import yaml

from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.weights.card import read_card
from tiny_run import make_shards, run_stage


def test_weights_generate_at_the_sizes_of_their_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_shards(tmp_path)
    monkeypatch.chdir(tmp_path)
    objective = {
        "window_latents": {0: 1, 1: 4, 3: 5},  # the run ends before step 3
        "resolution": {0: 1.0, 1: 0.5, 2: 0.5, 3: 1.0},  # of clips of 32 pixels
        "shift": 2.0,
    }
    changes = {"models": {"vae": None}, "optim": {"num_warmup_steps": 1}, "objective": objective}
    overlay = {"model": {"init_args": changes}, "trainer": {"max_steps": 2}}
    Path("overlay.yaml").write_text(yaml.safe_dump(overlay), encoding="utf-8")
    run_stage("1_t2v", "overlay.yaml")
    can = read_card("runs/tiny/1_t2v/weights").can
    assert (can.side, can.window_latents, can.shift) == (16, 4, 2.0)
    pipe = AvatarPipeline.from_pretrained("runs/tiny/1_t2v/weights", device="cpu")
    assert pipe.size == 16
    assert (pipe.format.chunk_latents, pipe.format.shift) == (4, 2.0)
