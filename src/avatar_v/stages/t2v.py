"""Stage 1: text to video, and image to video in the same batch.

No audio and no reference: their modules keep the zero outputs they start with.
"""

import torch
from torch import Tensor

from avatar_v.stages.base import Logs, Stage
from avatar_v.stages.windows import Windows
from avatar_v.types import Batch, Cond


class T2V(Stage):
    """Windows of clips under their text. The share of windows whose first latent is given (I2V)
    is ``objective.image_share``. Sizes follow the schedule ``objective.resolution``, lengths
    ``objective.window_latents``."""

    def conditions(
        self, batch: Batch, windows: Windows, generator: torch.Generator | None = None
    ) -> Cond:
        return Cond(text=self.conditioner.encode_text(batch.text))

    def loss(
        self, clean: Tensor, cond: Cond, windows: Windows, batch: Batch, generator: torch.Generator
    ) -> tuple[Tensor, Logs]:
        return self.flow_loss(windows, clean, cond, generator), {}
