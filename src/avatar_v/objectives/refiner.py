"""The refiner's first phase: flow matching from low to high resolution.

What is trained is AvatarDiT as a refiner (models/refiner.py): it starts from a generator's weights,
reads the enlarged low video beside x_t, its reference, its sound and its motion, and sees in time
only what is near. Times lie in (0, σ]; a share of the samples is at σ, where the one step of
generation starts. refiner_adversarial.py is the second phase.
"""

import dataclasses
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v import flow
from avatar_v.base import checks
from avatar_v.losses.flow import flow_loss
from avatar_v.models.refiner import FACTOR, SIGMA, as_refiner, low_latents, predict_clean
from avatar_v.shards.training_data import TrainingData
from avatar_v.training.batch import Draws, Logs, TrainBatch, noise_like
from avatar_v.training.engine import Engine
from avatar_v.training.optim import Optim
from avatar_v.training.personality import draw_run
from avatar_v.training.settings import Models, Objective
from avatar_v.training.subject import FreeWindows, Networks, token_side
from avatar_v.training.trainable import Trainable, select_dit
from avatar_v.training.video import Regions, VideoSubject
from avatar_v.training.windows import Windows, bernoulli
from avatar_v.types import Batch, Cond, num_latents

Latents = Float[Tensor, "b l c h w"]


@dataclass(frozen=True)
class Refinement:
    """Numbers of the refiner and of what it reads."""

    sigma: float = SIGMA  # where the one step starts
    factor: float = FACTOR  # the pictures are so many times larger than the low ones, each way
    one_step_share: float = 0.5  # samples at t = sigma; the others uniform in (0, sigma]
    temporal_window: int | None = 2  # latent frames each side; None: all of the window
    min_reference_latents: int = 1  # of a step, drawn between the two (personality.draw_run)
    max_reference_latents: int = 1_000_000
    reference_dropout: float = 0.1  # share of samples without a reference
    motion_dropout: float = 0.1  # share of steps without the video's motion

    def __post_init__(self) -> None:
        checks.positive("sigma", self.sigma, most=1)  # a time
        checks.number("factor", self.factor, above=1, most=8)
        if self.temporal_window is not None:
            checks.count("temporal_window", self.temporal_window, least=0)
        low, high = self.min_reference_latents, self.max_reference_latents
        if not 1 <= low <= high:
            raise ValueError(f"a reference has 1 <= min <= max latents, got {low} and {high}")
        checks.each(checks.share, self, ("one_step_share", "reference_dropout", "motion_dropout"))


@dataclass(frozen=True)
class Refined:
    """Predicted and true latents of a step."""

    predicted: Latents  # x̂_0
    clean: Latents
    low: Latents
    weight: Float[Tensor, "b l 1 h w"]  # face and mouth count more

    @property
    def error(self) -> Float[Tensor, ""]:
        """Mean squared distance to the truth, face and mouth counting more."""
        shape, device = self.clean.shape[:2], self.clean.device
        everywhere = torch.ones(shape, dtype=torch.bool, device=device)
        return flow_loss(self.predicted, self.clean, everywhere, self.weight)


class NothingGiven(FreeWindows):
    """Windows in which nothing is given clean: the low video is there from end to end."""

    def draw(self, num: int, clip_latents: int, length: int, draws: Draws) -> Windows:
        windows = super().draw(num, clip_latents, length, draws)
        none = torch.zeros_like(windows.prefix)
        return dataclasses.replace(windows, prefix=none, suffix=none)


