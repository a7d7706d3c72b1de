"""aggregate, preference, agreement, exclude: against counts by hand and exact solutions."""

import math
from collections import Counter

import numpy as np
import pytest

from avatar_v_eval.human.aggregate import (
    clustered_mean,
    detectable_accuracy,
    majority,
    mos,
    turing,
    win_rates,
)
from avatar_v_eval.human.exclude import counted, exclusions
from avatar_v_eval.human.preference import NoScaleError, fit, preference
from avatar_v_eval.human.study import Rules
from avatar_v_eval.human.votes import Rater, Vote
from avatar_v_eval.intervals import rate

RULES = Rules(3.0, max_wrong_qualification=0, max_wrong_golds=1, max_wrong_traps=0)


def vote(answer: str, **other) -> Vote:
    known = dict(rater="r1", role="study", kind="pair", case="c", condition="", duration_s=9.0)
    names = dict(first="a", second="b", dimension="", answer=answer)
    return Vote(**{**known, **names, **other})


def pairs(text: str, case: str) -> list[Vote]:
    names = {"f": "first", "s": "second", "t": "tie"}
    return [vote(names[a], case=case, rater=f"r{i}") for i, a in enumerate(text)]


def test_wilson_interval_of_the_design() -> None:
    number = rate(48, 70)
    assert number.low == pytest.approx(0.570, abs=5e-4)
    assert number.high == pytest.approx(0.782, abs=5e-4)


@pytest.mark.parametrize(
    ("text", "winner"),
    [
        ("ffs", "first"),
        ("sss", "second"),
        ("fst", "tie"),
        ("ftt", "tie"),
        ("fs", "tie"),
        ("f", "first"),
    ],
)
def test_majority_of_three(text: str, winner: str) -> None:
    assert majority(Counter(v.answer for v in pairs(text, "c"))) == winner


def test_win_rate_counts_cases_and_names_short_ones() -> None:
    votes = pairs("ffs", "c1") + pairs("sss", "c2") + pairs("fst", "c3") + pairs("ff", "c4")
    (row,) = win_rates(votes)
    assert (row.wins, row.losses, row.ties, row.num_short) == (2, 1, 1, 1)
    assert (row.win.value, row.win.n) == (0.5, 4)


def test_turing_counts_and_warns_at_chance() -> None:
    votes = [
        vote("first" if (i + j) % 2 else "second", kind="turing", case=f"c{i}", rater=f"r{j}")
        for i in range(18)
        for j in range(3)
    ]
    (row,) = turing(votes)
    assert (row.num_right, row.num_judgments, row.num_cases_fooling) == (27, 54, 18)
    assert "proves nothing" in row.warning
    assert 0.65 < row.detectable < 0.72  # 54 judgments miss accuracies below about 69 %


def test_detectable_accuracy_shrinks_with_n() -> None:
    assert detectable_accuracy(5) == 1.0
    assert detectable_accuracy(54) > detectable_accuracy(540) > detectable_accuracy(5400) > 0.5


def test_mos_is_the_arithmetic_mean() -> None:
    votes = [
        vote(str(s), kind="mos", dimension="visual", second="", case=f"c{i}", rater=f"r{i % 2}")
        for i, s in enumerate([5, 4, 4, 2])
    ]
    number = mos(votes)["a", "visual"]
    assert (number.value, number.n) == (3.75, 4)


def simulated_scores(generator: np.random.Generator, num_cases: int, num_raters: int):
    case = generator.normal(0, 0.4, num_cases)
    rater = generator.normal(0, 0.4, num_raters)
    noise = generator.normal(0, 0.3, (num_cases, num_raters))
    return 3.5 + case[:, None] + rater + noise


@pytest.mark.parametrize(("num_cases", "num_raters"), [(3, 3), (10, 5), (30, 12)])
def test_clustered_interval_covers_and_a_naive_one_does_not(num_cases, num_raters) -> None:
    """A nominal 95 % interval over cases and raters is wide, never narrow."""
    generator = np.random.default_rng(0)
    covered = naive = 0
    names = [(f"c{c}", f"r{r}") for c in range(num_cases) for r in range(num_raters)]
    for _ in range(200):
        scores = simulated_scores(generator, num_cases, num_raters)
        number = clustered_mean(scores.ravel(), [c for c, _ in names], [r for _, r in names])
        covered += number.low <= 3.5 <= number.high
        naive += abs(scores.mean() - 3.5) <= 1.96 * scores.std() / scores.size**0.5
    assert covered >= 181  # 190 expected; binomial sd 3.1
    assert naive < 170


def test_no_interval_from_one_rater() -> None:
    number = clustered_mean([1, 2, 3], ["a", "b", "c"], ["r", "r", "r"])
    assert (number.value, number.low) == (2.0, None)


