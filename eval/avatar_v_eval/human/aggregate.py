"""From votes to numbers: MOS, win rates, Turing test (Avatar V §7.3).

Input are votes that count (`exclude.counted`). MOS intervals hold for new cases *and* new
raters: their variance is the sum of the jackknife's over cases and over raters, which counts the
noise of single votes twice and so errs to the wide side. Win and Turing rates carry Wilson's.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

from avatar_v_eval.human.study import Kind
from avatar_v_eval.human.votes import Vote
from avatar_v_eval.intervals import around, jackknife_variance, rate
from avatar_v_eval.records import Number


@dataclass(frozen=True)
class WinRate:
    """The share of cases whose votes have a majority for ``first`` against ``second``."""

    first: str
    second: str
    wins: int
    losses: int
    ties: int  # no answer had more than half of the votes
    num_short: int  # cases with fewer votes than asked

    @property
    def num_cases(self) -> int:
        return self.wins + self.losses + self.ties

    @property
    def win(self) -> Number:
        """Share of all cases that were won, ties in the denominator."""
        return rate(self.wins, self.num_cases)

    @property
    def lose(self) -> Number:
        return rate(self.losses, self.num_cases)


@dataclass(frozen=True)
class Turing:
    """Real against generated: how often raters found the real one, and which cases deceived."""

    system: str
    num_right: int
    num_judgments: int
    num_cases: int
    num_cases_fooling: int  # at least one rater took the generated video for real
    detectable: float  # smallest accuracy that so many judgments tell from 1/2, 80 % of the time

    @property
    def accuracy(self) -> Number:
        return rate(self.num_right, self.num_judgments)

    @property
    def fooled(self) -> Number:
        return rate(self.num_judgments - self.num_right, self.num_judgments)

    @property
    def warning(self) -> str:
        """A warning that stands with every result: the accuracy does not show this."""
        low, high = self.accuracy.low, self.accuracy.high
        assert low is not None
        assert high is not None
        if low <= 0.5 <= high:
            return (
                f"The interval holds 50 %, which proves nothing: {self.num_judgments} judgments "
                f"miss an accuracy below {100 * self.detectable:.0f} % more than one time in five. "
                "Not told apart is not the same as indistinguishable."
            )
        side = "found the real one more" if low > 0.5 else "took the generated one for real more"
        return f"Raters {side} often than chance."


def mos(votes: Sequence[Vote], kind: Kind = "mos") -> dict[tuple[str, str], Number]:
    """(system, dimension) → arithmetic mean of all scores, 1 to 5 or, of the kind "score", 0 to
    100; ``n`` counts scores."""
    cells: dict[tuple[str, str], list[Vote]] = defaultdict(list)
    for vote in votes:
        if vote.kind == kind:
            cells[vote.first, vote.dimension].append(vote)
    return {
        key: clustered_mean(
            [vote.score for vote in cell],
            [vote.case for vote in cell],
            [vote.rater for vote in cell],
        )
        for key, cell in cells.items()
    }


def clustered_mean(values: Sequence[float], cases: Sequence[str], raters: Sequence[str]) -> Number:
    """Mean with a 95 % interval that holds for new cases and new raters.

    Student's t, with Satterthwaite's degrees of freedom (1946) of the sum of the two variances. No
    interval with fewer than two cases or two raters: spread cannot be seen in one.
    """
    data = np.asarray(values, dtype=np.float64)
    parts = []
    for names in (cases, raters):
        _, place = np.unique(np.asarray(names), return_inverse=True)
        sums, counts = np.bincount(place, data), np.bincount(place)
        if len(counts) < 2:
            return Number(float(data.mean()), len(data))
        without = (data.sum() - sums) / (len(data) - counts)
        parts.append((jackknife_variance(without), len(counts) - 1))
    variance = sum(part for part, _ in parts)
    if variance == 0:  # all votes are equal
        return Number(float(data.mean()), len(data), float(data.mean()), float(data.mean()))
    degrees = variance**2 / sum(part**2 / free for part, free in parts)
    return around(float(data.mean()), len(data), math.sqrt(variance), degrees)


def win_rates(votes: Sequence[Vote], raters_per_item: int = 3) -> list[WinRate]:
    """One row per pair of systems, in the order of first votes."""
    pairs: dict[tuple[str, str], dict[str, Counter[str]]] = defaultdict(
        lambda: defaultdict(Counter)
    )
    for vote in votes:
        if vote.kind == "pair":
            pairs[vote.first, vote.second][vote.case][vote.answer] += 1
    rows = []
    for (first, second), cases in pairs.items():
        won = Counter(majority(answers) for answers in cases.values())
        short = sum(answers.total() < raters_per_item for answers in cases.values())
        rows.append(WinRate(first, second, won["first"], won["second"], won["tie"], short))
    return rows


def majority(answers: Counter[str]) -> str:
    """The answer of more than half of the raters; "tie" where there is none."""
    answer, num = answers.most_common(1)[0]
    return answer if 2 * num > answers.total() else "tie"


def turing(votes: Sequence[Vote]) -> list[Turing]:
    """One row per system under test, against its real footage."""
    systems: dict[str, list[Vote]] = defaultdict(list)
    for vote in votes:
        if vote.kind == "turing":
            systems[vote.first].append(vote)
    rows = []
    for system, given in systems.items():
        fooling = {vote.case for vote in given if vote.answer == "first"}
        rows.append(
            Turing(
                system=system,
                num_right=sum(vote.answer == "second" for vote in given),
                num_judgments=len(given),
                num_cases=len({vote.case for vote in given}),
                num_cases_fooling=len(fooling),
                detectable=detectable_accuracy(len(given)),
            )
        )
    return rows


def detectable_accuracy(num: int, *, power: float = 0.8) -> float:
    """The smallest accuracy above 1/2 that ``num`` independent judgments show with this power.

    Exact two-sided binomial test at 5 %. 1.0 where even perfect raters could not show it (num < 6).
    """
    counts = np.arange(num + 1)
    enough = counts[binom.sf(counts - 1, num, 0.5) <= 0.025]
    if not len(enough):
        return 1.0
    accuracies = np.linspace(0.5, 1.0, 1001)
    shown = binom.sf(enough[0] - 1, num, accuracies) >= power
    return float(accuracies[shown][0])
