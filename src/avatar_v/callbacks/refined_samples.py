"""Pictures of a refiner's progress: low, refined and true frames of validation clips."""

import torch

from avatar_v.callbacks.samples import Samples, Video
from avatar_v.stages.base import Stage
from avatar_v.stages.refiner import Refiner
from avatar_v.stages.windows import Windows
from avatar_v.types import Batch


class RefinedSamples(Samples):
    """As Samples, with three rows a clip: enlarged, refined in one step, true."""

    def __init__(self, num_samples: int = 4, num_columns: int = 8) -> None:
        super().__init__(num_samples=num_samples, num_columns=num_columns)

    @torch.no_grad()
    def generate(self, stage: Stage, batch: Batch) -> tuple[Video, ...]:
        """Video in [-1, 1] of the first window of each clip."""
        if not isinstance(stage, Refiner):
            raise ValueError(f"RefinedSamples serves Refiner, got {type(stage).__name__}")
        clean = stage.conditioner.clean_latents(stage.at_resolution(batch))
        clean = clean[:, : stage.window_length]
        beginning = torch.zeros(clean.shape[0], dtype=torch.long)
        windows = Windows(beginning, beginning, beginning, clean.shape[1])
        cond = stage.conditions(batch, windows)
        assert cond.low is not None
        refined = stage.one_step(clean, cond, windows, batch)
        decode = stage.conditioner.vae.decode
        return decode(cond.low), decode(refined), decode(clean)
