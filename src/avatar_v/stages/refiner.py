"""The refiner's first phase: flow matching from low to high resolution.

What is trained is AvatarDiT as a refiner (models/refiner.py): it starts from a generator's weights,
reads the enlarged low video beside x_t, its reference, its sound and its motion, and sees in time
only what is near. Times lie in (0, σ]; a share of the samples is at σ, where the one step of
generation starts. stages/refiner_adversarial.py is the second phase.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v import flow
from avatar_v.base import checks
from avatar_v.losses.flow import flow_loss
from avatar_v.models.refiner import SIGMA, as_refiner, low_latents, predict_clean
from avatar_v.stages.a2v import A2V
from avatar_v.stages.base import Logs, happens
from avatar_v.stages.optim import Optim
from avatar_v.stages.personality import draw_run
from avatar_v.stages.settings import Models, Objective
from avatar_v.stages.trainable import Trainable
from avatar_v.stages.windows import Windows
from avatar_v.types import Batch, Cond, num_latents

Latents = Float[Tensor, "b l c h w"]


@dataclass(frozen=True)
class Refinement:
    """Numbers of the refiner and of what it reads."""

    sigma: float = SIGMA  # where the one step starts
    one_step_share: float = 0.5  # samples at t = sigma; the others uniform in (0, sigma]
    temporal_window: int | None = 2  # latent frames each side; None: all of the window
    min_reference_latents: int = 1  # of a step, drawn between the two (personality.draw_run)
    max_reference_latents: int = 1_000_000
    reference_dropout: float = 0.1  # share of samples without a reference
    motion_dropout: float = 0.1  # share of steps without the video's motion

    def __post_init__(self) -> None:
        checks.positive("sigma", self.sigma, most=1)  # a time
        if self.temporal_window is not None:
            checks.count("temporal_window", self.temporal_window, least=0)
        low, high = self.min_reference_latents, self.max_reference_latents
        if not 1 <= low <= high:
            raise ValueError(f"a reference has 1 <= min <= max latents, got {low} and {high}")
        checks.each(checks.share, self, ("one_step_share", "reference_dropout", "motion_dropout"))


@dataclass(frozen=True)
class Refined:
    """What a step predicted and what is true of it."""

    predicted: Latents  # x̂_0
    clean: Latents
    low: Latents
    weight: Float[Tensor, "b l 1 h w"]  # face and mouth count more


class Refiner(A2V):
    """Flow matching on (low, high) pairs.

    Args:
        refinement: where the step starts, the window in time, the reference's length and dropout.
        face_boost: as in stage 2.
        mouth_boost: as in stage 2.
        trainable: all, or LoRA factors; of a generator's weights with what a refiner has besides.
    """

    def __init__(
        self,
        models: Models,
        optim: Optim,
        objective: Objective,
        face_boost: float,
        mouth_boost: float,
        refinement: Refinement,
        seed: int = 0,
        trainable: Trainable | None = None,
    ) -> None:
        super().__init__(models, optim, objective, face_boost, mouth_boost, seed, trainable)
        self.refinement = refinement
        self._is_new = True

    def adapt(self) -> None:
        numbers, self._is_new = self.refinement, not self.dit.config.reads_low
        self.dit = as_refiner(
            self.dit, sigma=numbers.sigma, temporal_window=numbers.temporal_window
        )

    @property
    def new_parts(self) -> tuple[str, ...]:
        """What reads the low video, and the head, which begins anew."""
        return ("low_embed", "head.") if self._is_new else ()

    def conditions(
        self, batch: Batch, windows: Windows, generator: torch.Generator | None = None
    ) -> Cond:
        """Stage 2's conditions, the low video and a run of the reference, drawn alike for the whole
        batch and all ranks; without a generator all of it. ValueError without a reference."""
        if batch.reference is None:
            raise ValueError("the refiner needs references: set data.init_args.pairs to true")
        start, length = 0, num_latents(batch.reference.motion.shape[1])
        if generator is not None:
            numbers = self.refinement
            start, length = draw_run(
                length, numbers.min_reference_latents, numbers.max_reference_latents, self.common
            )
        whole = self.at_resolution(batch.reference)
        reference = self.conditioner.encode_reference(whole, start, length)
        return dataclasses.replace(
            super().conditions(batch, windows),
            reference=reference.without_faces(),
            low=windows.crop(self.low(batch)),
        )

    def low(self, batch: Batch) -> Latents:
        """Precomputed, or made of the video; ValueError where there is neither."""
        if batch.low is not None:
            return batch.low
        video = self.at_resolution(batch).video
        if video is None:
            raise ValueError(
                f"batch {batch.key[:3]} has neither video nor low latents; make them with "
                "`avatar-v shards encode --low`"
            )
        return low_latents(self.conditioner.vae, video)

    @property
    def knows_motion(self) -> bool:
        return True

    @property
    def reference_dropout(self) -> float:
        return self.refinement.reference_dropout

    def card_entries(self) -> dict[str, Any]:
        return {"reference": True, "motion": True, "faces": False}

    def draw_windows(self, batch: Batch, generator: torch.Generator) -> Windows:
        """Windows in which nothing is given clean: the low video is there from end to end."""
        windows = super().draw_windows(batch, generator)
        none = torch.zeros_like(windows.prefix)
        return dataclasses.replace(windows, prefix=none, suffix=none)

    def loss(
        self, clean: Tensor, cond: Cond, windows: Windows, batch: Batch, generator: torch.Generator
    ) -> tuple[Tensor, Logs]:
        """``t² ‖v̂ - v‖²``, which is the squared error of x̂_0; and that of the low video itself."""
        t = self.draw_times(clean, generator)
        refined = self.refined(clean, cond, t, windows, batch, generator)
        return self.error(refined.predicted, refined), {"low": self.error(refined.low, refined)}

    def refined(
        self,
        clean: Latents,
        cond: Cond,
        t: Float[Tensor, "b l"],
        windows: Windows,
        batch: Batch,
        generator: torch.Generator,
    ) -> Refined:
        """x̂_0 of a step at the times ``t`` of the path from low to high."""
        assert cond.low is not None
        noise = torch.randn(clean.shape, generator=generator).to(clean)
        x_t, _ = flow.refine_path(clean, cond.low, noise, t, self.refinement.sigma)
        motion = windows.crop(self.conditioner.pack_motion(batch.motion).to(clean.device))
        skip = happens(self.refinement.motion_dropout, self.common)
        assert cond.reference is not None
        past = self.dit.encode_reference(cond.reference)
        predicted = predict_clean(
            self.dit, x_t, t, cond, motion=None if skip else motion, past=past
        )
        return Refined(predicted, clean, cond.low, self.region(windows, clean, batch))

    def error(self, x: Latents, refined: Refined) -> Tensor:
        """Mean squared distance to the truth, face and mouth counting more."""
        everywhere = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        return flow_loss(x, refined.clean, everywhere, refined.weight)

    def draw_times(self, clean: Latents, generator: torch.Generator) -> Float[Tensor, "b l"]:
        """One time in (0, σ] per sample, σ itself for a share of them."""
        sigma, (at_start, uniform) = (
            self.refinement.sigma,
            torch.rand(2, clean.shape[0], generator=generator),
        )
        t = torch.where(at_start < self.refinement.one_step_share, sigma, sigma * (1 - uniform))
        return t[:, None].expand(-1, clean.shape[1]).to(clean.device)

    @torch.no_grad()
    def one_step(self, clean: Latents, cond: Cond, windows: Windows, batch: Batch) -> Latents:
        """What generation makes of the windows: x̂_0 from t = σ, the noise being of one seed."""
        t = clean.new_full(clean.shape[:2], self.refinement.sigma)
        generator = torch.Generator().manual_seed(0)
        return self.refined(clean, cond, t, windows, batch, generator).predicted
