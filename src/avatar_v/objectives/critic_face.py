"""The face critic: who it is, whatever the scene (recipes/critic_face.yaml)."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.base import checks
from avatar_v.critics.layers import Backbone
from avatar_v.faces.face import FaceCritic, contrastive_loss, identification
from avatar_v.objectives.critic import CriticBatch, CriticTask, check_sizes, fresh
from avatar_v.objectives.critic_data import LabelledFrames


class FaceTask(CriticTask):
    """Supervised contrastive learning over grids of persons times scenes."""

    def __init__(
        self,
        width: int = 36,
        num_heads: int = 12,
        num_dims: int = 64,
        temperature: float = 0.1,
        backbone: Backbone = "residual",
        held_out: bool = False,
    ) -> None:
        check_sizes(width=width, num_heads=num_heads, num_dims=num_dims)
        checks.positive("temperature", temperature)
        self.sizes = (width, num_heads, num_dims, backbone, held_out)
        self.temperature = temperature

    def load(self, seed: int, trainer: object) -> dict[str, nn.Module]:
        return {"model": fresh(seed, lambda: FaceCritic(*self.sizes))}

    def loss(self, networks: Any, batch: CriticBatch) -> Tensor:
        embeddings = networks.model(batch.inputs).float()
        shown = batch.shown
        return contrastive_loss(embeddings, shown.person, shown.scene, self.temperature)

    def numbers(self, networks: Any, shown: list[LabelledFrames]) -> dict[str, float]:
        embedded = torch.cat([networks.model.measure(part.images).values for part in shown])
        person = torch.cat([part.person for part in shown])
        scene = torch.cat([part.scene for part in shown])
        return identity_across_scenes(embedded, person, scene)


def identity_across_scenes(
    embedded: Float[Tensor, "n d"], person: Tensor, scene: Tensor
) -> dict[str, float]:
    """One frame in one scene against a gallery of one frame per person in another scene.

    All persons are in one gallery; the query scene is the first of each person, the gallery's the
    second. ``top1``: the nearest is the right person. ``pairwise``: share of other persons that
    are farther.
    """
    queries, gallery = [], []
    for who in person.unique():
        mine = (person == who).nonzero()[:, 0]
        elsewhere = mine[scene[mine] != scene[mine[0]]]
        queries.append(embedded[mine[0]])
        gallery.append(embedded[elsewhere[0]])
    nearest, pairwise = identification(torch.stack(queries), torch.stack(gallery))
    return {"top1": float(nearest.float().mean()), "pairwise": float(pairwise.mean())}
