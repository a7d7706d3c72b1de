"""DINO: how alike two pictures are in what they show, by the class token of a vision transformer.

DINOv2 (Oquab et al. 2023), or any folder that transformers reads as one with a class token first.
Weights are the user's to supply; nothing is downloaded. Pictures are prepared as the folder's
preprocessor_config.json says (preparation.py).
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Tensor

from avatar_v.base.local_models import load_model
from avatar_v.base.paths import indexed_weights
from avatar_v.critics.frozen import Score, hash_files
from avatar_v.critics.preparation import read_preparation

SOURCE = (
    "facebook/dinov2-base on the Hugging Face hub (Apache-2.0): download config.json, "
    "preprocessor_config.json and model.safetensors into one folder and pass it"
)
FILES = ("config.json", "preprocessor_config.json", "model.safetensors")


class Dino:
    """``folder`` has FILES. ValueError for what is missing or does not fit, naming it and where
    it comes from."""

    name = "dino"

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        for name in FILES:
            if not (folder / name).is_file():
                raise ValueError(f"{folder / name} is missing; DINO similarity needs {SOURCE}")
        self.prepare = read_preparation(folder / "preprocessor_config.json", SOURCE)
        from transformers import AutoModel

        indexed_weights(folder)
        self.model, lacks = load_model(AutoModel, folder, SOURCE)
        if missing := [name for name in lacks if not name.startswith("pooler")]:
            raise ValueError(f"{folder} lacks {', '.join(missing[:3])}; it needs {SOURCE}")
        self._hash = hash_files([folder / "model.safetensors"])

    def hash(self) -> str:
        """12 hex digits of sha256 over the file of weights."""
        return self._hash

    @torch.no_grad()
    def measure(self, frames: UInt8[Tensor, "f 3 h w"]) -> Score:
        """Unit vectors "f d"."""
        tokens = self.model.to(frames.device)(pixel_values=self.prepare(frames)).last_hidden_state
        return Score(F.normalize(tokens[:, 0], dim=-1), self.name, self._hash)
