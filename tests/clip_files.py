"""Clips written to files, losslessly enough to be compared with what is read."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import torch
from torch import Tensor


def clip_file(path: Path, video: Tensor, audio: Tensor | None = None, *, crf: int = 4) -> str:
    """Frames "f 3 h w" at 25 fps and, if given, 16 kHz sound."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"crf": str(crf)})
        stream.height, stream.width = video.shape[2:]
        stream.pix_fmt = "yuv444p"
        sound = None
        if audio is not None:
            sound = container.add_stream("pcm_s16le", rate=16_000, layout="mono")
        for picture in video.movedim(1, -1).numpy():
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if sound is not None and audio is not None:
            samples = (audio.clamp(-1, 1) * 32767).to(torch.int16).numpy()[None]
            block = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
            block.sample_rate = 16_000
            container.mux(sound.encode(block))
            container.mux(sound.encode(None))
    return str(path)


def beeping_film(
    path: Path,
    seconds: float,
    beeps_s: tuple[float, ...],
    *,
    codecs: tuple[str, str] = ("libx264", "aac"),
    lost_s: tuple[float, float] = (0.0, 0.0),
    at_s: float = 0.0,
) -> Path:
    """A black film that is white, and beeps, for 0.1 s at some times. Packets of its sound between
    two moments are ``lost_s``; its times begin at ``at_s``."""
    rate, packets = 48_000, []
    with av.open(str(path), "w") as container:
        video = container.add_stream(codecs[0], rate=25)
        video.height, video.width, video.pix_fmt = 32, 32, "yuv420p"
        audio = container.add_stream(codecs[1], rate=rate, layout="mono")
        for i in range(round(25 * seconds)):
            is_white = any(beep <= (i + 0.5) / 25 < beep + 0.1 for beep in beeps_s)
            grey = np.full((32, 32, 3), 255 * is_white, np.uint8)
            frame = av.VideoFrame.from_ndarray(grey, format="rgb24")
            frame.pts, frame.time_base = i, Fraction(1, 25)
            packets += video.encode(frame)
        at = np.arange(round(rate * seconds)) / rate
        is_loud = np.any([(beep <= at) & (at < beep + 0.1) for beep in beeps_s], axis=0)
        samples = (0.5 * is_loud * np.sin(2 * np.pi * 440 * at)).astype(np.float32)
        block = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
        block.sample_rate, block.pts, block.time_base = rate, 0, Fraction(1, rate)
        form = audio.codec_context.format.name
        for part in av.AudioResampler(format=form, layout="mono", rate=rate).resample(block):
            packets += audio.encode(part)
        packets += [*video.encode(None), *audio.encode(None)]
        for packet in sorted(packets, key=lambda packet: packet.dts * packet.time_base):
            is_sound, time_s = packet.stream is audio, float(packet.pts * packet.time_base)
            packet.pts += round(at_s / packet.time_base)
            packet.dts += round(at_s / packet.time_base)
            if not (is_sound and lost_s[0] <= time_s < lost_s[1]):
                container.mux(packet)
    return path


def heard_and_seen(sound: Tensor, video: Tensor) -> tuple[list[float], list[float]]:
    """The seconds at which the beeps and the flashes of a `beeping_film` begin, as it was read."""
    loud, white = sound.abs() > 0.1, video.float().mean((1, 2, 3)) > 128
    return _begins_s(loud, 16_000), _begins_s(white, 25)


def _begins_s(on: Tensor, rate: int) -> list[float]:
    at_s = torch.nonzero(on).flatten() / rate
    is_first = torch.diff(at_s, prepend=torch.tensor([-1.0])) > 0.3
    return [float(time) for time in at_s[is_first]]
