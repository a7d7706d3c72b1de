"""MotionMeter: reads a face's motion from pixels, one frame at a time.

A metric and a loss for generated video, trained on rendered frames of the world's training persons,
plain and as the small VAE decodes them (recipes/critic_motion.yaml). It sees no sound and no
neighbouring frame, so it cannot guess the speech; what it says is in the picture. Not a lip-sync
score: that compares two tracks.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.base.stored import Count
from avatar_v.critics.frozen import Frames, PictureCritic
from avatar_v.critics.layers import Backbone, picture_backbone
from avatar_v.types import MOTION_NAMES

MOUTH_OPEN = MOTION_NAMES.index("mouth_open")


class MotionMeter(PictureCritic):
    """Frames to motion vectors in the units of types.MOTION_NAMES.

    Outputs are linear, so that gradients do not saturate. ``center`` and ``scale`` are the mean
    and the spread of each component in the training frames; the network predicts in those units.
    """

    name = "motion"
    reads = MOTION_NAMES
    center: Tensor
    scale: Tensor

    def __init__(
        self,
        width: Count = 24,
        num_heads: Count = 10,
        backbone: Backbone = "residual",
        held_out: bool = False,
    ) -> None:
        sizes = {"width": width, "num_heads": num_heads}
        super().__init__({**sizes, "backbone": backbone, "held_out": held_out})
        self.trunk, self.pool, num_read = picture_backbone(backbone, width, num_heads)
        self.head = nn.Sequential(
            nn.Linear(num_read, 160), nn.SiLU(), nn.Linear(160, len(MOTION_NAMES))
        )
        self.register_buffer("center", torch.zeros(len(MOTION_NAMES)))
        self.register_buffer("scale", torch.ones(len(MOTION_NAMES)))

    def forward(self, images: Float[Tensor, "b 3 64 64"]) -> Float[Tensor, "b m"]:
        """Raw readings of pictures in [-1, 1]; differentiable, for losses and training."""
        return self.center + self.scale * self.head(self.pool(self.trunk(images))).float()

    def mouth_open(self, frames: Frames) -> Float[Tensor, " b"]:
        """Opening alone, 0 closed … 1 widest, of frames as in `measure`."""
        return self.measure(frames).values[:, MOUTH_OPEN]