def test_two_systems_have_a_closed_form() -> None:
    """Davidson: e^(s1 - s2) = wins / losses, ν = ties / sqrt(wins losses)."""
    wins, ties = np.array([[0, 30.0], [12, 0]]), np.array([[0, 8.0], [0, 0]])
    strengths, tie = fit(wins, ties)
    assert strengths[0] - strengths[1] == pytest.approx(math.log(30 / 12), abs=1e-5)
    assert tie == pytest.approx(8 / math.sqrt(30 * 12), rel=1e-5)
    assert strengths.sum() == pytest.approx(0, abs=1e-12)


def test_without_ties_it_is_hunters_bradley_terry() -> None:
    """Against the fixed point p_i = W_i / sum_j n_ij / (p_i + p_j) (Hunter 2004, eq. 3)."""
    wins = np.random.default_rng(1).integers(1, 20, (5, 5)).astype(float)
    np.fill_diagonal(wins, 0)
    games, p = wins + wins.T, np.ones(5)
    for _ in range(2000):
        p = wins.sum(1) / (games / (p[:, None] + p)).sum(1)
        p /= p.sum()
    expected = np.log(p) - np.log(p).mean()
    strengths, tie = fit(wins, np.zeros((5, 5)))
    assert tie == 0
    np.testing.assert_allclose(strengths, expected, atol=1e-5)


def test_expected_counts_give_back_their_own_strengths() -> None:
    """The likelihood is maximal at the truth if counts are the expected ones, ties included."""
    truth, nu, num = np.array([0.8, 0.1, -0.9]), 0.6, 100.0
    wins, ties = np.zeros((3, 3)), np.zeros((3, 3))
    for i in range(3):
        for j in range(3):
            p, q = np.exp(truth[i]), np.exp(truth[j])
            d = p + q + nu * np.sqrt(p * q)
            if i != j:
                wins[i, j] = num * p / d
            if i < j:
                ties[i, j] = num * nu * np.sqrt(p * q) / d
    strengths, tie = fit(wins, ties)
    np.testing.assert_allclose(strengths, truth, atol=1e-5)
    assert tie == pytest.approx(nu, rel=1e-5)


def test_a_system_that_never_lost_has_no_finite_strength() -> None:
    with pytest.raises(NoScaleError, match=r"\['a'\].*always won or always lost"):
        preference(pairs("fff", "c1") + pairs("fft", "c2"))


def test_reasons_for_leaving_raters_out() -> None:
    check = dict(role="trap", case="t1", first="", second="", expected="first")
    votes = [
        *(vote("first", rater=name) for name in ("good", "fast", "trapped", "half", "gold1")),
        vote("first", rater="good", **check),
        vote("second", rater="trapped", **check),
        vote("second", rater="gold1", **{**check, "role": "gold"}),  # one wrong gold is allowed
        vote("first", rater="fast", case="c2", duration_s=0.4),
        vote("first", rater="fast", case="c3", duration_s=0.5),
        vote("second", rater="unfit", **{**check, "role": "qualification", "case": "q1"}),
    ]
    raters = [
        Rater("good", "", "done"),
        Rater("half", "", "rating", 10, 4),
        Rater("gone", "", "withdrawn"),
        Rater("unfit", "", "failed"),
        Rater("never", "", "invited"),
    ]
    found = {e.rater: e.reason for e in exclusions(raters, votes, RULES)}
    assert found == {
        "fast": "too fast: 0.5 s an item (median), at least 3 s",
        "gone": "withdrawn; all votes deleted",
        "half": "unfinished: 4 of 10 items",
        "trapped": "failed traps: wrong on t1, 0 allowed",
        "unfit": "failed the qualification: wrong on q1",
    }
    kept = counted(votes, exclusions(raters, votes, RULES))
    assert {v.rater for v in kept} == {"good", "gold1"}
    assert all(v.role == "study" for v in kept)


def test_agreement_of_known_answers() -> None:
    pytest.importorskip("krippendorff", reason="needs pip install 'avatar_v[eval]'")
    from avatar_v_eval.human.agreement import agreement, agreements, alpha_of

    # Units (f f), (s s), (f s): o = 2 of 6 disagree, e from 3 f and 3 s: alpha = 1 - 5·2/(2·9).
    votes = pairs("ff", "c1") + pairs("ss", "c2") + pairs("fs", "c3")
    row = agreement("pair", votes)
    assert row is not None
    assert row.alpha == pytest.approx(1 - (2 / 6) / (18 / 30))
    assert row.equal.value == pytest.approx(2 / 3)
    assert alpha_of(pairs("fff", "c1") + pairs("ff", "c2")) is None
    assert agreement("pair", pairs("ff", "c1")) is None

    def scores(kind: str, *given: tuple[str, str, str]) -> list[Vote]:
        line = dict(kind=kind, dimension="naturalness", second="")
        return [vote(answer, rater=r, case=c, **line) for r, c, answer in given]

    # The answers that differ are each of one rater alone, so nobody can agree or disagree.
    both = [(rater, case, "4") for rater in ("r1", "r2") for case in ("c1", "c2")]
    assert alpha_of(scores("mos", *both, ("r1", "c3", "5"))) is None
    # The same line of two kinds has two scales.
    mixed = scores("mos", *both) + scores("score", *both)
    assert len(agreements(mixed)) == 2
