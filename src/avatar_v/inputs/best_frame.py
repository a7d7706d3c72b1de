"""Which picture of the reference clip shows the person best, by simple measures.

Blurred frames are out (`sharp_enough`). With a face track the rest is ranked by how frontal it is,
how open the eyes and how closed the mouth; the ranks are averaged, so no measure needs a scale or a
weight. Where the picture is taken whole (framing.py) the ranks are of the motion that an extractor
reads, and a face behind a hand is out, too. Where nothing reads the motion either, the frame wins
that differs least, in its worst part, from the median of its neighbours in time: blinks, wide
mouths and quick turns are short and local. (A person may also hold still while looking aside or
behind a hand, which only a reading of the face tells.) The clip is never held as a whole.
"""

import dataclasses
import math
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.base.video_format import VideoFormat
from avatar_v.base.words import counted
from avatar_v.critics.quality import sharp_enough, sharpness
from avatar_v.faces.face_track import FaceTrack, centre_windows, crop, crop_windows
from avatar_v.inputs.framing import find_person
from avatar_v.motion.extractors import Extractor, extract
from avatar_v.types import MOTION_NAMES

Frames = UInt8[Tensor, "f 3 h w"]

SEARCH_S = 30.0
"""How much of a long reference is looked at."""
MAX_FACES = 32
"""Frames in which a face is searched or its motion read, spread over that time: 2 to 3 seconds of
work."""
MAX_SIDE = 720
"""Pixels: candidates are held at no more than this."""
COVERED = 0.5
"""Of a face that is hidden: more of it is not seen than is."""
THUMBNAIL, BLOCK = 64, 4
NEAR = 8


@dataclass(frozen=True)
class BestFrame:
    """The picture to start from, at the source's resolution."""

    image: UInt8[Tensor, "3 h w"]
    index: int  # of the clip at the weights' rate
    num_frames: int  # looked at
    warnings: tuple[str, ...] = ()


def best_frame(
    path: str | Path,
    *,
    video: VideoFormat,
    face_crop: bool,
    drawn: bool = False,
    search_s: float = SEARCH_S,
    extractor: Extractor | None = None,
) -> BestFrame:
    """The best frame of a clip or a still: its head (``drawn``: as framing.py finds it for weights
    of drawn people), or its centre, in the aspect of ``video``, by the motion that ``extractor``
    reads. The first ``search_s`` seconds are looked at.

    ValueError: unreadable, no video, no frames, no face, or the [faces] extra is missing.
    """
    notes: tuple[str, ...] = ()
    if face_crop:
        candidates, stride = _candidates(path, search_s, video, centred=False)
        looked = f"in {counted(len(candidates), 'frame')} looked at"
        track, notes = find_person(
            path, candidates, drawn=drawn, extractor=extractor, looked=looked,
            aspect=video.aspect, detect_every=1,
        )  # fmt: skip
        if track is not None:
            return _best_face(path, candidates, stride, track, video, notes)
    read = None if extractor is None else _best_read(path, search_s, video, extractor)
    return dataclasses.replace(read or _most_usual(path, search_s, video), warnings=notes)


def unusualness(grey: Float[Tensor, "f h w"]) -> Float[Tensor, " f"]:
    """How far each picture's worst block is from the median of the frames around it.

    The neighbours are ``NEAR`` frames on either side: longer than a blink twice over, shorter than
    a change of pose. The mean absolute difference over a block of ``BLOCK`` pixels, at its largest.
    """
    near = [grey[max(0, i - NEAR) : i + NEAR + 1].median(0).values for i in range(len(grey))]
    difference = (grey - torch.stack(near)).abs()
    return F.avg_pool2d(difference[:, None], BLOCK).flatten(1).amax(1)


def face_measures(points: Float[Tensor, "f 68 2"]) -> tuple[Tensor, Tensor, Tensor]:
    """How turned, how shut-eyed and how open-mouthed each face is; smaller is better.

    From the 68 iBUG landmarks: the nose tip's distance from midway between the outer eye corners,
    in units of theirs; minus the eye aspect ratio (Soukupová and Čech 2016), the mean of both eyes;
    the gap between the lips over the width of the mouth.
    """

    def distance(a: int, b: int) -> Tensor:
        return (points[:, a] - points[:, b]).norm(dim=-1)

    left, right, nose = points[:, 36], points[:, 45], points[:, 30]
    axis = (right - left) / (right - left).norm(dim=-1, keepdim=True)
    turned = ((nose - (left + right) / 2) * axis).sum(-1).abs() / distance(36, 45)
    eyes = [
        (distance(i + 1, i + 5) + distance(i + 2, i + 4)) / (2 * distance(i, i + 3))
        for i in (36, 42)
    ]
    return turned, -(eyes[0] + eyes[1]) / 2, distance(62, 66) / distance(60, 64)


def motion_measures(motion: Float[Tensor, "f m"]) -> list[Float[Tensor, " f"]]:
    """How turned, shut-eyed and open-mouthed each face is, and how far it looks aside; smaller is
    better. Of what the motion (types.MOTION_NAMES) does not tell, alike in all frames, nothing."""

    def of(name: str) -> Float[Tensor, " f"]:
        return motion[:, MOTION_NAMES.index(name)]

    turned = of("yaw").square() + of("pitch").square()
    aside = of("gaze_x").square() + of("gaze_y").square()
    measures = (turned, -of("eye_open"), of("mouth_open"), aside)
    return [measure for measure in measures if float(measure.max() - measure.min()) > 0]


