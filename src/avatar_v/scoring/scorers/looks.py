"""How the picture looks, by formulas, for versions of one video: sharpness, flicker, drift."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.critics.quality import flicker, sharpness
from avatar_v.scoring.clip import ScoredClip
from avatar_v.scoring.pictures import Frames
from avatar_v.scoring.readings import at_scene_size
from avatar_v.scoring.sampling import sampled, trimmed_mean
from avatar_v.scoring.scorer import ANY, Scorer
from avatar_v.scoring.values import ScoreOutput, Values

LEAST_SHARPNESS = 1e-3  # of a plain picture: its ratio to itself is 1


class SharpnessScorer(Scorer):
    """Variance of the Laplacian at the scene image's size, 2 frames a second, trimmed mean."""

    name = "sharpness"
    version = 1
    judge = "formula"
    faces = ANY
    outputs = (ScoreOutput("sharpness", "sharpness", "", "grey levels²"),)

    def score(self, clip: ScoredClip) -> Values:
        chosen = sampled(clip.video.num_frames)
        values = clip.video.each(
            lambda frames: sharpness(at_scene_size(frames, clip.image)), chosen
        ).tolist()
        return Values(
            {self.name: trimmed_mean(values)}, {self.name: list(zip(chosen, values, strict=True))}
        )


class FlickerScorer(Scorer):
    """The difference of a picture from both its neighbours in time: of every frame, at the scene
    image's size, trimmed mean."""

    name = "flicker"
    version = 1
    judge = "formula"
    faces = ANY
    outputs = (ScoreOutput("flicker", "flicker", "lower", "grey levels"),)

    def score(self, clip: ScoredClip) -> Values:
        if clip.video.num_frames < 3:
            raise ValueError("flicker needs 3 frames")
        inside = clip.video.each(
            lambda frames: flicker(at_scene_size(frames, clip.image))[1:-1], overlap=2
        ).tolist()
        values = [inside[0], *inside, inside[-1]]
        return Values({self.name: trimmed_mean(values)}, {self.name: list(enumerate(values))})


class DriftScorer(Scorer):
    """The change of the picture over time, first quarter against last, of 2 frames a second; a
    quarter is at least one of them. Drift of identity is a number of the scores of faces."""

    name = "drift"
    version = 1
    judge = "formula"
    faces = ANY
    outputs = (
        ScoreOutput("drift_colour", "mean colour, first quarter to last", "lower", "grey levels"),
        ScoreOutput("drift_sharpness", "sharpness, log2 of last over first quarter", "zero"),
    )

    def score(self, clip: ScoredClip) -> Values:
        chosen = sampled(clip.video.num_frames)
        if len(chosen) < 2:
            raise ValueError("drift needs 2 sampled frames (0.5 s)")
        rows = clip.video.each(lambda frames: _looks(at_scene_size(frames, clip.image)), chosen)
        quarter = max(1, len(rows) // 4)
        first, last = rows[:quarter].mean(0), rows[-quarter:].mean(0)
        detail = (last[3] + LEAST_SHARPNESS) / (first[3] + LEAST_SHARPNESS)
        return Values(
            {
                "drift_colour": float((last - first)[:3].abs().mean()),
                "drift_sharpness": math.log2(detail),
            }
        )


def _looks(frames: Frames) -> Float[Tensor, "f 4"]:
    """Mean red, green and blue, and sharpness."""
    return torch.cat([frames.double().mean((2, 3)), sharpness(frames).double()[:, None]], 1)


SCORERS = (SharpnessScorer, FlickerScorer, DriftScorer)
