"""Preparation: from pictures to what a network of transformers takes, as its own files say.

It is done here and not by transformers, whose own processors want torchvision.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.base.outside import read_json

MODES = {2: "bilinear", 3: "bicubic"}
"""PIL's numbers of ways to resize; any other one counts as the last."""


@dataclass(frozen=True)
class Preparation:
    """From pictures 0 … 255 to what the network takes."""

    resize: int  # of the shorter side
    crop: int  # of the centre
    mean: tuple[float, ...]  # of pictures scaled and moved
    std: tuple[float, ...]
    mode: str = "bicubic"
    scale: float = 1 / 255
    offset: float = 0.0  # what is taken from scaled pictures

    def __call__(
        self, frames: UInt8[Tensor, "f 3 h w"] | Float[Tensor, "f 3 h w"]
    ) -> Float[Tensor, "f 3 crop crop"]:
        height, width = frames.shape[2:]
        scale = self.resize / min(height, width)
        size = (round(height * scale), round(width * scale))
        x = F.interpolate(frames.float(), size, mode=self.mode, antialias=True).clamp(0, 255)
        top, left = ((side - self.crop) // 2 for side in size)
        return self.normalised(x[:, :, top : top + self.crop, left : left + self.crop])

    def normalised(self, x: Float[Tensor, "f 3 crop crop"]) -> Float[Tensor, "f 3 crop crop"]:
        """Pictures 0 … 255 of the right size."""
        x = x * self.scale - self.offset
        mean, std = (torch.tensor(values).to(x)[:, None, None] for values in (self.mean, self.std))
        return (x - mean) / std


def read_preparation(path: Path, source: str) -> Preparation:
    """Of a preprocessor_config.json. ValueError, which ends with ``source``, for a file that does
    not say how."""
    try:
        raw = read_json(path)
        resize = _side(raw["size"])
        return Preparation(
            resize,
            _side(raw["crop_size"]) if raw.get("do_center_crop") else resize,
            tuple(raw["image_mean"]),
            tuple(raw["image_std"]),
            MODES.get(raw.get("resample", 3), MODES[3]),
            raw.get("rescale_factor", 1 / 255),
            float(raw.get("offset", False)),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} does not say how pictures are prepared ({error}); it is from {source}"
        ) from error


def _side(size: int | dict[str, int]) -> int:
    if isinstance(size, int):
        return size
    return size["shortest_edge"] if "shortest_edge" in size else size["height"]
