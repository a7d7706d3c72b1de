"""DINO: how alike two pictures are in what they show, by the class token of a vision transformer;
and how alike two faces look, place by place, by its patches.

DINOv2 (Oquab et al. 2023), or any folder that transformers reads as one with a class token first.
Weights are the user's to supply; nothing is downloaded. Pictures are prepared as the folder's
preprocessor_config.json says (preparation.py).
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from avatar_v.base.local_models import load_model
from avatar_v.base.paths import indexed_weights
from avatar_v.critics.frozen import Score, hash_files
from avatar_v.critics.look import Faces, Video, cut, in_pixels, upright
from avatar_v.critics.preparation import read_preparation

SOURCE = (
    "facebook/dinov2-base on the Hugging Face hub (Apache-2.0): download config.json, "
    "preprocessor_config.json and model.safetensors into one folder and pass it"
)
AROUND = 1.2
"""Side of the picture of a face, in heights of the head."""
FILES = ("config.json", "preprocessor_config.json", "model.safetensors")


class Dino(nn.Module):
    """``folder`` has FILES. ValueError for what is missing or does not fit, naming it and where
    it comes from."""

    name = "dino"
    by_face = True

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
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

    def look(self, video: Video, faces: Faces | None) -> Float[Tensor, "b f 3 s s"]:
        """The whole head."""
        assert faces is not None
        corners = in_pixels(faces.box.float().unflatten(-1, (2, 2)), *video.shape[3:]).flatten(0, 1)
        low, high = corners.unbind(1)
        square = upright(low, high, AROUND / 2 * (high - low).amax(1))
        pictures = video.float().clamp(-1, 1).flatten(0, 1)
        return cut(pictures, square, self.prepare.crop).unflatten(0, video.shape[:2])

    def features(self, crops: Float[Tensor, "n 3 s s"]) -> list[Float[Tensor, "n d k k"]]:
        """Maps of the patches after each quarter of the layers; differentiable."""
        pixels = self.prepare.normalised((crops + 1) * 127.5)
        states = self.model(pixel_values=pixels, output_hidden_states=True).hidden_states[1:]
        side = crops.shape[-1] // self.model.config.patch_size
        quarters = [states[(i + 1) * len(states) // 4 - 1] for i in range(4)]
        return [x[:, -side * side :].mT.unflatten(2, (side, side)) for x in quarters]

    @torch.no_grad()
    def measure(self, frames: UInt8[Tensor, "f 3 h w"]) -> Score:
        """Unit vectors "f d"."""
        tokens = self.model.to(frames.device)(pixel_values=self.prepare(frames)).last_hidden_state
        return Score(F.normalize(tokens[:, 0], dim=-1), self.name, self._hash)
