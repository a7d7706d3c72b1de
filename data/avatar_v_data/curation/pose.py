"""Body and hands in a clip: by a whole-body pose network of the user's, as RTMPose, RTMW and DWPose
are handed out in ONNX (133 points of COCO-WholeBody, coordinates by SimCC)."""

import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from avatar_v.critics.frozen import hash_files
from avatar_v_data.curation.heads import boxes_between, lies_in
from avatar_v_data.curation.stages import TICK, Clip, ClipScorer, Result, Seen

BODY, HANDS = slice(0, 17), (slice(91, 112), slice(112, 133))
SEEN = 0.3
"""Of a point's score, from which on it counts as seen."""
SOURCE = (
    "a whole-body network of RTMPose, RTMW or DWPose in ONNX, for example dw-ll_ucoco_384.onnx of "
    "`hf download yzd-v/DWPose --local-dir FOLDER` (Apache-2.0)"
)
HOW_TO_INSTALL = "poses need rtmlib: pip install --no-deps rtmlib==0.0.16"


@dataclass(frozen=True)
class PoseStage(ClipScorer):
    """``model``: the ONNX file.

    Columns, of looks a tick apart: ``hands``, the share in which most points of a hand are seen;
    ``hand_clarity``, the mean score of that hand's points there, 0 without; ``hands_on_face``, the
    share in which a hand's middle lies within the face's box; ``body``, the mean share of the
    body's 17 points that are seen.
    """

    model: str = "weights/dw-ll_ucoco_384.onnx"

    name: ClassVar[str] = "pose"
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("faces", "clips")
    numbers: ClassVar[tuple[str, ...]] = ("hands", "hand_clarity", "hands_on_face", "body")

    def weights(self) -> str:
        if importlib.util.find_spec("rtmlib") is None:
            raise ValueError(HOW_TO_INSTALL)
        if not Path(self.model).is_file():
            raise ValueError(f"pose: no file {self.model}; expected {SOURCE}")
        return hash_files([Path(self.model)])

    def score(self, clip: Clip, seen: Seen) -> Result:
        boxes, _ = boxes_between(seen.results["faces"]["boxes"], clip.start, clip.stop)
        clear, on_face, bodies = [], [], []
        for number in range(0, len(clip.frames), TICK):
            frame = clip.frames[number]
            size = frame.shape[:0:-1]
            bgr = np.ascontiguousarray(frame.flip(0).permute(1, 2, 0).numpy())
            points, scores = (part[0] for part in _network(self.model)(bgr))
            shown = [hand for hand in HANDS if (scores[hand] >= SEEN).mean() > 0.5]
            middles = [(np.median(points[hand], 0) / size).tolist() for hand in shown]
            box = boxes[number].tolist()
            on_face.append(any(lies_in(middle, box) for middle in middles))
            clear += [max(float(scores[hand].mean()) for hand in shown)] if shown else []
            bodies.append((scores[BODY] >= SEEN).mean())
        return {
            "hands": round(len(clear) / len(bodies), 4),
            "hand_clarity": round(float(np.mean(clear or [0.0])), 4),
            "hands_on_face": round(float(np.mean(on_face)), 4),
            "body": round(float(np.mean(bodies)), 4),
        }


@cache
def _network(model: str) -> Any:
    """ValueError for a file that is none of `SOURCE`."""
    import onnxruntime  # pyright: ignore[reportMissingImports]
    from rtmlib import RTMPose  # pyright: ignore[reportMissingImports]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # a worker is one processor
    session = onnxruntime.InferenceSession(model, options)
    size, ends = session.get_inputs()[0].shape[2:], session.get_outputs()
    points = [end.shape[1] for end in ends if len(end.shape) == 3]
    if not all(isinstance(side, int) for side in size) or points != [133, 133]:
        raise ValueError(f"pose: {model} gives {points} points of {size}; expected {SOURCE}")
    network = RTMPose(model, (size[1], size[0]), backend="onnxruntime")
    network.session = session
    return network
