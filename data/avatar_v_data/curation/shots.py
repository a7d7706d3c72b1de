"""Where a shot ends and another begins: PySceneDetect's adaptive detector, twice.

A frame is a cut where the change of colour to it is both large and far above its neighbours', so
that a fast movement is none. A dissolve changes little from a frame to the next; among every tenth
frame it is a cut, too. Its frames are kept out by the margin of clips (clips.py).
"""

import importlib.util
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from avatar_v.types import FRAME_RATE_HZ
from avatar_v_data.curation.stages import Frame, Reader, Reads, Result, Seen, Stage

COARSE = 10
"""Frames from one to the next among which a dissolve is a cut."""
LATE = 4 * COARSE
"""Frames behind a cut after which it is sure to be known."""
HOW_TO_INSTALL = "finding cuts needs PySceneDetect: pip install 'avatar_v[data]'"


@dataclass(frozen=True)
class ShotStage(Stage):
    """``threshold``: how far above its neighbours a change is; ``change``: the least, of 255."""

    threshold: float = 3.0  # PySceneDetect's own defaults, both
    change: float = 15.0
    shortest: int = 12  # frames of a shot, at least

    name: ClassVar[str] = "shots"
    version: ClassVar[int] = 2
    reads: ClassVar[Reads] = "frames"
    needs: ClassVar[tuple[str, ...]] = ("probe",)

    def weights(self) -> str:
        if importlib.util.find_spec("scenedetect") is None:
            raise ValueError(HOW_TO_INSTALL)
        return version("scenedetect")

    def begin(self, seen: Seen) -> Reader:
        return _Shots(self)


class _Shots(Reader):
    """``shots`` are, while frames come, those that have ended; ``num_frames`` is there last."""

    def __init__(self, stage: ShotStage) -> None:
        self._fine = _Detector(stage.threshold, stage.change, stage.shortest)
        self._coarse = _Detector(stage.threshold, stage.change, 2)
        self._num = 0
        self.columns = {"shots": []}

    def frame(self, number: int, picture: Frame) -> None:
        bgr = np.ascontiguousarray(picture.flip(0).permute(1, 2, 0).numpy())
        self._fine.see(bgr)
        if number % COARSE == 0:
            self._coarse.see(bgr)
            sure = [cut for cut in self._cuts() if cut <= number + 1 - LATE + COARSE]
            self.columns["shots"] = [list(pair) for pair in pairwise([0, *sure])]
        self._num = number + 1

    def finish(self) -> Result:
        edges = [0, *self._cuts(), self._num]
        return {"num_frames": self._num, "shots": [list(pair) for pair in pairwise(edges)]}

    def _cuts(self) -> list[int]:
        cuts = self._fine.cuts()
        slow = [COARSE * cut for cut in self._coarse.cuts()]
        return sorted(cuts + [s for s in slow if all(abs(s - cut) > COARSE for cut in cuts)])


class _Detector:
    """PySceneDetect's, fed picture by picture."""

    def __init__(self, threshold: float, change: float, shortest: int) -> None:
        import scenedetect

        self._at = scenedetect.FrameTimecode
        self._detector: Any = scenedetect.AdaptiveDetector(
            adaptive_threshold=threshold, min_content_val=change, min_scene_len=shortest
        )
        self._found: set[int] = set()
        self._num = 0

    def see(self, picture: np.ndarray) -> None:
        at = self._at(self._num, float(FRAME_RATE_HZ))
        self._found |= {cut.frame_num for cut in self._detector.process_frame(at, picture)}
        self._num += 1

    def cuts(self) -> list[int]:
        """The first pictures of the shots known so far but the first."""
        return sorted(self._found)
