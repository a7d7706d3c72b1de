"""Agreement of raters: Krippendorff's alpha and the raw share of equal answers.

Avatar V §5.3 asks for 85 % raw agreement; raw agreement is high by chance alone where one answer
is common, which alpha takes out (1 is perfect, 0 is chance).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import krippendorff
import numpy as np

from avatar_v_eval.human.votes import Vote
from avatar_v_eval.intervals import pooled_mean, within_unit
from avatar_v_eval.records import Number


@dataclass(frozen=True)
class Agreement:
    """Of one dimension, or of one kind. ``n`` of the numbers is questions with two raters or more.

    ``alpha`` is None where all answers are equal: then there is nothing to agree on by chance.
    """

    label: str
    alpha: float | None
    equal: Number  # share of pairs of raters with the same answer
    within_one: Number | None  # mos: share of pairs at most one point apart


def agreements(votes: Sequence[Vote]) -> list[Agreement]:
    """One row per MOS dimension (ordinal), then pairs and Turing (nominal)."""
    groups: dict[str, list[Vote]] = defaultdict(list)
    for vote in votes:
        groups[vote.dimension or vote.kind].append(vote)
    rows = [agreement(label, group) for label, group in groups.items()]
    return [row for row in rows if row is not None]


def agreement(label: str, votes: Sequence[Vote]) -> Agreement | None:
    """Agreement on questions of one kind; None where fewer than two questions have two raters."""
    answers: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for vote in votes:
        answers[vote.question].append(vote.answer)
    shared = [given for given in answers.values() if len(given) > 1]
    if len(shared) < 2:
        return None
    ordinal = votes[0].kind == "mos"
    equal = _share([[a == b for a, b in combinations(given, 2)] for given in shared])
    within = None
    if ordinal:
        near = [[abs(int(a) - int(b)) <= 1 for a, b in combinations(g, 2)] for g in shared]
        within = _share(near)
    return Agreement(label, alpha(votes, "ordinal" if ordinal else "nominal"), equal, within)


def alpha(votes: Sequence[Vote], level: Literal["ordinal", "nominal"]) -> float | None:
    """Krippendorff's alpha over raters and questions, missing votes allowed; None if all agree."""
    domain = sorted({vote.answer for vote in votes})
    if len(domain) < 2:
        return None
    raters = {name: i for i, name in enumerate(dict.fromkeys(vote.rater for vote in votes))}
    questions = {key: i for i, key in enumerate(dict.fromkeys(vote.question for vote in votes))}
    data = np.full((len(raters), len(questions)), np.nan)
    for vote in votes:
        code = int(vote.answer) if level == "ordinal" else domain.index(vote.answer)
        data[raters[vote.rater], questions[vote.question]] = code
    return float(krippendorff.alpha(reliability_data=data, level_of_measurement=level))


def _share(pairs: Sequence[Sequence[bool]]) -> Number:
    """Share of True over all pairs, its interval over questions."""
    right = np.array([sum(one) for one in pairs], dtype=float)
    total = np.array([len(one) for one in pairs], dtype=float)
    return within_unit(pooled_mean(right, total))
