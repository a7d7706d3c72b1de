"""Where a shot ends and another begins: PySceneDetect's adaptive detector, twice.

A frame is a cut where the change of colour to it is both large and far above its neighbours', so
that a fast movement is none. A dissolve changes little from a frame to the next; among every tenth
frame it is a cut, too. Its frames are kept out by the margin of clips (clips.py).
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from avatar_v.types import FRAME_RATE_HZ
from avatar_v_data.curation.stages import FootageRecording, Result

COARSE = 10
"""Frames from one to the next among which a dissolve is a cut."""
HOW_TO_INSTALL = "finding cuts needs PySceneDetect: pip install 'avatar_v[data]'"


@dataclass(frozen=True)
class ShotStage:
    """``threshold``: how far above its neighbours a change is; ``change``: the least, of 255."""

    threshold: float = 3.0  # PySceneDetect's own defaults, both
    change: float = 15.0
    shortest: int = 12  # frames of a shot, at least

    name: ClassVar[str] = "shots"
    version: ClassVar[int] = 2
    needs: ClassVar[tuple[str, ...]] = ("probe",)

    def weights(self) -> str:
        if importlib.util.find_spec("scenedetect") is None:
            raise ImportError(HOW_TO_INSTALL)
        return version("scenedetect")

    def run(self, recording: FootageRecording, results: Mapping[str, Result]) -> Result:
        num, fine, coarse = 0, self._detector(self.shortest), self._detector(2)
        for num, frame in enumerate(recording.frames(), 1):
            picture = np.ascontiguousarray(frame.flip(0).permute(1, 2, 0).numpy())  # BGR
            fine.see(picture)
            if (num - 1) % COARSE == 0:
                coarse.see(picture)
        cuts = fine.cuts()
        slow = [COARSE * cut for cut in coarse.cuts()]
        cuts += [cut for cut in slow if all(abs(cut - other) > COARSE for other in cuts)]
        edges = [0, *sorted(cuts), num]
        return {"num_frames": num, "shots": [list(pair) for pair in pairwise(edges)]}

    def _detector(self, shortest: int) -> "_Detector":
        return _Detector(self.threshold, self.change, shortest)


class _Detector:
    """PySceneDetect's, fed picture by picture."""

    def __init__(self, threshold: float, change: float, shortest: int) -> None:
        import scenedetect

        self._at = scenedetect.FrameTimecode
        self._detector: Any = scenedetect.AdaptiveDetector(
            adaptive_threshold=threshold, min_content_val=change, min_scene_len=shortest
        )
        self._found: list[Any] = []
        self._num = 0

    def see(self, picture: np.ndarray) -> None:
        self._found += self._detector.process_frame(self._time(self._num), picture)
        self._num += 1

    def cuts(self) -> list[int]:
        """The first pictures of shots but the first, when all were seen."""
        self._found += self._detector.post_process(self._time(max(self._num - 1, 0)))
        return sorted({cut.frame_num for cut in self._found})

    def _time(self, number: int) -> Any:
        return self._at(number, float(FRAME_RATE_HZ))
