"""Signals of a clip: faults of camera and light that are planted, and what a drawn face does."""

import numpy as np
import pytest
import torch

from avatar_v.faces.face_reader import READ
from avatar_v.types import MOTION_NAMES
from avatar_v.world.clip import make_clip
from avatar_v.world.splits import RANGES
from avatar_v_data.curation.expression import ExpressionStage, columns
from avatar_v_data.curation.stages import TICK, Clip, FootageRecording, Seen
from avatar_v_data.curation.steadiness import SteadinessStage, repeats
from avatar_v_data.world_footage import Fault, spoilt
from avatar_v_eval.studies.curation_signals import faults, readings
from avatar_v_eval.studies.curation_truth import Truth

NUM = 60


@pytest.fixture(scope="module")
def talk():
    """Somebody who speaks in front of a room, and the box of the face."""
    first = RANGES["validation"][0]
    return make_clip(first + 3, first + 3, first + 3, num_frames=NUM, size=128)


def seen_of(talk) -> Seen:
    boxes = [talk.face_box[n].tolist() for n in range(0, NUM, TICK)]
    return Seen(FootageRecording("x", "x", ""), {"faces": {"boxes": boxes}})


@pytest.mark.parametrize(
    ("fault", "column"),
    [("shaky", "shake"), ("choppy", "repeats"), ("light", "light_change"),
     ("flicker", "light_flicker")],
)  # fmt: skip
def test_a_fault_shows_in_its_own_column(talk, fault: Fault, column: str) -> None:
    stage, limits = SteadinessStage(), {"shake": 1.5, "repeats": 0.2, "light_change": 0.4}
    limits["light_flicker"] = 0.035
    assert talk.video is not None
    found = [
        stage.score(Clip(0, 0, NUM, list(spoilt(talk.video, each, 1))), seen_of(talk))
        for each in ("", fault)
    ]
    assert all(found[0][name] < limit for name, limit in limits.items()), found[0]
    assert found[1][column] > limits[column]


def test_what_does_not_move_does_not_stutter() -> None:
    assert repeats(torch.full((50,), 0.01)) == 0
    assert repeats(torch.tensor([0.0, 2.0] * 25)) == 0.5


def test_blinks_are_short_and_shut_eyes_are_long() -> None:
    read = torch.zeros(250, len(READ))
    eyes, gaze = READ.index("eye_open"), READ.index("gaze_x")
    read[:, eyes] = 0.9
    read[20:25, eyes] = read[100:104, eyes] = read[248:, eyes] = 0.1
    read[150:200, eyes] = 0.1
    read[:50, gaze] = -0.8
    found = columns(read)
    assert found["blinks"] == 60 * 3 / 10
    assert found["eyes_shut"] == 0.2
    assert found["gaze_away"] == 0.2
    assert found["teeth"] == 0


def test_a_drawn_face_is_read_as_it_was_drawn(talk) -> None:
    pytest.importorskip("dlib")
    clip = Clip(0, 0, NUM, list(talk.video))
    found = ExpressionStage().score(clip, seen_of(talk))
    true = columns(talk.motion[:, [MOTION_NAMES.index(name) for name in READ]])
    assert abs(found["mouth_open"] - true["mouth_open"]) < 0.2
    assert abs(found["gaze_away"] - true["gaze_away"]) < 0.2
    assert abs(found["teeth"] - true["teeth"]) < 0.3


def truth(kind: str, read: float, true: float) -> Truth:
    """A recording of one clip."""
    shot = {"start": 0, "stop": NUM, "kind": kind, "person": 1, "scene": 1}
    bad = 1.0 if kind == "shaky" else 0.1
    clip = {"start": 0, "stop": NUM, "shake": bad, "repeats": 0.0, "light_change": 0.0,
            "light_flicker": 0.0, "mouth_open": read, "mouth_movement": 0.0, "gaze_away": 0.0,
            "blinks": 0.0, "teeth": 0.0}  # fmt: skip
    motion = np.zeros((NUM, 16))
    motion[:, 0] = true
    return Truth("x", [shot], [[0, NUM]], [], [clip], "", 0, [], motion)


def test_the_study_compares_clips_with_what_was_drawn() -> None:
    truths = [truth("talk", 0.1 * n, 0.2 * n) for n in range(4)]
    numbers = faults([*truths, truth("shaky", 0, 0), truth("shaky", 0, 0)])
    assert set(numbers) == {"auc_shaky"}
    assert numbers["auc_shaky"].value == 1
    assert numbers["auc_shaky"].n == 6
    assert readings(truths)["read_mouth_open"].value == pytest.approx(1)