def mean_rank(*measures: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The average over measures of each candidate's rank, 0 for the smallest value."""
    ranks = [measure.argsort(stable=True).argsort(stable=True) for measure in measures]
    return torch.stack(ranks).float().mean(0)


def _candidates(
    path: str | Path, search_s: float, video: VideoFormat, *, centred: bool
) -> tuple[Frames, int]:
    """The frames that are looked at, ``MAX_FACES`` at most, whole or their centres, and how far
    they are apart."""
    from avatar_v.media import reading

    duration_s = reading.probe(path).duration_s or search_s
    rate = video.frame_rate_hz
    stride = max(1, math.ceil(min(duration_s, search_s) * rate / MAX_FACES))
    frames = reading.iter_video(path, frame_rate_hz=rate)
    wanted = islice(frames, 0, MAX_FACES * stride, stride)
    cut = (_centre(frame, video) if centred else frame for frame in wanted)
    return torch.stack([_reduced(frame, MAX_SIDE) for frame in cut]), stride


def _best_face(
    path: str | Path,
    candidates: Frames,
    stride: int,
    track: FaceTrack,
    video: VideoFormat,
    notes: tuple[str, ...],
) -> BestFrame:
    pick = _pick_face(candidates, track)
    one = FaceTrack(track.box[[pick]], track.landmarks[[pick]], track.found[[pick]], 1)
    frame = _frame(path, pick * stride, video)
    window = crop_windows(one, *frame.shape[1:], aspect=video.aspect, framing=video.framing)
    return BestFrame(_cut(frame, window[0]), pick * stride, len(candidates), notes)


def _pick_face(candidates: Frames, track: FaceTrack) -> int:
    """The candidate of the best mean rank among those with a face that is sharp enough."""
    height, width = candidates.shape[2:]
    found = track.found.nonzero().flatten().tolist()
    pixels = (track.box * torch.tensor([width, height, width, height])).long().clamp(min=0)
    sharp = [
        float(sharpness(candidates[i : i + 1, :, y0 : y1 + 3, x0 : x1 + 3]))
        for i, (x0, y0, x1, y1) in ((i, pixels[i].tolist()) for i in found)
    ]
    kept = torch.tensor(found)[sharp_enough(torch.tensor(sharp))]
    ranks = mean_rank(*face_measures(track.landmarks[kept]))
    return int(kept[int(ranks.argmin())])


def _best_read(
    path: str | Path, search_s: float, video: VideoFormat, extractor: Extractor
) -> BestFrame | None:
    """The candidate of the best mean rank among those that are sharp enough and not hidden; None
    where the motion tells no frame from another."""
    candidates, stride = _candidates(path, search_s, video, centred=True)
    num, _, *size = candidates.shape
    squares = crop(candidates, centre_windows(num, *size), min(size))  # what extractors read
    motion = extract(extractor, squares, None)
    sharp = torch.stack([sharpness(picture[None])[0] for picture in candidates])
    seen = motion[:, MOTION_NAMES.index("cover")] < COVERED
    choices = (sharp_enough(sharp) & seen, seen, sharp_enough(sharp))
    kept = next(fits for fits in choices if fits.any()).nonzero().flatten()
    measures = motion_measures(motion[kept])
    if not measures and len(kept) > 1:
        return None
    pick = int(kept[int(mean_rank(*measures).argmin()) if measures else 0])
    return BestFrame(
        _centre(_frame(path, pick * stride, video), video), pick * stride, len(candidates)
    )


def _frame(path: str | Path, index: int, video: VideoFormat) -> UInt8[Tensor, "3 h w"]:
    """One whole frame of a clip, at the rate of ``video``."""
    from avatar_v.media import reading

    return next(islice(reading.iter_video(path, frame_rate_hz=video.frame_rate_hz), index, None))


def _centre(frame: UInt8[Tensor, "3 h w"], video: VideoFormat) -> UInt8[Tensor, "3 h2 w2"]:
    return _cut(frame, centre_windows(1, *frame.shape[1:], aspect=video.aspect)[0])


def _most_usual(path: str | Path, search_s: float, video: VideoFormat) -> BestFrame:
    from avatar_v.media import reading

    limit = max(1, round(search_s * video.frame_rate_hz))
    small, sharp = [], []
    for frame in islice(reading.iter_video(path, frame_rate_hz=video.frame_rate_hz), limit):
        centre = _centre(frame, video)
        sharp.append(float(sharpness(_reduced(centre, 4 * THUMBNAIL)[None])))
        small.append(_thumbnail(centre))
    score = unusualness(torch.stack(small).mean(1))
    score[~sharp_enough(torch.tensor(sharp))] = math.inf
    index = int(score.argmin())
    return BestFrame(_centre(_frame(path, index, video), video), index, len(small))


def _reduced(frame: UInt8[Tensor, "3 h w"], side: int) -> UInt8[Tensor, "3 h2 w2"]:
    """No side longer than ``side`` pixels."""
    factor = min(1.0, side / max(frame.shape[1:]))
    if factor == 1.0:
        return frame
    size = [max(1, round(factor * n)) for n in frame.shape[1:]]
    return F.interpolate(frame[None].float(), size=size, mode="area")[0].round().to(torch.uint8)


def _thumbnail(picture: UInt8[Tensor, "3 h w"]) -> Float[Tensor, "3 t t"]:
    size = (THUMBNAIL, THUMBNAIL)
    return F.interpolate(picture[None].float(), size=size, mode="bilinear", antialias=True)[0]


def _cut(frame: UInt8[Tensor, "3 h w"], window: Tensor) -> UInt8[Tensor, "3 h2 w2"]:
    """A window in pixels; beyond the picture its border repeats (as face_track.crop)."""
    x0, y0, x1, y1 = window.round().long().tolist()
    rows = torch.arange(y0, y1).clamp(0, frame.shape[1] - 1)
    columns = torch.arange(x0, x1).clamp(0, frame.shape[2] - 1)
    return frame[:, rows][:, :, columns].contiguous()
