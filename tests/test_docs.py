"""The README tells the truth: its commands run and its files exist (tables: test_records.py).

Lines of ```bash blocks are run as they stand, in a folder that holds what the demo leaves.
Lines of ```console blocks take long or need a user's files; of those the command, every option and
every recipe named are checked.
"""

import io
import re
import shlex
import wave
from pathlib import Path

import pytest
import torch

from avatar_v import cli, media
from avatar_v.generate.writer import Mp4Writer
from avatar_v.world.clip import make_clip

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def commands(kind: str) -> list[str]:
    """Logical lines that start with avatar-v in the README's blocks of one kind."""
    lines = []
    for block in re.findall(rf"```{kind}\n(.*?)```", README, re.DOTALL):
        joined = block.replace("\\\n", " ")
        lines += [line.split("  #")[0].strip() for line in joined.splitlines()]
    return [line for line in lines if line.startswith("avatar-v ")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the demo leaves: a clip of a person of the world, a second of speech."""
    clip = make_clip(2_000_011, 2_000_011, 2_000_011, num_frames=25, size=64)
    (tmp_path / "demo").mkdir()
    with Mp4Writer(tmp_path / "demo" / "reference.mp4", clip.audio) as writer:
        writer.write(clip.video)
    (tmp_path / "demo" / "speech.wav").write_bytes(wav_bytes(clip.audio))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def wav_bytes(audio: torch.Tensor) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes((audio.clamp(-1, 1) * 32767).to(torch.int16).numpy().tobytes())
    return buffer.getvalue()


@pytest.mark.slow
def test_bash_blocks_run(folder: Path) -> None:
    lines = commands("bash")
    assert len(lines) >= 3
    for line in lines:
        words = shlex.split(line)[1:]
        assert cli.main(words) == 0, line
    assert len(media.read_video(folder / "out.mp4")) == 25
    assert (folder / "sheet.png").stat().st_size > 0


def test_console_commands_exist() -> None:
    lines = commands("console")
    assert lines
    for line in lines:
        words = shlex.split(line)[1:]
        if words[0] in ("run", "fit", "validate"):
            for recipe in (word for word in words if word.endswith(".yaml")):
                assert (ROOT / recipe).is_file(), f"{line}: no {recipe}"
        else:
            cli.build_parser().parse_args(words)


def test_named_files_exist() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", README)
    assert targets
    for target in targets:
        assert (ROOT / target).exists(), target


def test_file_tree_is_true() -> None:
    block = re.search(r"```\n(src/avatar_v/\n.*?)```", README, re.DOTALL)
    assert block, "the README has no file tree"
    for line in block[1].splitlines():
        if line.startswith("  "):
            base, text = ROOT / "src" / "avatar_v", line.strip()
        else:
            base, text = ROOT, line
        for name in re.split(r" {3,}", text)[0].split():
            assert (base / name).exists(), f"{name} in the README's tree"


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"(?:`|^)make (\w+)", README, re.MULTILINE)
    assert {"demo", "test", "bench"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
