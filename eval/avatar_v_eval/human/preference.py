"""One scale for all systems from pairwise votes: Bradley-Terry with ties (Davidson 1970).

P(i wins) = p_i / d, P(tie) = ν sqrt(p_i p_j) / d, with d = p_i + p_j + ν sqrt(p_i p_j) and p = e^s.
Fitted by maximum likelihood; the likelihood is concave in (s, log ν). The `choix` package fits
models without ties only, hence our own forty lines of scipy.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize
from scipy.sparse.csgraph import connected_components

from avatar_v_eval.human.votes import Vote
from avatar_v_eval.intervals import interval_without
from avatar_v_eval.records import Number


class NoScaleError(ValueError):
    """The votes fix no finite strengths: somebody always won or always lost."""


@dataclass(frozen=True)
class PreferenceFit:
    """Strengths ``s`` that sum to 0, best first, and ν. A difference of ln 2 is odds of 2 to 1."""

    strengths: dict[str, Number]
    tie: float
    num_votes: int


def preference(votes: Sequence[Vote]) -> PreferenceFit:
    """Strengths of all systems in ``votes``, with the jackknife's interval over two cases or more.

    No intervals where the strengths hang on one case: without it some system would always win or
    always lose.

    Raises NoScaleError where no finite answer exists: a system or group never won, or never lost,
    against the others.
    """
    votes = [vote for vote in votes if vote.kind == "pair"]
    systems = sorted({name for vote in votes for name in (vote.first, vote.second)})
    cases = sorted({vote.case for vote in votes})
    tables = np.zeros((len(cases), 2, len(systems), len(systems)))
    for vote in votes:
        winner, loser = systems.index(vote.first), systems.index(vote.second)
        if vote.answer == "second":
            winner, loser = loser, winner
        tables[cases.index(vote.case), int(vote.answer == "tie"), winner, loser] += 1
    wins, ties = tables.sum(0)
    groups = _apart(wins)
    if groups is not None:
        names = [[systems[i] for i in np.flatnonzero(groups == g)] for g in range(groups.max() + 1)]
        raise NoScaleError(f"no scale: one of {names} always won or always lost against the others")
    strengths, tie = fit(wins, ties)
    without = _without_each(tables) if len(cases) > 1 else None
    numbers = {}
    for i in np.argsort(-strengths):
        number = Number(float(strengths[i]), len(votes))
        if without is not None:
            found = interval_without(float(strengths[i]), without[:, i])
            number = dataclasses.replace(found, n=len(votes))
        numbers[systems[i]] = number
    return PreferenceFit(numbers, tie, len(votes))


def fit(
    wins: Float[np.ndarray, "k k"], ties: Float[np.ndarray, "k k"]
) -> tuple[Float[np.ndarray, " k"], float]:
    """(strengths that sum to 0, ν) of ``wins[i, j]``, times i beat j, and ``ties`` likewise.

    Without any tie ν is 0 and the model is Bradley and Terry's.
    """
    num = len(wins)
    games = np.triu(wins + wins.T + ties + ties.T, 1)
    gained = wins.sum(1) + (ties.sum(0) + ties.sum(1)) / 2
    total_ties = ties.sum()

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        s, log_tie = x[:num], x[num] if total_ties else -np.inf
        logits = np.stack(
            np.broadcast_arrays(s[:, None], s[None, :], log_tie + (s[:, None] + s[None, :]) / 2)
        )
        log_d = np.logaddexp.reduce(logits)
        first, second, tied = np.exp(logits - log_d) * games
        expected = (first + tied / 2).sum(1) + (second + tied / 2).sum(0)
        value = (games * log_d).sum() - gained @ s
        slope = np.append(expected - gained, 0.0)
        if total_ties:
            value -= total_ties * log_tie
            slope[num] = tied.sum() - total_ties
        return float(value), slope

    x = minimize(loss, np.zeros(num + 1), jac=True, method="BFGS", options={"gtol": 1e-8}).x
    return x[:num] - x[:num].mean(), float(np.exp(x[num])) if total_ties else 0.0


def _without_each(tables: Float[np.ndarray, "c 2 k k"]) -> Float[np.ndarray, "c k"] | None:
    """Strengths without each case in turn; None if they are not finite for one of them."""
    rest = tables.sum(0) - tables
    if any(_apart(wins) is not None for wins in rest[:, 0]):
        return None
    return np.array([fit(wins, ties)[0] for wins, ties in rest])


def _apart(wins: Float[np.ndarray, "k k"]) -> np.ndarray | None:
    """Group of each system where wins do not lead from each to every other; None where they do."""
    num, groups = connected_components(wins > 0, directed=True, connection="strong")
    return None if num == 1 else groups