class LowVideoSubject(VideoSubject):
    """Stage 2's windows and conditions, the low video, and a run of the reference."""

    def __init__(
        self, models: Models, objective: Objective, regions: Regions, refinement: Refinement
    ) -> None:
        super().__init__(models, objective, regions, windows=NothingGiven(objective))
        self.knows_motion, self.refinement = True, refinement

    def conditions(
        self,
        networks: Networks,
        batch: Batch,
        windows: Windows,
        draws: Draws | None = None,
        *,
        step: int = 0,
    ) -> Cond:
        """The run is drawn alike for the whole batch and all ranks; without draws it is all of the
        reference. ValueError without one."""
        if batch.reference is None:
            raise ValueError("the refiner needs references: set data.init_args.pairs to true")
        start, length = 0, num_latents(batch.reference.motion.shape[1])
        at = step if draws is None else draws.step
        if draws is not None:
            least, most = (
                self.refinement.min_reference_latents, self.refinement.max_reference_latents
            )  # fmt: skip
            start, length = draw_run(length, least, most, draws.common)
        whole = self.at_resolution(networks, batch.reference, at)
        reference = networks.conditioner.encode_reference(whole, start, length)
        return dataclasses.replace(
            super().conditions(networks, batch, windows, draws, step=step),
            reference=reference.without_faces(),
            low=windows.crop(self.low(networks, batch, at)),
        )

    def check_data(self, networks: Networks, data: object, num_steps: int) -> None:
        """Also: the low pictures must be whole cells of the VAE."""
        super().check_data(networks, data, num_steps)
        if not isinstance(data, TrainingData):
            return
        token, cell = token_side(networks), networks.conditioner.vae.spatial_factor
        low_cell = Fraction(self.refinement.factor).limit_denominator(1000) * cell
        data.require_tokens(math.lcm(token, low_cell.numerator))  # sides that hold whole ones

    def low(self, networks: Networks, batch: Batch, step: int) -> Latents:
        """Precomputed, or made of the video; ValueError where there is neither."""
        if batch.low is not None:
            made, asked = batch.low_factor or FACTOR, self.refinement.factor
            if made != asked:
                raise ValueError(
                    f"batch {batch.key[:3]} was made low by a factor of {made:g}, and "
                    f"refinement.factor is {asked:g}: encode the shards with --low {asked:g}"
                )
            return batch.low
        video = self.at_resolution(networks, batch, step).video
        if video is None:
            raise ValueError(
                f"batch {batch.key[:3]} has neither video nor low latents; make them with "
                "`avatar-v shards encode --low`"
            )
        return low_latents(networks.conditioner.vae, video, self.refinement.factor)

    @property
    def reference_dropout(self) -> float:
        return self.refinement.reference_dropout

    def card_entries(self, networks: Networks) -> dict[str, Any]:
        own = self.refinement.factor
        return {"reference": True, "motion": True, "faces": False, "factor": own}

    def refined(
        self, networks: Networks, batch: TrainBatch[Cond], t: Float[Tensor, "b l"]
    ) -> Refined:
        """x̂_0 of a step at the times ``t`` of the path from low to high."""
        cond, clean, conditioner = batch.cond, batch.clean, networks.conditioner
        assert cond.low is not None
        assert cond.reference is not None
        noise = noise_like(clean, batch.draws.own)
        x_t, _ = flow.refine_path(clean, cond.low, noise, t, self.refinement.sigma)
        motion = batch.windows.crop(conditioner.pack_motion(batch.clips.motion).to(clean.device))
        skip = bernoulli(self.refinement.motion_dropout, batch.draws.common)
        past = networks.dit.encode_reference(cond.reference)
        predicted = predict_clean(
            networks.dit, x_t, t, cond, motion=None if skip else motion, past=past
        )
        return Refined(predicted, clean, cond.low, self.region(batch))

    def from_sigma(self, networks: Networks, batch: TrainBatch[Cond]) -> Refined:
        """What one step makes of the windows: x̂_0 from t = σ."""
        t = batch.clean.new_full(batch.clean.shape[:2], self.refinement.sigma)
        return self.refined(networks, batch, t)

    def draw_refinement_times(self, batch: TrainBatch) -> Float[Tensor, "b l"]:
        """One time in (0, σ] per sample, σ itself for a share of them."""
        sigma, share = self.refinement.sigma, self.refinement.one_step_share
        at_start, uniform = torch.rand(2, batch.size, generator=batch.draws.own)
        t = torch.where(at_start < share, sigma, sigma * (1 - uniform))
        return t[:, None].expand(-1, batch.clean.shape[1]).to(batch.clean.device)


class RefinerParts:
    """What a stage of the refiner trains of the weights that it starts from."""

    def __init__(self, refinement: Refinement, trainable: Trainable | None, seed: int) -> None:
        self.refinement, self.trainable, self.seed = refinement, trainable or Trainable(), seed
        self._is_new = True

    def build(self, networks: Networks) -> None:
        """Make the DiT a refiner."""
        numbers, self._is_new = self.refinement, not networks.dit.config.reads_low
        networks.dit = as_refiner(
            networks.dit, sigma=numbers.sigma, temporal_window=numbers.temporal_window
        )
        networks.conditioner.face_vectors = None

    def select(self, networks: Networks) -> None:
        """New is what reads the low video, and the head, which begins anew."""
        new = ("low_embed", "head.") if self._is_new else ()
        select_dit(networks, self.trainable, new=new, seed=self.seed)


class Refiner(Engine[TrainBatch[Cond]]):
    """Flow matching on (low, high) pairs.

    Args:
        refinement: where the step starts, the window in time, the reference's length and dropout.
        face_boost: as in stage 2.
        mouth_boost: as in stage 2.
        trainable: all, or LoRA factors; of a generator's weights with what a refiner has besides.
    """

    subject: LowVideoSubject

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
        video = LowVideoSubject(models, objective, Regions(face_boost, mouth_boost), refinement)
        super().__init__(video, optim, seed, trainable)
        self.parts = RefinerParts(refinement, trainable, seed)

    def build_roles(self) -> None:
        self.parts.build(self)

    def select_trainable(self) -> None:
        self.parts.select(self)

    def loss(self, batch: TrainBatch[Cond]) -> tuple[Tensor, Logs]:
        """``t² ‖v̂ - v‖²``, which is the squared error of x̂_0; and that of the low video itself."""
        times = self.subject.draw_refinement_times(batch)
        refined = self.subject.refined(self, batch, times)
        low = dataclasses.replace(refined, predicted=refined.low)
        return refined.error, {"low": low.error}
