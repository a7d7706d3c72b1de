"""Faults of a whole `avatar-v generate`: kills, full disks, readers, encoders and sounds that fail.

After each the end is clear, what was made plays or can be gone on with, and no thread is left.
Faults of the parts alone are in unit/test_outputs.py, test_writer.py, test_live.py and
test_pipelining.py; that resumed frames are the uninterrupted run's is test_resume_generate.py's.
"""

import dataclasses
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from torch import Tensor

from avatar_v import cli
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.media import files, writer
from avatar_v.request.output_files import GROWING, kept_folder, num_kept
from avatar_v.request.request import Request
from forked import Ended, run_script
from generating import carry_out
from hostile_media import write_wav
from written import assert_same_pictures

NUM_FRAMES = 32
DYING = """
import dataclasses, json, os, resource, signal, sys
from avatar_v.generate import resume, run
from avatar_v.request.request import Request, Weights
from avatar_v.media import files

place, after, request, weights = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
left = [after]

def dies(*args, **kwargs):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def dying(module, name):
    whole = getattr(module, name)
    def call(*args, **kwargs):
        dies()
        return whole(*args, **kwargs)
    setattr(module, name, call)

def fills(frames):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (after, after))

if place not in ("disk", "frames"):
    dying({"remux": files, "record": run, "chunk": resume}[place],
          {"remux": "copy_packets", "record": "save_record", "chunk": "_write"}[place])
try:
    making = run.run(Request.from_json(json.loads(request)), Weights(weights, device="cpu"))
    making.finish({"frames": dies, "disk": fills}.get(place, lambda frames: None))
except OSError as error:
    sys.exit(f"error: {error}")
"""
KILLS = [
    ("chunk", 1),
    ("chunk", 2),
    *(pytest.param("frames", i, marks=pytest.mark.slow) for i in (1, 4)),
    ("frames", 2),
    ("remux", 1),
    ("record", 1),
]
"""Before the request and the first chunk are kept, after some blocks of frames, while the mp4 is
put together, and before its record is written."""


def ends_in(place: str, after: int, request: Request, weights: Path) -> Ended:
    words = [place, str(after), json.dumps(dataclasses.asdict(request)), str(weights)]
    return run_script(DYING, *words)


def num_decoded(path: Path) -> int:
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


def left_behind(request: Request) -> set[str]:
    return {
        path.name for path in Path(request.output.out).parent.iterdir() if ".m4s" not in path.name
    }


def elsewhere(request: Request, tmp_path: Path) -> Request:
    (tmp_path / "whole").mkdir()
    return request.changed(out=str(tmp_path / "whole" / Path(request.output.out).name))


def longer(request: Request, seconds: float) -> Request:
    """The same request for a speech of so many seconds, one denoising step a chunk."""
    path = Path(request.person.audio).with_name("long.wav")
    wave = 0.3 * torch.sin(torch.arange(int(16_000 * seconds)) * 0.2)
    write_wav(path, samples=wave.numpy())
    return request.changed(audio=str(path), num_steps=1)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(10.0)  # the progress bar's is told to end and not waited for
    assert set(threading.enumerate()) <= before


@pytest.fixture
def stdin_pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    reader, end = os.pipe()
    with os.fdopen(reader) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield end
    os.close(end)


def pcm(num_samples: int) -> bytes:
    noise = 0.2 * torch.randn(num_samples, generator=torch.Generator().manual_seed(0))
    return (noise.clamp(-1, 1) * 32767).to(torch.int16).numpy().tobytes()


# --- kills ---


@pytest.mark.parametrize(("place", "after"), KILLS)
def test_after_a_kill_nothing_broken_is_in_place_and_a_resumed_run_is_whole(
    request_: Request, weights: Path, place: str, after: int
) -> None:
    assert ends_in(place, after, request_, weights).returncode == -signal.SIGKILL
    folder = kept_folder(request_.output.out)
    if place == "record":
        assert num_decoded(Path(request_.output.out)) == NUM_FRAMES
    else:
        assert left_behind(request_) <= {folder.name}
    if place == "remux":
        assert num_decoded(folder / GROWING) == NUM_FRAMES
    carry_out(request_.changed(resume=True), weights=weights, device="cpu")
    assert left_behind(request_) == {"out.mp4", "out.json"}
    assert num_decoded(Path(request_.output.out)) == NUM_FRAMES


