"""Text in the picture, such as subtitles, logos and screens: by PP-OCR, whose weights lie in the
package rapidocr-onnxruntime."""

import importlib.util
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any, ClassVar

import cv2
import numpy as np

from avatar_v_data.curation.heads import boxes_between
from avatar_v_data.curation.stages import Clip, ClipScorer, Result, Seen

NUM_SEEN = 3
"""Pictures of a clip that are read."""
READ_SIDE = 960
"""Pixels of their longer side, at most."""
SURE = 0.8
"""Of a line's score, from which on it is text: eyes behind glasses were read as "OHO" with .7."""
HOW_TO_INSTALL = (
    "text in pictures needs rapidocr: pip install 'avatar_v[looks]' and "
    "pip install --no-deps rapidocr-onnxruntime==1.4.4"
)


@dataclass(frozen=True)
class TextStage(ClipScorer):
    """Columns: ``text``, the share of the picture that is text, the mean of `NUM_SEEN` pictures;
    ``text_on_face``, the largest share of the face's box that is; ``text_read``, the words of the
    picture with most of them."""

    name: ClassVar[str] = "text"
    version: ClassVar[int] = 2
    needs: ClassVar[tuple[str, ...]] = ("faces", "clips")
    numbers: ClassVar[tuple[str, ...]] = ("text", "text_on_face")
    texts: ClassVar[tuple[str, ...]] = ("text_read",)

    @property
    def side(self) -> int:
        return READ_SIDE

    def weights(self) -> str:
        if not all(map(importlib.util.find_spec, ("rapidocr_onnxruntime", "pyclipper", "shapely"))):
            raise ValueError(HOW_TO_INSTALL)
        return version("rapidocr-onnxruntime")

    def score(self, clip: Clip, seen: Seen) -> Result:
        boxes, _ = boxes_between(seen.results["faces"]["boxes"], clip.start, clip.stop)
        shares, on_face, words = [], [0.0], [""]
        for frame in clip.some(NUM_SEEN):
            picture = np.ascontiguousarray(frame.flip(0).permute(1, 2, 0).numpy())
            lines: list[Any] = _reader()(picture, use_cls=False)[0] or []
            covered = np.zeros(picture.shape[:2], np.uint8)
            for corners, _, _ in lines:
                cv2.fillPoly(covered, [np.round(corners).astype(np.int32)], 1)
            height, width = picture.shape[:2]
            size = np.array([width, height, width, height])
            left, top, right, bottom = map(int, boxes.mean(0).clamp(0, 1).numpy() * size)
            face = covered[top:bottom, left:right]
            shares.append(covered.mean())
            on_face.append(face.mean() if face.size else 0.0)
            words.append(" ".join(text for _, text, _ in lines))
        return {
            "text": round(float(np.mean(shares)), 4),
            "text_on_face": round(float(max(on_face)), 4),
            "text_read": max(words, key=len),
        }


@cache
def _reader() -> Any:
    from rapidocr_onnxruntime import RapidOCR  # pyright: ignore[reportMissingImports]

    return RapidOCR(
        text_score=SURE,
        det_limit_side_len=READ_SIDE,
        det_limit_type="max",
        intra_op_num_threads=1,
        inter_op_num_threads=1,
    )
