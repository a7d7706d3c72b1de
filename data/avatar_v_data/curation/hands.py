"""Hands in a clip: MediaPipe's two networks, one that finds palms, one that says of what it found
whether it is a hand, and where its points are."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float32

from avatar_v.critics.frozen import hash_files
from avatar_v_data.curation.detectors import (
    LEAST,
    Detector,
    in_square,
    network_files,
    run,
    upright,
)
from avatar_v_data.curation.heads import lies_in
from avatar_v_data.curation.stages import TICK, Clip, ClipScorer, Frame, Result, Seen

PALMS = Detector(192, ((24, 2), (12, 6)), (0.0, 1.0))
WRIST, MIDDLE_FINGER = 2, 4
"""Among a palm's points, after the middle and the size of the box."""
AROUND, UP = 2.6, 0.5
"""Side of what the second network sees, and how far towards the fingers its middle lies from the
palm's, in the palm's size: MediaPipe's own."""
SIDE = 224
FILES = ("palm_detection/palm_detection_full.tflite", "hand_landmark/hand_landmark_full.tflite")


class Hand(NamedTuple):
    """``sure``: that it is one, 0 to 1; ``points``: 21, x and y in parts of the picture."""

    sure: float
    points: Float32[np.ndarray, "21 2"]

    @property
    def middle(self) -> list[float]:
        return np.median(self.points, 0).tolist()


@dataclass(frozen=True)
class HandStage(ClipScorer):
    """Columns, of looks a tick apart: ``hands``, the share in which a hand is seen;
    ``hand_clarity``, the mean of how sure the surest of a look is, 0 without hands;
    ``hands_on_face``, the share in which a hand's middle lies within the face's box, where `faces`
    found one."""

    name: ClassVar[str] = "hands"
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("faces", "clips")
    numbers: ClassVar[tuple[str, ...]] = ("hands", "hand_clarity", "hands_on_face")

    def weights(self) -> str:
        return hash_files(_files())

    def score(self, clip: Clip, seen: Seen) -> Result:
        looks = [list(hands(frame)) for frame in clip.frames[::TICK]]
        sure = [max(hand.sure for hand in look) for look in looks if look]
        first = clip.start // TICK
        boxes = seen.results["faces"]["boxes"][first : first + len(looks)]
        covered = [
            box is not None and any(lies_in(hand.middle, box) for hand in look)
            for look, box in zip(looks, boxes, strict=True)
        ]
        return {
            "hands": round(len(sure) / len(looks), 4),
            "hand_clarity": round(float(np.mean(sure or [0.0])), 4),
            "hands_on_face": round(sum(covered) / len(looks), 4),
        }


def hands(frame: Frame) -> Iterator[Hand]:
    """The hands in a picture, that of the surest palm first."""
    palms, landmarks = _files()
    square = in_square(frame)
    for palm in PALMS.found(palms, square):
        up = palm[MIDDLE_FINGER] - palm[WRIST]
        size = float(palm[1].max()) * len(square)
        middle = palm[0] * len(square) + UP * size * up / max(float(np.hypot(*up)), 1e-6)
        cut = upright(frame, square, middle, up, AROUND * size / 2, SIDE)
        points, sure, *_ = run(landmarks, cut.picture)
        if float(sure[0]) < LEAST:
            continue
        yield Hand(float(sure[0]), cut.in_frame(points.reshape(21, 3)[:, :2]))


def _files() -> list[Path]:
    return network_files(FILES, "hands")
