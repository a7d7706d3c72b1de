"""Stage 2: speech to video. Starts from the weights of stage 1 and learns to follow the audio.

Windows begin at the beginning of a clip, from an image or from nothing, or continue its middle
from 1 or 2 given latents. The flow loss counts face and mouth more.
"""

import torch
from torch import Tensor

from avatar_v.base import checks
from avatar_v.losses.flow import latent_boxes, region_weight
from avatar_v.stages.base import Logs, Stage
from avatar_v.stages.optim import Optim
from avatar_v.stages.settings import Models, Objective
from avatar_v.stages.trainable import AUDIO, Trainable
from avatar_v.stages.windows import Windows
from avatar_v.types import Batch, Cond


class A2V(Stage):
    """Audio cross-attention on.

    Args:
        face_boost: extra weight of the flow loss on a latent cell that the face covers.
        mouth_boost: the same of the mouth, on top.
        trainable: all, LoRA factors, or what hears alone.
    """

    def __init__(
        self,
        models: Models,
        optim: Optim,
        objective: Objective,
        face_boost: float,
        mouth_boost: float,
        seed: int = 0,
        trainable: Trainable | None = None,
    ) -> None:
        super().__init__(models, optim, objective, seed, trainable)
        checks.weight("face_boost", face_boost)
        checks.weight("mouth_boost", mouth_boost)
        self.face_boost = face_boost
        self.mouth_boost = mouth_boost

    @property
    def new_parts(self) -> tuple[str, ...]:
        """What hears, where it gives nothing yet (own_face starts from weights that hear)."""
        return () if self.dit.hears else AUDIO

    def conditions(
        self, batch: Batch, windows: Windows, generator: torch.Generator | None = None
    ) -> Cond:
        return Cond(
            text=self.conditioner.encode_text(batch.text),
            audio=self.conditioner.encode_audio_windows(batch.audio, windows.start, windows.length),
        )

    def loss(
        self, clean: Tensor, cond: Cond, windows: Windows, batch: Batch, generator: torch.Generator
    ) -> tuple[Tensor, Logs]:
        weight = self.region(windows, clean, batch)
        return self.flow_loss(windows, clean, cond, generator, weight), {}

    def region(self, windows: Windows, clean: Tensor, batch: Batch) -> Tensor:
        """Weight "b l 1 h w" of every latent cell of the windows: face and mouth count more."""
        return region_weight(
            windows.crop(latent_boxes(batch.face_box, batch.valid)),
            windows.crop(latent_boxes(batch.mouth_box, batch.valid)),
            height=clean.shape[-2],
            width=clean.shape[-1],
            face_boost=self.face_boost,
            mouth_boost=self.mouth_boost,
        )
