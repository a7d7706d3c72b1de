"""How the person moves: lips against the truth, and style against the reference clip."""

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from avatar_v.critics.motion import MOUTH_OPEN, MotionMeter
from avatar_v.faces.face_track import HOW_TO_INSTALL, is_available
from avatar_v.motion.habits import slope
from avatar_v.motion.landmarks import motion_from_landmarks
from avatar_v.scoring.clip import Footage, ScoredClip
from avatar_v.scoring.readings import Motion, face_notes, read_motion, style_distance
from avatar_v.scoring.sampling import pearson
from avatar_v.scoring.scorer import DRAWN, REAL, NetworkScorer, Scorer
from avatar_v.scoring.values import ScoreOutput, Values


class MouthScorer(NetworkScorer[MotionMeter]):
    """The mouth's opening beside the true one, in all frames that both videos have: Pearson's r,
    and the slope, which falls where lips fit but open less. The true one is read from pixels by the
    same meter, so that a copy scores 1, except where the motion of the truth is known. Needs a
    video that starts with the sound."""

    name = "mouth"
    version = 2
    judge = "MotionMeter; no detector, whole pictures"
    faces = DRAWN
    outputs = (
        ScoreOutput("mouth_r", "mouth opening against the truth, r", "higher"),
        ScoreOutput("mouth_slope", "mouth opening on the true one, slope", ""),
    )

    def __init__(self, critic: str = "motion") -> None:
        self.critic = MotionMeter.from_pretrained(critic)

    def score(self, clip: ScoredClip) -> Values:
        shown, true = _openings(clip, lambda footage: footage.squares.each(self.critic.mouth_open))
        r = pearson(shown[: len(true)].numpy(), true[: len(shown)].numpy())
        values = {"mouth_r": r, "mouth_slope": _slope(shown, true)}
        return Values(values, {"mouth_r": list(enumerate(shown.tolist()))})


class MouthLandmarksScorer(Scorer):
    """The slope of `MouthScorer` by landmarks; where the face is lost, the last one is held."""

    name = "mouth_landmarks"
    version = 1
    judge = "motion of dlib's 68 landmarks; dlib's HOG detector"
    faces = REAL
    outputs = (
        ScoreOutput("mouth_landmarks", "mouth opening on the true one, slope, landmarks", ""),
    )

    def __init__(self) -> None:
        if not is_available():
            raise ImportError(HOW_TO_INSTALL)

    def score(self, clip: ScoredClip) -> Values:
        found = _slope(*_openings(clip, _held_opening))
        return Values({self.name: found}, notes=face_notes(clip.video))


class StyleScorer(NetworkScorer[MotionMeter]):
    """Distance of habits read from both clips by the motion meter (readings.style_distance);
    those of the reference as they are known where its motion is."""

    name = "style"
    version = 1
    judge = "MotionMeter; no detector, whole pictures"
    faces = DRAWN
    outputs = (ScoreOutput("style", "style distance to the reference", "lower"),)

    def __init__(self, critic: str = "motion") -> None:
        self.critic = MotionMeter.from_pretrained(critic)

    def score(self, clip: ScoredClip) -> Values:
        shown, known = read_motion(self.critic, clip.video), clip.reference.motion
        own = read_motion(self.critic, clip.reference) if known is None else known.double().cpu()
        return Values({"style": style_distance(shown, np.asarray(own))})


class StyleLandmarksScorer(Scorer):
    """Distance of habits read from landmarks of both clips, where the face was found."""

    name = "style_landmarks"
    version = 1
    judge = "motion of dlib's 68 landmarks; dlib's HOG detector"
    faces = REAL
    outputs = (
        ScoreOutput("style_landmarks", "style distance to the reference, landmarks", "lower"),
    )

    def __init__(self) -> None:
        if not is_available():
            raise ImportError(HOW_TO_INSTALL)

    def score(self, clip: ScoredClip) -> Values:
        distance = style_distance(_seen(clip.video), _seen(clip.reference))
        return Values({self.name: distance}, notes=face_notes(clip.video))


def _openings(
    clip: ScoredClip, read: Callable[[Footage], Tensor]
) -> tuple[Float[Tensor, " f"], Float[Tensor, " t"]]:
    """Of the mouth in the video, and in the truth where it is not known."""
    shown, true = read(clip.video), clip.true
    known = read(true) if true.motion is None else true.motion[:, MOUTH_OPEN]
    return shown.double().cpu(), known.double().cpu()


def _slope(shown: Float[Tensor, " f"], true: Float[Tensor, " t"]) -> float:
    """ValueError where the true mouth does not move."""
    found = float(slope(true[: len(shown)], shown[: len(true)]))
    if not math.isfinite(found):
        raise ValueError("the true mouth does not move")
    return found


def _by_landmarks(footage: Footage, found: Bool[Tensor, " f"]) -> Float[Tensor, "f m"]:
    height, width = footage.size
    return motion_from_landmarks(footage.track.landmarks, found, width / height)


def _held_opening(footage: Footage) -> Float[Tensor, " f"]:
    return _by_landmarks(footage, torch.ones_like(footage.track.found))[:, MOUTH_OPEN]


def _seen(footage: Footage) -> Motion:
    found = footage.track.found
    return _by_landmarks(footage, found)[found].double().numpy()


SCORERS = (MouthScorer, MouthLandmarksScorer, StyleScorer, StyleLandmarksScorer)
