"""FaceCritic: whose face is this, among the persons of the world?

An embedding whose cosine tells persons apart in any scene, light, pose and expression. Trained on
grids of training persons times scenes (recipes/critic_face.yaml): every person of a grid is seen
in the same scenes as the others, so background, light and clothing cannot tell them apart. For
rendered and generated faces of the world; real people need a real face network.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from avatar_v.base.stored import Count
from avatar_v.critics.frozen import Frames, PictureCritic
from avatar_v.critics.layers import Backbone, Trunk, picture_backbone


class FaceCritic(PictureCritic):
    """Frames to unit vectors; the cosine of two of them is their similarity."""

    name = "face"

    def __init__(
        self,
        width: Count = 36,
        num_heads: Count = 12,
        num_dims: Count = 64,
        backbone: Backbone = "residual",
        held_out: bool = False,
    ) -> None:
        sizes = {"width": width, "num_heads": num_heads, "num_dims": num_dims}
        super().__init__({**sizes, "backbone": backbone, "held_out": held_out})
        self.trunk, self.pool, num_read = picture_backbone(backbone, width, num_heads)
        self.head = nn.Sequential(nn.Linear(num_read, 160), nn.SiLU(), nn.Linear(160, num_dims))

    def forward(self, images: Float[Tensor, "b 3 64 64"]) -> Float[Tensor, "b d"]:
        """Unit embeddings of pictures in [-1, 1]; differentiable, for losses and training."""
        return F.normalize(self.head(self.pool(self.trunk(images))), dim=-1)

    def features(self, images: Float[Tensor, "b 3 64 64"]) -> list[Float[Tensor, "b _c _h _w"]]:
        """Feature maps of the residual trunk, for a perceptual distance; differentiable."""
        assert isinstance(self.trunk, Trunk)  # a critic with the other one is never a loss
        return self.trunk.maps(images)

    def embed_clip(self, frames: Frames) -> Float[Tensor, " d"]:
        """One unit vector for the frames of one clip: the direction of their mean."""
        return F.normalize(self.measure(frames).values.mean(0), dim=-1)


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
