"""Drawing helpers of the world: coverage from distances, compositing, windows, smooth noise.

Distances are in head units (half a head height), positive inside; ``px`` is pixels per head unit.
Images are planes "f 3 h w" in [0, 1]. Nothing here knows what a face is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


def seeded(*parts: int) -> torch.Generator:
    """A CPU generator whose seed mixes ``parts``; equal parts give equal draws in any process."""
    state = 0x9E3779B97F4A7C15
    for part in parts:
        state = ((state ^ (part & 0xFFFFFFFFFFFFFFFF)) * 0xBF58476D1CE4E5B9) % (1 << 64)
        state ^= state >> 29
    return torch.Generator().manual_seed(state >> 1)


def coverage(distance: Tensor, px: Tensor | float) -> Tensor:
    """Share of a pixel inside a shape whose edge is ``distance`` away: a one-pixel ramp."""
    return (distance * px).add_(0.5).clamp_(0.0, 1.0)


def between(upper: Tensor, lower: Tensor) -> Tensor:
    """Coverage of a band from the coverages of its two half planes; 0 where they do not overlap."""
    return (upper + lower).sub_(1.0).clamp_(0.0, 1.0)


def bump(x: Tensor) -> Tensor:
    """A smooth hill of height 1 and radius 1: (1 - x²)² inside, 0 outside."""
    return (1.0 - x * x).clamp_(min=0.0).square_()


def ramp(x: Tensor, low: float, high: float) -> Tensor:
    """Smooth step from 0 at ``low`` to 1 at ``high``."""
    t = ((x - low) / (high - low)).clamp_(0.0, 1.0)
    return t * t * (3.0 - 2.0 * t)


def over(canvas: Tensor, color: Tensor, alpha: Tensor) -> None:
    """Paint ``color`` over ``canvas`` "f 3 h w" in place; ``alpha`` is "f 1 h w"."""
    canvas.lerp_(color.expand_as(canvas), alpha.expand_as(canvas))


def plane(values: Sequence[float]) -> Tensor:
    """An RGB colour as a plane "1 3 1 1" that broadcasts."""
    return torch.tensor(values, dtype=torch.float32).view(1, -1, 1, 1)


@dataclass(frozen=True)
class Window:
    """A rectangle of the canvas in whole pixels: rows y0 … y1, columns x0 … x1."""

    y0: int
    y1: int
    x0: int
    x1: int

    @property
    def empty(self) -> bool:
        return self.y1 <= self.y0 or self.x1 <= self.x0

    def of(self, image: Tensor) -> Tensor:
        """View of the last two axes of a whole canvas."""
        return image[..., self.y0 : self.y1, self.x0 : self.x1]

    def inside(self, outer: "Window", image: Tensor) -> Tensor:
        """View of an image that itself covers ``outer``."""
        return image[
            ...,
            self.y0 - outer.y0 : self.y1 - outer.y0,
            self.x0 - outer.x0 : self.x1 - outer.x0,
        ]


def window_around(points: Tensor, margin: float, bounds: Window) -> Window:
    """Smallest window holding ``points`` "f k 2" (pixels) with a margin, cut at ``bounds``."""
    low = points.amin(dim=(0, 1)) - margin
    high = points.amax(dim=(0, 1)) + margin
    return Window(
        y0=max(bounds.y0, math.floor(low[1].item())),
        y1=min(bounds.y1, math.ceil(high[1].item())),
        x0=max(bounds.x0, math.floor(low[0].item())),
        x1=min(bounds.x1, math.ceil(high[0].item())),
    )


def smooth_noise(
    generator: torch.Generator, channels: int, cells: tuple[int, int], size: tuple[int, int]
) -> Tensor:
    """Gaussian noise with about ``cells`` bumps across, "1 channels h w"."""
    coarse = torch.randn(1, channels, cells[0], cells[1], generator=generator)
    return F.interpolate(coarse, size=size, mode="bicubic", align_corners=False)
