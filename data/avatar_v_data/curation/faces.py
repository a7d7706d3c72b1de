"""How many faces a picture shows, where the largest is, and how it looks, a few times a second."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from avatar_v.critics.quality import sharpness
from avatar_v.faces import face_track
from avatar_v_data.curation.stages import TICK, Frame, Reader, Reads, Seen, Stage, rounded

SIDE = 64
"""Pixels at which sharpness is measured, so that it compares between cameras."""


@dataclass(frozen=True)
class FaceStage(Stage):
    """dlib's frontal detector, every `TICK` frames: a head turned away counts as none, and so does
    what another recording shows or what stands still, where ``prints`` say so beforehand.

    By tick: ``counts`` of faces, the largest one's ``boxes`` (fractions of the picture) and
    ``sharpness`` (variance of the Laplacian at 64 pixels).
    """

    name: ClassVar[str] = "faces"
    version: ClassVar[int] = 2
    reads: ClassVar[Reads] = "frames"
    needs: ClassVar[tuple[str, ...]] = ("probe",)
    uses: ClassVar[tuple[str, ...]] = ("prints",)

    def weights(self) -> str:
        if not face_track.is_available():
            raise ValueError("finding faces needs dlib: pip install 'avatar_v[faces]'")
        return ""

    def begin(self, seen: Seen) -> Reader:
        return _Faces(seen.recording.left_out)


class _Faces(Reader):
    def __init__(self, left_out: Sequence[tuple[int, int]]) -> None:
        self._left_out = left_out
        self.columns = {"counts": [], "boxes": [], "sharpness": []}

    def frame(self, number: int, picture: Frame) -> None:
        if number % TICK:
            return
        height, width = picture.shape[1:]
        size = torch.tensor([width, height, width, height], dtype=torch.float32)
        is_out = any(start <= number < stop for start, stop in self._left_out)
        found = [] if is_out else face_track.detect_faces(picture)
        box = rounded(torch.from_numpy(found[0]) / size) if found else None
        self.columns["counts"].append(len(found))
        self.columns["boxes"].append(box)
        self.columns["sharpness"].append(_sharpness(picture, found[0]) if found else None)


def _sharpness(frame: Frame, box: np.ndarray) -> float:
    centre, side = (box[:2] + box[2:]) / 2, float((box[2:] - box[:2]).max())
    window = torch.from_numpy(np.concatenate([centre - side / 2, centre + side / 2])).float()
    face = face_track.crop(frame[None], window[None].round(), SIDE)
    return round(float(sharpness(face)), 2)
