"""MouthMeter: reads the mouth from pixels, one frame at a time.

A metric for generated video, trained on rendered frames of the world's training persons
(recipes/critic_mouth.yaml). It sees no sound and no neighbouring frame, so it cannot guess the
speech; what it says is in the picture. Not a lip-sync score: that compares two tracks.
"""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.critics.frozen import (
    Frames,
    Score,
    as_input,
    critic_folder,
    load_frozen,
    read_config,
    save_critic,
    weights_hash,
)
from avatar_v.critics.layers import AttentionPool, Trunk

MOUTH_NAMES = ("mouth_open", "mouth_width", "mouth_round", "jaw")
"""What the meter reads, a part of types.MOTION_NAMES in this order and these units."""

INPUT_SIZE = 64


class MouthMeter(nn.Module):
    """Frames to mouth opening and shape; linear outputs, so that gradients do not saturate."""

    name = "mouth"

    def __init__(self, width: int = 20, num_heads: int = 6) -> None:
        super().__init__()
        self.config = {"width": width, "num_heads": num_heads}
        self.trunk = Trunk(width)
        self.pool = AttentionPool(self.trunk.num_features, num_heads)
        self.head = nn.Sequential(
            nn.Linear(self.pool.num_out, 96), nn.SiLU(), nn.Linear(96, len(MOUTH_NAMES))
        )

    def forward(self, images: Float[Tensor, "b 3 64 64"]) -> Float[Tensor, "b 4"]:
        """Raw readings of pictures in [-1, 1]; differentiable, for losses and training."""
        return self.head(self.pool(self.trunk(images)))

    @torch.no_grad()
    def measure(self, frames: Frames, *, batch_size: int = 256) -> Score:
        """Reads ``frames`` ("b 3 h w", uint8 or [-1, 1], square): values "b 4" in MOUTH_NAMES."""
        parts = [self(as_input(chunk, INPUT_SIZE)) for chunk in frames.split(batch_size)]
        return Score(torch.cat(parts).float(), self.name, self.hash())

    def mouth_open(self, frames: Frames) -> Float[Tensor, " b"]:
        """Opening alone, 0 closed … 1 widest."""
        return self.measure(frames).values[:, MOUTH_NAMES.index("mouth_open")]

    def hash(self) -> str:
        return weights_hash(self.state_dict())

    @classmethod
    def from_pretrained(cls, name_or_path: Path | str = "mouth") -> "MouthMeter":
        """The frozen meter of a folder or of the package; ValueError where weights do not fit."""
        folder = critic_folder(name_or_path)
        model = cls(**read_config(folder))
        load_frozen(model, folder)
        return model

    def save_pretrained(self, directory: Path | str) -> None:
        save_critic(self, self.config, directory)
