"""critics/raters and likeness: raters answer by the stated chances, and judge what they say."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch

from avatar_v.losses.align import preference_loss
from avatar_v.rewards.raters import (
    FIRST,
    OWN_HABITS,
    SECOND,
    TIE,
    Panel,
    SimulatedRater,
    Term,
    outcomes,
    read_panel,
)
from avatar_v.rewards.terms import RewardSamples
from avatar_v.shards.pairs import reference_batch
from avatar_v.types import MOTION_NAMES
from avatar_v.weights.random import make_batch

NUM = 40_000
TERM = Term("avatar_v.rewards.likeness.own_sway", 2.0)


def rater(**changes) -> SimulatedRater:
    return SimulatedRater("r", (TERM,), **{"ties": 1.5, **changes})


def rates(of: SimulatedRater, margin: float) -> list[float]:
    answers = of.judge(torch.full((NUM,), margin), torch.Generator().manual_seed(0))
    return [float((answers == answer).float().mean()) for answer in (FIRST, SECOND, TIE)]


@pytest.mark.parametrize("ties", [1.0, 1.5, 5.0])
@pytest.mark.parametrize("margin", [-1.0, 0.0, 2.0])
def test_the_stronger_wins_as_often_as_stated(margin: float, ties: float) -> None:
    expected = outcomes(torch.tensor([margin]), ties)[0]
    assert float(expected.sum()) == pytest.approx(1)
    # 4 standard deviations of a share of 40,000 draws
    assert rates(rater(ties=ties), margin) == pytest.approx(expected.tolist(), abs=0.01)
    won = preference_loss(torch.tensor([margin]), ties=ties).neg().exp()
    assert float(won) == pytest.approx(float(expected[FIRST]), abs=1e-6)
    if ties > 1:
        tie = preference_loss(torch.tensor([margin]), torch.tensor([True]), ties=ties).neg().exp()
        assert float(tie) == pytest.approx(float(expected[TIE]), abs=1e-6)


def test_who_leans_to_the_first_place_prefers_it() -> None:
    first, second, tie = rates(rater(position_bias=1.0), 0.0)
    expected = outcomes(torch.tensor([1.0]), 1.5)[0].tolist()
    assert [first, second, tie] == pytest.approx(expected, abs=0.01)
    assert first > second + 0.2
    fair = rates(rater(), 0.0)
    assert fair[0] == pytest.approx(fair[1], abs=0.01)


def test_noise_blurs_a_preference_and_seeds_repeat_it() -> None:
    assert rates(rater(noise=4.0), 2.0)[0] < rates(rater(), 2.0)[0] - 0.1
    assert rates(rater(noise=4.0), 2.0) == rates(rater(noise=4.0), 2.0)


def test_a_margin_is_the_weighted_difference_of_the_terms() -> None:
    values = [{TERM.path: torch.tensor(row)} for row in ([1.0, 2.0, 0.0], [0.5, 4.0, torch.nan])]
    margin = rater().margin(*values)
    assert margin[:2].tolist() == [1.0, -4.0]
    assert margin[2].isnan()


def judged(
    motion: torch.Tensor, reference: torch.Tensor, known: torch.Tensor | None = None
) -> dict[str, float]:
    batch = dataclasses.replace(make_batch(1, len(motion), 32), habits_known=known)
    own = reference_batch(batch, [(reference, torch.ones(len(reference), dtype=torch.bool))])
    samples = RewardSamples(
        None, batch.audio, own, motion[None], torch.zeros(1, dtype=torch.long), num_given=1
    )
    found = OWN_HABITS[0].values(samples)
    return {path.rpartition(".")[2]: float(value) for path, value in found.items()}


def face(num: int, *, blink_every: int, turn: float, mouth: float) -> torch.Tensor:
    motion, frame = torch.zeros(num, len(MOTION_NAMES)), torch.arange(num)
    motion[:, MOTION_NAMES.index("eye_open")] = 1.0 - (frame % blink_every == 10).float()
    motion[:, MOTION_NAMES.index("yaw")] = turn * torch.sin(frame / 5)
    motion[:, MOTION_NAMES.index("mouth_open")] = mouth * (frame % 4 < 2).float()
    return motion


def test_who_moves_like_the_person_is_nearest() -> None:
    own = face(404, blink_every=25, turn=0.1, mouth=0.6)
    alike = judged(own[:101], own)
    assert all(value > -0.05 for value in alike.values())
    other = judged(face(101, blink_every=50, turn=0.2, mouth=0.3), own)
    assert other["own_blinks"] == pytest.approx(-0.5, abs=0.05)  # one a second, two seconds apart
    assert other["own_sway"] == pytest.approx(-math.log(2), abs=0.05)
    assert other["own_amplitude"] == pytest.approx(-math.log(2), abs=0.05)
    unknown = torch.tensor([[name != "eye_open" for name in MOTION_NAMES]])
    assert torch.tensor(judged(own[:101], own, known=unknown)["own_blinks"]).isnan()


def as_file(**changes) -> dict:
    row = {
        "name": "a",
        "terms": [{"path": TERM.path, "weight": 2}],
        "axis": "sway",
        "noise": 0.5,
        "position_bias": -0.25,
        "ties": 1,
    }
    return {"raters": [{**row, **changes}]}


def test_a_panel_is_read_and_wrong_ones_are_named(tmp_path: Path) -> None:
    path = tmp_path / "raters.json"
    path.write_text(json.dumps(as_file()))
    (read,) = read_panel(path).raters
    assert read == SimulatedRater("a", (TERM,), "sway", 0.5, -0.25, 1.0)
    for change, words in (
        ({"ties": 0.5}, "ties"),
        ({"noise": "much"}, "noise"),
        ({"terms": []}, "terms"),
        ({"terms": [{"path": "os.nothing", "weight": 1}]}, "os.nothing"),
        ({"mood": 1}, "mood"),
    ):
        path.write_text(json.dumps(as_file(**change)))
        with pytest.raises(ValueError, match=words):
            read_panel(path)
    with pytest.raises(ValueError, match="own name"):
        Panel((rater(), rater()))
    assert len(Panel().raters) == 3
