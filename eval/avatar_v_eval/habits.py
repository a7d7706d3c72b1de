"""Habits of generated motion against those that the persons were drawn with.

Of mouth amplitude, blinks and sway: r over persons, the error against the true video or motion, the
mean; and of pairs of ways the differences, person by person.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from avatar_v.scoring.sampling import pearson
from avatar_v_eval.cases import Case
from avatar_v_eval.intervals import correlation, jackknife, mean_interval
from avatar_v_eval.motion_statistics import STATISTICS, true_statistics
from avatar_v_eval.records import Number

Values = Mapping[str, Float[np.ndarray, " n"]]
"""Way → a statistic of every person."""


def habit_numbers(
    cases: Sequence[Case],
    values: Mapping[str, Values],
    truth: str,
    words: Mapping[str, str],
    pairs: Sequence[tuple[str, str]],
) -> dict[str, Number]:
    """The numbers of all statistics; ``truth`` is the way that errors are measured from."""
    persons = [true_statistics(case.person_id) for case in cases]
    found = {}
    for name, word in STATISTICS.items():
        own = np.array([person[name] for person in persons])
        found[f"{name}_own"] = mean_interval(own).described(f"{word}: the persons' own")
        errors = {key: np.abs(of - values[name][truth]) for key, of in values[name].items()}
        for key, of in values[name].items():
            for ending, label, number in (
                ("", "r over persons", correlation(of, own)),
                ("_error", "error against the truth", mean_interval(errors[key])),
                ("_mean", "mean over persons", mean_interval(of)),
            ):
                found[f"{name}_{key}{ending}"] = number.described(f"{word}, {label}: {words[key]}")
        for a, b in pairs:
            found |= _gains(name, word, values[name], errors, own, (a, b), words)
    return found


def _gains(
    name: str,
    word: str,
    values: Values,
    errors: Values,
    own: Float[np.ndarray, " n"],
    pair: tuple[str, str],
    words: Mapping[str, str],
) -> dict[str, Number]:
    """Of the first way of a pair over the second."""
    a, b = pair
    between = f"{words[a]} over {words[b]}"
    rows = np.stack([values[a], values[b], own], axis=1)
    in_r = jackknife(lambda index: _gain_in_r(rows[index]), len(rows))
    return {
        f"{name}_{a}_over_{b}": in_r.described(f"{word}, r over persons: {between}"),
        f"{name}_{a}_over_{b}_error": mean_interval(errors[a] - errors[b]).described(
            f"{word}, error against the truth: {between}"
        ),
        f"{name}_{a}_over_{b}_mean": mean_interval(values[a] - values[b]).described(
            f"{word}, mean over persons: {between}"
        ),
    }


def _gain_in_r(rows: Float[np.ndarray, "n 3"]) -> float:
    ours, theirs, true = rows.T
    return pearson(ours, true) - pearson(theirs, true)
