"""Where a shot ends and another begins: PySceneDetect's adaptive detector.

A frame is a cut where the change of colour to it is both large and far above its neighbours', so
that a fast movement is none. Dissolves of half a second are found where their pictures differ much;
the margin of clips (clips.py) keeps their frames out.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from avatar_v.types import FRAME_RATE_HZ
from avatar_v_data.curation.stages import Recording, Result

HOW_TO_INSTALL = "finding cuts needs PySceneDetect: pip install 'avatar_v[data]'"


@dataclass(frozen=True)
class Shots:
    """``threshold``: how far above its neighbours a change is; ``change``: the least, of 255."""

    threshold: float = 3.0  # PySceneDetect's own defaults, both
    change: float = 15.0
    shortest: int = 12  # frames of a shot, at least

    name: ClassVar[str] = "shots"
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("probe",)

    def weights(self) -> str:
        if importlib.util.find_spec("scenedetect") is None:
            raise ImportError(HOW_TO_INSTALL)
        return version("scenedetect")

    def run(self, recording: Recording, results: Mapping[str, Result]) -> Result:
        import scenedetect

        found: Any = scenedetect.AdaptiveDetector(
            adaptive_threshold=self.threshold,
            min_scene_len=self.shortest,
            min_content_val=self.change,
        )

        def at(number: int) -> Any:
            return scenedetect.FrameTimecode(number, float(FRAME_RATE_HZ))

        cuts, num = [], 0
        for num, frame in enumerate(recording.frames(), 1):
            picture = np.ascontiguousarray(frame.flip(0).permute(1, 2, 0).numpy())  # BGR
            cuts += found.process_frame(at(num - 1), picture)
        cuts += found.post_process(at(num - 1))
        edges = [0, *sorted({cut.frame_num for cut in cuts}), num]
        return {"num_frames": num, "shots": [list(pair) for pair in pairwise(edges)]}
