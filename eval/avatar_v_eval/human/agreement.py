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

from avatar_v_eval.human.ranges import read_ranges
from avatar_v_eval.human.votes import SCALES, Vote
from avatar_v_eval.intervals import pooled_mean, within_unit
from avatar_v_eval.records import Number

Level = Literal["ordinal", "interval", "nominal"]


@dataclass(frozen=True)
class Agreement:
    """Of one dimension, or of one kind. ``n`` of the numbers is questions with two raters or more.

    ``alpha`` is None where all answers are equal: then there is nothing to agree on by chance.
    """

    label: str
    alpha: float | None
    equal: Number  # share of pairs of raters with the same answer
    near: Number | None  # of points and ranges, as `Vote.agrees` has it


def agreements(votes: Sequence[Vote]) -> list[Agreement]:
    """One row per line of the scales and attribute, and per kind without lines."""
    groups: dict[tuple[str, str], list[Vote]] = defaultdict(list)
    for vote in votes:
        groups[vote.dimension or vote.kind, vote.kind].append(vote)
    rows = [agreement(label, group) for (label, _), group in groups.items()]
    return [row for row in rows if row is not None]


def agreement(label: str, votes: Sequence[Vote]) -> Agreement | None:
    """Agreement on questions of one kind; None where fewer than two questions have two raters."""
    answers: dict[tuple[str, ...], list[Vote]] = defaultdict(list)
    for vote in votes:
        answers[vote.question].append(vote)
    shared = [list(combinations(given, 2)) for given in answers.values() if len(given) > 1]
    if len(shared) < 2:
        return None
    equal = _share([[a.answer == b.answer for a, b in pairs] for pairs in shared])
    near = None
    if votes[0].kind in (*SCALES, "ranges"):
        near = _share([[a.agrees(b.answer) for a, b in pairs] for pairs in shared])
    return Agreement(label, alpha_of(votes), equal, near)


def alpha_of(votes: Sequence[Vote]) -> float | None:
    """Krippendorff's alpha over raters and questions of one kind, missing votes allowed; None if
    all agree. Ordinal for scores, interval from 0 to 100, nominal for choices, and for which faults
    are marked at all."""
    named = [vote.answer for vote in votes]
    if votes[0].kind == "ranges":
        named = ["+".join(sorted({m.fault for m in read_ranges(answer)})) for answer in named]
    given = [(v.rater, v.question, answer) for v, answer in zip(votes, named, strict=True)]
    level: Level = "ordinal" if votes[0].kind == "mos" else "nominal"
    return _alpha(given, "interval" if votes[0].kind == "score" else level)


def _alpha(given: Sequence[tuple[str, tuple[str, ...], str]], level: Level) -> float | None:
    domain = sorted({answer for _, _, answer in given})
    raters = {name: i for i, name in enumerate(dict.fromkeys(rater for rater, _, _ in given))}
    questions = {key: i for i, key in enumerate(dict.fromkeys(key for _, key, _ in given))}
    data = np.full((len(raters), len(questions)), np.nan)
    for rater, question, answer in given:
        code = domain.index(answer) if level == "nominal" else int(answer)
        data[raters[rater], questions[question]] = code
    data = data[:, np.isfinite(data).sum(0) > 1]  # one rater's answer agrees with nobody's
    if len(np.unique(data[np.isfinite(data)])) < 2:
        return None
    return float(krippendorff.alpha(reliability_data=data, level_of_measurement=level))


def _share(pairs: Sequence[Sequence[bool]]) -> Number:
    """Share of True over all pairs, its interval over questions."""
    right = np.array([sum(one) for one in pairs], dtype=float)
    total = np.array([len(one) for one in pairs], dtype=float)
    return within_unit(pooled_mean(right, total))
