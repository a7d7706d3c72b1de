"""Live sound: bytes to samples, lazy chunks, stalls and ends; nothing here needs a network."""

import math
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from torch import Tensor

from avatar_v.inputs import live
from avatar_v.inputs.live import GAIN_WINDOW_S, LiveSound, SoundChunk, pcm_frames, sound_chunks
from avatar_v.media import reading
from avatar_v.media.pipes import PipeReader
from avatar_v.media.sound import Level, high_passed
from avatar_v.sampling.chunks import frames_of_audio, plan

CHUNK = 5  # latents: 17 frames, then 12 more a chunk


def speech(num_samples: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return 0.1 * torch.randn(num_samples, generator=draw)


def in_blocks(sound: Tensor, size: int) -> Iterator[Tensor]:
    yield from sound.split(size)


def heard(sound: Tensor, size: int, *, context: int = 2, level: float = 1.0) -> list[SoundChunk]:
    blocks = in_blocks(sound, size)
    return list(sound_chunks(blocks, chunk_latents=CHUNK, context=context, gain=lambda past: level))


def pcm(sound: Tensor) -> bytes:
    return (sound * 32767).round().to(torch.int16).numpy().astype("<i2").tobytes()


# --- chunks of a sound of unknown length ---


@pytest.mark.parametrize(
    "num_samples", [1, 639, 640, 641, 640 * 17, 640 * 18 + 5, 640 * 19, 60_000]
)
@pytest.mark.parametrize("size", [7_777, 100_000])
def test_the_chunks_are_those_of_the_finished_sound(num_samples: int, size: int) -> None:
    sound = speech(num_samples)
    parts = heard(sound, size)
    whole = plan(frames_of_audio(num_samples), chunk_latents=CHUNK)
    assert tuple(part.chunk for part in parts) == whole.chunks
    back = torch.cat([part.sound for part in parts])
    assert len(back) == 640 * whole.num_frames
    assert torch.equal(back[:num_samples], sound)
    assert not back[num_samples:].any()  # silence up to the whole frame


@pytest.mark.parametrize("last", range(640 * 16, 640 * 21, 320))
def test_every_length_around_a_border_is_planned_as_a_file_is(last: int) -> None:
    chunks = tuple(part.chunk for part in heard(speech(last), 640))
    assert chunks == plan(frames_of_audio(last), chunk_latents=CHUNK).chunks


def test_blocks_of_any_size_give_the_same() -> None:
    sound = speech(40_000)
    first = heard(sound, 40_000)
    for size in (160, 1_001, 9_600):
        for one, other in zip(first, heard(sound, size), strict=True):
            assert one.chunk == other.chunk
            assert torch.equal(one.sound, other.sound)
            # two frames of look-ahead are certain; what follows may not have arrived
            certain = len(one.window) - 2 * 640
            assert torch.equal(one.window[:certain], other.window[:certain])


def test_a_chunk_waits_for_two_frames_of_look_ahead_and_no_more() -> None:
    taken = 0

    def blocks() -> Iterator[Tensor]:
        nonlocal taken
        for block in speech(640 * 100).split(640):
            taken += 1
            yield block

    parts = sound_chunks(blocks(), chunk_latents=CHUNK, context=2, gain=lambda past: 1.0)
    next(parts)
    assert taken == 17 + 2
    next(parts)
    assert taken == 17 + 12 + 2


def test_the_window_begins_with_the_context() -> None:
    sound = speech(640 * 60)
    parts = heard(sound, 640 * 60, context=3, level=2.0)
    assert [part.num_before for part in parts] == [0, 3, 3, 3, 3]
    for part in parts:
        first = 4 * (part.chunk.latents.start - part.num_before) * 640
        known = high_passed(sound)[first : first + len(part.window)]
        assert torch.equal(part.window[: len(known)], 2.0 * known)
        assert not part.window[len(known) :].any()


def test_the_gain_hears_the_last_seconds_of_what_the_chunk_waited_for() -> None:
    lengths, sound = [], speech(16_000 * 40)

    def gain(past: Tensor) -> float:
        start = max(0, due - GAIN_WINDOW_S * 16_000)
        assert torch.equal(past, high_passed(sound)[start:due])
        lengths.append(len(past))
        return 1.0

    due = (17 + 2) * 640
    for part in sound_chunks(in_blocks(sound, 5_000), chunk_latents=CHUNK, context=2, gain=gain):
        due = min(due + 12 * 640, len(sound))
        assert part.chunk.index == len(lengths) - 1
    assert max(lengths) == GAIN_WINDOW_S * 16_000


def test_memory_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two minutes in blocks: what `hear` holds is the gain's window and the chunk at hand."""
    blocks = (torch.zeros(16_000) for _ in range(120))
    made: list[live._Arriving] = []

    class Remembered(live._Arriving):
        def __init__(self, sound) -> None:
            super().__init__(sound)
            made.append(self)

    monkeypatch.setattr(live, "_Arriving", Remembered)
    most = 0
    for _ in sound_chunks(blocks, chunk_latents=CHUNK, context=2, gain=lambda past: 1.0):
        most = max(most, made[0]._part.shape[1])
    assert len(made) == 1
    assert GAIN_WINDOW_S * 16_000 <= most < (GAIN_WINDOW_S + 3) * 16_000


def test_a_live_sound_that_was_never_loud_says_so_at_its_end() -> None:
    sound = LiveSound(in_blocks(speech(5_000), 999))
    for lufs in (-65.0, -62.0, -70.0):
        sound.note(Level(lufs, gain=10.0))
    assert [w[:50] for w in sound.warnings] == [
        "the audio stream is very quiet (-62 LUFS), and its"
    ]
    sound.note(Level(-50.0))
    assert sound.warnings == ()


def test_a_sound_without_a_sample_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one sample, got 0"):
        heard(speech(0), 1)


# --- blocks to samples ---


def wav(path: str, sound: np.ndarray, rate: int) -> None:
    with av.open(path, "w") as container:
        stream = container.add_stream("pcm_s16le", rate=rate, layout="stereo")
        frame = av.AudioFrame.from_ndarray(sound.reshape(1, -1), format="s16", layout="stereo")
        frame.sample_rate, frame.pts = rate, 0
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100, 48_000])
def test_pcm_of_any_rate_becomes_what_the_same_file_becomes(
    rate: int, tmp_path: pytest.TempPathFactory
) -> None:
    draw = np.random.default_rng(0)
    sound = draw.integers(-9_000, 9_000, (rate, 2)).astype(np.int16)
    path = f"{tmp_path}/sound.wav"
    wav(path, sound, rate)
    data = sound.astype("<i2").tobytes()
    blocks = [data[i : i + 1_001] for i in range(0, len(data), 1_001)]  # samples cut anywhere
    frames = pcm_frames(blocks, sample_rate_hz=rate, num_channels=2)
    live = torch.cat(list(LiveSound(frames)))
    torch.testing.assert_close(live, reading.read_audio(path), atol=0, rtol=0)


