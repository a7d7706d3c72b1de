"""What other stages read of the faces that faces.py found: their boxes, and the head cut out."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from avatar_v.faces import face_track
from avatar_v_data.curation.stages import TICK, Frames

Boxes = Sequence[Sequence[float] | None]
AROUND = 2.2
"""Side of what counts as the head, in sides of the face's box."""


def head(frames: Frames, start: int, found: Boxes, size: int) -> UInt8[Tensor, "f 3 size size"]:
    """The head in each frame, as samples cut it out; ``frames`` begin at ``start`` of the
    recording, ``found`` are its boxes by tick."""
    num, _, height, width = frames.shape
    boxes, seen = boxes_between(found, start, start + num)
    is_seen = torch.zeros(num, dtype=torch.bool)
    is_seen[seen] = True
    track = face_track.FaceTrack(boxes, torch.zeros(num, 68, 2), is_seen, 1)
    return face_track.crop(frames, face_track.crop_windows(track, height, width), size)


def body(boxes: Float[Tensor, "f 4"], height: int, width: int) -> Bool[Tensor, "height width"]:
    """Where the head is in any of the frames, and what is below it."""
    middle, reach = (boxes[:, :2] + boxes[:, 2:]) / 2, AROUND * (boxes[:, 2:] - boxes[:, :2]) / 2
    low, high = (middle - reach).amin(0), (middle + reach).amax(0)
    x, y = (torch.arange(n) + 0.5 for n in (width, height))
    return (y / height > low[1])[:, None] & (x / width > low[0]) & (x / width < high[0])


def boxes_between(boxes: Boxes, start: int, stop: int) -> tuple[Float[Tensor, "f 4"], list[int]]:
    """Boxes of the frames ``start`` to ``stop``, on straight lines between ticks, and the frames,
    counted from ``start``, where one was found. ValueError where none was."""
    ticks = [n for n in range(len(boxes)) if boxes[n] is not None and start <= n * TICK < stop]
    if not ticks:
        raise ValueError(f"no face between frames {start} and {stop}")
    known = torch.tensor([boxes[n] for n in ticks])
    at = torch.tensor([n * TICK for n in ticks], dtype=torch.float32)
    frames = torch.arange(start, stop, dtype=torch.float32).clamp(at[0], at[-1])
    right = torch.searchsorted(at, frames).clamp(1, max(len(at) - 1, 1))
    if len(at) == 1:
        return known.expand(stop - start, 4).clone(), [ticks[0] * TICK - start]
    left = right - 1
    share = ((frames - at[left]) / (at[right] - at[left]))[:, None]
    return torch.lerp(known[left], known[right], share), [n * TICK - start for n in ticks]


def lies_in(point: Sequence[float], box: Sequence[float]) -> bool:
    """Whether a point, x and y in parts of the picture, lies within a box."""
    left, top, right, bottom = box
    return left < point[0] < right and top < point[1] < bottom