def test_an_mp4_plays_as_far_as_it_was_written_before_a_kill(
    request_: Request, weights: Path
) -> None:
    """12 frames a chunk, in blocks of 16 and fewer; the queue holds 4 blocks, the encoder 11
    frames, and the muxer a fragment of 10."""
    request = longer(request_, 8.0)
    assert ends_in("frames", 16, request, weights).returncode == -signal.SIGKILL
    so_far = kept_folder(request.output.out) / GROWING
    made = 17 + 14 * 12
    first = num_decoded(so_far)
    assert made - (5 * 12 + 11 + 10) - 12 <= first < made
    with av.open(str(so_far)) as container:
        heard = sum(frame.samples for frame in container.decode(audio=0))
    assert abs(heard - 640 * first) < 16_000
    again = request.changed(resume=True)
    assert ends_in("frames", 2, again, weights).returncode == -signal.SIGKILL
    assert num_decoded(so_far) >= first  # the shorter one of the second run did not replace it
    carry_out(again, weights=weights, device="cpu")
    assert num_decoded(Path(request.output.out)) == 200


def test_a_playlist_goes_on_behind_its_last_segment(
    request_: Request, weights: Path, tmp_path: Path
) -> None:
    request = longer(request_.changed(out=request_.output.out.replace("mp4", "m3u8")), 8.0)
    path = Path(request.output.out)
    whole = elsewhere(request, tmp_path)
    carry_out(whole, weights=weights, device="cpu")
    assert ends_in("frames", 12, request, weights).returncode == -signal.SIGKILL
    listed = segments(path)
    assert 2 <= len(listed) < 8
    before = {name: (path.parent / name).stat().st_mtime_ns for name in listed}
    again = request.changed(resume=True)
    seen: list[list[str]] = []

    def interrupt(frames: Tensor) -> None:
        seen.append(segments(path))
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # before it has caught up
        carry_out(again, weights=weights, device="cpu", on_frames=interrupt)
    assert segments(path) == listed
    assert path.read_text().rstrip().endswith("#EXT-X-ENDLIST")
    carry_out(again, weights=weights, device="cpu", on_frames=lambda _: seen.append(segments(path)))
    assert all(names[: len(listed) - 1] == listed[:-1] for names in seen)  # an end may be cut short
    for name in listed[:-1]:
        assert (path.parent / name).stat().st_mtime_ns == before[name]
    assert path.read_text() == Path(whole.output.out).read_text()
    assert "DISCONTINUITY" not in path.read_text()
    for name in [*segments(path), f"{path.stem}_init.mp4"]:
        other = Path(whole.output.out).with_name(name)
        assert (path.parent / name).read_bytes() == other.read_bytes(), name
    assert_same_pictures(request.output.out, whole.output.out)
    assert not list(path.parent.glob("*.tmp"))


def segments(playlist: Path) -> list[str]:
    lines = playlist.read_text().splitlines() if playlist.exists() else []
    return [line for line in lines if line and not line.startswith("#")]


# --- full disks ---


@pytest.mark.parametrize("suffix", [".mp4", ".m3u8"])
def test_a_full_disk_is_one_error_and_a_resumed_run_is_whole(
    request_: Request, weights: Path, tmp_path: Path, suffix: str
) -> None:
    request = longer(request_, 4.0)
    request = request.changed(out=str(Path(request.output.out).with_suffix(suffix)))
    whole = elsewhere(request, tmp_path)
    carry_out(whole, weights=weights, device="cpu")
    files = Path(whole.output.out).parent.iterdir()
    size = max(path.stat().st_size for path in files) * 2 // 3  # of every file from now on
    run = ends_in("disk", size, request, weights)
    assert run.stderr.startswith(f"error: {request.output.out}: file too large on the disk at /")
    assert run.returncode == 1
    assert num_kept(kept_folder(request.output.out)) > 0
    if suffix == ".mp4":
        assert left_behind(request) == {kept_folder(request.output.out).name}
        assert 0 < num_decoded(kept_folder(request.output.out) / GROWING) < 100
    carry_out(request.changed(resume=True), weights=weights, device="cpu")
    assert_same_pictures(request.output.out, whole.output.out)


def test_a_full_disk_while_the_mp4_is_put_together(
    request_: Request, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "copy_packets", full)
    with pytest.raises(OSError, match=r"out\.mp4: no space left on device on the disk at /"):
        carry_out(request_, weights=weights, device="cpu")
    folder = kept_folder(request_.output.out)
    assert left_behind(request_) == {folder.name}
    assert not (folder / "video.whole").exists()
    assert num_decoded(folder / GROWING) == NUM_FRAMES
    monkeypatch.undo()
    carry_out(request_.changed(resume=True), weights=weights, device="cpu")
    assert left_behind(request_) == {"out.mp4", "out.json"}


