"""The change of the picture over time, first quarter against last: colour and sharpness.

Drift of identity is a number of the face metrics.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.critics.quality import sharpness
from avatar_v_eval.bench.footage import Clip
from avatar_v_eval.bench.measured import Measured, Output
from avatar_v_eval.bench.metric import ANY, ClipMetric
from avatar_v_eval.bench.pictures import Frames
from avatar_v_eval.bench.readings import at_scene_size
from avatar_v_eval.bench.sampling import sampled

LEAST_SHARPNESS = 1e-3  # of a plain picture: its ratio to itself is 1


class Drift(ClipMetric):
    """2 frames a second; a quarter is at least one of them."""

    name = "drift"
    version = 1
    judge = "formula"
    faces = ANY
    outputs = (
        Output("drift_colour", "mean colour, first quarter to last", "lower", "grey levels"),
        Output("drift_sharpness", "sharpness, log2 of last over first quarter", "zero"),
    )

    def measure(self, clip: Clip) -> Measured:
        chosen = sampled(clip.video.num_frames)
        if len(chosen) < 2:
            raise ValueError("drift needs 2 sampled frames (0.5 s)")
        rows = clip.video.each(lambda frames: _looks(at_scene_size(frames, clip.image)), chosen)
        quarter = max(1, len(rows) // 4)
        first, last = rows[:quarter].mean(0), rows[-quarter:].mean(0)
        detail = (last[3] + LEAST_SHARPNESS) / (first[3] + LEAST_SHARPNESS)
        return Measured(
            {
                "drift_colour": float((last - first)[:3].abs().mean()),
                "drift_sharpness": math.log2(detail),
            }
        )


def _looks(frames: Frames) -> Float[Tensor, "f 4"]:
    """Mean red, green and blue, and sharpness."""
    return torch.cat([frames.double().mean((2, 3)), sharpness(frames).double()[:, None]], 1)


METRIC = Drift
