"""How many faces a picture shows, where the largest is, and how it looks, a few times a second."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from avatar_v.critics.quality import sharpness
from avatar_v.faces import face_track
from avatar_v_data.curation.stages import EVERY, FootageRecording, Frame, Result, rounded

SIDE = 64
"""Pixels at which sharpness is measured, so that it compares between cameras."""


@dataclass(frozen=True)
class FaceStage:
    """dlib's frontal detector, every `EVERY` frames: a head turned away counts as none.

    Of each look: ``counts`` of faces, the largest one's ``boxes`` (fractions of the picture) and
    ``sharpness`` (variance of the Laplacian at 64 pixels).
    """

    name: ClassVar[str] = "faces"
    version: ClassVar[int] = 2
    needs: ClassVar[tuple[str, ...]] = ("probe",)

    def weights(self) -> str:
        if not face_track.is_available():
            raise ImportError("finding faces needs dlib: pip install 'avatar_v[faces]'")
        return ""

    def run(self, recording: FootageRecording, results: Mapping[str, Result]) -> Result:
        counts, boxes, sharp, num = [], [], [], 0
        for number, frame in enumerate(recording.frames()):
            num = number + 1
            if number % EVERY:
                continue
            height, width = frame.shape[1:]
            size = torch.tensor([width, height, width, height], dtype=torch.float32)
            found = face_track.detect_faces(frame)
            counts.append(len(found))
            boxes.append(rounded(torch.from_numpy(found[0]) / size) if found else None)
            sharp.append(_sharpness(frame, found[0]) if found else None)
        return {"num_frames": num, "counts": counts, "boxes": boxes, "sharpness": sharp}


def _sharpness(frame: Frame, box: np.ndarray) -> float:
    centre, side = (box[:2] + box[2:]) / 2, float((box[2:] - box[:2]).max())
    window = torch.from_numpy(np.concatenate([centre - side / 2, centre + side / 2])).float()
    face = face_track.crop(frame[None], window[None].round(), SIDE)
    return round(float(sharpness(face)), 2)
