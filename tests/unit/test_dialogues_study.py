"""studies/dialogues.py: what is read of somebody who listens, on motion whose truth is known."""

import dataclasses

import numpy as np
import pytest

from avatar_v_eval.cases import Case, make_cases
from avatar_v_eval.protocol import Readings
from avatar_v_eval.studies.dialogues import (
    MEASURES,
    PITCH,
    UNITS,
    answers,
    in_dialogues,
    summarised,
    turns,
)


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    alone = make_cases(
        "test", 3, first=40, num_frames=1201, reference_frames=5, target_video=False,
        reference_video=False,
    )  # fmt: skip
    return in_dialogues(alone)


def test_true_listeners_answer_statements_and_not_pauses(cases: list[Case]) -> None:
    found = [answers(case, case.motion.double().numpy()) for case in cases]
    mean = {name: float(np.nanmean([one[name] for one in found])) for name in MEASURES}
    assert mean["statement"] > 0.06
    assert mean["nod"] > 0.02
    assert mean["brow"] > 0
    assert mean["gaze"] < 0
    assert mean["lips"] == pytest.approx(1)
    assert mean["mouth"] < 0.05
    still = [case.motion.double().numpy().copy() for case in cases]
    for motion in still:
        motion[:, PITCH] = 0
    assert all(answers(c, m)["statement"] == 0 for c, m in zip(cases, still, strict=True))


def test_nobody_speaks_at_the_same_time(cases: list[Case]) -> None:
    for case in cases:
        listens, speaks = turns(case)
        assert not (listens & speaks).any()
        assert listens.mean() > 0.1
        assert speaks.mean() > 0.1


def test_what_never_happened_to_a_person_does_not_count(cases: list[Case]) -> None:
    silent = dataclasses.replace(
        cases[0], target=dataclasses.replace(cases[0].target, listening=())
    )
    motion = cases[0].motion.double().numpy()
    rows = [answers(silent, motion), *[answers(c, c.motion.double().numpy()) for c in cases]]
    assert np.isnan(rows[0]["nod"])
    readings = Readings({"a": rows, "b": rows})
    found = summarised(readings, MEASURES, UNITS, {"a": "one", "b": "other"}, [("a", "b")])
    assert found["statement_a"].n == 3
    assert found["lips_a"].n == 4
    assert found["statement_a_over_b"].value == 0
