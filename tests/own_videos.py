"""Videos as people have them, for the tests of their import."""

import shutil
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.video.reformatter import ColorTrc


def write_clip(
    path: Path,
    *,
    frames: int,
    rate: int = 25,
    loud: float = 0.3,
    sound_s: float = 9,
    trc: int = ColorTrc.UNSPECIFIED,
) -> None:
    """Noise pictures 60 x 40, their left third red, with a tone as long as ``sound_s`` allows."""
    rng = np.random.default_rng(0)
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=rate)
        video.height, video.width, video.pix_fmt = 40, 60, "yuv420p"
        video.codec_context.color_trc = trc
        audio = container.add_stream("aac", rate=44_100) if loud else None
        for _ in range(frames):
            picture = rng.integers(0, 255, (40, 60, 3), dtype=np.uint8)
            picture[:, :20] = (200, 0, 0)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        if audio is None:
            return
        count = int(44_100 * min(frames / rate, sound_s))
        tone = loud * np.sin(2 * np.pi * 220 * np.arange(count) / 44_100)
        sound = av.AudioFrame.from_ndarray(tone[None].astype(np.float32), "fltp", "mono")
        sound.sample_rate, sound.pts, sound.time_base = 44_100, 0, Fraction(1, 44_100)
        container.mux(audio.encode(sound))
        container.mux(audio.encode(None))


def folder_of(folder: Path, *names: str, frames: int = 12) -> Path:
    """The same clip under several names."""
    clip = folder / names[0]
    clip.parent.mkdir(parents=True, exist_ok=True)
    write_clip(clip, frames=frames)
    for name in names[1:]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(clip, folder / name)
    return folder


SMALL = ("--no-face-crop", "--frames", "5", "--size", "16")
