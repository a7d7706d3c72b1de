"""Training of the world's sync critic (recipes/critic_sync.yaml), and how well it tells shifts.

Not SyncNet of real faces: its weights come from its authors (critics/syncnet.py).
"""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from avatar_v.base import checks
from avatar_v.critics.frozen import as_input
from avatar_v.critics.layers import Backbone, augment
from avatar_v.critics.sync import audio_windows, distance_table, shifted_is_farther, sync_score
from avatar_v.critics.world_sync import INPUT_SIZE, WorldSyncNet, sync_contrastive_loss
from avatar_v.objectives.critic import CriticBatch, CriticTask, check_sizes, fresh
from avatar_v.objectives.sync_data import SyncRuns
from avatar_v.training.batch import Draws
from avatar_v.types import MOTION_NAMES

MOUTH_COLUMNS = [
    MOTION_NAMES.index(name) for name in ("mouth_open", "mouth_width", "mouth_round", "jaw")
]
VALIDATION_SHIFT = 7  # frames: validation clips are short


class SyncTask(CriticTask):
    """InfoNCE over windows and shifts; what pictures say of the mouth is taught beside it.

    ``motion_weight``: of the squared error of a linear reading of the mouth's motion from single
    pictures. It shows the pictures' side where to look while the sound's side knows nothing yet;
    the reading itself is not exported.
    """

    modules = ("model", "motion_head")

    def __init__(
        self,
        width: int = 16,
        num_heads: int = 6,
        num_features: int = 48,
        num_dims: int = 64,
        temperature: float = 0.1,
        motion_weight: float = 5.0,
        backbone: Backbone = "residual",
        held_out: bool = False,
    ) -> None:
        check_sizes(width=width, num_heads=num_heads, num_features=num_features, num_dims=num_dims)
        checks.positive("temperature", temperature)
        checks.weight("motion_weight", motion_weight)
        self.sizes = (width, num_heads, num_features, num_dims)
        self.backbone: Backbone = backbone
        self.held_out, self.temperature = held_out, temperature
        self.motion_weight = motion_weight

    def load(self, seed: int, trainer: object) -> dict[str, nn.Module]:
        head = fresh(seed, lambda: nn.Linear(self.sizes[2], len(MOUTH_COLUMNS)))
        return {
            "model": fresh(
                seed,
                lambda: WorldSyncNet(*self.sizes, backbone=self.backbone, held_out=self.held_out),
            ),
            "motion_head": head,
        }

    def begin(self, networks: Any, batch: SyncRuns, draws: Draws) -> CriticBatch:
        """Pictures "(b f) 3 64 64", a clip in one light, place and blur; its sound in one gain."""
        images = as_input(batch.images.flatten(0, 1), INPUT_SIZE).cpu()
        images = augment(images, draws.own, batch.images.shape[1]).to(networks.device)
        return CriticBatch(images, replace(batch, sound=louder_or_softer(batch.sound, draws.own)))

    def loss(self, networks: Any, batch: CriticBatch) -> Tensor:
        model, shown = networks.model, batch.shown
        features = model.frame_features(batch.inputs).unflatten(0, shown.images.shape[:2])
        read = networks.motion_head(features).float()
        error = functional.mse_loss(read, shown.motion[..., MOUTH_COLUMNS])
        video, audio = model.embed_features(features), embed_runs(model, shown.sound)
        loss = sync_contrastive_loss(video, audio, self.temperature)
        return loss + self.motion_weight * error

    def numbers(self, networks: Any, shown: list[SyncRuns]) -> dict[str, float]:
        video, audio, model = [], [], networks.model
        for batch in shown:
            images = as_input(batch.images.flatten(0, 1), INPUT_SIZE)
            features = model.frame_features(images).unflatten(0, batch.images.shape[:2])
            video.append(model.embed_features(features))
            audio.append(embed_runs(model, batch.sound))
        return shift_numbers(torch.cat(video), torch.cat(audio))


def embed_runs(model: WorldSyncNet, sound: Float[Tensor, "b t 13"]) -> Float[Tensor, "b n d"]:
    """Embeddings of all windows of runs of MFCCs."""
    windows = torch.stack([audio_windows(steps) for steps in sound])
    return model.embed_audio(windows.flatten(0, 1)).unflatten(0, windows.shape[:2])


def louder_or_softer(
    sound: Float[Tensor, "b t 13"], generator: torch.Generator
) -> Float[Tensor, "b t 13"]:
    """MFCCs of clips ±12 dB: a gain moves the first coefficient, the log energy, and no other."""
    log_gain = 2.76 * (2 * torch.rand(len(sound), generator=generator) - 1)  # 2.76 = ln 10^1.2
    first = torch.zeros(sound.shape[-1])
    first[0] = 1.0
    return sound + (log_gain[:, None, None] * first).to(sound.device)


def shift_numbers(video: Float[Tensor, "b n d"], audio: Float[Tensor, "b n d"]) -> dict[str, float]:
    """``window_top1``: the nearest sound of the own clip is at most a frame off. ``clip_offset``:
    so is the whole clip's offset. ``pairwise``: see ``shifted_is_farther``."""
    distance = torch.cdist(video, audio)
    true = torch.arange(video.shape[1], device=video.device)
    nearest = (distance.argmin(2) - true).abs() <= 1
    tables = [distance_table(v, a, VALIDATION_SHIFT) for v, a in zip(video, audio, strict=True)]
    offsets = torch.tensor([sync_score(table).offset for table in tables])
    pairwise = [shifted_is_farther(v, a) for v, a in zip(video, audio, strict=True)]
    return {
        "window_top1": float(nearest.float().mean()),
        "clip_offset": float((offsets.abs() <= 1).float().mean()),
        "pairwise": sum(pairwise) / len(pairwise),
    }
