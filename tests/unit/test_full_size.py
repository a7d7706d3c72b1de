"""The measurements of full size as far as a tiny network on a CPU goes: they run, they count right,
and they refuse in one line where a GPU or memory is lacking."""

import struct
import zlib
from pathlib import Path

import pytest
import torch

from avatar_v.cli import guarded
from avatar_v_eval.cli import _dispatch
from avatar_v_eval.speed import block, full_size, sharded, training
from avatar_v_eval.speed.full_networks import import_random
from avatar_v_eval.speed.full_size import GENERATED, STAGES, Size, check_memory, one_row

ROOT = Path(__file__).resolve().parents[2]
TINY = Size("tiny", side=32, latents=5, device="cpu")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def dit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights in Wan's layout, imported."""
    return import_random("tiny", tmp_path_factory.mktemp("full"))


@pytest.fixture(autouse=True)
def _recipes_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("name", ["training", "block", "cache", "reference", "full_size"])
def test_without_a_gpu_one_line_says_so(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    words = ["speed", name, "--device", "cuda", "--out", str(tmp_path)]
    assert guarded("avatar-v-eval", words, _dispatch) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "finds no CUDA device" in line
    assert list(tmp_path.iterdir()) == []


def test_too_little_memory_is_an_error_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_size, "free_gib", lambda: 9.5)
    check_memory(["chunk", "meta"])
    with pytest.raises(ValueError, match=r"row sharded needs about \d+ GiB .* has 9.5: leave it"):
        check_memory(["chunk", "sharded"])


@pytest.mark.parametrize("row", STAGES)
def test_a_stage_takes_two_steps(row: str, dit: Path) -> None:
    found = one_row(row, TINY, str(dit))
    assert found.took_s > 0
    assert 0.05 < found.more["trained"] < 0.1  # LoRA's factors, and what is new
    assert found.peak_gib > 0.1


@pytest.mark.parametrize("row", GENERATED)
def test_what_is_generated_has_all_its_frames(row: str, dit: Path) -> None:
    found = one_row(row, TINY, str(dit))
    assert 0 < found.more["frame_s"] < found.took_s
    if row != "causal":
        assert found.more["rate"] == pytest.approx(17 / found.took_s)
    else:  # 11 latents, the first 5 in one chunk
        assert found.more["rate"] >= (41 - 17) / (found.took_s - found.more["frame_s"]) * 0.99


@pytest.mark.slow
@pytest.mark.multi
def test_a_checkpoint_of_two_ranks_is_read_by_one(tmp_path: Path) -> None:
    wrote = sharded.written("tiny", 2, 2, tmp_path)
    found = sharded.read("tiny", 2, 1, tmp_path)
    assert wrote.num_values == found.num_values > 100_000
    assert (wrote.num_wrong, found.num_wrong) == (0, 0)
    # the first value of one tensor, as the file of rank 0 holds it, is changed by a bit
    first = (zlib.crc32(b"patch_embed.weight") % 2**24 - 2**23) / 2**23
    file = tmp_path / sharded.PLACE / "__0_0.distcp"
    data = bytearray(file.read_bytes())
    place = data.index(struct.pack("<f", first))
    data[place] ^= 1
    file.write_bytes(bytes(data))
    (tmp_path / "read_1").rename(tmp_path / "before")
    assert sharded.read("tiny", 2, 1, tmp_path).num_wrong == 1


def test_training_tells_tokens_and_operations(dit: Path) -> None:
    found = training.steps_of("2_a2v", "all", TINY, dit, 2)
    assert len(found.took_s) == 2
    assert found.tokens == 5 * 4  # 2 x 2 tokens a latent
    told = training.Speed((1.0, 2.0, 4.0), tokens=600, tflop=200.0, peak_gib=3.0)
    rows = training.speed_numbers("2_a2v", "all", told, peak=1000.0)
    assert rows["tokens_2_a2v_all"].value == 300
    assert (rows["mfu_2_a2v_all"].value, rows["mfu_2_a2v_all"].low) == (0.1, 0.05)
    assert "mfu_2_a2v_all" not in training.speed_numbers("2_a2v", "all", told, peak=None)


def test_a_block_is_compared_on_the_same_weights() -> None:
    ways = block.prepared("tiny", 32, 3, 2, CPU)
    with torch.no_grad():
        ours, theirs = ways["ours"][0](), ways["theirs"][0]()
    # fp32 sums in another order; theirs are "b c l h w"
    torch.testing.assert_close(ours, theirs.transpose(1, 2), atol=1e-4, rtol=1e-4)
    ways = block.prepared("tiny", 32, 3, 2, CPU, checkpoints=True)
    for way in ("ours", "theirs"):
        call, network = ways[way]
        block._pass(call, network, CPU, trains=True)
    times = {1: {"ours": [1.0], "theirs": [2.0]}, 3: {"ours": [3.0], "theirs": [6.0]}}
    assert block.block_times(times) == {"ours": [1.0], "theirs": [2.0]}
    rows = block.way_numbers("block", "a block", block.block_times(times))
    assert (rows["block_ms"].value, rows["block_theirs"].value) == (1000.0, 2.0)
