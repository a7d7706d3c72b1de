"""How much the person moves, and how much the camera: by optical flow (OpenCV's DIS)."""

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar

import cv2
import numpy as np
from jaxtyping import Float32

from avatar_v_data.curation.heads import body, boxes_between
from avatar_v_data.curation.stages import TICK, Clip, ClipScorer, Result, Seen, seconds

HEIGHT = 120
"""Pixels of the pictures that are compared, a tick apart."""
GRID = 6
"""Pixels between the points that the camera's movement is fitted to."""
OFF = 0.5
"""Pixels by which a point may leave the camera's movement."""


@dataclass(frozen=True)
class FlowStage(ClipScorer):
    """Columns, in hundredths of the picture's height a second: ``camera_motion``, the mean movement
    of the similarity (pan, zoom, roll) that most of the background follows; ``subject_motion``, how
    much head and body move besides. Background without texture stands still."""

    name: ClassVar[str] = "flow"
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("faces", "clips")
    numbers: ClassVar[tuple[str, ...]] = ("camera_motion", "subject_motion")

    def score(self, clip: Clip, seen: Seen) -> Result:
        boxes, _ = boxes_between(seen.results["faces"]["boxes"], clip.start, clip.stop)
        pictures = [_small(frame.numpy()) for frame in clip.frames[::TICK]]
        person = body(boxes, *pictures[0].shape).numpy()
        moved = []
        for before, after in pairwise(pictures):
            flow = _flow().calc(before, after, None)
            camera = _camera(flow, ~person)
            own = np.linalg.norm(flow - camera, axis=2)[person].mean() if person.any() else 0.0
            moved.append((np.linalg.norm(camera, axis=2).mean(), own))
        camera, subject = np.mean(moved, 0) / HEIGHT / seconds(TICK) if moved else (0.0, 0.0)
        return {
            "camera_motion": round(100 * float(camera), 3),
            "subject_motion": round(100 * float(subject), 3),
        }


def _camera(flow: Float32[np.ndarray, "h w 2"], behind: np.ndarray) -> np.ndarray:
    """The similarity that most points behind the person follow, at each pixel; of all points where
    there is next to nothing behind."""
    grid = np.stack(np.meshgrid(*map(np.arange, flow.shape[1::-1])), 2).astype(np.float32)
    points, moved = grid[::GRID, ::GRID], flow[::GRID, ::GRID]
    chosen = behind[::GRID, ::GRID]
    chosen = chosen if chosen.sum() > 8 else np.ones_like(chosen)
    fitted, _ = cv2.estimateAffinePartial2D(
        points[chosen], (points + moved)[chosen], ransacReprojThreshold=OFF
    )
    return np.zeros_like(flow) if fitted is None else grid @ fitted[:, :2].T + fitted[:, 2] - grid


def _small(frame: np.ndarray) -> np.ndarray:
    grey = frame.mean(0).astype(np.uint8)
    size = (max(round(HEIGHT * grey.shape[1] / grey.shape[0]), 16), HEIGHT)
    return cv2.resize(grey, size, interpolation=cv2.INTER_AREA)


@cache
def _flow() -> Any:
    return cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST)
