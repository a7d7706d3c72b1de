"""How a clip looks: sharp, bright, moving, and how large the face is. Formulas alone."""

import statistics
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from avatar_v.critics.quality import sharpness
from avatar_v_data.curation.heads import AROUND, boxes_between, head
from avatar_v_data.curation.stages import TICK, Clip, ClipScorer, Result, Seen

SIDE = 64
"""Pixels of the head that is looked at, so that sharpness compares between cameras."""
CELLS = 8
"""Of the small pictures, to a side."""
NUM_SEEN = 8
"""Frames of a clip that small pictures are the mean of."""
LEAST = 0.1
"""Quantile of the frames' sharpness: one blurred second of a clip counts."""


@dataclass(frozen=True)
class LookStage(ClipScorer):
    """Columns of each clip.

    ``sharpness`` of the head at 64 pixels (variance of the Laplacian; nine of ten frames are
    sharper), its ``brightness`` (0 to 255), ``contrast`` and ``movement`` (mean change from a frame
    to the next), ``face_pixels`` (height of the face's box in the file), and two small pictures:
    ``thumbnail`` of the whole, and ``background``, whose cells are None where the head is.
    """

    name: ClassVar[str] = "looks"
    version: ClassVar[int] = 2
    needs: ClassVar[tuple[str, ...]] = ("probe", "faces", "clips")
    numbers: ClassVar[tuple[str, ...]] = (
        "sharpness",
        "brightness",
        "contrast",
        "movement",
        "face_pixels",
    )

    def score(self, clip: Clip, seen: Seen) -> Result:
        frames, found = clip.stacked(), seen.results["faces"]["boxes"]
        heads = head(frames, clip.start, found, SIDE)
        grey = heads.float().mean(1)
        boxes = [box for box in found[clip.start // TICK : clip.stop // TICK] if box]
        face = statistics.median(box[3] - box[1] for box in boxes)
        at = torch.linspace(0, len(frames) - 1, NUM_SEEN).round().long()
        small = F.interpolate(frames[at].float(), size=(CELLS, CELLS), mode="area")
        behind = _without_head(small, boxes_between(found, clip.start, clip.stop)[0][at])
        return {
            "sharpness": round(float(sharpness(heads).quantile(LEAST)), 3),
            "brightness": round(float(grey.mean()), 3),
            "contrast": round(float(grey.std()), 3),
            "movement": round(float((grey[1:] - grey[:-1]).abs().mean()), 4),
            "face_pixels": round(face * seen.results["probe"]["height"]),
            "thumbnail": small.mean(0).round().int().flatten(1).T.tolist(),
            "background": behind,
        }


def _without_head(small: Tensor, boxes: Tensor) -> list[list[int] | None]:
    """The mean colour of each cell, None where a head ever is; below the head there is clothing,
    which changes with the scene."""
    middle = (boxes[:, :2] + boxes[:, 2:]) / 2
    reach = AROUND * (boxes[:, 2:] - boxes[:, :2]) / 2
    at = (torch.arange(CELLS) + 0.5) / CELLS
    is_x = (at[None] - middle[:, :1]).abs() < reach[:, :1]  # frames, columns
    is_y = (at[None] - middle[:, 1:]).abs() < reach[:, 1:]
    covered = (is_y[:, :, None] & is_x[:, None]).any(0).flatten()
    colours = small.mean(0).round().int().flatten(1).T.tolist()
    return [None if hidden else colour for hidden, colour in zip(covered, colours, strict=True)]
