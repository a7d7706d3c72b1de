"""Pictures and samples of a file, each at its own time, on the project's grid.

Decoded frames come in; pictures leave as grid frames, samples as one sound without holes. Times
that no recording has (hours of one picture, a jump back) are a ValueError. What is read from a
file in which form is reading.py's.
"""

import itertools
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av import AudioLayout
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.error import FFmpegError
from av.video.frame import VideoFrame

from avatar_v.media.channels import Channels, VoiceChannel, frame_samples
from avatar_v.media.containers import (
    MAX_DURATION_S,
    audio_stream,
    decoded,
    missing,
    open_media,
    video_stream,
)

MAX_STILL_S = 600
"""A picture that stands still for longer, sound that starts so much later, or a hole in it that is
so long, is a fault."""
MAX_BACK_S = 1.0
"""Times that jump back by more are those of files that were joined."""
MAX_OFF_S = 0.04
"""A frame of sound that is off its time by less is taken to follow the one before: containers round
times, and some count by milliseconds."""


def on_grid(
    frames: Iterator[VideoFrame], rate_hz: int, path: str | Path
) -> Iterator[tuple[VideoFrame, int]]:
    """Source frames with the number of grid frames each fills; the sum is the video's duration."""
    held, held_slot = None, 0
    start = end = Fraction(0)
    before_s: float | None = None
    for frame in frames:
        if frame.pts is None or frame.time_base is None:  # a stream without times: as they come
            time, duration = start + Fraction(held_slot + 1, rate_hz), None
        else:
            time, duration = frame.pts * frame.time_base, frame.duration * frame.time_base
            if before_s is not None:
                _check_order("picture", before_s, float(time), float(start), path)
            before_s = float(time)
        if held is None:
            start = time
        elif (slot := _nearest((time - start) * rate_hz)) > held_slot:
            yield held, _count(slot - held_slot, slot, rate_hz, path)
            held_slot = slot
        held, end = frame, time + (duration or Fraction(1, rate_hz))
    if held is not None:
        slot = _nearest((end - start) * rate_hz)
        count = max(slot - held_slot, 1 if held_slot == 0 else 0)
        yield held, _count(count, slot, rate_hz, path)


def aligned(
    path: str | Path, track: int | None, sample_rate_hz: int, layout: str | None
) -> Iterator[Channels]:
    """The parts of a sound in this layout, from the moment of the first picture on; None is the
    voice alone. Errors as of `reading.iter_audio`."""
    with open_media(path) as container:
        stream = audio_stream(container, path, track)
        if stream is None:
            why = missing(container, "audio")
            raise ValueError(f"{path}: {why}; expected speech to be in it")
        zero_s = _first_frame_time(path) if video_stream(container, path) else None
        num_read = num_bad = num_early = 0
        for time_s, samples in _samples(container, stream, path, sample_rate_hz, layout):
            num_channels, num = samples.shape
            if num_read == 0 and time_s is not None and zero_s is not None:
                if abs(zero_s - time_s) > MAX_STILL_S:
                    raise ValueError(
                        f"{path}: its sound starts at {time_s:.0f} s, its picture at {zero_s:.0f} s"
                    )
                num_early = round((zero_s - time_s) * sample_rate_hz)
                if num_early < 0:
                    yield np.zeros((num_channels, -num_early), np.float32)
            num_read += num
            if num_read > MAX_DURATION_S * sample_rate_hz:
                raise ValueError(f"{path}: its sound goes on for more than {MAX_DURATION_S} s")
            num_bad += int((~np.isfinite(samples).all(0)).sum())
            cut = min(max(num_early, 0), num)
            num_early -= cut
            if cut < num:
                yield samples[:, cut:]
    if num_read == 0:
        raise ValueError(f"{path}: the audio stream holds no samples")
    if num_early > 0:
        raise ValueError(f"{path}: the sound ends before the picture begins")
    if num_bad > 0:
        raise ValueError(f"{path}: {num_bad} of {num_read} audio samples are NaN or infinite")


