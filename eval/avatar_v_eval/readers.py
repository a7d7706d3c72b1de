"""The critics that read generated pixels, as measures of one video of one case.

The first frame of a video is given to the generator, so that it is never read.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.critics.motion import MOUTH_OPEN, MotionMeter
from avatar_v.critics.quality import flicker, sharpness
from avatar_v.critics.world_sync import WorldSyncNet
from avatar_v.faces.face import FaceCritic
from avatar_v.types import FRAME_RATE_HZ
from avatar_v_eval.cases import Case, Video
from avatar_v_eval.intervals import pearson

MEASURES = {
    "mouth": "mouth r",
    "identity": "face similarity in a third scene",
    "sync": "sync confidence",
    "scene": "distance of the scene from the true one at the end, of 255",
    "sharpness": "sharpness, share of the true video's through the VAE",
    "flicker": "flicker, share of the true video's through the VAE",
}
"""The measures in words."""


@dataclass(frozen=True)
class Readers:
    """The frozen networks."""

    meter: MotionMeter
    face: FaceCritic
    lips: WorldSyncNet

    @classmethod
    def load(cls) -> "Readers":
        """The critics that ship."""
        return cls(
            MotionMeter.from_pretrained(),
            FaceCritic.from_pretrained(),
            WorldSyncNet.from_pretrained(),
        )

    @classmethod
    def held_out(cls) -> "Readers":
        """The critics that score alone: no stage could name them in a loss or a reward."""
        return cls(
            MotionMeter.from_pretrained("motion_held_out"),
            FaceCritic.from_pretrained("face_held_out"),
            WorldSyncNet.from_pretrained("sync_held_out"),
        )

    def hashes(self) -> dict[str, str]:
        """The name of each network: hash of its tensors."""
        critics = {"motion": self.meter, "face": self.face, "sync": self.lips}
        return {name: critic.hash() for name, critic in critics.items()}

    def motion(self, video: Video) -> Float[np.ndarray, "f-1 m"]:
        """The motion of every frame but the first."""
        return self.meter.measure(video[1:]).values.double().numpy()

    def face_of(self, video: Video) -> Float[Tensor, " d"]:
        """One embedding of every frame but the first."""
        return self.face.embed_clip(video[1:])

    def identity(self, video: Video, case: Case) -> float:
        """Similarity with the person in a scene that nothing was generated from."""
        return float(self.face_of(video) @ self.face.embed_clip(case.third_video))

    def sync(self, video: Video, case: Case) -> float:
        """Confidence of the sync critic in the video with the speech of the case."""
        return self.lips.measure(video, case.audio).confidence


def mouth_r(motion: Float[np.ndarray, "f-1 m"], case: Case) -> float:
    """Correlation of the mouth opening, read from all frames but the first, with the truth."""
    return pearson(motion[:, MOUTH_OPEN], case.mouth_open[1:])


def picture_shares(video: Video, true: Video) -> dict[str, float]:
    """Sharpness and flicker as shares of those of the true video."""
    video, true = video[1:], true[1:]
    return {
        "sharpness": float(sharpness(video).mean() / sharpness(true).mean()),
        "flicker": float(flicker(video).mean() / flicker(true).mean()),
    }


def scene_distance(video: Video, true: Video) -> float:
    """Distance of the colour of the upper corners, where no head comes, from that of the true
    video in the last second: mean absolute difference of their means, in grey levels of 255."""

    def corners(frames: Video) -> Float[Tensor, "2 3"]:
        height, width = frames.shape[-2] // 4, frames.shape[-1] // 6
        last = frames[-FRAME_RATE_HZ:, :, :height].float()
        return torch.stack([x.mean((0, 2, 3)) for x in (last[..., :width], last[..., -width:])])

    return float((corners(video) - corners(true)).abs().mean())
