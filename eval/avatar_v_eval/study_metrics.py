"""The metrics of studies: scores of the video of one case.

The first frame of a video is given to the generator, so that it is never read.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.scoring.clip import Footage, ScoredClip
from avatar_v.scoring.readings import read_motion
from avatar_v.scoring.scorer import Scorer
from avatar_v.scoring.scorers.likeness import FaceWorldScorer
from avatar_v.scoring.scorers.looks import FlickerScorer, SharpnessScorer
from avatar_v.scoring.scorers.motion import MouthScorer
from avatar_v.scoring.scorers.sync import SyncWorldScorer
from avatar_v.types import FRAME_RATE_HZ, SAMPLES_PER_FRAME
from avatar_v_eval.cases import Case, Video

MEASURES = {
    "mouth": "mouth r",
    "identity": "face similarity in a third scene",
    "sync": "sync confidence",
    "scene": "distance of the scene from the true one at the end, of 255",
    "sharpness": "sharpness, share of the true video's through the VAE",
    "flicker": "flicker, share of the true video's through the VAE",
}
"""The measures in words."""
LOOKS: Mapping[str, Scorer] = {"sharpness": SharpnessScorer(), "flicker": FlickerScorer()}


@dataclass(frozen=True)
class StudyMetrics:
    """The scorers of drawn faces."""

    mouth: MouthScorer
    face: FaceWorldScorer
    sync: SyncWorldScorer

    @classmethod
    def load(cls) -> "StudyMetrics":
        """By the critics that ship."""
        return cls(MouthScorer(), FaceWorldScorer(), SyncWorldScorer())

    @classmethod
    def held_out(cls) -> "StudyMetrics":
        """By the critics that score alone: no stage could name them in a loss or a reward."""
        return cls(
            MouthScorer("motion_held_out"),
            FaceWorldScorer("face_held_out"),
            SyncWorldScorer("sync_held_out"),
        )

    def hashes(self) -> dict[str, str]:
        """The name of each network: hash of its tensors."""
        scorers = {"motion": self.mouth, "face": self.face, "sync": self.sync}
        return {name: scorer.weights for name, scorer in scorers.items()}

    def read(self, case: Case, video: Video) -> dict[str, float]:
        """Lips, likeness with the person in a scene that nothing was generated from, and sync."""
        clip = make_scored_clip(case, video)
        return {
            "mouth": self.mouth.score(clip).values["mouth_r"],
            "identity": self.face.score(clip).values["face_world"],
            "sync": self.sync.score(clip).values["sync_world_c"],
        }

    def motion(self, case: Case, video: Video) -> Float[np.ndarray, "f-1 m"]:
        """The motion of every frame but the first."""
        return read_motion(self.mouth.critic, make_scored_clip(case, video).video)


def make_scored_clip(case: Case, video: Video) -> ScoredClip:
    """What scorers see of the video of a case: all behind its first frame. The truth is that of the
    speech, and the reference shows the person in a third scene."""
    sound = case.audio[SAMPLES_PER_FRAME:]
    elsewhere = case.third_video
    silence = torch.zeros(len(elsewhere) * SAMPLES_PER_FRAME)
    return ScoredClip(
        video=Footage.of(video[1:], sound),
        reference=Footage.of(elsewhere, silence, "the reference"),
        image=case.image,
        truth=Footage.of(video[1:], sound, "the truth", case.motion[1:]),
    )


def picture_shares(case: Case, video: Video, true: Video) -> dict[str, float]:
    """Sharpness and flicker as shares of those of the true video."""
    clips = [make_scored_clip(case, each) for each in (video, true)]
    found = {}
    for name, scorer in LOOKS.items():
        ours, theirs = (scorer.score(clip).values[name] for clip in clips)
        found[name] = ours / theirs
    return found


def scene_distance(video: Video, true: Video) -> float:
    """Distance of the colour of the upper corners, where no head comes, from that of the true
    video in the last second: mean absolute difference of their means, in grey levels of 255."""

    def corners(frames: Video) -> Float[Tensor, "2 3"]:
        height, width = frames.shape[-2] // 4, frames.shape[-1] // 6
        last = frames[-FRAME_RATE_HZ:, :, :height].float()
        return torch.stack([x.mean((0, 2, 3)) for x in (last[..., :width], last[..., -width:])])

    return float((corners(video) - corners(true)).abs().mean())
