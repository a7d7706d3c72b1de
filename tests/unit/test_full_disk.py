"""A disk that is full while weights, sound, video or records are written: one error that names the
disk, and nothing left.

The limit of a file's size stands for the disk: the system refuses to write beyond it, in Python,
safetensors and libav alike.
"""

import contextlib
import errno
import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from diffusers import WanTransformer3DModel
from safetensors import SafetensorError

from avatar_v.base.paths import disk_named, whole_file, whole_folder
from avatar_v.callbacks.record import plot_losses
from avatar_v.cli import main
from avatar_v.critics.motion import MotionMeter
from avatar_v.media.writer import Mp4Writer, write_wav
from avatar_v.models.base import hash_folder
from avatar_v.models.lora import add_factors
from avatar_v.motion.stats import write_stats
from avatar_v.shards.writer import write_shard, write_text_atomically
from avatar_v.weights.adapter_files import save_adapter
from avatar_v.weights.card import AdapterCard, Card
from avatar_v.weights.presets import build
from avatar_v.weights.random import motion_stats
from avatar_v.weights.weights import load_pipeline, save_dit, save_pipeline
from random_models import make_dit
from tiny_run import make_clip

NAMED = r"(file too large|no space left on device) on the disk at /\S* \([\d,.]+ MiB free"


@contextlib.contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond so many bytes; Python ignores the signal of it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Wan, a pipeline, and an adapter of it."""
    folder = tmp_path_factory.mktemp("made")
    WanTransformer3DModel(
        num_attention_heads=2, attention_head_dim=24, in_channels=16, out_channels=16, text_dim=32,
        freq_dim=32, ffn_dim=96, num_layers=2,
    ).save_pretrained(folder / "wan")  # fmt: skip
    save_pipeline(folder / "base", *build("tiny", seed=0), Card("tiny", "none"))
    dit = load_pipeline(folder / "base")[0]
    add_factors(dit, rank=4, alpha=4.0)
    about = AdapterCard("dit", Card("tiny"), "base", hash_folder(folder / "base" / "dit"))
    save_adapter(folder / "adapter", dit, about)
    return folder


COMMANDS = {
    "import-wan": "MADE/wan sub/out --audio-dim 32",
    "merge": "MADE/base MADE/adapter --out out",
    "merge dit": "MADE/base/dit MADE/adapter --out out",
    "export-wan": "MADE/base/dit out --drop-extras",
    "export-lora": "MADE/adapter out --drop-extras",
    "average": "MADE/base MADE/base --out out",
    "decoder": "MADE/base MADE/base/vae --out out",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_writes_weights_leaves_nothing(
    name: str,
    made: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = COMMANDS[name].replace("MADE", str(made)).split()
    with largest_file(10_000):
        assert main(["weights", name.split()[0], *words]) == 2
    error = capsys.readouterr().err
    assert re.search(rf"^avatar-v: error: \S*out: {NAMED}", error), error
    assert list(tmp_path.iterdir()) == []


def _mp4(path: Path) -> None:
    frames = torch.randint(0, 256, (20, 3, 64, 64), dtype=torch.uint8)
    with Mp4Writer(path, torch.zeros(20 * 640)) as writer:
        writer.write(frames)


def _shard(path: Path) -> None:
    write_shard(path, [make_clip(0)])


WRITERS: dict[str, Callable[[Path], object]] = {
    "sound.wav": lambda path: write_wav(path, torch.zeros(16_000)),
    "video.mp4": _mp4,
    "clips-000000.tar": _shard,
    "motion.json": lambda path: write_stats(path, motion_stats()),
    "text.json": lambda path: write_text_atomically(path, "x" * 10_000),
    "loss.png": lambda path: plot_losses([(i, 1.0 / (i + 1)) for i in range(50)], path),
    "model.safetensors": lambda path: MotionMeter().save_pretrained(path.parent),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_writer_leaves_what_was_there(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("before")
    with largest_file(1000), pytest.raises(OSError, match=NAMED) as caught:
        WRITERS[name](path)
    assert str(path) in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert path.read_text() == "before"
    WRITERS[name](path)
    assert path.read_bytes()[:6] != b"before"


def test_speak_leaves_no_cut_sound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.wav"
    with largest_file(5000):
        assert main(["speak", "--script", "hello, this is a test", "--out", str(out)]) == 2
    assert re.search(NAMED, capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


def test_only_a_full_disk_is_called_one(tmp_path: Path) -> None:
    """Numbers of the system are found in safetensors' words; other errors stay what they are."""
    with pytest.raises(OSError, match=NAMED) as caught, disk_named(tmp_path / "a"):
        raise SafetensorError("I/O error: No space left on device (os error 28)")
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(PermissionError) as refused, disk_named(tmp_path / "a"):
        raise SafetensorError("I/O error: Permission denied (os error 13)")
    assert refused.value.filename == str(tmp_path / "a")
    with pytest.raises(SafetensorError, match="header"), disk_named(tmp_path / "a"):
        raise SafetensorError("header too large")
    with pytest.raises(FileNotFoundError), whole_file(tmp_path / "no" / "a") as partial:
        partial.write_text("x")


def test_new_parents_of_a_folder_go_with_it_and_others_stay(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(KeyError), whole_folder(tmp_path / "there" / "new" / "out"):
        raise KeyError
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


def test_a_config_that_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    dit = make_dit()
    object.__setattr__(dit.config, "eps", float("nan"))
    with pytest.raises(ValueError, match="eps is a finite number"):
        save_dit(tmp_path / "dit", dit)
    assert not (tmp_path / "dit").exists()
