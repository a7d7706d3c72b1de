"""Live generation with tiny weights: the same frames as from a file, early, and clean ends."""

import dataclasses
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import av
import pytest
import torch
from torch import Tensor

from avatar_v import cli
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.progress import FrameProgress
from avatar_v.inputs.inputs import Inputs, read_inputs
from avatar_v.inputs.live import LiveSound
from avatar_v.request.request import LIVE, Request
from avatar_v.request.resolve import input_spec
from avatar_v.weights.card import read_card
from avatar_v.weights.weights import load_pipeline
from generating import carry_out

PATIENCE_S = 300.0
"""Of a wait that ends at once unless the code is wrong; long, because CI machines are busy."""


def sound(num_samples: int) -> Tensor:
    return 0.2 * torch.randn(num_samples, generator=torch.Generator().manual_seed(0))


def pcm(samples: Tensor) -> bytes:
    return (samples.clamp(-1, 1) * 32767).round().to(torch.int16).numpy().astype("<i2").tobytes()


def live_threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name == "writer" or name.startswith("stage-")]


def from_file(pipe: AvatarPipeline, request: Request, samples: Tensor) -> tuple[Tensor, Tensor]:
    """Frames and sound of a finished recording."""
    num = -(-len(samples) // 640)
    padded = torch.nn.functional.pad(samples, (0, 640 * num - len(samples)))
    inputs = dataclasses.replace(
        read_inputs(request, input_spec(request, pipe.card)), audio=padded, num_frames=num
    )
    return joined(pipe, inputs, request)


def from_blocks(
    pipe: AvatarPipeline, request: Request, blocks: Iterator[Tensor]
) -> tuple[Tensor, Tensor]:
    live = request.changed(audio=LIVE)
    return joined(pipe, read_inputs(live, input_spec(live, pipe.card), LiveSound(blocks)), live)


def joined(pipe: AvatarPipeline, inputs: Inputs, request: Request) -> tuple[Tensor, Tensor]:
    clips = list(pipe.clips(inputs, request))
    return torch.cat([clip.frames for clip in clips]), torch.cat([clip.sound for clip in clips])


@pytest.fixture
def stdin_pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The end to write to of what the command reads as stdin."""
    reader, writer = os.pipe()
    with os.fdopen(reader) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield writer
    os.close(writer)


# --- the same frames ---


def test_overlapped_stages_give_the_same_bits(pipe: AvatarPipeline, request_: Request) -> None:
    threaded = AvatarPipeline(
        pipe.dit, pipe.conditioner, pipe.card, device="cpu", precision="fp32", overlap=True
    )
    request = request_.changed(overshoot=0.5)
    assert not pipe.overlap
    one, other = (from_file(p, request, sound(640 * 41)) for p in (pipe, threaded))
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])
    assert live_threads() == []


@pytest.mark.parametrize("num_samples", [300, 640 * 17, 640 * 18 + 1, 640 * 41])
@pytest.mark.parametrize("gain_db", [0.0, -6.0])
def test_a_live_sound_gives_the_frames_of_the_file(
    pipe: AvatarPipeline, request_: Request, num_samples: int, gain_db: float
) -> None:
    """Bit for bit, with a fixed gain; levelling the whole file needs its end."""
    request = request_.changed(gain_db=gain_db)
    file = from_file(pipe, request, sound(num_samples))
    live = from_blocks(pipe, request, iter(sound(num_samples).split(1_111)))
    assert torch.equal(live[0], file[0])
    assert torch.equal(live[1], file[1])
    assert live_threads() == []


def test_a_live_sound_in_bf16_gives_the_frames_of_the_file(
    weights: Path, request_: Request
) -> None:
    networks, card = load_pipeline(weights), read_card(weights)
    pipe = AvatarPipeline(*networks, card, device="cpu", precision="bf16")
    request = request_.changed(gain_db=0.0)
    file = from_file(pipe, request, sound(640 * 18 + 1))
    live = from_blocks(pipe, request, iter(sound(640 * 18 + 1).split(640)))
    assert torch.equal(live[0], file[0])


def test_the_live_level_hears_only_the_past(pipe: AvatarPipeline, request_: Request) -> None:
    loud_later = torch.cat([sound(640 * 30), 20 * sound(640 * 30)])
    request = request_.changed(num_steps=1)
    first = from_blocks(pipe, request, iter(loud_later.split(640)))
    second = from_blocks(pipe, request, iter(sound(640 * 30).split(640)))
    assert torch.equal(first[0][:17], second[0][:17])
    fixed = from_blocks(pipe, request.changed(gain_db=0.0), iter(loud_later.split(640)))
    assert not torch.equal(first[0], fixed[0])  # it is levelled


# --- early, and to the end ---


def test_frames_come_before_the_sound_ends(pipe: AvatarPipeline, request_: Request) -> None:
    shown = threading.Event()

    def blocks() -> Iterator[Tensor]:
        yield sound(640 * 19)  # one chunk of 17 frames and its look-ahead
        assert shown.wait(PATIENCE_S)
        yield sound(640 * 5)

    frames = pipe(reference=request_.person.reference, audio=blocks(), num_steps=1, face_crop=False)
    first = next(frames)
    assert first.shape == (3, 32, 32)
    shown.set()
    assert 1 + sum(1 for _ in frames) == 24
    assert live_threads() == []


def test_an_unfinished_iterator_that_is_closed_leaves_no_thread(
    pipe: AvatarPipeline, request_: Request
) -> None:
    def blocks() -> Iterator[Tensor]:
        while True:
            yield sound(640)

    frames = pipe(reference=request_.person.reference, audio=blocks(), num_steps=1, face_crop=False)
    next(frames)
    del frames
    assert live_threads() == []


def test_an_error_of_the_sound_comes_behind_the_frames_before_it(
    pipe: AvatarPipeline, request_: Request
) -> None:
    def blocks() -> Iterator[Tensor]:
        yield sound(640 * 19)
        raise RuntimeError("microphone gone")

    frames = pipe(reference=request_.person.reference, audio=blocks(), num_steps=1, face_crop=False)
    seen = []
    with pytest.raises(RuntimeError, match="microphone gone"):
        any(seen.append(frame) for frame in frames)
    assert len(seen) == 17
    assert live_threads() == []


def test_a_sound_that_breaks_off_ends_the_video_with_a_warning(
    pipe: AvatarPipeline, request_: Request
) -> None:
    def blocks() -> Iterator[Tensor]:
        yield sound(640 * 20)
        raise ConnectionResetError("the caller hung up")

    frames = pipe(reference=request_.person.reference, audio=blocks(), num_steps=1, face_crop=False)
    with pytest.warns(UserWarning, match=r"ended after 0\.8 s: the caller hung up"):
        assert sum(1 for _ in frames) == 20


def test_a_network_that_needs_the_whole_sound_says_so(
    pipe: AvatarPipeline, request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe.conditioner.audio_encoder, "look_ahead", None, raising=False)
    with pytest.raises(ValueError, match="whole recording"):
        pipe(reference=request_.person.reference, audio=iter([sound(640)]), face_crop=False)


# --- the command ---


def words_of(request: Request, weights: Path, out: str) -> list[str]:
    words = ["generate", "--reference", request.person.reference, "--audio", "-", "--out", out]
    return [*words, "--weights", str(weights), "--steps", "1", "--no-face-crop"]


def test_stdin_to_a_playlist_and_its_record(
    request_: Request, weights: Path, stdin_pipe: int
) -> None:
    os.write(stdin_pipe, pcm(sound(640 * 25)))
    out = str(Path(request_.output.out).with_suffix(".m3u8"))
    words = [*words_of(request_, weights, out), "--audio-patience", "0.3"]
    assert cli.main(words) == 0  # nobody closes the pipe: the sound ends with its patience
    with av.open(out) as container:
        assert sum(1 for _ in container.decode(video=0)) == 25
    record = Path(request_.output.out).with_suffix(".json").read_text()
    assert "the audio stream ended after 1.0 s: the other side did nothing for 0.3 s" in record
    assert live_threads() == []


def test_stdin_at_another_rate_to_stdout(
    request_: Request, weights: Path, stdin_pipe: int, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    os.write(stdin_pipe, pcm(sound(8_000 * 2).repeat_interleave(2)[: 2 * 8_000]))
    words = [*words_of(request_, weights, "-"), "--audio-rate", "8000", "--audio-channels", "2"]
    assert cli.main([*words, "--audio-patience", "0.3"]) == 0
    data, log = capfdbinary.readouterr()
    with av.open(io.BytesIO(data)) as container:
        assert sum(1 for _ in container.decode(video=0)) == 25
    assert b"25 frames" in log
    assert b"ended after 1.0 s" in log
    assert list(Path(request_.output.out).parent.iterdir()) == []


def test_an_interrupt_does_not_wait_for_stdin(
    request_: Request, weights: Path, stdin_pipe: int
) -> None:
    os.write(stdin_pipe, pcm(sound(640 * 20)))
    request = request_.changed(audio="-", num_steps=1, audio_patience_s=PATIENCE_S)

    def interrupt(frames: Tensor) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(request, weights=weights, on_frames=interrupt)
    assert live_threads() == []


def test_an_interrupt_ends_the_speech_and_its_video_is_finished(
    request_: Request, weights: Path, stdin_pipe: int, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    os.write(stdin_pipe, pcm(sound(640 * 23)))
    before, shown = FrameProgress.frames, []

    def interrupt(self: FrameProgress, frames: Tensor) -> None:
        if not shown:
            os.kill(os.getpid(), signal.SIGINT)
        shown.append(len(frames))
        before(self, frames)

    monkeypatch.setattr(FrameProgress, "frames", interrupt)
    out = str(request_.output.out)
    words = [*words_of(request_, weights, out), "--audio-patience", str(PATIENCE_S)]
    assert cli.main(words) == 0
    with av.open(out) as container:
        assert sum(1 for _ in container.decode(video=0)) == sum(shown) == 23
    record = Path(out).with_suffix(".json").read_text()
    assert "the audio stream was ended after 0.9 s: interrupted" in record
    assert "Ctrl-C again breaks off" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert live_threads() == []


def test_the_first_frame_counts_from_the_first_sample(
    request_: Request, weights: Path, stdin_pipe: int
) -> None:
    os.write(stdin_pipe, pcm(sound(640 * 20)))
    request = request_.changed(audio="-", num_steps=1, audio_patience_s=0.3)
    record = carry_out(request, weights=weights)
    assert record.num_frames == 20
    assert 0 < record.timing.first_frame_s < record.timing.total_s
    slow = dataclasses.replace(record.timing, first_frame_s=0.5, total_s=4.3)
    assert dataclasses.replace(record, timing=slow).fell_behind_s == pytest.approx(3.0)
    file = record.request.changed(audio="talk.wav")
    assert dataclasses.replace(record, timing=slow, request=file).fell_behind_s == 0