def test_tensors_pass_as_they_are_and_the_first_is_noted() -> None:
    sound = LiveSound(in_blocks(speech(5_000), 999))
    assert sound.arrived_s is None
    assert torch.equal(torch.cat(list(sound)), speech(5_000))
    assert sound.arrived_s is not None
    assert (sound.num_samples, sound.warnings) == (5_000, ())


BAD_BLOCKS = [
    (torch.tensor([0.0, math.nan]), "it holds NaN or infinite samples"),
    (torch.zeros(640, dtype=torch.int16), r"in \[-1, 1\], got int16 \(640,\)"),
    (torch.zeros(2, 640), r"got float32 \(2, 640\)"),
    (np.zeros(640, np.float32), "float tensors or PyAV's frames, got numpy.ndarray"),
    (b"1234", "got builtins.bytes"),
]


@pytest.mark.parametrize(("bad", "message"), BAD_BLOCKS)
def test_a_stream_of_something_else_is_an_error(bad: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=f"cannot be used: .*{message}"):
        list(LiveSound(iter([bad])))


@pytest.mark.parametrize(("bad", "message"), BAD_BLOCKS)
def test_a_stream_that_becomes_something_else_ends_and_nothing_is_lost(
    bad: Tensor, message: str
) -> None:
    sound = LiveSound(iter([speech(8_000), bad, speech(8_000)]))
    assert torch.equal(torch.cat(list(sound)), speech(8_000))
    (warning,) = sound.warnings
    assert re.search(f"ended after 0.5 s: .*{message}", warning)


@pytest.mark.parametrize("size", [1, 3, 5_000])
def test_a_file_instead_of_samples_is_an_error(size: int, tmp_path: Path) -> None:
    wav(str(tmp_path / "sound.wav"), np.zeros((500, 2), np.int16), 16_000)
    data = (tmp_path / "sound.wav").read_bytes()
    blocks = [data[i : i + size] for i in range(0, len(data), size)]
    with pytest.raises(ValueError, match="begins as a WAV file: send its samples alone"):
        list(LiveSound(pcm_frames(blocks, sample_rate_hz=16_000, num_channels=1)))


def test_what_the_caller_raises_passes_through() -> None:
    def blocks() -> Iterator[Tensor]:
        yield speech(10)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        list(LiveSound(blocks()))


def test_a_change_of_rate_ends_the_sound_with_a_warning() -> None:
    def frames() -> Iterator[av.AudioFrame]:
        yield from pcm_frames([pcm(speech(8_000))], sample_rate_hz=16_000, num_channels=1)
        yield from pcm_frames([pcm(speech(8_000))], sample_rate_hz=8_000, num_channels=1)

    sound = LiveSound(frames())
    assert sum(map(len, sound)) == 8_000
    (warning,) = sound.warnings
    assert (
        "ended after 0.5 s: it changed from s16 mono at 16000 Hz to s16 mono at 8000 Hz" in warning
    )


# --- stdin ---


def test_a_pipe_is_read_to_its_end() -> None:
    reader, writer = os.pipe()
    data = pcm(speech(100_000))
    thread = threading.Thread(target=lambda: (write_all(writer, data), os.close(writer)))
    thread.start()
    assert b"".join(PipeReader(reader)) == data
    thread.join()
    os.close(reader)


def write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def test_a_stream_that_stalls_ends_with_a_warning_and_nothing_is_lost() -> None:
    reader, writer = os.pipe()
    os.write(writer, pcm(speech(8_000)))
    pipe = PipeReader(reader, patience_s=0.05)
    sound = LiveSound(pcm_frames(pipe, sample_rate_hz=16_000, num_channels=1))
    assert sum(map(len, sound)) == 8_000
    assert "ended after 0.5 s: the other side did nothing for 0.05 s" in sound.warnings[0]
    os.close(reader)
    os.close(writer)


def test_an_interrupt_ends_the_wait_for_a_stream_that_says_nothing() -> None:
    reader, writer = os.pipe()
    pipe = PipeReader(reader, patience_s=300.0)
    os.write(writer, b"some")
    blocks = iter(pipe)
    assert next(blocks) == b"some"
    ended = threading.Thread(target=lambda: list(blocks))
    ended.start()
    pipe.interrupt()
    ended.join(60)
    assert not ended.is_alive()
    os.close(reader)
    os.close(writer)
