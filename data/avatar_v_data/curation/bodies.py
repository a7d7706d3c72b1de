"""Bodies in a clip: MediaPipe's two networks, one that finds people, one that says where 33 points
of the first one's body are and whether they are seen."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32

from avatar_v.critics.frozen import hash_files
from avatar_v_data.curation.detectors import (
    LEAST,
    Detector,
    in_square,
    network_files,
    run,
    upright,
)
from avatar_v_data.curation.stages import TICK, Clip, ClipScorer, Frame, Result, Seen

PEOPLE = Detector(224, ((28, 2), (14, 2), (7, 6)), (-1.0, 1.0))
HIPS, RIM = 2, 3
"""Among a find's points, after the middle and the size of the face's box: between the hips, and
upwards from there on the circle around the whole body."""
AROUND = 1.25
"""Reach of what the second network sees, in that circle's radius: MediaPipe's own."""
SIDE, NUM_POINTS, NUM_ANSWERS = 256, 33, 39 * 5
COCO = (0, 2, 5, 7, 8, *range(11, 17), *range(23, 29))
"""Of the 33 points the 17 of COCO: nose, eyes, ears, shoulders, elbows, wrists, hips, knees,
ankles."""
FILES = ("pose_detection/pose_detection.tflite", "pose_landmark/pose_landmark_full.tflite")


class Body(NamedTuple):
    """``points``: x and y in parts of the picture; ``seen``: which are in it, and not covered."""

    points: Float32[np.ndarray, "33 2"]
    seen: Bool[np.ndarray, "33"]


@dataclass(frozen=True)
class BodyStage(ClipScorer):
    """Column, of looks a tick apart: ``body``, the mean share of the body's 17 points that are
    seen, 0 where no person is found."""

    name: ClassVar[str] = "bodies"
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("clips",)
    numbers: ClassVar[tuple[str, ...]] = ("body",)

    def weights(self) -> str:
        return hash_files(_files())

    def score(self, clip: Clip, seen: Seen) -> Result:
        found = [body_in(frame) for frame in clip.frames[::TICK]]
        shares = [0.0 if one is None else float(one.seen[[*COCO]].mean()) for one in found]
        return {"body": round(float(np.mean(shares)), 4)}


def body_in(frame: Frame) -> Body | None:
    """Of the person who is found most surely."""
    people, landmarks = _files()
    square = in_square(frame)
    for person in PEOPLE.found(people, square):
        hips, rim = person[HIPS] * len(square), person[RIM] * len(square)
        reach = AROUND * float(np.hypot(*(rim - hips)))
        cut = upright(frame, square, hips, rim - hips, reach, SIDE)
        answers = {answer.size: answer for answer in run(landmarks, cut.picture)}
        if float(answers[1].item()) < LEAST:
            continue
        rows = answers[NUM_ANSWERS].reshape(-1, 5)[:NUM_POINTS]
        points = cut.in_frame(rows[:, :2])
        clear = rows[:, 3] > 0  # the logit of being in sight
        return Body(points, clear & ((points >= 0) & (points <= 1)).all(1))
    return None


def _files() -> list[Path]:
    return network_files(FILES, "bodies")
