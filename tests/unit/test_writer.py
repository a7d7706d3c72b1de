"""The mp4 writer: equal tracks, true pixels and sound, and nothing left behind by a failure."""

import os
import threading
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import av
import pytest
import torch
from torch import Tensor

from avatar_v.media import reading
from avatar_v.media import writer as writer_module
from avatar_v.media.writer import Mp4Writer, write_wav


def tone(num_samples: int) -> Tensor:
    return 0.5 * torch.sin(torch.arange(num_samples) * (2 * torch.pi * 440 / 16_000))


def pictures(num: int) -> Tensor:
    """Vertical colour bands and a brightness that grows from frame to frame."""
    frames = torch.zeros(num, 3, 48, 64, dtype=torch.uint8)
    frames[:, 0, :, :32], frames[:, 2, :, 32:] = 200, 120
    frames[:, 1] = torch.arange(num)[:, None, None] * 4
    return frames


def write(path: Path, blocks: Iterable[Tensor], error: BaseException | None = None) -> None:
    with Mp4Writer(path, tone(640)) as writer:
        for block in blocks:
            writer.write(block)
        if error is not None:
            raise error


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "writer"]


@pytest.mark.parametrize("num", [1, 2, 13, 50])
@pytest.mark.parametrize("extra_samples", [-1000, 0, 5000])
def test_tracks_are_equally_long(tmp_path: Path, num: int, extra_samples: int) -> None:
    path = tmp_path / "out.mp4"
    with Mp4Writer(path, tone(max(640 * num + extra_samples, 1))) as writer:
        for frame in pictures(num):
            writer.write(frame[None])
    with av.open(str(path)) as container:
        video, audio = container.streams.video[0], container.streams.audio[0]
        assert video.codec_context.name == "h264"
        assert audio.codec_context.name == "aac"
        assert video.frames == num
        assert video.start_time == audio.start_time == 0
        durations = [stream.duration * stream.time_base for stream in (video, audio)]
        assert durations == [Fraction(num, 25)] * 2
    assert writer.num_frames == num
    assert os.listdir(tmp_path) == ["out.mp4"]
    assert threads() == []


def test_pixels_and_sound_come_back(tmp_path: Path) -> None:
    path, frames, audio = tmp_path / "out.mp4", pictures(50), tone(50 * 640)
    with Mp4Writer(path, audio) as writer:
        writer.write(frames)
    back = reading.read_video(path)
    inside = (back.float() - frames.float())[..., 8:-8, 8:24]
    assert float(inside.abs().mean()) < 3  # yuv420p and crf 16 on flat colour, grey levels
    heard = reading.read_audio(path)[: len(audio)]
    middle = slice(2000, -2000)
    both = torch.stack([heard[middle], audio[middle]])
    assert float(torch.corrcoef(both)[0, 1]) > 0.99  # so there is no delay either


def test_missing_sound_is_silence(tmp_path: Path) -> None:
    with Mp4Writer(tmp_path / "out.mp4", tone(12_800)) as writer:
        writer.write(pictures(40))
    heard = reading.read_audio(tmp_path / "out.mp4")
    assert float(heard[:12_000].abs().mean()) > 0.2
    assert float(heard[14_000:25_600].abs().max()) < 0.01


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_no_file_and_no_thread(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "out.mp4"
    path.write_bytes(b"the old one")
    with pytest.raises(error):
        write(path, [pictures(30)], error())
    assert path.read_bytes() == b"the old one"
    assert os.listdir(tmp_path) == ["out.mp4"]
    assert threads() == []


def test_an_encoder_error_reaches_the_caller_and_never_blocks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(picture: object) -> None:
        raise RuntimeError("disk full")

    monkeypatch.setattr(writer_module, "_yuv", broken)
    blocks = [pictures(1)] * (10 * writer_module.MAX_WAITING)  # far more than the queue holds
    with pytest.raises(OSError, match=r"out\.mp4: writing failed \(disk full\)"):
        write(tmp_path / "out.mp4", blocks)
    assert os.listdir(tmp_path) == []
    assert threads() == []


def test_no_frames_is_an_error_and_no_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no frames"):
        write(tmp_path / "out.mp4", [])
    assert os.listdir(tmp_path) == []
    assert threads() == []


@pytest.mark.parametrize(
    ("size", "message"), [((48, 63), "even sides, got 63 x 48"), ((48, 62), "changed size")]
)
def test_odd_and_changing_sizes_are_refused(
    tmp_path: Path, size: tuple[int, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "out.mp4", [pictures(2), torch.zeros(1, 3, *size, dtype=torch.uint8)])
    assert os.listdir(tmp_path) == []


def test_sound_in_a_wav_reads_back_exactly(tmp_path: Path) -> None:
    steps = torch.arange(-32768, 32768, 5)
    write_wav(tmp_path / "a.wav", steps / 32768)
    assert torch.equal(reading.read_audio(tmp_path / "a.wav"), steps / 32768)
    write_wav(tmp_path / "b.wav", torch.tensor([-1.5, 1.0, 2.0]).repeat(1000))
    assert set(reading.read_audio(tmp_path / "b.wav").tolist()) == {-1.0, 32767 / 32768}
