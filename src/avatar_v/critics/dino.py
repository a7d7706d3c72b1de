"""DINO: how alike two pictures are in what they show, by the class token of a vision transformer.

DINOv2 (Oquab et al. 2023), or any folder that transformers reads as one with a class token first.
Weights are the user's to supply; nothing is downloaded. Pictures are prepared as the folder's
preprocessor_config.json says, here and not by transformers, whose own processors want torchvision.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.critics.frozen import Score, hash_files
from avatar_v.paths import indexed_weights

SOURCE = (
    "facebook/dinov2-base on the Hugging Face hub (Apache-2.0): download config.json, "
    "preprocessor_config.json and model.safetensors into one folder and pass it"
)
FILES = ("config.json", "preprocessor_config.json", "model.safetensors")


@dataclass(frozen=True)
class Preparation:
    """From pictures 0 … 255 to what the network takes."""

    resize: int  # of the shorter side
    crop: int  # of the centre
    mean: tuple[float, ...]  # of pictures 0 … 1
    std: tuple[float, ...]

    def __call__(self, frames: UInt8[Tensor, "f 3 h w"]) -> Float[Tensor, "f 3 crop crop"]:
        height, width = frames.shape[2:]
        scale = self.resize / min(height, width)
        size = (round(height * scale), round(width * scale))
        x = F.interpolate(frames.float(), size, mode="bicubic", antialias=True).clamp(0, 255)
        top, left = ((side - self.crop) // 2 for side in size)
        x = x[:, :, top : top + self.crop, left : left + self.crop] / 255
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.mean, self.std))
        return (x - mean) / std


class Dino:
    """``folder`` has FILES. ValueError for what is missing or does not fit, naming it and where
    it comes from."""

    name = "dino"

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        for name in FILES:
            if not (folder / name).is_file():
                raise ValueError(f"{folder / name} is missing; DINO similarity needs {SOURCE}")
        self.prepare = preparation(folder / "preprocessor_config.json", SOURCE)
        from transformers import AutoModel

        indexed_weights(folder)
        self.model, loaded = AutoModel.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, output_loading_info=True
        )
        missing = sorted(name for name in loaded["missing_keys"] if not name.startswith("pooler"))
        if missing:
            raise ValueError(f"{folder} lacks {', '.join(missing[:3])}; it needs {SOURCE}")
        self.model.float().eval().requires_grad_(False)
        self._hash = hash_files([folder / "model.safetensors"])

    def hash(self) -> str:
        """12 hex digits of sha256 over the file of weights."""
        return self._hash

    @torch.no_grad()
    def measure(self, frames: UInt8[Tensor, "f 3 h w"]) -> Score:
        """Unit vectors "f d"."""
        tokens = self.model(pixel_values=self.prepare(frames)).last_hidden_state
        return Score(F.normalize(tokens[:, 0], dim=-1), self.name, self._hash)


def preparation(path: Path, source: str) -> Preparation:
    """What a preprocessor_config.json says. ValueError, which names the ``source`` of a good one,
    for a file that does not say how."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        size = raw["size"]
        resize = size["shortest_edge"] if "shortest_edge" in size else size["height"]
        crop = raw["crop_size"]["height"] if raw.get("do_center_crop") else resize
        return Preparation(resize, crop, tuple(raw["image_mean"]), tuple(raw["image_std"]))
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} does not say how pictures are prepared ({error}); it is from {source}"
        ) from error
