"""Simulated raters: what they value is known, so that what was learned from them can be checked.

A rater sees two samples of one condition, weighs named terms (likeness.py, or any critic of the
form of terms.py), errs, leans to the sample shown first, and answers as Bradley-Terry with
ties has it (Rao & Kupper 1967). Preferences are trained on in losses/align.py.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor

from avatar_v.base.outside import read_json
from avatar_v.base.stored import Within, built
from avatar_v.base.trust import check_names
from avatar_v.rewards.terms import Rewards, RewardSamples, RewardTerm

FIRST, SECOND, TIE = range(3)
MAX_WEIGHT = 1e3


@dataclass(frozen=True)
class Term:
    """One reward that a rater weighs."""

    path: str  # of a function or class, e.g. avatar_v.rewards.likeness.own_blinks
    weight: Annotated[float, Within(0, MAX_WEIGHT)] = 1.0


@dataclass(frozen=True)
class SimulatedRater:
    """One rater. The difference of the weighted terms of two samples is the logarithm of the odds
    by which one of them is preferred."""

    name: str
    terms: tuple[Term, ...]
    axis: str = "overall"  # what the rater was asked about
    noise: Annotated[float, Within(0, MAX_WEIGHT)] = 0.0
    """Standard deviation of a normal error of that difference."""
    position_bias: Annotated[float, Within(-MAX_WEIGHT, MAX_WEIGHT)] = 0.0
    """Added to the difference in favour of the sample that is shown first."""
    ties: Annotated[float, Within(1, MAX_WEIGHT)] = 1.5  # k; 1 knows no ties

    def __post_init__(self) -> None:
        if not self.name or not self.terms:
            raise ValueError(f"a rater has a name and terms, got {self}")
        Rewards([RewardTerm(term.path) for term in self.terms])

    def margin(
        self, first: Mapping[str, Float[Tensor, " p"]], second: Mapping[str, Float[Tensor, " p"]]
    ) -> Float[Tensor, " p"]:
        """How much better the first is of pairs whose `values` are given: the weighted difference,
        without noise and bias; NaN where a term is missing."""
        return torch.stack(
            [term.weight * (first[term.path] - second[term.path]) for term in self.terms]
        ).sum(0)

    def values(self, samples: RewardSamples) -> dict[str, Float[Tensor, " b"]]:
        """Of every sample what each term says, by its path; of terms with a value for each latent
        frame the mean."""
        found = self._rewards(samples)
        rows = (found[path] for path in (term.path for term in self.terms))
        rows = [row if row.dim() == 1 else row.mean(1) for row in rows]
        return {term.path: row for term, row in zip(self.terms, rows, strict=True)}

    def judge(self, margin: Float[Tensor, " p"], generator: torch.Generator) -> Int[Tensor, " p"]:
        """The answers to pairs of these margins: FIRST, SECOND or TIE."""
        size = margin.shape
        error = self.noise * torch.randn(size, generator=generator)
        chances = outcomes(margin.cpu() + self.position_bias + error, self.ties)
        drawn = torch.rand(size, generator=generator)
        return (drawn[:, None] >= chances.cumsum(1)[:, :2]).sum(1)

    @cached_property
    def _rewards(self) -> Rewards:
        return Rewards([RewardTerm(term.path, name=term.path) for term in self.terms])


def outcomes(margin: Float[Tensor, " p"], ties: float) -> Float[Tensor, "p 3"]:
    """The probabilities that the first wins, the second does, and neither, with k = ``ties``:
    ``p(win) = σ(Δ - log k)``, and what both leave is p(tie)."""
    first, second = ((sign * margin - math.log(ties)).sigmoid() for sign in (1, -1))
    return torch.stack([first, second, (1 - first - second).clamp_min(0)], dim=1)


def build_raters(
    paths: tuple[str, ...], weights: Mapping[str, tuple[float, ...]]
) -> tuple[SimulatedRater, ...]:
    """Three raters of one panel, by name: the weight of each path's term. Two lean to the sample
    that is shown first, the last a little to the other."""
    return tuple(
        SimulatedRater(
            name,
            tuple(Term(path, weight) for path, weight in zip(paths, own, strict=True)),
            noise=0.5,
            position_bias=bias,
        )
        for (name, own), bias in zip(weights.items(), (0.3, 0.3, -0.1), strict=True)
    )


OWN_HABITS = build_raters(
    (
        "avatar_v.rewards.likeness.own_blinks",
        "avatar_v.rewards.likeness.own_sway",
        "avatar_v.rewards.likeness.own_amplitude",
    ),
    {"eyes": (6.0, 1.5, 3.0), "head": (3.0, 3.0, 3.0), "mouth": (3.0, 1.5, 6.0)},
)
"""Raters who ask for the habits of the person's own, each with an eye for one of them."""

OWN_LOOKS = build_raters(
    (
        "avatar_v.rewards.shipped.Identity",
        "avatar_v.rewards.shipped.Sync",
        "avatar_v.rewards.shipped.sharpness",
    ),
    {"face": (20.0, 30.0, 15.0), "lips": (10.0, 60.0, 15.0), "picture": (10.0, 30.0, 30.0)},
)
"""Raters of videos, who ask for the person's face, lips that fit the sound, and a sharp picture."""


@dataclass(frozen=True)
class Panel:
    """The raters of a file."""

    raters: tuple[SimulatedRater, ...] = OWN_HABITS

    def __post_init__(self) -> None:
        names = [rater.name for rater in self.raters]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"a panel has raters, each of its own name, got {names}")


def read_panel(path: str | Path) -> Panel:
    """The raters of a JSON file ``{"raters": [{"name": …, "terms": [{"path": …, "weight": …}],
    "axis": …, "noise": …, "position_bias": …, "ties": …}, …]}``. ValueError for anything else, and
    for a term that the file may not name (base/trust.py)."""
    values = read_json(Path(path))
    check_names(values, str(path))
    return built(Panel, values, where=path)
