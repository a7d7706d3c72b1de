"""Files to what scores see: one `ScoredClip` a video, or a ValueError that says why there is none.

Here are all checks of a delivered video: readable, 25 frames a second, with the sound that it was
driven by, as long as that, in the shape of the scene image. What a judge needs beyond (a face) is
the judge's to miss.
"""

from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.media.reading import iter_video, probe, read_audio
from avatar_v.scoring.clip import Footage, ScoredClip, Waveform
from avatar_v.scoring.pictures import open_pictures
from avatar_v.scoring.sampling import pearson
from avatar_v.types import FRAME_RATE_HZ, SAMPLES_PER_FRAME
from avatar_v_eval.bench.manifest import BenchManifest, CaseFiles

CHECKS_VERSION = 1
"""Part of every cache key: raise it when a check below changes."""
LENGTH_TOLERANCE = 12  # frames, about 0.5 s: chunks and codecs round
RATE_TOLERANCE_HZ = 0.01
SHAPE_TOLERANCE = 0.05  # of the aspect ratio
SMALLEST_SIDE = 32  # pixels
SAME_SOUND_R = 0.7  # of loudness per frame, at the best lag
LARGEST_LAG = 15  # frames, as far as sync metrics look


class CaseMedia:
    """The files of a case, each decoded when it is first asked for."""

    def __init__(self, manifest: BenchManifest, case: CaseFiles) -> None:
        self.manifest = manifest
        self.case = case

    @cached_property
    def audio(self) -> Waveform:
        return read_audio(self.manifest.path(self.case, "audio"))

    @cached_property
    def image(self) -> UInt8[Tensor, "3 h w"]:
        return next(iter_video(self.manifest.path(self.case, "image")))

    @cached_property
    def reference(self) -> Footage:
        path = self.manifest.path(self.case, "reference")
        pictures = open_pictures(path)
        silence = torch.zeros(pictures.num_frames * SAMPLES_PER_FRAME)
        audio = read_audio(path) if probe(path).has_audio else silence
        return Footage(pictures, audio, "the reference")

    @cached_property
    def truth(self) -> Footage | None:
        if self.case.truth is None:
            return None
        return read_footage(self.manifest.path(self.case, "truth"), convert=True)

    def clip(self, path: Path, *, convert: bool) -> ScoredClip:
        """A delivered video, checked. ``convert`` takes another frame rate, on the 25 fps grid.

        ValueError: unreadable, no picture or sound, or one that is not of this case.
        """
        video = read_footage(path, convert=convert)
        check_length(video, self.audio)
        check_shape(video.size, self.image)
        check_sound(video.audio, self.audio)
        return ScoredClip(video, self.reference, self.image, self.truth)


def read_footage(path: Path, *, convert: bool = False) -> Footage:
    """A video with its own sound. ValueError names what is missing or damaged."""
    info = probe(path)
    if not info.has_video:
        raise ValueError(f"{path.name}: no picture in it")
    if not info.has_audio:
        raise ValueError(f"{path.name}: no sound in it; a video is scored as it is heard")
    rate = info.frame_rate_hz or 0.0
    if abs(rate - FRAME_RATE_HZ) > RATE_TOLERANCE_HZ and not convert:
        raise ValueError(
            f"{path.name}: {rate:g} frames a second, expected {FRAME_RATE_HZ}; --convert takes it"
        )
    return Footage(open_pictures(path), read_audio(path))


def check_length(video: Footage, driving: Waveform) -> None:
    """ValueError unless picture, its sound and the driving sound last equally long."""
    wanted = len(driving) // SAMPLES_PER_FRAME
    lengths = {"picture": video.num_frames, "sound": len(video.audio) // SAMPLES_PER_FRAME}
    for name, found in lengths.items():
        if abs(found - wanted) > LENGTH_TOLERANCE:
            raise ValueError(
                f"the {name} lasts {found / FRAME_RATE_HZ:.2f} s, the driving sound "
                f"{wanted / FRAME_RATE_HZ:.2f} s"
            )


def check_shape(size: tuple[int, int], image: UInt8[Tensor, "3 h w"]) -> None:
    """ValueError for a picture that is tiny or of another aspect ratio than the scene image."""
    height, width = size
    if min(height, width) < SMALLEST_SIDE:
        raise ValueError(f"the picture is {width} x {height}, expected {SMALLEST_SIDE} or more")
    wanted = image.shape[2] / image.shape[1]
    if abs(width / height / wanted - 1) > SHAPE_TOLERANCE:
        raise ValueError(
            f"the picture is {width} x {height}, the scene image {image.shape[2]} x "
            f"{image.shape[1]}: another shape"
        )


def check_sound(sound: Waveform, driving: Waveform) -> None:
    """ValueError unless loudness over time is that of the driving sound, early or late a little."""
    heard, wanted = _loudness(sound), _loudness(driving)
    num = min(len(heard), len(wanted))
    heard, wanted = heard[:num], wanted[:num]
    if num <= 2 * LARGEST_LAG or wanted.std() < 1e-6:
        return  # too short or too quiet to tell speeches apart
    best = max(
        pearson(heard[max(lag, 0) : num + min(lag, 0)], wanted[max(-lag, 0) : num - max(lag, 0)])
        for lag in range(-LARGEST_LAG, LARGEST_LAG + 1)
    )
    if best < SAME_SOUND_R:
        raise ValueError(
            f"its sound is not the driving sound: loudness agrees with r = {best:.2f}, expected "
            f"{SAME_SOUND_R} or more"
        )


def _loudness(audio: Waveform) -> Float[np.ndarray, " f"]:
    num = len(audio) // SAMPLES_PER_FRAME
    parts = audio[: num * SAMPLES_PER_FRAME].reshape(num, SAMPLES_PER_FRAME)
    return parts.double().square().mean(1).sqrt().numpy()
