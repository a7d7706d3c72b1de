"""The head of a clip, cut out as training sees it, from the boxes of faces.py."""

from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import UInt8
from torch import Tensor

from avatar_v.critics import face_track
from avatar_v_data.curation.faces import boxes_between
from avatar_v_data.curation.stages import Frames, Result

Crop = Literal["face", "centre"]


def head(frames: Frames, start: int, results: Mapping[str, Result], size: int) -> Tensor:
    """The head of each frame, "f 3 size size" uint8; ``frames`` begin at ``start``."""
    num, _, height, width = frames.shape
    boxes, seen = boxes_between(results["faces"]["boxes"], start, start + num)
    found = torch.zeros(num, dtype=torch.bool)
    found[seen] = True
    track = face_track.FaceTrack(boxes, torch.zeros(num, 68, 2), found, 1)
    return face_track.crop(frames, face_track.crop_windows(track, height, width), size)


def square(frames: Frames, size: int) -> UInt8[Tensor, "f 3 size size"]:
    """The largest centred square, which is how the world frames its people."""
    windows = face_track.centre_windows(len(frames), *frames.shape[2:])
    return face_track.crop(frames, windows, size)