def _samples(
    container: InputContainer,
    stream: AudioStream,
    path: str | Path,
    sample_rate_hz: int,
    layout: str | None,
) -> Iterator[tuple[float | None, Channels]]:
    """Parts of an audio stream, each with the time at which the stream begins. Holes in its times
    are filled with silence, and what overlaps is cut."""
    begin_s = voice = silence = None
    num = 0
    for at_s, run in itertools.groupby(decoded(container, stream, path), _RunStart(path)):
        frames = iter(run)
        first = next(frames)
        if silence is None:
            begin_s = at_s
            voice = VoiceChannel(first.layout, sample_rate_hz) if layout is None else None
            num_channels = (first.layout if layout is None else AudioLayout(layout)).nb_channels
            silence = np.zeros((num_channels, sample_rate_hz), np.float32)
        missed = 0
        if at_s is not None and begin_s is not None:
            missed = round((at_s - begin_s) * sample_rate_hz) - num
        if missed > MAX_STILL_S * sample_rate_hz:
            raise ValueError(
                f"{path}: a hole of {missed / sample_rate_hz:.0f} s in its sound; "
                f"at most {MAX_STILL_S} s can be read"
            )
        parts = _resampled(itertools.chain([first], frames), path, sample_rate_hz, layout)
        for part in itertools.chain(_repeated(silence, missed), parts):
            cut = min(max(-missed, 0), part.shape[1])
            missed += cut
            if cut < part.shape[1]:
                num += part.shape[1] - cut
                yield begin_s, part[:, cut:] if voice is None else voice(part[:, cut:])[None]


def _repeated(part: Channels, num: int) -> Iterator[Channels]:
    """So many samples, a ``part`` at a time."""
    for start in range(0, num, part.shape[1]):
        yield part[:, : num - start]


def _resampled(
    frames: Iterator[AudioFrame], path: str | Path, sample_rate_hz: int, layout: str | None
) -> Iterator[Channels]:
    """The samples of frames that follow each other."""
    resampler = av.AudioResampler(format="flt", rate=sample_rate_hz, layout=layout)
    for frame in itertools.chain(frames, [None]):
        try:
            parts = resampler.resample(frame)
        except FFmpegError as error:
            raise ValueError(f"{path}: the audio cannot be converted ({error})") from error
        yield from map(frame_samples, parts)


class _RunStart:
    """``start(frame)`` gives the second at which the run of a frame began; in a run each frame
    follows the one before. ValueError for times that jump back, and for another form."""

    def __init__(self, path: str | Path) -> None:
        self._path, self._form = path, None
        self._first_s = self._start_s = self._before_s = self._end_s = None

    def __call__(self, frame: AudioFrame) -> float | None:
        form, time_s = (frame.sample_rate, frame.layout.name, frame.format.name), frame.time
        if self._form is None:
            self._form = form
            self._first_s = self._start_s = self._end_s = time_s
        elif form != self._form:
            raise ValueError(
                f"{self._path}: the sound changes its form from {self._form} to {form}"
            )
        if time_s is not None and self._end_s is not None:
            if self._before_s is not None:
                _check_order("sound", self._before_s, time_s, self._first_s or 0.0, self._path)
            if abs(time_s - self._end_s) > MAX_OFF_S:
                self._start_s = self._end_s = time_s
            self._before_s = time_s
        if self._end_s is not None:
            self._end_s += frame.samples / frame.sample_rate
        return self._start_s


def _check_order(
    kind: str, before_s: float, time_s: float, first_s: float, path: str | Path
) -> None:
    """ValueError where a frame is much earlier than the one before it."""
    if before_s - time_s > MAX_BACK_S:
        raise ValueError(
            f"{path}: the times of its {kind} jump back {before_s - time_s:.1f} s, "
            f"{before_s - first_s:.1f} s into it, as those of files that were joined; "
            "remux it, or cut it there"
        )


def _first_frame_time(path: str | Path) -> float | None:
    with open_media(path) as container:
        stream = video_stream(container, path)
        assert stream is not None
        for frame in decoded(container, stream, path):
            return frame.time
    return None


def _count(count: int, slot: int, rate_hz: int, path: str | Path) -> int:
    """``count``. ValueError where times in the file would make one picture last for hours."""
    if count > MAX_STILL_S * rate_hz:
        raise ValueError(
            f"{path}: one picture stands still for {count / rate_hz:.0f} s; "
            f"at most {MAX_STILL_S} s can be read"
        )
    if slot > MAX_DURATION_S * rate_hz:
        raise ValueError(f"{path}: its picture goes on for more than {MAX_DURATION_S} s")
    return count


def _nearest(value: Fraction) -> int:
    return int(value + Fraction(1, 2))
