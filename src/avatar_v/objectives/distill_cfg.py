"""Stage 4a: guidance in one pass (Avatar V §3.4; Meng et al., arXiv 2210.03142).

The teacher is guided by four passes: everything, without sound, without words, without the person.
The student takes the three guidance weights, drawn per sample, as an input and learns the teacher's
guided velocity from one pass. Its windows, references and times are those of stage 3. Motion is
there before its video, as in generation.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base import checks
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.guided import with_guidance_inside
from avatar_v.sampling.guidance import guided_by_sample
from avatar_v.training.batch import Logs, TrainBatch
from avatar_v.training.continuation import Continuation
from avatar_v.training.engine import Engine
from avatar_v.training.optim import Optim
from avatar_v.training.personality import Personality
from avatar_v.training.roles import STUDENT, Role
from avatar_v.training.settings import MAX_GUIDANCE, Models, Objective
from avatar_v.training.trainable import MOTION, Trainable, select_dit
from avatar_v.training.video import Regions, VideoSubject, velocity_loss
from avatar_v.types import Cond

TEACHER = "teacher"


@dataclass(frozen=True)
class GuidanceRanges:
    """The least and the largest guidance weight of each condition; drawn uniformly. 1 is none.

    ``none_share`` of the samples draw 1, 1, 1: their target is the teacher's own velocity, which
    keeps a student that takes no guidance where its teacher was.
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


class DistillCFG(Engine[TrainBatch[Cond]]):
    """One pass that gives what guided passes give.

    Args:
        guidance: ranges of the weights that the student learns.
        trainable: all of the student, LoRA factors, or ("new") what reads the weights.
        personality: as in stage 3.
        continuation: as in stage 3.
        face_boost: as in stage 2.
        mouth_boost: as in stage 2.
    """

    subject: VideoSubject
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
        video = VideoSubject(
            models, objective, Regions(face_boost, mouth_boost), personality=personality,
            continuation=continuation,
        )  # fmt: skip
        super().__init__(video, optim, seed, trainable)
        self.guidance = guidance

    def roles(self) -> Mapping[str, Role]:
        return {
            STUDENT: Role(("dit",), self.optim, ema=True, export=True),
            TEACHER: Role((TEACHER,)),
        }

    def build_roles(self) -> None:
        """The teacher is what the stage starts from. ValueError for one that is distilled."""
        if self.dit.config.has_guidance_inside:
            models = self.subject.models
            raise ValueError(
                f"models.init_from: {models.init_from or models.dit} has guidance inside "
                "already; expected weights that are guided by several passes, of stage 3 or small"
            )
        self.teacher = self.network_for(TEACHER, self.dit)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.dit = with_guidance_inside(self.dit, self.guidance.ordered)

    def select_trainable(self) -> None:
        """The encoders stay the teacher's. ``trainable.parts: new`` is what reads the guidance
        weights alone: without guidance such a student is its teacher, exactly."""
        new = ("guidance_embed",)
        if self.trainable.parts != "new":
            new = (*MOTION, *new)
        select_dit(self, self.trainable, new=new, encoders=False, seed=self.seed)

    def loss(self, batch: TrainBatch[Cond]) -> tuple[Tensor, Logs]:
        """Squared error of the student's velocity against the teacher's guided one, face and mouth
        counting more; beside it the error relative to the teacher's velocity."""
        cond, video = batch.cond, self.subject
        assert cond.reference is not None
        with torch.no_grad():
            keys = self.teacher.encode_reference(cond.reference)
        noised = video.noisy(batch, video.with_estimates(self.teacher, batch, keys))
        weights = self.guidance.draw(batch.size, batch.draws.own).to(batch.clean.device)
        with torch.no_grad():
            target = guided_by_sample(
                self.teacher,
                noised.x_t,
                noised.t,
                cond,
                weights,
                no_text=self.conditioner.encode_text([""] * batch.size),
                past=keys,
            )
        past = self.dit.encode_reference(cond.reference)
        v = self.dit(noised.x_t, noised.t, dataclasses.replace(cond, guidance=weights), past=past)
        noised = dataclasses.replace(noised, velocity=target)
        error, size = (velocity_loss(x, noised) for x in (v.detach(), torch.zeros_like(target)))
        loss = velocity_loss(v, noised, video.region(batch))
        return loss, {"relative_error": (error / size).sqrt()}
