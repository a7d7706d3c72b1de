"""planning/doctor.py: all that is missing is told at once; and the script that asks it first."""

import os
import subprocess
from pathlib import Path

import pytest
import torch

from avatar_v.cli import main
from avatar_v.kernels import backends
from avatar_v.parallel import exchange
from avatar_v.planning.doctor import before_lines
from tiny_run import RECIPES, make_shards

LAUNCH = RECIPES / "launch"
TINY = (str(RECIPES / "1_t2v.yaml"), str(RECIPES / "tiny.yaml"))


def test_a_recipe_whose_inputs_are_there_may_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_shards(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", *TINY, "--", "--model.init_args.models.vae", "null"]) == 0
    said = capsys.readouterr().out
    assert "ok       data.train shards/tiny/train: 8 clips" in said
    assert "MISSING" not in said
    assert not (tmp_path / "runs").exists()


def test_all_that_is_missing_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", *TINY]) == 1
    missing = [line for line in capsys.readouterr().out.splitlines() if line.startswith("MISSING")]
    assert len(missing) == 3
    assert f"first run: avatar-v run {RECIPES / '0_vae.yaml'} {TINY[1]}" in missing[0]
    assert "data.train shards/tiny/train: shards/tiny/train: no finished shards" in missing[1]
    assert "data.validation shards/tiny/validation" in missing[2]


def test_clips_of_one_window_and_clips_without_stills_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_shards(tmp_path)
    monkeypatch.chdir(tmp_path)
    window = ["--model.init_args.objective.window_latents", "{0: 9}"]  # all of a clip
    main(["doctor", str(RECIPES / "3_sft.yaml"), TINY[1], "--", *window,
          "--model.init_args.models.init_from", "null",
          "--model.init_args.personality.stills_share", "0.5"])  # fmt: skip
    said = capsys.readouterr().out
    assert "no clip has more than the 9 latents of a window" in said
    assert "no stills, which personality.stills_share needs" in said
    assert "GiB for three checkpoints and" in said


def test_backends_of_attention_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "ok       attention: " in said
    assert "ok       kernels: " in said
    if not torch.cuda.is_available():
        assert "lacks    kernels of Triton: need " in said
        assert "lacks    attention by flash: needs a CUDA device" in said
        with backends.using("flash"):
            assert main(["doctor"]) == 1
        assert "MISSING  attention by name: AVATAR_V_ATTENTION is flash" in capsys.readouterr().out
        assert "ok       exchanges between ranks: blocking" in said
        with exchange.using("symmetric"):
            assert main(["doctor"]) == 1
        assert "MISSING  exchanges by name: AVATAR_V_EXCHANGE" in capsys.readouterr().out


def test_the_header_of_a_recipe_says_what_comes_before() -> None:
    lines = before_lines(str(RECIPES / "1_t2v.yaml"))
    assert lines[0].startswith("avatar-v weights import-wan")
    assert lines[1].startswith("avatar-v-data import VIDEOS")
    assert len(lines) == 2


def test_the_full_size_script_asks_the_doctor_first(tmp_path: Path) -> None:
    command = ["bash", str(LAUNCH / "full_size.sh"), "--trainer.devices", "4"]
    env = {"PATH": os.environ["PATH"], "DRY_RUN": "1", "STAGES": "1_t2v 2_a2v"}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (
        "avatar-v doctor recipes/1_t2v.yaml -- --trainer.devices 4\n"
        "avatar-v run recipes/1_t2v.yaml --trainer.devices 4 --ckpt_path last\n"
        "avatar-v doctor recipes/2_a2v.yaml"
    ) in done.stdout
