"""PreferenceModel: which of two clips would raters prefer? And the reward that is made of it.

A small network gives a score to what frozen networks say of a clip (features.py). It is trained
on judged pairs under Bradley-Terry with ties (objectives/critic_preference.py): a difference of
scores is the logarithm of the odds. Scores of two conditions must not be compared.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from avatar_v.base.stored import Count
from avatar_v.critics.frozen import Critic
from avatar_v.rewards.features import CRITICS, Features, FeatureSources
from avatar_v.types import Batch


class PreferenceModel(Critic):
    """Rows of Features to scores, one for each axis.

    ``center`` and ``scale`` are mean and spread of the features in training. ``position_bias`` is
    by how much raters prefer what is shown first, fitted beside the scores and in none of them.

    Args:
        num_features: Of a row.
        width: Of the hidden layer.
        axes: What raters were asked, in the order of the scores.
        sources: The networks that make the features.
        features_hash: Of these; "" for any.
        held_out: Never a reward.
    """

    name = "preference"
    center: Tensor
    scale: Tensor

    def __init__(
        self,
        num_features: Count,
        width: Count = 32,
        axes: tuple[str, ...] = ("overall",),
        sources: FeatureSources = CRITICS,
        features_hash: str = "",
        held_out: bool = False,
    ) -> None:
        sizes = {"num_features": num_features, "width": width}
        read = {"sources": dataclasses.asdict(sources), "features_hash": features_hash}
        super().__init__({**sizes, "axes": tuple(axes), **read, "held_out": held_out})
        self.axes = tuple(axes)
        if not self.axes or len(set(self.axes)) < len(self.axes):
            raise ValueError(f"axes are one or more, each once, got {self.axes}")
        self.sources = sources
        self.features_hash = features_hash
        self.head = nn.Sequential(
            nn.Linear(num_features, width), nn.SiLU(), nn.Linear(width, len(self.axes))
        )
        self.position_bias = nn.Parameter(torch.zeros(len(self.axes)))
        self.register_buffer("center", torch.zeros(num_features))
        self.register_buffer("scale", torch.ones(num_features))

    def forward(self, features: Float[Tensor, "b d"]) -> Float[Tensor, "b axis"]:
        """Scores in fp32; more is better."""
        return self.head((features.float() - self.center) / self.scale).float()

    def margin(
        self,
        first: Float[Tensor, "p d"],
        second: Float[Tensor, "p d"],
        axis: Int[Tensor, " p"],
    ) -> Float[Tensor, " p"]:
        """The logarithm of the odds that the clip that is shown first is preferred, ties apart."""
        difference = self(first) - self(second) + self.position_bias
        return difference.gather(1, axis[:, None])[:, 0]

    def features(self) -> Features:
        """What the model reads. ValueError where that is not what it was trained on."""
        features = Features.of(self.sources)
        if self.features_hash not in ("", features.hash()):
            raise ValueError(
                f"this preference model reads features {self.features_hash} of "
                f"{', '.join(self.sources.names)}, and these are {features.hash()} now: weights or "
                "a version changed; train it anew (recipes/critic_preference.yaml)"
            )
        return features

    def axis_numbers(self, axes: Sequence[str]) -> Int[Tensor, " p"]:
        """The score of each axis; ValueError for one that the model does not have."""
        unknown = sorted(set(axes) - set(self.axes))
        if unknown:
            raise ValueError(f"axes of this model are {', '.join(self.axes)}; got {unknown}")
        return torch.tensor([self.axes.index(axis) for axis in axes])


class Preference:
    """A reward (terms.py): the score of each sample's pictures and sound, beside
    ``portrait`` and ``reference`` of its person; None where motion alone is made.

    ``critic``: a folder made by recipes/critic_preference.yaml; ValueError for a held-out one, and
    for an ``axis`` that it does not have.
    """

    def __init__(self, critic: str, axis: str = "overall") -> None:
        self.model = PreferenceModel.as_objective(critic)
        self.axis = int(self.model.axis_numbers([axis])[0])
        self.features = self.model.features()

    @torch.no_grad()
    def __call__(
        self, frames: Float[Tensor, "b f 3 h w"] | None, audio: Tensor, reference: Batch,
        motion: Tensor, *, portrait: Float[Tensor, "c k 3 _h _w"] | None = None, **columns: Any,
    ) -> Float[Tensor, " b"] | None:  # fmt: skip
        if frames is None or portrait is None:
            return None
        condition: Int[Tensor, " b"] = columns["condition"].to(frames.device)
        own = (reference.motion.to(frames.device), reference.valid.to(frames.device))
        features = self.features(frames, audio, portrait, *own, condition)
        return self.model.to(frames.device)(features)[:, self.axis]