# --- encoder, reader ---


@pytest.mark.parametrize("overlap", [False, True])
def test_an_encoder_error_loses_no_chunk(
    request_: Request, weights: Path, monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    if overlap:
        stages = AvatarPipeline.clips

        def overlapped(self: AvatarPipeline, *args):
            self.overlap = True
            return stages(self, *args)

        monkeypatch.setattr(AvatarPipeline, "clips", overlapped)
    yuv, num = writer._yuv, 0

    def broken(picture: np.ndarray) -> av.VideoFrame:
        nonlocal num
        num += 1
        if num == 20:
            raise RuntimeError("the encoder is gone")
        return yuv(picture)

    with monkeypatch.context() as patch:
        patch.setattr(writer, "_yuv", broken)
        with pytest.raises(OSError, match=r"out\.mp4: writing failed \(the encoder is gone\)"):
            carry_out(request_, weights=weights, device="cpu")
    num_growing = num_decoded(kept_folder(request_.output.out) / GROWING)
    assert 19 - 11 <= num_growing <= 19  # 11 wait inside the encoder
    carry_out(request_.changed(resume=True), weights=weights, device="cpu")
    assert num_decoded(Path(request_.output.out)) == NUM_FRAMES


@pytest.mark.parametrize("live", [False, True])
def test_a_reader_that_leaves_ends_the_command(
    request_: Request,
    weights: Path,
    stdin_pipe: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    live: bool,
) -> None:
    os.write(stdin_pipe, pcm(640 * 40))  # and it stays open: only the reader's end ends this
    request = longer(request_, 4.0)
    words = ["generate", "--reference", request.person.reference, "--out", "-", "--no-face-crop"]
    words += ["--audio", "-" if live else request.person.audio]
    words += ["--weights", str(weights), "--steps", "1"]
    reader, end = os.pipe()
    os.close(reader)
    with os.fdopen(end, "w") as stdout, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        assert cli.main([*words, "--audio-patience", "1"]) == 2
    assert "stdout: writing failed ([Errno 32] Broken pipe)" in capsys.readouterr().err


# --- sounds ---


def test_an_interrupted_live_mp4_is_left_playing(
    request_: Request, weights: Path, stdin_pipe: int, capsys: pytest.CaptureFixture
) -> None:
    """Nobody can speak it again: it is kept until the user moves it or says --overwrite."""
    os.write(stdin_pipe, pcm(640 * 45))
    request = request_.changed(audio="-", num_steps=1, audio_patience_s=300.0)
    num = 0

    def interrupt(frames: Tensor) -> None:
        nonlocal num
        num += len(frames)
        if num > 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(request, weights=weights, on_frames=interrupt)
    so_far = kept_folder(request.output.out) / GROWING
    assert left_behind(request) == {so_far.parent.name}
    assert num_decoded(so_far) == num
    for again in (request, request_):
        with pytest.raises(ValueError, match=r"video .*video\.mp4 is left; move it away"):
            carry_out(again, weights=weights)
    carry_out(request_.changed(overwrite=True), weights=weights)
    assert left_behind(request_) == {"out.mp4", "out.json"}


def test_a_file_on_stdin_is_one_error_and_nothing_is_left(
    request_: Request, weights: Path, stdin_pipe: int, capsys: pytest.CaptureFixture
) -> None:
    os.write(stdin_pipe, Path(request_.person.audio).read_bytes()[: 640 * 50])
    words = [
        "generate",
        "--reference",
        request_.person.reference,
        "--audio",
        "-",
        "--out",
        request_.output.out,
    ]
    assert cli.main([*words, "--weights", str(weights), "--no-face-crop"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "begins as a WAV file: send its samples alone (ffmpeg -i FILE -f s16le" in error
    assert left_behind(request_) == set()


def test_a_sound_that_becomes_nan_ends_the_video_and_nothing_is_lost(
    pipe: AvatarPipeline, request_: Request
) -> None:
    def blocks() -> Iterator[Tensor]:
        yield 0.1 * torch.ones(640 * 20)
        yield torch.full((640,), torch.nan)
        yield 0.1 * torch.ones(640 * 20)

    frames = pipe(reference=request_.person.reference, audio=blocks(), num_steps=1, face_crop=False)
    with pytest.warns(UserWarning, match=r"ended after 0\.8 s: it holds NaN"):
        assert sum(1 for _ in frames) == 20
