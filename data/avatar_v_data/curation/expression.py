"""How a face behaves: where it looks, how it blinks, how the mouth opens, whether teeth are clear
(Avatar V §5.2)."""

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from avatar_v.critics.frozen import critic_folder, hash_files
from avatar_v.critics.quality import sharpness
from avatar_v.faces import dlib_face, face_track
from avatar_v.faces.face_reader import READ, FaceReader
from avatar_v.faces.patches import face_patches, from_68
from avatar_v.types import FRAME_RATE_HZ
from avatar_v_data.curation.heads import boxes_between
from avatar_v_data.curation.stages import Clip, ClipScorer, Result, Seen

EYE_OPEN, GAZE_X, GAZE_Y, MOUTH_OPEN, TEETH = (
    READ.index(name) for name in ("eye_open", "gaze_x", "gaze_y", "mouth_open", "teeth")
)
AWAY = 0.5
"""Of the gaze, -1 to 1: beyond it a face does not look at the camera."""
SHUT = 0.5
"""Of how far the eyes of the clip are usually open: below it they are shut."""
LONGEST_BLINK_S = 0.6
SHOWN = 0.5
"""Of how far teeth are seen, 0 to 1."""


@dataclass(frozen=True)
class ExpressionStage(ClipScorer):
    """By dlib's landmarks and the reader that ships (faces/face_reader.py).

    Columns of each clip: ``gaze_away``, the share of frames that look aside; ``blinks`` a minute
    and ``eyes_shut``, the share of frames with shut eyes outside of blinks; ``mouth_open``, which
    one frame in ten exceeds (0 shut, 1 widest), and ``mouth_movement``, its standard deviation;
    ``teeth_sharpness`` (variance of the Laplacian of the mouth at 48 pixels, median of the frames
    that show teeth), 0 where none does, and ``teeth``, the share of these.
    """

    name: ClassVar[str] = "expression"
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("faces", "clips")
    numbers: ClassVar[tuple[str, ...]] = (
        "gaze_away",
        "blinks",
        "eyes_shut",
        "mouth_open",
        "mouth_movement",
        "teeth",
        "teeth_sharpness",
    )

    def weights(self) -> str:
        own = hash_files(sorted(critic_folder("reader").iterdir()))
        return f"{own} {dlib_face.weights_hash()}"

    def score(self, clip: Clip, seen: Seen) -> Result:
        frames = clip.stacked()
        boxes, _ = boxes_between(seen.results["faces"]["boxes"], clip.start, clip.stop)
        points = face_track.landmarks_in(frames, boxes) * torch.tensor(frames.shape[:1:-1])
        faces = from_68(points)
        pictures = frames.float() / 127.5 - 1
        read = _reader().measure(pictures, faces)
        shown = read[:, TEETH] > SHOWN
        mouths = ((face_patches(pictures, faces)[1] + 1) * 127.5).clamp(0, 255).byte()
        sharp = float(sharpness(mouths)[shown].median()) if bool(shown.any()) else 0.0
        return {**columns(read), "teeth_sharpness": round(sharp, 2)}


def columns(read: Float[Tensor, "f r"]) -> dict[str, float]:
    """What the readings of a clip say, in the order of `READ`."""
    away = (read[:, GAZE_X].abs() > AWAY) | (read[:, GAZE_Y].abs() > AWAY)
    num_blinks, shut = _blinks(read[:, EYE_OPEN])
    opening = read[:, MOUTH_OPEN].clamp(0, 1)
    return {
        "gaze_away": round(float(away.float().mean()), 4),
        "blinks": round(60 * FRAME_RATE_HZ * num_blinks / len(read), 2),
        "eyes_shut": round(float(shut.float().mean()), 4),
        "mouth_open": round(float(opening.quantile(0.9)), 4),
        "mouth_movement": round(float(opening.std()), 4),
        "teeth": round(float((read[:, TEETH] > SHOWN).float().mean()), 4),
    }


def _blinks(eyes: Float[Tensor, " f"]) -> tuple[int, Bool[Tensor, " f"]]:
    """How many there are, and the frames in which the eyes are shut for longer than one lasts."""
    is_shut = eyes < SHUT * eyes.quantile(0.8)
    longest, num = round(LONGEST_BLINK_S * FRAME_RATE_HZ), 0
    edges = torch.diff(is_shut.int(), prepend=torch.zeros(1).int(), append=torch.zeros(1).int())
    starts, stops = (edges == 1).nonzero()[:, 0], (edges == -1).nonzero()[:, 0]
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        if stop - start <= longest:
            is_shut[start:stop] = False
            num += 1
    return num, is_shut


@cache
def _reader() -> FaceReader:
    return FaceReader.from_pretrained()
