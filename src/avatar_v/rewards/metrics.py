"""Metrics of samples that are never a reward: what watches an alignment (callbacks/watch_rewards).

They have the call of a reward (terms.py), and more is better. The gaps of levels say whether
a reward of habits does what it is for; lips and held-out critics say what it costs.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.critics.motion import MotionMeter
from avatar_v.critics.world_sync import WorldSyncNet
from avatar_v.faces.face import FaceCritic
from avatar_v.faces.face_track import HOW_TO_INSTALL, is_available, track_faces
from avatar_v.motion.landmarks import motion_from_landmarks
from avatar_v.rewards.levels import blink_gap, excursion_gap, made_part
from avatar_v.rewards.shipped import (
    MOUTH_OPEN,
    YAW,
    Identity,
    Pictures,
    Sync,
    as_stored,
    shown_motion,
    slope,
)
from avatar_v.types import Batch

Video = Float[Tensor, "b f 3 h w"]
Motion = Float[Tensor, "b f m"]
PerSample = Float[Tensor, " b"]


def blink_level(
    frames: Video | None, audio: Tensor, reference: Batch, motion: Motion, **columns: Any
) -> PerSample | None:
    """Minus the distance of the batch's blink rate from the persons', alike for every sample."""
    return _nearness(blink_gap(reference, motion, columns["num_given"]), motion)


def sway_level(
    frames: Video | None, audio: Tensor, reference: Batch, motion: Motion, **columns: Any
) -> PerSample | None:
    """The same of how far heads turn."""
    return _nearness(excursion_gap(YAW, reference, motion, columns["num_given"]), motion)


def amplitude_level(
    frames: Video | None, audio: Tensor, reference: Batch, motion: Motion, **columns: Any
) -> PerSample | None:
    """The same of how far mouths open."""
    return _nearness(excursion_gap(MOUTH_OPEN, reference, motion, columns["num_given"]), motion)


def lips(
    frames: Video | None, audio: Tensor, reference: Batch, motion: Motion, *,
    true_motion: Float[Tensor, "c f m"], **columns: Any,
) -> PerSample:  # fmt: skip
    """Pearson's r of the mouth's opening with the true one of that sound, over the frames that a
    sample made; NaN where one of them does not move."""
    true = true_motion[columns["condition"]]
    made, true = (made_part(x, columns["num_given"])[..., MOUTH_OPEN] for x in (motion, true))
    made, true = (x - x.mean(1, keepdim=True) for x in (made, true))
    return (made * true).sum(1) / (made.norm(dim=1) * true.norm(dim=1))


class HeldOutIdentity(Identity):
    """rewards.Identity by a critic that is held out. ValueError for one that is not."""

    def __init__(self, critic: str = "face_held_out") -> None:
        self.critic = _held_out(FaceCritic.from_pretrained(critic), critic)


class HeldOutSync(Sync):
    """rewards.Sync by a critic that is held out. ValueError for one that is not."""

    def __init__(self, critic: str = "sync_held_out") -> None:
        self.critic = _held_out(WorldSyncNet.from_pretrained(critic), critic)


class HeldOutMouth:
    """How far the mouth in the pictures goes along with that of the motion: the slope, at most that
    of the true pictures of the same motion, or 1 where there are none. A reward of still or sharp
    pictures is raised by mouths that open less, and no reward of motion sees that.

    ``critic``: a held-out motion critic reads the pictures. ValueError for one that is not.
    """

    def __init__(self, critic: str = "motion_held_out") -> None:
        self.critic = _held_out(MotionMeter.from_pretrained(critic), critic)

    def __call__(
        self, frames: Video | None, audio: Tensor, reference: Batch, motion: Motion, *,
        truth: Pictures | None = None, **columns: Any,
    ) -> PerSample | None:  # fmt: skip
        if frames is None:
            return None
        target, given = motion[..., MOUTH_OPEN], columns["num_given"]
        most = torch.ones_like(target[:, 0])
        if truth is not None:
            true = self.read(truth).to(motion)[columns["condition"], :, MOUTH_OPEN]
            most = slope(target, true, given)
        shown = self.read(frames).to(motion)[..., MOUTH_OPEN]
        return slope(target, shown, given).minimum(most)

    def read(self, frames: Video) -> Motion:
        """The motion in pictures in [-1, 1]."""
        return shown_motion(self.critic, frames)


class LandmarkMouth(HeldOutMouth):
    """The same by dlib's 68 landmarks, for real people; NaN where no face is found. ImportError
    without the [faces] extra."""

    def __init__(self) -> None:
        if not is_available():
            raise ImportError(HOW_TO_INSTALL)

    def read(self, frames: Video) -> Motion:
        rows = []
        for clip in frames:
            track = track_faces(as_stored(clip).cpu())
            seen = torch.ones_like(track.found)  # where no face was found, the last one is held
            row = motion_from_landmarks(track.landmarks, seen)
            rows.append(row if bool(track.found.any()) else torch.full_like(row, torch.nan))
        return torch.stack(rows)


def _held_out(critic: Any, name: str) -> Any:
    if not critic.held_out:
        raise ValueError(f"critic {name!r} may be a reward: expected one that is held out")
    return critic


def _nearness(gap: Tensor | None, motion: Motion) -> PerSample | None:
    return None if gap is None else torch.full_like(motion[:, 0, 0], -float(gap.abs()))
