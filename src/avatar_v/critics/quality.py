"""How good a picture looks, without a reference: sharpness, flicker, and Q-Align.

Sharpness and flicker are formulas and always here; they compare versions of one video, not videos
of different content. Q-Align (Wu et al. 2024) is a language model that rates like people do; its
weights and code are the user's to supply.
"""

import hashlib
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from avatar_v.critics.frozen import Score

Video = UInt8[Tensor, "f 3 h w"]

NO_WEIGHTS = "none"
"""Hash of a measure that is a formula."""
Q_ALIGN_SOURCE = (
    "q-future/one-align on the Hugging Face hub (code MIT, weights as its LLaMA-2 base): download "
    "the whole folder and pass its path"
)


class QualityCritic(Protocol):
    """Frames of one video to a score a frame."""

    name: str

    def measure(self, frames: Video) -> Score:
        """Values "f"."""
        ...


class Sharpness:
    """Variance of the Laplacian of the grey picture (Pech-Pacheco et al. 2000), in grey levels²."""

    name = "sharpness"

    def measure(self, frames: Video) -> Score:
        return Score(sharpness(frames), self.name, NO_WEIGHTS)


class Flicker:
    """What a picture has that neither neighbour in time shows: mean |2 x_t - x_(t-1) - x_(t+1)| / 2
    in grey levels. Steady motion has little of it. The first and last frame take their neighbour's
    value; fewer than three frames have none."""

    name = "flicker"

    def measure(self, frames: Video) -> Score:
        return Score(flicker(frames), self.name, NO_WEIGHTS)


class QAlign:
    """Q-Align's mean opinion score, 1 bad … 5 excellent, of "quality" (IQA) or "aesthetics" (ASE).

    ``folder`` is a local copy of its transformers folder, which brings code of its own: it runs.
    ValueError where the folder lacks what is needed.
    """

    def __init__(
        self,
        folder: str | Path,
        task: Literal["quality", "aesthetics"] = "quality",
        device: str | torch.device = "cpu",
    ) -> None:
        self.name = f"qalign_{task}"
        self.task = task
        folder = Path(folder)
        if not (folder / "config.json").is_file():
            raise ValueError(f"{folder}: no config.json; Q-Align comes from {Q_ALIGN_SOURCE}")
        if not _weights_of(folder):
            raise ValueError(f"{folder}: no *.safetensors or *.bin; it is from {Q_ALIGN_SOURCE}")
        from transformers import AutoModelForCausalLM

        self.model: Any = AutoModelForCausalLM.from_pretrained(
            folder, trust_remote_code=True, local_files_only=True
        )
        self.model.to(device).eval()
        self._hash = _hash_of(folder)

    def hash(self) -> str:
        """12 hex digits of sha256 over the files of weights."""
        return self._hash

    @torch.inference_mode()
    def measure(self, frames: Video, *, batch_size: int = 8) -> Score:
        """Values "f"."""
        pictures = [Image.fromarray(x.permute(1, 2, 0).contiguous().numpy()) for x in frames.cpu()]
        parts = [
            self.model.score(pictures[i : i + batch_size], task_=self.task, input_="image")
            for i in range(0, len(pictures), batch_size)
        ]
        return Score(torch.cat([p.float().flatten().cpu() for p in parts]), self.name, self._hash)


def sharpness(frames: Video) -> Float[Tensor, " f"]:
    """See `Sharpness`."""
    grey = frames.float().mean(1, keepdim=True)
    kernel = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]], device=frames.device)
    return F.conv2d(grey, kernel[None, None]).flatten(1).var(1)


def flicker(frames: Video) -> Float[Tensor, " f"]:
    """See `Flicker`."""
    if len(frames) < 3:
        return torch.zeros(len(frames), device=frames.device)
    grey = frames.float().mean(1)
    inside = (2 * grey[1:-1] - grey[:-2] - grey[2:]).abs().mean((1, 2)) / 2
    return torch.cat([inside[:1], inside, inside[-1:]])


def _weights_of(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")])


def _hash_of(folder: Path) -> str:
    """12 hex digits of sha256 over names and bytes of the weights."""
    digest = hashlib.sha256()
    for path in _weights_of(folder):
        digest.update(path.name.encode())
        with open(path, "rb") as file:
            while block := file.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()[:12]
