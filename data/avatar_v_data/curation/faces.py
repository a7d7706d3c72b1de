"""How many faces a picture shows, where the largest is, and how it looks, a few times a second."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.critics import face_track
from avatar_v.critics.quality import sharpness
from avatar_v_data.curation.stages import EVERY, Frame, Recording, Result, rounded

SIDE = 64
"""Pixels at which sharpness is measured, so that it compares between cameras."""


@dataclass(frozen=True)
class Faces:
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

    def run(self, recording: Recording, results: Mapping[str, Result]) -> Result:
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


def boxes_between(
    boxes: Sequence[Sequence[float] | None], start: int, stop: int
) -> tuple[Float[Tensor, "f 4"], list[int]]:
    """Boxes of the frames ``start`` to ``stop``, on straight lines between looks, and the frames,
    counted from ``start``, where one was found. ValueError where none was."""
    looks = [n for n in range(len(boxes)) if boxes[n] is not None and start <= n * EVERY < stop]
    if not looks:
        raise ValueError(f"no face between frames {start} and {stop}")
    known = torch.tensor([boxes[n] for n in looks])
    at = torch.tensor([n * EVERY for n in looks], dtype=torch.float32)
    frames = torch.arange(start, stop, dtype=torch.float32).clamp(at[0], at[-1])
    right = torch.searchsorted(at, frames).clamp(1, max(len(at) - 1, 1))
    if len(at) == 1:
        return known.expand(stop - start, 4).clone(), [looks[0] * EVERY - start]
    left = right - 1
    share = ((frames - at[left]) / (at[right] - at[left]))[:, None]
    return torch.lerp(known[left], known[right], share), [n * EVERY - start for n in looks]
