"""Whose face a reference shows, as one vector beside its pictures: the identity embedding in the
context of Avatar V §4.2.

A frozen recogniser looks at a few pictures of the clip, each encoded and decoded again by the VAE
alone, so that training on latents and generation from a file look at the same. The vector is the
same for all frames of a clip, and joins their tokens by a linear map that starts at zero.
"""

import dataclasses

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from avatar_v.critics.look import FaceReading, Faces
from avatar_v.faces.objectives import objective
from avatar_v.models.dit import AvatarDiT
from avatar_v.types import Batch

NUM_LOOKS = 4
"""Pictures of a clip that its vector is the mean of (our choice)."""
PROBE_SIDE = 64


class FaceVectors:
    """A recogniser, by the name or path of a critic of identity (faces/objectives.py).

    It is no part of the networks: they are saved with its name and hash. Errors as `objective`.
    """

    def __init__(self, name: str) -> None:
        critic = objective("identity", name)
        assert isinstance(critic, FaceReading)
        self.name, self._critic, self.by_face = name, critic, critic.by_face
        with torch.no_grad():
            probe = torch.zeros(1, 1, 3, PROBE_SIDE, PROBE_SIDE)
            seen = torch.ones(1, 1, dtype=torch.bool)
            points = torch.linspace(0.2, 0.8, 136).reshape(1, 1, 68, 2)
            somewhere = Faces(torch.tensor([[[0.0, 0, 1, 1]]]), points, seen)
            self.dim = self.read(probe, seen, somewhere).shape[1]

    def hash(self) -> str:
        """12 hex digits of the recogniser's files."""
        return self._critic.hash()

    @torch.no_grad()
    def read(
        self,
        pictures: Float[Tensor, "b k 3 h w"],
        seen: Bool[Tensor, "b k"],
        faces: Faces | None = None,
    ) -> Float[Tensor, "b d"]:
        """Of pictures in [-1, 1] the direction of their mean vector, of length √d, so that its
        numbers are as large as those of other inputs; 0 where no picture is ``seen``. ``faces``:
        where they are; ValueError where the recogniser looks by landmarks and none are given."""
        if self.by_face and (faces is None or faces.landmarks is None):
            raise ValueError(
                f"{self.name} looks by 68 landmarks of each face, and a clip has none: import it "
                "(or run) with the extra faces"
            )
        if isinstance(self._critic, nn.Module):
            self._critic.to(pictures.device)
        with torch.autocast(pictures.device.type, enabled=False):
            crops = self._critic.look(pictures.float(), faces).flatten(0, 1)
            each = self._critic.read(crops).unflatten(0, pictures.shape[:2])
        mean = (each * seen.to(each.device)[..., None]).sum(1)
        return F.normalize(mean, dim=1) * each.shape[2] ** 0.5


def add_identity(dit: AvatarDiT, dim: int) -> None:
    """Let a network read vectors of so many numbers, in place; as before until it is trained.
    ValueError where it reads others."""
    if dit.config.identity_dim not in (None, dim):
        raise ValueError(
            f"these weights read face vectors of {dit.config.identity_dim} numbers, and "
            f"models.identity gives {dim}"
        )
    if dit.identity_embed is None:
        dit.config = dataclasses.replace(dit.config, identity_dim=dim)
        where = dit.patch_embed.weight
        dit.identity_embed = nn.Linear(
            dim, dit.config.dim, bias=False, device=where.device, dtype=where.dtype
        )
        nn.init.zeros_(dit.identity_embed.weight)


def frames_to_look_at(batch: Batch) -> Int[Tensor, "b k"]:
    """Frames of clips that show a face, evenly spread; 0 where none does, and some twice where
    fewer do. Where there are stills their numbers among these."""
    if batch.stills_valid is None:
        num = batch.valid.sum(1)
        order = batch.valid.byte().argsort(dim=1, descending=True, stable=True)
    else:
        num = batch.stills_valid.sum(1)
        order = torch.arange(batch.stills_valid.shape[1]).expand(len(num), -1)
    place = ((torch.arange(NUM_LOOKS) + 0.5) / NUM_LOOKS * num.cpu()[:, None]).long()
    return order.cpu().gather(1, place)
