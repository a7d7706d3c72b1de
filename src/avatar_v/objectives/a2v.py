"""Stage 2: speech to video. Starts from the weights of stage 1 and learns to follow the audio.

Windows begin at the beginning of a clip, from an image or from nothing, or continue its middle
from 1 or 2 given latents. The flow loss counts face and mouth more.
"""

from torch import Tensor

from avatar_v.training.batch import Logs, TrainBatch
from avatar_v.training.engine import Engine
from avatar_v.training.optim import Optim
from avatar_v.training.settings import Models, Objective
from avatar_v.training.trainable import AUDIO, Trainable, select_dit
from avatar_v.training.video import Regions, VideoSubject, velocity_loss
from avatar_v.types import Cond


class A2V(Engine[TrainBatch[Cond]]):
    """Audio cross-attention on.

    Args:
        face_boost: extra weight of the flow loss on a latent cell that the face covers.
        mouth_boost: the same of the mouth, on top.
        trainable: all, LoRA factors, or the audio layers alone.
    """

    subject: VideoSubject

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
        regions = Regions(face_boost, mouth_boost)
        super().__init__(VideoSubject(models, objective, regions), optim, seed, trainable)

    def select_trainable(self) -> None:
        """Audio layers are new where they give nothing yet (own_face starts from trained ones)."""
        new = () if self.dit.has_audio else AUDIO
        select_dit(self, self.trainable, new=new, seed=self.seed)

    def loss(self, batch: TrainBatch[Cond]) -> tuple[Tensor, Logs]:
        noised = self.subject.noisy(batch)
        v = self.dit(noised.x_t, noised.t, batch.cond)
        return velocity_loss(v, noised, self.subject.region(batch)), {}
