"""Smooth noise in three dimensions, from a lattice of random numbers that repeats."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

_SIDE = 32


@cache
def _lattice() -> Tensor:
    g = torch.Generator().manual_seed(77)
    cube = torch.rand(1, 2, _SIDE, _SIDE, _SIDE, generator=g) * 2 - 1
    return F.pad(cube, (0, 1, 0, 1, 0, 1), mode="circular")


def noise(points: Tensor, channel: int = 0) -> Tensor:
    """In [-1, 1] at ``points`` "n 3" in lattice units, spread near 0.35."""
    at = torch.remainder(points, _SIDE)
    cell = at.floor()
    part = at - cell
    at = cell + part * part * (3 - 2 * part)
    grid = (at / _SIDE * 2 - 1).view(1, 1, 1, -1, 3)
    table = _lattice()[:, channel : channel + 1].to(points)
    return F.grid_sample(table, grid, align_corners=True).view(-1)


def layered(points: Tensor, octaves: int = 3, channel: int = 0) -> Tensor:
    """Noise over ever smaller scales, halved in height each time."""
    out = torch.zeros(len(points), device=points.device)
    for k in range(octaves):
        out += 0.5**k * noise(points * 2.03**k + 3.7 * k, channel)
    return out


def step(x: Tensor, low: float, high: float) -> Tensor:
    """A smooth step from 0 at ``low`` to 1 at ``high``; the other way round if high < low."""
    t = ((x - low) / (high - low)).clamp(0, 1)
    return t * t * (3 - 2 * t)
