"""Whether camera, frames and light are steady. Formulas alone (Avatar V §5.2: camera shake, choppy
frames, lighting consistency)."""

from dataclasses import dataclass
from typing import ClassVar

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from avatar_v.types import FRAME_RATE_HZ
from avatar_v_data.curation.heads import body, boxes_between, head
from avatar_v_data.curation.stages import Clip, ClipScorer, Frames, Result, Seen

HEIGHT = 96
"""Pixels of the pictures that are compared."""
LEAST_RESPONSE = 0.1
"""Of a phase correlation: below it a background has nothing to follow."""
MOST = 0.8
"""Quantile of the jumps: a correlation that goes wrong in a few frames does not count."""
HEAD_SIDE = 32
REPEATED = 0.1
"""A frame that changes by less than this share of what is usual repeats the one before."""
LEAST_CHANGE = 0.05
"""Grey levels of the usual change, below which nothing moves, so that nothing can stutter."""


@dataclass(frozen=True)
class SteadinessStage(ClipScorer):
    """Columns of each clip.

    ``shake``: how far the background jumps from frame to frame beside its slow course, in
    hundredths of the picture's height; one frame in five jumps farther. 0 for a background without
    texture.
    ``repeats``: the share of frames that repeat the one before. Film of 24 frames a second has one
    in 25. ``light_change``: the range of the head's brightness, second by second, over its mean.
    ``light_flicker``: the standard deviation of what is quicker, over the same mean.
    """

    name: ClassVar[str] = "steadiness"
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("faces", "clips")
    numbers: ClassVar[tuple[str, ...]] = ("shake", "repeats", "light_change", "light_flicker")

    def score(self, clip: Clip, seen: Seen) -> Result:
        frames, found = clip.stacked(), seen.results["faces"]["boxes"]
        boxes, _ = boxes_between(found, clip.start, clip.stop)
        grey = _small(frames)
        change = (grey[1:] - grey[:-1]).abs().mean((1, 2))
        light = head(frames, clip.start, found, HEAD_SIDE).float().mean((1, 2, 3))
        slow = _slow(light[:, None])[:, 0]
        return {
            "shake": round(shake(grey, boxes), 4),
            "repeats": round(repeats(change), 4),
            "light_change": round(float((slow.max() - slow.min()) / slow.mean()), 4),
            "light_flicker": round(float((light - slow).std() / slow.mean()), 5),
        }


def shake(grey: Float[Tensor, "f h w"], boxes: Float[Tensor, "f 4"]) -> float:
    """Of pictures, and the faces' boxes in fractions of them."""
    shifts = np.zeros((len(grey), 2))
    window = cv2.createHanningWindow((grey.shape[2], grey.shape[1]), cv2.CV_32F)
    behind = _without_head(grey, boxes)
    for number in range(1, len(grey)):
        shift, response = cv2.phaseCorrelate(behind[number - 1], behind[number], window)
        if response >= LEAST_RESPONSE:
            shifts[number] = shift
    moved = torch.from_numpy(shifts).float()
    jumps = (moved - _slow(moved)).norm(dim=1)
    return 100 * float(jumps.quantile(MOST)) / grey.shape[1]


def repeats(change: Float[Tensor, " n"]) -> float:
    """The share of frames that are as those before, by how much each changed."""
    usual = change.quantile(0.75)
    if usual < LEAST_CHANGE:
        return 0.0
    return float((change < REPEATED * usual).float().mean())


def _small(frames: Frames) -> Float[Tensor, "f _h _w"]:
    width = max(round(HEIGHT * frames.shape[3] / frames.shape[2]), 1)
    grey = frames.float().mean(1, keepdim=True)
    return F.interpolate(grey, size=(HEIGHT, width), mode="area")[:, 0]


def _without_head(grey: Float[Tensor, "f h w"], boxes: Float[Tensor, "f 4"]) -> np.ndarray:
    """The person as grey as the rest on average: they move by themselves."""
    covered = body(boxes, *grey.shape[1:])
    if bool(covered.all()):
        return grey.numpy()
    mean = grey[:, ~covered].mean(1)[:, None, None]
    return torch.where(covered, mean, grey).numpy()


def _slow(values: Float[Tensor, "f k"]) -> Float[Tensor, "f k"]:
    """The mean over a second around each frame."""
    reach = min(int(FRAME_RATE_HZ) // 2, len(values) - 1)
    padded = F.pad(values.T[None], (reach, reach), mode="replicate")
    return F.avg_pool1d(padded, 2 * reach + 1, stride=1)[0].T
