"""ScoreFeatures: what scorers (avatar_v.scoring) say of a clip, as one row of numbers."""

import hashlib
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from avatar_v.base.trust import check_scorers
from avatar_v.rewards.feature_part import FeaturePart, Video
from avatar_v.rewards.scored import judged, scored_clips
from avatar_v.rewards.terms import refuse_held_out
from avatar_v.scoring.registry import make_scorer


class ScoreFeatures(FeaturePart):
    """All outputs of some scorers. ValueError for a held-out critic, for a module that is not
    trusted, and for a clip that a scorer cannot judge: there is no truth to compare with.

    Args:
        scorers: Each as `registry.make_scorer` names it, or NAME=PATH with its weights.
    """

    def __init__(self, scorers: Sequence[str]) -> None:
        check_scorers(scorers, "features")
        self.config = {"scorers": tuple(scorers)}
        self.scorers = []
        for name, _, weights in (word.partition("=") for word in scorers):
            self.scorers.append(make_scorer(name, **({"weights": weights} if weights else {})))
            refuse_held_out(name, self.scorers[-1])

    @property
    def num(self) -> int:
        return sum(len(scorer.outputs) for scorer in self.scorers)

    def hash(self) -> str:
        words = "\n".join(one.hash() for one in self.scorers)
        return hashlib.sha256(words.encode()).hexdigest()[:12]

    @torch.no_grad()
    def __call__(
        self,
        frames: Video,
        audio: Float[Tensor, "b s"],
        portrait: Float[Tensor, "c k 3 _h _w"],
        own_motion: Float[Tensor, "c r m"],
        own_valid: Bool[Tensor, "c r"],
        condition: Int[Tensor, " b"],
    ) -> Float[Tensor, "b d"]:
        own = [rows[seen] for rows, seen in zip(own_motion, own_valid, strict=True)]
        rows = []
        for clip in scored_clips(frames, audio, condition, portrait, own):
            said = [(scorer, judged(scorer, clip).values) for scorer in self.scorers]
            rows.append([float(x[out.key]) for scorer, x in said for out in scorer.outputs])
        return torch.tensor(rows, device=frames.device)
