"""Pictures of a refiner's progress: low, refined and true frames of validation clips."""

import torch

from avatar_v.callbacks.samples import Samples, Video
from avatar_v.objectives.refiner import LowVideoSubject
from avatar_v.training.batch import Draws, TrainBatch
from avatar_v.training.engine import Engine
from avatar_v.training.windows import Windows
from avatar_v.types import Batch


class RefinedSamples(Samples):
    """As Samples, with three rows a clip: enlarged, refined in one step, true."""

    def __init__(self, num_samples: int = 4, num_columns: int = 8, videos: bool = True) -> None:
        super().__init__(num_samples=num_samples, num_columns=num_columns, videos=videos)

    @torch.no_grad()
    def generate(self, stage: Engine, batch: Batch) -> tuple[Video, ...]:
        """Video in [-1, 1] of the first window of each clip."""
        subject, step = stage.subject, stage.step
        if not isinstance(subject, LowVideoSubject):
            raise ValueError(f"RefinedSamples serves refiners, got {type(stage).__name__}")
        clean = stage.conditioner.clean_latents(subject.at_resolution(stage, batch, step))
        clean = clean[:, : subject.window_length(step)]
        beginning = torch.zeros(clean.shape[0], dtype=torch.long)
        windows = Windows(beginning, beginning, beginning, clean.shape[1])
        cond = subject.conditions(stage, batch, windows, step=step)
        own, common = (torch.Generator().manual_seed(0) for _ in range(2))
        draws = Draws(own, common, step)
        shown = TrainBatch(batch, windows, clean, cond, draws, num_tokens=0)
        refined = subject.from_sigma(stage, shown)
        decode = stage.conditioner.vae.decode
        return decode(refined.low), decode(refined.predicted), decode(clean)
