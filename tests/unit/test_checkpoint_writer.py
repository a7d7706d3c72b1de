"""Checkpoints that are there whole or not at all, and which of them a run goes on from."""

import os
import resource
import signal
from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.checkpoint.api import CheckpointException

from avatar_v.parallel.whole_shards import whole_shards
from avatar_v.recipe.checkpoint_file import check_layout, newest_whole
from avatar_v.recipe.checkpoint_writer import WholeCheckpoints
from avatar_v.recipe.cli import run_words
from tiny_run import RECIPES

MIB = 2**20


def checkpoint(step: int, num: int = 10) -> dict:
    return {"state_dict": {"w": torch.full((num,), float(step))}, "global_step": step, "loops": {}}


@pytest.fixture
def disk_of_one_mib():
    """Files of this process end at one MiB, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


def test_a_full_disk_is_named_and_leaves_the_checkpoint_before(tmp_path, disk_of_one_mib) -> None:
    io, path = WholeCheckpoints(), tmp_path / "new" / "last.ckpt"
    io.save_checkpoint(checkpoint(1), path)
    with pytest.raises(OSError, match=r"last\.ckpt: file too large on the disk at .*MiB free"):
        io.save_checkpoint(checkpoint(2, MIB), path)
    assert [p.name for p in path.parent.iterdir()] == ["last.ckpt"]
    assert io.load_checkpoint(path, weights_only=True)["global_step"] == 1


def test_nothing_is_written_to_the_folder_of_temporary_files(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    WholeCheckpoints().save_checkpoint(checkpoint(3), tmp_path / "a.ckpt")
    assert os.listdir(tmp_path) == ["a.ckpt"]


def test_the_newest_whole_checkpoint_is_the_one_that_a_run_goes_on_from(tmp_path: Path) -> None:
    cut, whole = tmp_path / "last.ckpt", tmp_path / "step=4.ckpt"
    torch.save(checkpoint(4), whole)
    cut.write_bytes(whole.read_bytes()[:500])
    path, damages = newest_whole([cut, whole])
    assert path == whole
    assert len(damages) == 1
    assert "last.ckpt cannot be read" in damages[0]
    with pytest.raises(ValueError, match=r"last\.ckpt cannot be read .* expected a checkpoint"):
        newest_whole([cut])


def test_shards_replace_the_ones_before_when_all_are_written(tmp_path: Path) -> None:
    path, calls = tmp_path / "last.ckpt", []
    linked = tmp_path / "step=4.ckpt"
    linked.mkdir()
    path.symlink_to(linked)  # as save_last: link leaves it
    for content in ("old", "new"):
        with whole_shards(path, is_first=True, barrier=calls.append) as folder:
            folder.mkdir()
            (folder / "part").write_text(content)

    def fills_the_disk() -> None:
        with whole_shards(path, is_first=True, barrier=calls.append) as folder:
            folder.mkdir()
            raise CheckpointException("write", {1: (OSError(28, "No space left"), None)})

    with pytest.raises(OSError, match=r"last\.ckpt: no space left on device on the disk at"):
        fills_the_disk()
    assert (path / "part").read_text() == "new"
    assert sorted(os.listdir(tmp_path)) == ["last.ckpt", "step=4.ckpt"]
    assert not any(linked.iterdir())
    assert len(calls) == 7  # three for each that is whole, and the first of the one that is not


def test_a_run_goes_on_by_the_strategy_that_it_began_with(tmp_path: Path) -> None:
    """A sharded checkpoint is a folder, any other a file."""
    file, folder = tmp_path / "last.ckpt", tmp_path / "sharded.ckpt"
    file.touch()
    folder.mkdir()
    plain = L.Trainer(accelerator="cpu", devices=1, logger=False)
    shards = L.Trainer(accelerator="cpu", devices=2, strategy=ModelParallelStrategy(), logger=False)
    check_layout(file, plain)
    check_layout(folder, shards)
    with pytest.raises(ValueError, match="sharded run, and this one does not shard: go on with"):
        check_layout(folder, plain)
    with pytest.raises(ValueError, match="did not shard, and this one shards: go on with"):
        check_layout(file, shards)


def test_a_strategy_named_by_class_on_the_command_line_says_how() -> None:
    words = [str(RECIPES / f"{name}.yaml") for name in ("0_vae", "tiny")]
    with pytest.raises(ValueError, match=r"--trainer\.strategy\.class_path avatar_v\.x\.Mine"):
        run_words("run", [*words, "--trainer.strategy", "avatar_v.x.Mine"])
