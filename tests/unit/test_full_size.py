"""The measurement of full size as far as a tiny network on a CPU goes: it runs, it counts right,
and it refuses in one line where a GPU or memory is lacking."""

from pathlib import Path

import pytest
import torch

from avatar_v.cli import guarded
from avatar_v_eval.cli import _dispatch
from avatar_v_eval.speed import full_size
from avatar_v_eval.speed.full_size import ROWS, Size, check_memory, import_random, one_row


@pytest.fixture(scope="module")
def dit(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Random weights in Wan's layout, imported."""
    return str(import_random("tiny", tmp_path_factory.mktemp("full")))


def test_without_a_gpu_one_line_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    words = ["speed", "full_size", "--device", "cuda", "--out", str(tmp_path)]
    assert guarded("avatar-v-eval", words, _dispatch) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "finds no CUDA device" in line
    assert list(tmp_path.iterdir()) == []


def test_too_little_memory_is_an_error_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_size, "free_gib", lambda: 9.5)
    check_memory(["chunk", "student"])
    with pytest.raises(ValueError, match=r"row causal needs about \d+ GiB .* has 9.5: leave it"):
        check_memory(["chunk", "causal"])


@pytest.mark.parametrize("row", ROWS)
def test_what_is_generated_has_all_its_frames(row: str, dit: str) -> None:
    found = one_row(row, Size("tiny", side=32, latents=5, device="cpu"), dit)
    assert 0 < found["frame_s"] < found["s"]
    assert found["gib"] > 0.1
    if row != "causal":
        assert found["rate"] == pytest.approx(17 / found["s"])
    else:  # 11 latents, the first 5 in one chunk
        assert found["rate"] >= (41 - 17) / (found["s"] - found["frame_s"]) * 0.99
    assert full_size.row_numbers(row, found)[f"{row}_rate"].unit == "frames/s"
