"""Stage 1: text to video, and image to video in the same batch.

No audio and no reference: their modules keep the zero outputs they start with.
"""

from torch import Tensor

from avatar_v.training.batch import Logs, TrainBatch
from avatar_v.training.engine import Engine
from avatar_v.training.optim import Optim
from avatar_v.training.settings import Models, Objective
from avatar_v.training.trainable import Trainable, select_dit
from avatar_v.training.video import VideoSubject, velocity_loss
from avatar_v.types import Cond


class T2V(Engine[TrainBatch[Cond]]):
    """Windows of clips under their text. The share of windows whose first latent is given (I2V)
    is ``objective.image_share``. Sizes follow the schedule ``objective.resolution``, lengths
    ``objective.window_latents``."""

    subject: VideoSubject

    def __init__(
        self,
        models: Models,
        optim: Optim,
        objective: Objective,
        seed: int = 0,
        trainable: Trainable | None = None,
    ) -> None:
        super().__init__(VideoSubject(models, objective, has_audio=False), optim, seed, trainable)

    def select_trainable(self) -> None:
        select_dit(self, self.trainable, new=(), seed=self.seed)

    def loss(self, batch: TrainBatch[Cond]) -> tuple[Tensor, Logs]:
        noised = self.subject.noisy(batch)
        return velocity_loss(self.dit(noised.x_t, noised.t, batch.cond), noised), {}
