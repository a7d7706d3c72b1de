"""The format of a video: size, rate and framing of its pictures.

Weights, shards and requests have one. Time is counted in frames everywhere: a frame has
types.SAMPLES_PER_FRAME samples of sound whatever the rate is, so the sound of 24 frames a second
has 15,360 samples a second and that of 25 has 16,000. Torch is not imported.
"""

import dataclasses
import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from avatar_v.base.stored import Within

FrameRate = Literal[24, 25, 30]
Framing = Literal["face", "body"]
"""What a crop shows of a person: head and shoulders, or the upper body."""
FRAME_RATES_HZ = get_args(FrameRate)
Side = Annotated[int, Within(16, 4096)]


@dataclass(frozen=True)
class VideoFormat:
    """Pictures of one size, in pixels, their rate, and what they show of a filmed person."""

    width: Side
    height: Side
    frame_rate_hz: FrameRate = 25
    framing: Framing = "face"

    @classmethod
    def of(cls, words: str, frame_rate_hz: FrameRate = 25, framing: Framing = "face"):
        """Of ``832x480``, or ``480`` for a square. ValueError for other words."""
        found = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", words.strip())
        width, height = map(int, found.groups(found[1])) if found else (0, 0)
        if not all(16 <= side <= 4096 for side in (width, height)):
            raise ValueError(
                f"--size is WIDTHxHEIGHT, as 832x480, or one number for a square, of 16 to 4,096 "
                f"pixels, got {words!r}"
            )
        return cls(width, height, frame_rate_hz, framing)

    def __str__(self) -> str:
        return f"{self.width} x {self.height}"

    @property
    def aspect(self) -> float:
        return self.width / self.height

    @property
    def size(self) -> tuple[int, int]:
        """Height and width, as the last axes of a tensor."""
        return self.height, self.width

    def sized(self, height: int, width: int) -> "VideoFormat":
        """Of another size at the same rate."""
        return dataclasses.replace(self, width=width, height=height)

    def squared(self, side: int) -> "VideoFormat":
        """Squares around the head, from which motion is read."""
        return VideoFormat(side, side, self.frame_rate_hz)

    def scaled(self, factor: float) -> "VideoFormat":
        """Both sides ``factor`` times as long, in whole pixels."""
        return self.sized(round(self.height * factor), round(self.width * factor))

    def covering(self, token: int) -> "VideoFormat":
        """The smallest size of whole tokens of ``token`` pixels that holds this one."""
        return self.sized(*(math.ceil(side / token) * token for side in self.size))

    def require_multiples(self, step: int) -> None:
        """ValueError, with the nearest sizes that are, unless both sides are multiples of ``step``
        pixels: of a token, which is the patch of the network times the factor of its VAE."""
        if self.width % step or self.height % step:
            widths, heights = (
                {max(1, side // step) * step, math.ceil(side / step) * step}
                for side in (self.width, self.height)
            )
            near = ", ".join(f"{w}x{h}" for w in sorted(widths) for h in sorted(heights))
            raise ValueError(
                f"--size {self.width}x{self.height}: width and height are multiples of {step} "
                f"pixels here; the nearest are {near}"
            )


def checked_rate(frame_rate_hz: Any) -> FrameRate:
    """The rate; ValueError for one that no video has here."""
    if frame_rate_hz not in FRAME_RATES_HZ:
        rates = ", ".join(map(str, FRAME_RATES_HZ))
        raise ValueError(f"a video has {rates} frames a second, got {frame_rate_hz}")
    return frame_rate_hz
