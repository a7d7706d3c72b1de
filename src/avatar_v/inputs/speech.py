"""The sound of a request: a file of speech, read whole, or what arrives on stdin (live.py)."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from avatar_v.inputs.live import LiveSound, pcm_frames
from avatar_v.media.delivered import Delivered, SoundFormat, delivered_format
from avatar_v.media.pipes import PipeReader
from avatar_v.media.sound import TemporarySound, high_passed, measure_level
from avatar_v.request.checks import check_voice_speaks
from avatar_v.request.record import SpokenTrack
from avatar_v.request.request import PersonOptions
from avatar_v.sampling.chunks import frames_of_audio
from avatar_v.types import FRAME_RATE_HZ, SAMPLES_PER_FRAME

MIN_SPEECH_S = 0.1
"""The length of a short vowel; what is shorter is no speech, but a click or a broken file."""
WITHOUT_SOUND = -100.0
"""LUFS, in a record, of what is digitally silent."""


@dataclass(frozen=True)
class SpeechInput:
    """A file of speech: what is spoken, and what the video delivers."""

    audio: TemporarySound  # mono, a whole number of frames of SAMPLES_PER_FRAME samples
    delivered: Delivered | None  # None: the same
    track: SpokenTrack
    warnings: tuple[str, ...]


def read_speech(
    path: str | Path,
    track: int | None = None,
    *,
    gain_db: float | None = None,
    frame_rate_hz: int = FRAME_RATE_HZ,
) -> SpeechInput:
    """The sound of any audio or video file at 640 samples a frame, with silence up to the next
    whole frame, and as it is delivered. ``gain_db`` is what it is raised by, in place of
    levelling it.

    ValueError: missing, unreadable, no audio stream or not this track, too short, NaN.
    """
    from avatar_v.media import reading

    info, num = reading.probe(path, track=track), 0
    rate = SAMPLES_PER_FRAME * frame_rate_hz

    def parts() -> Iterator[Tensor]:
        nonlocal num
        for part in reading.iter_audio(path, sample_rate_hz=rate, track=track):
            num += len(part)
            yield part
        yield torch.zeros(frames_of_audio(num) * SAMPLES_PER_FRAME - num)

    audio = TemporarySound(parts())
    if num < MIN_SPEECH_S * rate:
        raise ValueError(
            f"{path}: {1000 * num / rate:.0f} ms of sound; expected speech of at least "
            f"{1000 * MIN_SPEECH_S:.0f} ms"
        )
    assert info.sample_rate_hz is not None
    assert info.layout is not None
    assert info.track is not None
    form = delivered_format(info.sample_rate_hz, info.layout, frame_rate_hz)
    level = measure_level(high_passed(audio))
    return SpeechInput(
        audio,
        _delivered(path, form, track, is_mono=info.num_channels == 1),
        SpokenTrack(
            info.track,
            info.num_tracks,
            info.sample_rate_hz,
            info.layout,
            round(max(level.lufs, WITHOUT_SOUND), 1),
            form.sample_rate_hz,
            form.layout,
        ),
        (*whole_or_why(path), *level.warnings(str(path), gain_db=gain_db)),
    )


def _delivered(
    path: str | Path, form: SoundFormat, track: int | None, *, is_mono: bool
) -> Delivered | None:
    """The sound as the video delivers it; None where that is the sound that is spoken."""
    from avatar_v.media import reading

    if form == SoundFormat() and is_mono:
        return None
    return Delivered(TemporarySound(reading.iter_channels(path, form, track=track)), form)


def whole_or_why(path: str | Path) -> tuple[str, ...]:
    """A warning where the file ends before its header says, as a download that broke off does."""
    from avatar_v.media import containers

    early = containers.early_end(path)
    return () if early is None else (f"{early}; what is there is used",)


def live_speech(person: PersonOptions) -> LiveSound:
    """The samples that come on stdin. ValueError for a terminal, and for a voice."""
    check_voice_speaks(person)
    if sys.stdin.isatty():
        raise ValueError("--audio - reads 16-bit PCM from stdin; pipe a sound into it")
    pipe = PipeReader(sys.stdin.fileno(), patience_s=person.audio_patience_s)
    frames = pcm_frames(
        pipe, sample_rate_hz=person.audio_rate_hz, num_channels=person.audio_channels
    )
    return LiveSound(frames, interrupt=pipe.interrupt)
