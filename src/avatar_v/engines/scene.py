"""The scene engine's eye: which of several pictures of a person is to begin the video.

Avatar V §2.2 asks for an image that keeps the person's face in a scene of words. The pictures are
made by the video model itself (generate/scene.py). Here the blurred ones are put aside, and the
rest are ordered by how much the face is the person's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from avatar_v.critics.quality import sharp_enough, sharpness
from avatar_v.faces.dlib_face import embed_faces
from avatar_v.faces.face import FaceCritic
from avatar_v.faces.face_track import track_faces

Pictures: TypeAlias = UInt8[Tensor, "n 3 h w"]
Likeness: TypeAlias = Callable[[Pictures], Float[Tensor, " n"]]
"""How much each picture shows the person; more is better."""


@dataclass(frozen=True)
class SceneCandidate:
    """One candidate."""

    seed: int
    likeness: float


def drawn_likeness(reference: UInt8[Tensor, "f 3 h w"], critic: FaceCritic) -> Likeness:
    """The cosine of a picture's face and that of the reference, of drawn people."""
    person = critic.embed_clip(reference)
    return lambda pictures: critic.measure(pictures).values @ person


def filmed_likeness(person: Float[Tensor, "128"]) -> Likeness:
    """Minus the distance of a picture's face from the ``person`` (dlib_face), of filmed people;
    minus infinity where no face is found."""

    def likeness(pictures: Pictures) -> Float[Tensor, " n"]:
        values = torch.full((len(pictures),), -torch.inf)
        for i, picture in enumerate(pictures):
            track = track_faces(picture[None])
            if bool(track.found[0]):
                values[i] = -(embed_faces(picture[None], track.landmarks).values[0] - person).norm()
        return values

    return likeness


def ranked(pictures: Pictures, likeness: Likeness) -> tuple[Int[Tensor, " n"], Float[Tensor, " n"]]:
    """The order of the pictures, the best first, and the likeness of each. Pictures much blurrier
    than the others come last."""
    values = likeness(pictures)
    sharp = sharp_enough(sharpness(pictures))
    order = values.argsort(descending=True, stable=True)
    return torch.cat([order[sharp[order]], order[~sharp[order]]]), values
