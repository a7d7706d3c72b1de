"""Live student, first part: stage 3 for a network that makes block after block (Live Avatar §4.2).

Diffusion forcing: each block of a window has a time of its own, so a block learns to be denoised
behind others of any noise. In generation all of them have been denoised to the same time
(sampling/blocks.py), so a share of the windows has one time for all blocks.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v import flow
from avatar_v.base import checks
from avatar_v.models.attention import Pattern
from avatar_v.models.causal import as_causal
from avatar_v.models.config import CAUSAL_FIRST
from avatar_v.sampling.blocks import check_chunks
from avatar_v.stages.base import Noised
from avatar_v.stages.continuation import Continuation
from avatar_v.stages.optim import Optim
from avatar_v.stages.perceptual import PerceptualTerms
from avatar_v.stages.personality import Personality
from avatar_v.stages.settings import Models, Objective
from avatar_v.stages.sft import SFT
from avatar_v.stages.trainable import Trainable
from avatar_v.stages.windows import Windows
from avatar_v.weights.card import read_card


@dataclass(frozen=True)
class Blocks:
    """The blocks of a causal network, and the times that they have in training."""

    length: int = 3  # latents of a block (Live Avatar §4.1)
    window: int = 4  # blocks before its own that a block sees
    one_time_share: float = 0.5  # of the windows have one time for all blocks (our choice)

    def __post_init__(self) -> None:
        checks.count("blocks.length", self.length, least=CAUSAL_FIRST)
        checks.count("blocks.window", self.window)
        checks.share("blocks.one_time_share", self.one_time_share)

    def draw_times(
        self, windows: Windows, *, shift: float, generator: torch.Generator
    ) -> Float[Tensor, "b l"]:
        """A logit-normal time for each block of each window, or one for all; 0 on what is given."""
        num = len(windows.start)
        runs = Pattern.causal(self.length, first=CAUSAL_FIRST).runs(windows.length)
        drawn = flow.draw_times(num * len(runs), shift=shift, generator=generator)
        times = drawn.unflatten(0, (num, len(runs)))
        alike = torch.rand(num, 1, generator=generator) < self.one_time_share
        times = torch.where(alike, times[:, :1], times)
        lengths = torch.tensor([stop - start for start, stop in runs])
        return torch.where(windows.scored(), times.repeat_interleave(lengths, dim=1), 0.0)


class CausalForcing(SFT):
    """Stage 3 by blocks, without perceptual losses.

    Args:
        blocks: of the network, and their times.
        personality: as in stage 3.
        continuation: its anchor; windows that continue see the truth before them.
        trainable: all of the DiT or LoRA factors.
        face_boost: as in stage 2.
        mouth_boost: as in stage 2.
    """

    def __init__(
        self,
        models: Models,
        optim: Optim,
        objective: Objective,
        face_boost: float,
        mouth_boost: float,
        personality: Personality,
        continuation: Continuation,
        blocks: Blocks,
        trainable: Trainable,
        seed: int = 0,
    ) -> None:
        super().__init__(
            models, optim, objective, face_boost, mouth_boost, personality, continuation,
            PerceptualTerms(), trainable, seed,
        )  # fmt: skip
        if objective.suffix_share > 0:
            raise ValueError("objective.suffix_share is 0: a causal network sees nothing behind it")
        self.blocks = blocks

    @property
    def new_parts(self) -> tuple[str, ...]:
        return ()

    def adapt(self) -> None:
        """The same weights with another attention. ValueError for windows that blocks do not fill,
        and for distilled weights, whose velocity is not that of the data."""
        if self.models.init_from is not None:
            steps = read_card(self.models.init_from).can.num_steps
            if steps is not None or self.dit.config.has_guidance_inside:
                raise ValueError(
                    f"{self.models.init_from} is distilled; expected weights of stage 3 or small"
                )
        self.dit = as_causal(self.dit, block=self.blocks.length, window=self.blocks.window)
        for length in self.objective.window_latents.values():
            check_chunks(self.blocks.length, length)

    def card_entries(self) -> dict[str, Any]:
        return {**super().card_entries(), "causal_block": self.blocks.length}

    def noised(self, windows: Windows, clean: Tensor, generator: torch.Generator) -> Noised:
        """The blocks of windows, each at its time; ``times`` has the largest of a window."""
        noise = torch.randn(clean.shape, generator=generator).to(clean)
        shift = self.objective.shift
        times = self.blocks.draw_times(windows, shift=shift, generator=generator)
        t, scored = times.to(clean.device), windows.scored().to(clean.device)
        x_t, velocity = flow.interpolate(clean, noise, t), flow.velocity(clean, noise)
        return Noised(x_t, t, times.amax(1), velocity, scored)
