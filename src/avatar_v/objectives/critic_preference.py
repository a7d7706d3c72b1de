"""Training of the preference model on judged videos (recipes/critic_preference.yaml).

Only a small head is trained, on features of frozen networks, so a run takes seconds behind the
reading of its pairs. Its card holds the accuracy on pairs of other persons.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import stats
from torch import Tensor, nn

from avatar_v.base import checks
from avatar_v.losses.align import preference_loss
from avatar_v.objectives.critic import CriticBatch, CriticTask, check_sizes, fresh
from avatar_v.objectives.preference_data import PairFeatures
from avatar_v.rewards.feature_part import FeaturePart
from avatar_v.rewards.features import Features
from avatar_v.rewards.preference import PreferenceModel
from avatar_v.shards.pairs import WINNERS
from avatar_v.training.batch import Draws

FIRST, SECOND, TIE = (WINNERS.index(winner) for winner in ("first", "second", "tie"))
LEAST_SCALE = 1e-2
"""A feature that varies less in training counts as one that varies so much."""


class PreferenceTask(CriticTask):
    """Bradley-Terry with ties (Rao & Kupper 1967), and a bias to the sample that is shown first.

    Args:
        features: What is read of a clip, by one of each kind at most (rewards/features.py).
        axes: What raters were asked; one score for each.
        ties: k of losses/align.preference_loss; 1 takes no ties.
        width: Of the hidden layer.
        noise: Standard deviation of what is added to the standardised features in training.
    """

    trained_on = "judged pairs of videos"

    def __init__(
        self,
        features: list[FeaturePart],
        axes: list[str],
        ties: float,
        width: int = 32,
        noise: float = 0.0,
    ) -> None:
        check_sizes(width=width)
        checks.number("ties", ties, least=1, most=checks.MOST)
        checks.weight("noise", noise)
        self.features, self.axes, self.width = Features(features), tuple(axes), width
        self.ties, self.noise = ties, noise

    def load(self, seed: int, trainer: object) -> dict[str, nn.Module]:
        read = self.features
        made = fresh(
            seed,
            lambda: PreferenceModel(read.num, self.width, self.axes, read.sources, read.hash()),
        )
        return {"model": made}

    def prepare(self, networks: Any, data: Any) -> None:
        """Read the pairs, and standardise what is read. ValueError for ties that ``ties`` excludes,
        and as `preference_data.PreferenceData.read`."""
        model = networks.model
        data.read(model, self.features)
        num_tied = int((data.train_pairs.winner == TIE).sum())
        if num_tied and self.ties == 1:
            raise ValueError(
                f"{num_tied} of {len(data.train_pairs)} pairs are ties: set ties above 1, or "
                "data.init_args.ties to false"
            )
        seen = torch.cat([data.train_pairs.first, data.train_pairs.second])
        model.center.copy_(seen.mean(0))
        model.scale.copy_(seen.std(0).clamp_min(LEAST_SCALE))

    def begin(self, networks: Any, batch: PairFeatures, draws: Draws) -> CriticBatch:
        """The features of the first and the second samples "2 p d", with noise of their own."""
        both = torch.stack([batch.first, batch.second])
        drawn = torch.randn(both.shape, generator=draws.own).to(both)
        return CriticBatch(both + self.noise * networks.model.scale * drawn, batch)

    def loss(self, networks: Any, batch: CriticBatch) -> Tensor:
        shown: PairFeatures = batch.shown
        margin = networks.model.margin(batch.inputs[0], batch.inputs[1], shown.axis)
        won = torch.where(shown.winner == SECOND, -margin, margin)
        return preference_loss(won, shown.winner == TIE, ties=self.ties).mean()

    def numbers(self, networks: Any, shown: list[PairFeatures]) -> dict[str, float]:
        (pairs,), model = shown, networks.model
        right = decided_right(model, pairs)
        decided = pairs.winner != TIE
        margin = model.margin(pairs.first, pairs.second, pairs.axis)
        won = torch.where(pairs.winner == SECOND, -margin, margin)
        if self.ties > 1:
            loss = preference_loss(won, ~decided, ties=self.ties)
        else:
            loss = preference_loss(won[decided], ties=1)
        low, high = accuracy_interval(right[decided], pairs.person[decided])
        return {
            "held_out_loss": float(loss.mean()),
            "accuracy": float(right[decided].mean()),
            "accuracy_low": low,
            "accuracy_high": high,
            "num_pairs": float(decided.sum()),
            "num_persons": float(len(pairs.person[decided].unique())),
            "position_bias": float(model.position_bias.mean()),
        }


def decided_right(model: PreferenceModel, pairs: PairFeatures) -> Float[Tensor, " p"]:
    """1 where the score of the winner is the higher one, 0 where it is not, a half where they are
    equal and for ties. The bias to the first place has no part in it."""
    difference = (
        model.margin(pairs.first, pairs.second, pairs.axis) - model.position_bias[pairs.axis]
    )
    signed = torch.where(pairs.winner == SECOND, -difference, difference)
    return torch.where((signed == 0) | (pairs.winner == TIE), 0.5, (signed > 0).float())


def accuracy_interval(right: Float[Tensor, " p"], person: Int[Tensor, " p"]) -> tuple[float, float]:
    """The 95 % interval of the mean over pairs: the jackknife over persons (Tukey 1958) with
    Student's t, cut to [0, 1]; 0 and 1 with fewer than two of them."""
    names, place = np.unique(person.cpu().numpy(), return_inverse=True)
    if len(names) < 2:
        return 0.0, 1.0
    count = np.bincount(place).astype(float)
    total = np.bincount(place, weights=right.double().cpu().numpy())
    without = (total.sum() - total) / (count.sum() - count)
    num = len(names)
    half = stats.t.ppf(0.975, num - 1) * np.sqrt((num - 1) * without.var())
    mean = total.sum() / count.sum()
    return float(max(mean - half, 0.0)), float(min(mean + half, 1.0))
