"""Stage 4a: guidance in one pass (Avatar V §3.4; Meng et al., arXiv 2210.03142).

The teacher is guided by four passes: everything, without sound, without words, without the person.
The student is told the three guidance weights, drawn per sample, and learns the teacher's guided
velocity from one pass. Its windows, references and times are those of stage 3. Motion is there
before its video, as in generation.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base import checks
from avatar_v.losses.flow import flow_loss
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.guided import with_guidance_inside
from avatar_v.sampling.guidance import guided_by_sample
from avatar_v.stages.base import Logs
from avatar_v.stages.continuation import Continuation, with_estimated_prefix
from avatar_v.stages.optim import Optim
from avatar_v.stages.perceptual import PerceptualTerms
from avatar_v.stages.personality import Personality
from avatar_v.stages.roles import STUDENT, Role
from avatar_v.stages.settings import MAX_GUIDANCE, Models, Objective
from avatar_v.stages.sft import SFT
from avatar_v.stages.trainable import Trainable
from avatar_v.stages.windows import Windows
from avatar_v.types import Batch, Cond

TEACHER = "teacher"


@dataclass(frozen=True)
class GuidanceRanges:
    """The least and the largest guidance weight of each condition; drawn uniformly. 1 is none.

    ``none_share`` of the samples draw 1, 1, 1: their target is the teacher's own velocity, which
    keeps a student that is told no guidance where its teacher was.
    """

    text: tuple[float, float] = (1.0, 3.0)
    audio: tuple[float, float] = (1.0, 4.0)
    reference: tuple[float, float] = (1.0, 3.0)
    none_share: float = 0.0

    def __post_init__(self) -> None:
        checks.share("guidance.none_share", self.none_share)
        for name in ("text", "audio", "reference"):
            low, high = getattr(self, name)
            if not 0 <= low <= high <= MAX_GUIDANCE:
                raise ValueError(
                    f"guidance.{name} is 0 <= least <= largest <= {MAX_GUIDANCE}, got {low}, {high}"
                )

    @property
    def ordered(self) -> tuple[tuple[float, float], ...]:
        """In the order of Cond.guidance."""
        return self.text, self.audio, self.reference

    def check_within(self, trained: Sequence[Sequence[float]] | None) -> None:
        """ValueError for a weight outside the ranges that a network was trained with."""
        for name, (low, high), known in zip(
            ("text", "audio", "reference"), self.ordered, trained or self.ordered, strict=True
        ):
            if low < known[0] or high > known[1]:
                raise ValueError(
                    f"guidance.{name} {low} to {high} leaves {known[0]} to {known[1]}, the range "
                    "that these weights were trained with"
                )

    def draw(self, num: int, generator: torch.Generator) -> Float[Tensor, "num 3"]:
        """Weights of text, audio and reference for each of ``num`` samples."""
        low, high = torch.tensor(self.ordered).T
        weights = low + (high - low) * torch.rand(num, len(low), generator=generator)
        if self.none_share > 0:
            weights[torch.rand(num, generator=generator) < self.none_share] = 1.0
        return weights


class DistillCFG(SFT):
    """One pass that gives what guided passes give.

    Args:
        guidance: ranges of the weights that the student learns.
        trainable: all of the student, LoRA factors, or ("new") what reads the weights.
    """

    teacher: AvatarDiT

    def __init__(
        self,
        models: Models,
        optim: Optim,
        objective: Objective,
        face_boost: float,
        mouth_boost: float,
        personality: Personality,
        continuation: Continuation,
        guidance: GuidanceRanges,
        trainable: Trainable,
        seed: int = 0,
    ) -> None:
        super().__init__(
            models, optim, objective, face_boost, mouth_boost, personality, continuation,
            PerceptualTerms(), trainable, seed,
        )  # fmt: skip
        self.guidance = guidance

    def roles(self) -> Mapping[str, Role]:
        return {
            STUDENT: Role(("dit",), self.optim, ema=True, export=True),
            TEACHER: Role((TEACHER,)),
        }

    def adapt(self) -> None:
        """The teacher is what the stage starts from. ValueError for one that is distilled."""
        if self.dit.config.has_guidance_inside:
            raise ValueError(
                f"models.init_from: {self.models.init_from or self.models.dit} has guidance inside "
                "already; expected weights that are guided by several passes, of stage 3 or small"
            )
        self.teacher = self.network_for(TEACHER, self.dit)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.dit = with_guidance_inside(self.dit, self.guidance.ordered)

    def select_trainable(self) -> None:
        """The encoders stay the teacher's. ``trainable.parts: new`` is what reads the guidance
        weights alone: without guidance such a student is its teacher, exactly."""
        super().select_trainable()
        self.conditioner.requires_grad_(False)

    @property
    def new_parts(self) -> tuple[str, ...]:
        told = ("guidance_embed",)
        return told if self.trainable.parts == "new" else (*super().new_parts, *told)

    def loss(
        self, clean: Tensor, cond: Cond, windows: Windows, batch: Batch, generator: torch.Generator
    ) -> tuple[Tensor, Logs]:
        """Squared error of the student's velocity against the teacher's guided one, face and mouth
        counting more; beside it the error relative to the teacher's velocity."""
        assert cond.reference is not None
        with torch.no_grad():
            shown, keys = clean, self.teacher.encode_reference(cond.reference)
        if self.continuation.estimate_share > 0:
            shown = with_estimated_prefix(
                self.teacher, cond, windows, clean, self.continuation, generator, past=keys
            )
        noised = self.noised(windows, shown, generator)
        weights = self.guidance.draw(len(clean), generator).to(clean.device)
        with torch.no_grad():
            target = guided_by_sample(
                self.teacher,
                noised.x_t,
                noised.t,
                cond,
                weights,
                no_text=self.conditioner.encode_text([""] * len(clean)),
                past=keys,
            )
        told = dataclasses.replace(cond, guidance=weights)
        past = self.dit.encode_reference(cond.reference)
        v = self.dit(noised.x_t, noised.t, told, past=past)
        loss = flow_loss(v, target, noised.scored, self.region(windows, clean, batch))
        error = flow_loss(v.detach(), target, noised.scored)
        size = flow_loss(torch.zeros_like(target), target, noised.scored)
        return loss, {"relative_error": (error / size).sqrt()}
