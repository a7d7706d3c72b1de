"""MediaPipe's detectors of faces, palms and bodies: one small network, whose answers are given
relative to a grid of anchors; and what is cut out around a find for the next one."""

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from jaxtyping import Float32, UInt8

from avatar_v_data.curation.stages import Frame

LEAST, OVERLAP = 0.5, 0.3
"""Probability of a find, and overlap from which on two are one: MediaPipe's own."""

Points = Float32[np.ndarray, "points 2"]


@dataclass(frozen=True)
class Detector:
    """``side``: pixels of the picture that the network sees; ``grids``: cells a side and anchors a
    cell, of each grid; ``bounds``: what black and white are to the network."""

    side: int
    grids: tuple[tuple[int, int], ...]
    bounds: tuple[float, float]

    def found(self, file: Path, square: UInt8[np.ndarray, "side side 3"]) -> Iterator[Points]:
        """Of each find, the surest first, the middle and the size of its box, and the points that
        the network of this file knows, in parts of the square's side."""
        picture = cv2.resize(square, (self.side, self.side), interpolation=cv2.INTER_AREA)
        low, high = self.bounds
        answers = run(file, picture * np.float32((high - low) / 255) + np.float32(low))
        scores, points = sorted(answers, key=lambda answer: answer.shape[-1])
        points = points.reshape(len(scores), -1, 2) / np.float32(self.side)
        points[:, [0, *range(2, points.shape[1])]] += self._anchors()[:, None]
        boxes = np.concatenate([points[:, 0] - points[:, 1] / 2, points[:, 1]], 1) * self.side
        sure = 1 / (1 + np.exp(-scores[:, 0].clip(-80, 80)))
        for number in cv2.dnn.NMSBoxes(boxes.tolist(), sure.tolist(), LEAST, OVERLAP):
            yield points[number]

    def _anchors(self) -> Float32[np.ndarray, "anchors 2"]:
        grids = []
        for cells, each in self.grids:
            line = (np.arange(cells, dtype=np.float32) + 0.5) / cells
            grids.append(np.repeat(np.stack(np.meshgrid(line, line), 2).reshape(-1, 2), each, 0))
        return np.concatenate(grids)


def in_square(frame: Frame) -> UInt8[np.ndarray, "side side 3"]:
    """The picture with black to its right or below it."""
    height, width = frame.shape[1:]
    square = np.zeros((max(height, width),) * 2 + (3,), np.uint8)
    square[:height, :width] = frame.permute(1, 2, 0).numpy()
    return square


@dataclass(frozen=True)
class Upright:
    """A part of a frame's square that was cut out and turned upright."""

    picture: Float32[np.ndarray, "s s 3"]  # from 0 to 1
    _back: Float32[np.ndarray, "2 3"]  # from its pixels to the square's
    _size: Float32[np.ndarray, "2"]  # of the frame

    def in_frame(self, points: Float32[np.ndarray, "n 2"]) -> Float32[np.ndarray, "n 2"]:
        """Its pixels in parts of the frame's width and height."""
        return (points @ self._back[:, :2].T + self._back[:, 2]) / self._size


def upright(
    frame: Frame,
    square: UInt8[np.ndarray, "side side 3"],
    middle: Float32[np.ndarray, "2"],
    up: Float32[np.ndarray, "2"],
    reach: float,
    side: int,
) -> Upright:
    """Of the ``square`` of a frame (`in_square`) that around ``middle`` whose upper side lies
    towards ``up``, ``reach`` pixels from its middle to a side, as a picture of ``side`` pixels."""
    up = up / max(float(np.hypot(*up)), 1e-6)
    right = np.array([-up[1], up[0]], np.float32)
    corners = [middle + reach * each for each in (up - right, up + right, -up - right)]
    ends = np.array([[0, 0], [side, 0], [0, side]], np.float32)
    turn = cv2.getAffineTransform(np.stack(corners).astype(np.float32), ends)
    picture = cv2.warpAffine(square, turn, (side, side)) / np.float32(255)
    height, width = frame.shape[1:]
    back = cv2.invertAffineTransform(turn).astype(np.float32)
    return Upright(picture, back, np.array([width, height], np.float32))


def network_files(names: Sequence[str], missing: str) -> list[Path]:
    """Networks of the package mediapipe, of which the weights alone are used: its code asks for an
    older protobuf. ValueError ``missing`` where they are not all there."""
    spec = importlib.util.find_spec("mediapipe")
    if spec is not None and spec.origin is not None and importlib.util.find_spec("ai_edge_litert"):
        files = [Path(spec.origin).parent / "modules" / name for name in names]
        if all(file.is_file() for file in files):  # newer releases hold none
            return files
    raise ValueError(
        f"{missing} need MediaPipe's networks, which lie in a package of Python 3.12 and older: "
        "pip install 'avatar_v[looks]' and pip install --no-deps mediapipe==0.10.14"
    )


def run(file: Path, picture: Float32[np.ndarray, "height width 3"]) -> list[np.ndarray]:
    """All that a network of this file answers."""
    network = _network(file)
    network.set_tensor(network.get_input_details()[0]["index"], picture[None])
    network.invoke()
    return [network.get_tensor(end["index"])[0] for end in network.get_output_details()]


@cache
def _network(file: Path) -> Any:
    from ai_edge_litert.interpreter import Interpreter  # pyright: ignore[reportMissingImports]

    network = Interpreter(model_path=str(file), num_threads=1)  # a worker is one processor
    network.allocate_tensors()
    return network
