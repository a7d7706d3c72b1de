"""How far the picture wanders over time, first quarter against last: colour and sharpness.

Drift of identity is a number of the face metrics.
"""

import math

from avatar_v.critics.quality import sharpness
from avatar_v_eval.bench.footage import Clip
from avatar_v_eval.bench.measured import Measured, Output
from avatar_v_eval.bench.metric import ANY, ClipMetric
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
        chosen = sampled(len(clip.video.frames))
        if len(chosen) < 2:
            raise ValueError("drift needs 2 sampled frames (0.5 s)")
        pictures = at_scene_size(clip.video.frames[chosen], clip.image)
        quarter = max(1, len(chosen) // 4)
        first, last = pictures[:quarter], pictures[-quarter:]
        colours = [part.double().mean((0, 2, 3)) for part in (first, last)]
        detail = [float(sharpness(part).mean()) + LEAST_SHARPNESS for part in (first, last)]
        return Measured(
            {
                "drift_colour": float((colours[1] - colours[0]).abs().mean()),
                "drift_sharpness": math.log2(detail[1] / detail[0]),
            }
        )


METRIC = Drift
