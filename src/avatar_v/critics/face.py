"""FaceCritic: whose face is this, among the persons of the world?

An embedding whose cosine tells persons apart in any scene, light, pose and expression. Trained on
grids of training persons times scenes (recipes/critic_face.yaml): every person of a grid is seen
in the same scenes as the others, so background, light and clothing cannot tell them apart. For
rendered and generated faces of the world; real people need a real face network.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
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

INPUT_SIZE = 64


class FaceCritic(nn.Module):
    """Frames to unit vectors; the cosine of two of them is their similarity."""

    name = "face"

    def __init__(self, width: int = 36, num_heads: int = 12, num_dims: int = 64) -> None:
        super().__init__()
        self.config = {"width": width, "num_heads": num_heads, "num_dims": num_dims}
        self.trunk = Trunk(width)
        self.pool = AttentionPool(self.trunk.num_features, num_heads)
        self.head = nn.Sequential(
            nn.Linear(self.pool.num_out, 160), nn.SiLU(), nn.Linear(160, num_dims)
        )

    def forward(self, images: Float[Tensor, "b 3 64 64"]) -> Float[Tensor, "b d"]:
        """Unit embeddings of pictures in [-1, 1]; differentiable, for losses and training."""
        return F.normalize(self.head(self.pool(self.trunk(images))), dim=-1)

    @torch.no_grad()
    def measure(self, frames: Frames, *, batch_size: int = 256) -> Score:
        """Embeds ``frames`` ("b 3 h w", uint8 or [-1, 1], square): unit vectors "b d"."""
        parts = [self(as_input(chunk, INPUT_SIZE)) for chunk in frames.split(batch_size)]
        return Score(torch.cat(parts).float(), self.name, self.hash())

    def embed_clip(self, frames: Frames) -> Float[Tensor, " d"]:
        """One unit vector for the frames of one clip: the direction of their mean."""
        return F.normalize(self.measure(frames).values.mean(0), dim=-1)

    def hash(self) -> str:
        return weights_hash(self.state_dict())

    @classmethod
    def from_pretrained(cls, name_or_path: Path | str = "face") -> "FaceCritic":
        """The frozen critic of a folder or of the package; ValueError where weights do not fit."""
        folder = critic_folder(name_or_path)
        model = cls(**read_config(folder))
        load_frozen(model, folder)
        return model

    def save_pretrained(self, directory: Path | str) -> None:
        save_critic(self, self.config, directory)


def contrastive_loss(
    embeddings: Float[Tensor, "b d"],
    person: Int[Tensor, " b"],
    scene: Int[Tensor, " b"],
    temperature: float,
) -> Float[Tensor, ""]:
    """Supervised contrastive loss (Khosla et al. 2020, L_out) with positives of other scenes only.

    A picture's positives show the same person in another scene; the same person in the same scene
    counts neither way, all other persons are negatives. In fp32.
    """
    logits = (embeddings @ embeddings.T).float() / temperature
    same_person = person[:, None] == person[None]
    positive = same_person & (scene[:, None] != scene[None])
    if not bool(positive.any(1).all()):
        raise ValueError("every picture needs another of the same person in another scene")
    logits = logits.masked_fill(same_person & ~positive, -torch.inf)
    log_p = logits - logits.logsumexp(1, keepdim=True)
    return -(log_p.masked_fill(~positive, 0.0).sum(1) / positive.sum(1)).mean()


def identification(
    queries: Float[Tensor, "n d"], gallery: Float[Tensor, "n d"]
) -> tuple[Bool[Tensor, " n"], Float[Tensor, " n"]]:
    """Row i of both is person i. For each query: is its own gallery entry the nearest of all, and
    the share of other entries that are farther than its own (ties count half)."""
    similarity = queries @ gallery.T
    own = similarity.diagonal()[:, None]
    n = len(similarity)
    others = ~torch.eye(n, dtype=torch.bool, device=similarity.device)
    wins = (((own > similarity).float() + 0.5 * (own == similarity).float()) * others).sum(1)
    return similarity.argmax(1) == torch.arange(n, device=similarity.device), wins / (n - 1)
