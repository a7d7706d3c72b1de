"""Sound that is still being spoken: blocks of PCM in, and each chunk as soon as it can be made.

Chunks are planned while the sound arrives (streaming framework: the loop ends when the audio stream
does), and are those of the finished sound: which block brought a sample does not matter. A chunk
can be made once the two video frames behind it have been heard, which is how far its lips look
ahead, and the look-ahead of the sound's encoder and of its motion. Memory holds the encoder's
context and what the gain is measured on. No network is known here (generate/generator.py), nor
whose turn it is (generate/pipelining.py).
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from avatar_v.media.channels import VoiceChannel, frame_samples
from avatar_v.media.sound import HighPass, Level
from avatar_v.models.audio import frames_heard
from avatar_v.sampling.chunks import (
    OVERLAP,
    Chunk,
    Span,
    frames_of_audio,
    latents_to_cover,
    next_chunk,
)
from avatar_v.types import SAMPLE_RATE_HZ, SAMPLES_PER_FRAME, TEMPORAL_FACTOR

if TYPE_CHECKING:
    import av

Block = Union[Tensor, "av.AudioFrame"]
"""Samples "s" in [-1, 1], mono at 16 kHz; or PyAV's frame, which says its own rate and layout."""
GAIN_WINDOW_S = 30
"""Of a live sound the loudness of the last 30 s is brought to that of training (our choice)."""
BYTES_PER_SAMPLE = 2
HEADERS = {b"RIFF": "WAV", b"RF64": "WAV", b"FORM": "AIFF", b"fLaC": "FLAC", b"OggS": "Ogg",
           b"ID3\x03": "MP3", b"ID3\x04": "MP3", b"caff": "CAF", b".snd": "AU",
           b"\x1aE\xdf\xa3": "Matroska or WebM"}  # fmt: skip
"""How files begin that are sent by mistake; samples do by a chance of 2^-32 each."""


@dataclass(frozen=True)
class SoundChunk:
    """The sound of one chunk, ready to be encoded."""

    chunk: Chunk
    sound: Float[Tensor, " s"]  # of chunk.frames as it came; silence behind its end
    window: Float[Tensor, " t"]  # as the model takes it, from `num_before` latents before the chunk
    num_before: int


