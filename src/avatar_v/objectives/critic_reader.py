"""The face reader: lids, gaze, brows and mouth from patches (recipes/critic_reader.yaml)."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from avatar_v.faces.face_reader import EYES, GAZE, READ, FaceReader
from avatar_v.faces.patches import FacePoints, face_patches
from avatar_v.objectives.critic import CriticBatch, CriticTask, check_sizes, fresh
from avatar_v.training.batch import Draws
from avatar_v.types import MOTION_NAMES

COLUMNS = [MOTION_NAMES.index(name) for name in READ]
SHUT = 0.25  # of eye_open: below, nobody sees where an eye looks
WEIGHT_SHUT = 0.05


@dataclass(frozen=True)
class DrawnFaces:
    """Pictures of one face each, where it is, and how it looks."""

    images: UInt8[Tensor, "n 3 h w"]
    points: FacePoints  # pixels
    motion: Float[Tensor, "n m"]

    def __getitem__(self, index: Tensor) -> "DrawnFaces":
        points = FacePoints(self.points.eyes[index], self.points.mouth[index])
        return DrawnFaces(self.images[index], points, self.motion[index])

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "DrawnFaces":
        """Themselves: patches are cut and augmented on the CPU."""
        return self


@dataclass(frozen=True)
class ShownPatches:
    """Mouths beside the eyes, mirrored or not, and what is true of both."""

    mouths: Float[Tensor, "b 3 s s"]
    truth: Float[Tensor, "b r"]


class ReaderTask(CriticTask):
    """Regression of `READ`, each component in units of its spread, by a robust loss."""

    trained_on = "drawn faces of the world's persons of TRAIN"

    def __init__(self, width: int = 12, num_hidden: int = 64, warmup_steps: int = 200) -> None:
        check_sizes(width=width, num_hidden=num_hidden, warmup_steps=warmup_steps)
        self.sizes, self.warmup_steps = (width, num_hidden), warmup_steps

    def load(self, seed: int, trainer: object) -> dict[str, nn.Module]:
        return {"model": fresh(seed, lambda: FaceReader(*self.sizes))}

    def prepare(self, networks: Any, data: Any) -> None:
        truth, model = data.train_faces.motion[:, COLUMNS], networks.model
        model.center.copy_(truth.mean(0))
        model.scale.copy_(truth.std(0).clamp_min(0.05))

    def begin(self, networks: Any, batch: DrawnFaces, draws: Draws) -> CriticBatch:
        """Patches in [-1, 1] from jittered landmarks, as a camera might have seen them; the
        augmentation grows over the first ``warmup_steps``."""
        strength = min(1.0, networks.step / self.warmup_steps)
        frames = batch.images.float() / 127.5 - 1
        eyes, mouths = face_patches(frames, batch.points, draws.own)
        eyes = as_filmed(eyes.flatten(0, 1), strength, draws.own).unflatten(0, (-1, 2))
        mouths = as_filmed(mouths, strength, draws.own)
        mirrored = torch.rand(len(mouths), generator=draws.own) < 0.5
        mouths = torch.where(mirrored[:, None, None, None], mouths.flip(3), mouths)
        shown = ShownPatches(mouths.to(networks.device), batch.motion[:, COLUMNS])
        return CriticBatch(eyes.to(networks.device), shown)

    def loss(self, networks: Any, batch: CriticBatch) -> Tensor:
        model, shown = networks.model, batch.shown
        truth = (shown.truth.to(batch.inputs.device) - model.center) / model.scale
        eyes, mouths = model(batch.inputs, shown.mouths)
        of_eyes = truth[:, None, : len(EYES)].repeat(1, 2, 1)
        mirrored = -shown.truth[:, GAZE].to(truth) - model.center[GAZE]
        of_eyes[:, 1, GAZE] = mirrored / model.scale[GAZE]
        weights = torch.ones_like(of_eyes)
        shut = shown.truth[:, EYES.index("eye_open")].to(truth) < SHUT
        weights[shut, :, GAZE : GAZE + 2] = WEIGHT_SHUT
        error = F.smooth_l1_loss(eyes, of_eyes, reduction="none")
        return (weights * error).mean() + F.smooth_l1_loss(mouths, truth[:, len(EYES) :])

    def numbers(self, networks: Any, shown: list[DrawnFaces]) -> dict[str, float]:
        model = networks.model
        parts = [model.measure(part.images.float() / 127.5 - 1, part.points) for part in shown]
        read = torch.cat(parts)
        truth = torch.cat([part.motion[:, COLUMNS] for part in shown])
        both = torch.stack([read, truth]).double()
        centred = both - both.mean(1, keepdim=True)
        r = (centred[0] * centred[1]).sum(0) / centred.norm(dim=1).prod(0)
        return {f"r_{name}": float(value) for name, value in zip(READ, r, strict=True)}


def as_filmed(
    patches: Float[Tensor, "b 3 s s"], strength: float, generator: torch.Generator
) -> Float[Tensor, "b 3 s s"]:
    """Patches as cameras, skins and lights of all kinds might show them: gamma, mixed and weaker
    colours, uneven light, blotches, blur and noise, each by chance. ``strength``: 0 … 1."""
    num = len(patches)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(num, 1, 1, 1, generator=generator)

    def sometimes(share: float) -> Tensor:
        return uniform(0.0, 1.0) < share * strength

    def field(channels: int, cells: int) -> Tensor:
        noise = torch.randn(num, channels, cells, cells, generator=generator)
        return F.interpolate(noise, patches.shape[-2:], mode="bicubic", align_corners=False)

    light = ((patches + 1) / 2).clamp(0, 1) ** torch.exp(0.6 * strength * uniform(-1.0, 1.0))
    grey = light.mean(1, keepdim=True)
    light = torch.where(sometimes(0.6), grey + (light - grey) * uniform(0.0, 1.5), light)
    noise = torch.randn(num, 3, 3, generator=generator)
    mixing = torch.eye(3) + 0.15 * strength * noise
    light = torch.einsum("bij,bjhw->bihw", mixing / mixing.sum(2, keepdim=True), light)
    light = light * torch.where(sometimes(0.7), torch.exp(0.4 * field(1, 3)), 1.0)
    x = 2 * light - 1
    blotches = field(3, 8) + 0.5 * field(3, 16)
    x = x + torch.where(sometimes(0.6), blotches * uniform(0.0, 0.2), 0.0)
    for factor in (2, 3):
        coarse = F.avg_pool2d(x, factor)
        coarse = F.interpolate(coarse, x.shape[-2:], mode="bilinear", align_corners=False)
        x = torch.where(sometimes(0.25), coarse, x)
    grain = torch.randn(x.shape, generator=generator) * uniform(0.0, 0.12)
    return x + torch.where(sometimes(0.5), grain, 0.0)
