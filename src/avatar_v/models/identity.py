"""Whose face a reference shows, as one vector beside its pictures: the identity embedding in the
context of Avatar V §4.2.

A frozen recogniser reads the vector from a few pictures of the clip. Training has latents and
generation has a file, so both show it pictures that the VAE has encoded and decoded again, each
alone. All frames of a clip have the same vector. A linear map that starts at zero adds it to their
tokens.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from avatar_v.critics.look import FaceReading, Faces
from avatar_v.faces.face_track import spread_frames
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
        """One vector of each sample, from its ``seen`` pictures in [-1, 1]; 0 where there are none.

        It points where the mean of their vectors does and has length √d, so that its numbers are
        about as large as other inputs. ``faces`` says where the faces are: ValueError where the
        recogniser needs landmarks and there are none.
        """
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


@dataclass(frozen=True)
class Looks:
    """The pictures of each clip that its vector is read from, every one encoded alone."""

    latents: Float[Tensor, "b k c h w"]
    seen: Bool[Tensor, "b k"]  # False: a place that is left over
    faces: Faces | None = None  # where the face is; None: not known


def looks_of(batch: Batch, encode_image: Callable[[Tensor], Tensor]) -> Looks:
    """Of clips with stills some of these, else of their video some frames, encoded here.

    ValueError for latents without stills."""
    if batch.stills is not None and batch.still_frames is not None:
        assert batch.stills_valid is not None
        chosen, seen = _spread(batch.stills_valid)
        if batch.stills.shape[1] == 0:  # of no clip
            return Looks(batch.stills.new_zeros(*seen.shape, *batch.stills.shape[2:]), seen)
        latents = batch.stills[_rows(chosen, batch.stills), chosen.to(batch.stills.device)].float()
        frames = batch.still_frames.cpu().gather(1, chosen).long()
    elif batch.video is not None:
        frames, seen = _spread(batch.valid)
        shown = batch.video[_rows(frames, batch.video), frames.to(batch.video.device)]
        latents = encode_image(shown.flatten(0, 1)).squeeze(1).unflatten(0, frames.shape)
    else:
        raise ValueError(
            "models.identity looks at stills of the clips: add them with `avatar-v shards stills`"
        )
    return Looks(latents, seen, Faces.of(batch).at(_rows(frames, frames), frames))


def _spread(valid: Bool[Tensor, "b f"]) -> tuple[Int[Tensor, "b k"], Bool[Tensor, "b k"]]:
    """`NUM_LOOKS` places of each row where it is true, and which of them are not left over."""
    places = torch.zeros(len(valid), NUM_LOOKS, dtype=torch.long)
    seen = torch.zeros(len(valid), NUM_LOOKS, dtype=torch.bool)
    for row, found in enumerate(spread_frames(each, NUM_LOOKS) for each in valid.cpu()):
        places[row, : len(found)], seen[row, : len(found)] = found, True
    return places, seen


def _rows(places: Int[Tensor, "b k"], of: Tensor) -> Int[Tensor, "b 1"]:
    return torch.arange(len(places), device=of.device)[:, None]