class LiveSound:
    """Iterates over 16 kHz mono blocks of a sound, once, and keeps what happened on its way.

    A stream that stalls, breaks off, changes its rate or kind, or holds NaN ends there: what was
    heard is made into video as if the sound had ended, and ``warnings`` says why. ValueError where
    already its first block cannot be used. What ``blocks`` raises otherwise passes through.
    ``interrupt`` wakes ``blocks`` where it waits, to end it.
    """

    def __init__(
        self, blocks: Iterable[Block], *, interrupt: Callable[[], None] = lambda: None
    ) -> None:
        self._blocks = blocks
        self.interrupt = interrupt
        self.prompt: str | None = None  # takes the place of the request's from the next chunk on
        self.sample_rate_hz = SAMPLE_RATE_HZ  # that it is heard at: 640 samples a frame to make
        self.arrived_s: float | None = None  # time.perf_counter() of the first block
        self.num_samples = 0
        self._faults: tuple[str, ...] = ()
        self._loudest: Level | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What went wrong on its way, and what is odd about its level."""
        odd = () if self._loudest is None else self._loudest.warnings("the audio stream")
        return (*self._faults, *odd)

    def note(self, level: Level) -> None:
        """Remember at which level a part of it was heard."""
        if self._loudest is None or level.lufs > self._loudest.lufs:
            self._loudest = level

    def end(self, why: str) -> bool:
        """End the sound where it is, as its own end would. False, and nothing is done, where none
        of it was heard yet."""
        if self.num_samples == 0:
            return False
        after = f"after {self.num_samples / self.sample_rate_hz:.1f} s"
        self._faults += (f"the audio stream was ended {after}: {why}",)
        self.interrupt()
        return True

    def __iter__(self) -> Iterator[Float[Tensor, " s"]]:
        try:
            for samples in _mono(self._first_noted(), self.sample_rate_hz):
                if not bool(torch.isfinite(samples).all()):
                    raise _Unusable("it holds NaN or infinite samples")
                self.num_samples += len(samples)
                yield samples
        except (OSError, _Unusable) as fault:
            if isinstance(fault, _Unusable) and self.num_samples == 0:
                raise ValueError(f"the audio stream cannot be used: {fault}") from fault
            after = f"after {self.num_samples / self.sample_rate_hz:.1f} s"
            self._faults += (f"the audio stream ended {after}: {fault}",)

    def _first_noted(self) -> Iterator[Block]:
        for block in self._blocks:
            if self.arrived_s is None:
                self.arrived_s = time.perf_counter()
            yield block


def pcm_frames(
    blocks: Iterable[bytes], *, sample_rate_hz: int, num_channels: int
) -> "Iterator[av.AudioFrame]":
    """Frames of a stream of signed 16-bit little-endian samples, channels interleaved.

    Blocks of bytes end anywhere; a sample cut off by the end of the stream is dropped. ValueError
    for a stream that begins as a file of some format does.
    """
    from av import AudioFrame

    rest, size, num_given = b"", BYTES_PER_SAMPLE * num_channels, 0
    for block in _without_header(blocks):
        data = rest + block
        whole = len(data) // size * size
        rest = data[whole:]
        if whole:
            samples = np.frombuffer(data[:whole], "<i2").astype(np.int16)[None]
            layout = "mono" if num_channels == 1 else "stereo"
            frame = AudioFrame.from_ndarray(samples, format="s16", layout=layout)
            frame.sample_rate, frame.pts = sample_rate_hz, num_given
            num_given += frame.samples
            yield frame


def sound_chunks(
    sound: Iterable[Float[Tensor, " _s"]],
    *,
    chunk_latents: int,
    context: int,
    gain: Callable[[Tensor], float],
    look_ahead: int = 0,
) -> Iterator[SoundChunk]:
    """The chunks of a sound, each as soon as its look-ahead has arrived; the rest at its end.

    ``context`` and ``look_ahead`` are the numbers of latents before a chunk and behind it that its
    encoding depends on. Windows are high-passed; ``gain`` gives the factor of one from the last
    ``GAIN_WINDOW_S`` of what its chunk had to wait for. ValueError if the sound ends before its
    first sample.
    """
    arriving, before = _Arriving(_with_heard(sound)), None
    while (part := _next(arriving, before, chunk_latents, look_ahead)) is not None:
        chunk, last_latent, now = part
        first_latent = max(0, chunk.latents.start - context)
        frames = Span(TEMPORAL_FACTOR * first_latent, TEMPORAL_FACTOR * last_latent + 1)
        past = Span(max(0, now - GAIN_WINDOW_S * SAMPLE_RATE_HZ), now)
        yield SoundChunk(
            chunk=chunk,
            sound=arriving.samples(_sample_span(chunk.frames))[0],
            window=arriving.samples(_sample_span(frames))[1] * gain(arriving.samples(past)[1]),
            num_before=chunk.latents.start - first_latent,
        )
        before = chunk
        next_latent = max(0, chunk.latents.stop - OVERLAP - context)
        arriving.forget(min(next_latent * TEMPORAL_FACTOR * SAMPLES_PER_FRAME, past.start))


def _next(
    arriving: "_Arriving", before: Chunk | None, chunk_latents: int, look_ahead: int
) -> tuple[Chunk, int, int] | None:
    """The chunk behind ``before`` once its sound is there, the last latent to encode with it, and
    the sample up to which it had to wait; None behind the last chunk."""
    chunk = next_chunk(before, chunk_latents=chunk_latents, num_video_frames=None)
    assert chunk is not None
    last = chunk.latents.stop + look_ahead
    due = frames_heard(last) * SAMPLES_PER_FRAME
    if arriving.wait_for(due):  # so there is at least one latent behind this chunk
        return chunk, last, due
    total = frames_of_audio(arriving.stop)
    chunk = next_chunk(before, chunk_latents=chunk_latents, num_video_frames=total)
    if chunk is None:
        return None
    last = min(chunk.latents.stop + look_ahead, latents_to_cover(total) - 1)
    return chunk, last, arriving.stop


def _sample_span(frames: Span) -> Span:
    return Span(frames.start * SAMPLES_PER_FRAME, frames.stop * SAMPLES_PER_FRAME)


def _with_heard(blocks: Iterable[Float[Tensor, " _s"]]) -> Iterator[Float[Tensor, "2 s"]]:
    """Each block as it came and as it is heard, with silence up to the next whole frame at the end,
    which a finished sound has, too."""
    high, num = HighPass(), 0
    for block in blocks:
        yield torch.stack([block, high(block)])
        num += len(block)
    rest = torch.zeros(-num % SAMPLES_PER_FRAME)
    yield torch.stack([rest, high(rest)])


class _Arriving:
    """The last part of two sounds that arrive in blocks; samples count from their beginning."""

    def __init__(self, blocks: Iterable[Float[Tensor, "2 s"]]) -> None:
        self._blocks = iter(blocks)
        self._start = 0
        self._part = torch.zeros(2, 0)

    @property
    def stop(self) -> int:
        """How many samples have arrived so far."""
        return self._start + self._part.shape[1]

    def wait_for(self, stop: int) -> bool:
        """Takes blocks until ``stop`` samples have arrived; False if the sound ends before."""
        blocks = [self._part]
        missing = stop - self.stop
        while missing > 0 and (block := next(self._blocks, None)) is not None:
            blocks.append(block)
            missing -= block.shape[1]
        self._part = torch.cat(blocks, dim=1)
        return missing <= 0

    def forget(self, before: int) -> None:
        num = max(0, before - self._start)
        self._part, self._start = self._part[:, num:].clone(), self._start + num

    def samples(self, span: Span) -> Float[Tensor, "2 s"]:
        """Silence where the sound has not arrived or has ended."""
        assert span.start >= self._start, "this part is forgotten"
        part = self._part[:, span.start - self._start : max(span.stop - self._start, 0)]
        return F.pad(part, (0, len(span) - part.shape[1]))


class _Unusable(Exception):
    """What is wrong with a block."""


def _without_header(blocks: Iterable[bytes]) -> Iterator[bytes]:
    head = b""
    for block in blocks:
        if len(head) < 4:
            head += block[: 4 - len(head)]
            if head in HEADERS:
                raise ValueError(
                    f"the audio stream is of raw samples, and this one begins as a {HEADERS[head]} "
                    "file: send its samples alone (ffmpeg -i FILE -f s16le -ar 16000 -ac 1 -), or "
                    "pass the file's name"
                )
        yield block


def _mono(blocks: Iterable[Block], rate_hz: int) -> Iterator[Float[Tensor, " s"]]:
    """The voice of every block at one rate (as reading.read_audio converts files)."""
    resampler, first, voice = None, None, None
    for block in blocks:
        kind = _kind(block)
        if first not in (None, kind):
            raise _Unusable(f"it changed from {first} to {kind}")
        first = kind
        if isinstance(block, Tensor) and rate_hz == SAMPLE_RATE_HZ:
            yield block.detach().cpu().float()
        else:
            from av import AudioFrame, AudioResampler  # not installed where no file is read

            if isinstance(block, Tensor):
                samples = block.detach().cpu().float().numpy()[None]
                block = AudioFrame.from_ndarray(samples, format="flt", layout="mono")
                block.sample_rate = SAMPLE_RATE_HZ
            resampler = resampler or AudioResampler(format="flt", rate=rate_hz)
            voice = voice or VoiceChannel(block.layout, rate_hz)
            for part in resampler.resample(block):
                yield torch.from_numpy(voice(frame_samples(part)))
    if resampler is not None and voice is not None:
        for part in resampler.resample(None):
            yield torch.from_numpy(voice(frame_samples(part)))


def _kind(block: object) -> str:
    """What must stay the same from block to block; _Unusable for what is no block of samples."""
    if not isinstance(block, Tensor):
        from av import AudioFrame

        if isinstance(block, AudioFrame):
            return f"{block.format.name} {block.layout.name} at {block.sample_rate} Hz"
        kind = f"{type(block).__module__}.{type(block).__name__}"
        raise _Unusable(f"blocks are float tensors or PyAV's frames, got {kind}")
    if block.ndim != 1 or not block.is_floating_point():
        shape, dtype = tuple(block.shape), str(block.dtype).removeprefix("torch.")
        raise _Unusable(f"tensors are float, of shape (s,) and in [-1, 1], got {dtype} {shape}")
    return "tensors at 16000 Hz"
