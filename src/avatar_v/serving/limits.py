"""The share of the machine that one user may have, and what a file of his is, before it is decoded.

Sizes and durations are read from the files themselves, whatever their headers promise.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from avatar_v.base.video_format import VideoFormat
from avatar_v.media import containers, reading
from avatar_v.request.request import SamplingOptions
from avatar_v.serving.uploads import is_plain_file

CONSENT = "This is my own face or a drawn one, or I have the person's permission"
MAX_PROMPT = 500  # characters
BROKEN = "Something went wrong in the program; its terminal says what."


@dataclass(frozen=True)
class Limits:
    """The share of the machine that one user may have."""

    upload_mib: float = 200.0
    speech_s: float = 300.0
    reference_s: float = 600.0  # of the file; how much of it is read is the request's reference_s
    keep_s: float = 3600.0  # files that nobody has touched for so long go
    total_mib: float = 4096.0  # of all files that the server keeps
    frame_mp: float = 16.0  # megapixels of one picture: a decoder holds many of them
    video_mp: float = 80e3  # megapixels of all pictures: ten minutes of 1920 x 1080 at 60 a second
    num_waiting: int = 8  # videos of the page behind the one that is being made
    talk_s: float = 600.0  # of a conversation
    steps: int = 64
    made_mp: float = 2.1  # megapixels of a picture that is made: 1920 x 1080
    chunk_latents: int = 64

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < math.inf:
                raise ValueError(f"the limit {name} is a number above 0, got {value}")


def check_cost(asked: SamplingOptions, limits: Limits) -> None:
    """ValueError for a video that would take more of the machine than one user may have."""
    for name, value, most in (
        ("num_steps", asked.num_steps, limits.steps),
        ("chunk_latents", asked.chunk_latents, limits.chunk_latents),
    ):
        if value is not None and value > most:
            raise ValueError(f"{name} is at most {most} here, got {value}")
    if asked.size is not None:
        made = VideoFormat.of(asked.size)
        if made.width * made.height > 1e6 * limits.made_mp:
            raise ValueError(
                f"size is at most {limits.made_mp:g} million pixels here, got {asked.size}"
            )


def check_file(name: str, path: str, limits: Limits, max_s: float) -> None:
    """ValueError unless the file may be decoded; nothing of it has been decoded then."""
    file = Path(path)
    if not is_plain_file(file):
        raise ValueError(f"{name} is not here any more; add it again")
    size_mib = file.stat().st_size / 2**20
    if not size_mib:
        raise ValueError(f"{name} is empty; upload or record it again")
    if size_mib > limits.upload_mib:
        most = f"at most {limits.upload_mib:g} MiB are taken"
        raise ValueError(f"{name} has {size_mib:.3g} MiB; {most}")
    info = reading.probe(file)
    frame_mp = (info.width or 0) * (info.height or 0) / 1e6
    if frame_mp > limits.frame_mp:
        raise ValueError(
            f"{name} has pictures of {info.width} × {info.height} pixels; at most "
            f"{limits.frame_mp:g} million are taken"
        )
    length_s, num_pictures = containers.extent(file)
    if length_s > max_s:
        raise ValueError(f"{name} lasts {length_s:.0f} s; at most {max_s:g} s are taken")
    if frame_mp * num_pictures > limits.video_mp:
        raise ValueError(
            f"{name} has {num_pictures} pictures of {info.width} × {info.height} pixels; at most "
            f"{limits.video_mp:g} million pixels are taken in all"
        )
