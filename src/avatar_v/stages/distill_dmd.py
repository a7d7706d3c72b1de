"""Stage 4b: few steps, by distribution matching (Avatar V §3.4; DMD2, arXiv 2405.14867;
Self-Forcing, arXiv 2506.08009).

The student makes a chunk in one to four steps, behind chunks of its own (stages/own_rollout.py).
Its video is noised, and two networks say what it was made of: the real score, which is the weights
that the stage starts from, and the fake score, which is trained on the student's videos all the
time. The student moves along the difference of both. Two terms more are off at weight 0: the
squared error against the end of the real score's own trajectory from the same noise, and hinge
terms of a head that reads the fake score's features and tells made from true video.

A batch trains the fake score once; every ``fake_updates``-th group of batches trains the student,
too. Motion is there before its video, as in generation.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from avatar_v import flow
from avatar_v.base import checks
from avatar_v.losses.adversarial import discriminator_loss, generator_loss
from avatar_v.losses.distill import distribution_matching_gradient, distribution_matching_loss
from avatar_v.losses.flow import flow_loss
from avatar_v.models.discriminator import TokenDiscriminator, features_into
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.lora import active, add_factors
from avatar_v.sampling.guidance import NAMES
from avatar_v.sampling.rollout import starting_noise
from avatar_v.sampling.settings import Settings
from avatar_v.sampling.solver import VelocityFn, sample, trajectory
from avatar_v.stages.base import Logs, Noised
from avatar_v.stages.continuation import Continuation
from avatar_v.stages.distill_cfg import GuidanceRanges
from avatar_v.stages.matching import FAKE, REAL, Scores, compared
from avatar_v.stages.optim import MAX_LR, Optim
from avatar_v.stages.own_rollout import Latents, OwnRollout, Turn, last_turn
from avatar_v.stages.perceptual import PerceptualTerms
from avatar_v.stages.personality import Personality
from avatar_v.stages.roles import STUDENT, Role, Updates, constant
from avatar_v.stages.settings import MAX_GUIDANCE, Models, Objective
from avatar_v.stages.sft import SFT
from avatar_v.stages.trainable import Trainable
from avatar_v.stages.windows import Windows, value_at
from avatar_v.types import Batch, Cond
from avatar_v.weights.card import read_card

HEAD = "head"


@dataclass(frozen=True)
class Matching(Scores):
    """Numbers of distribution matching and of the terms beside it."""

    weight: dict[int, float] = dataclasses.field(default_factory=lambda: {0: 1.0})
    """{step: weight of distribution matching from then on}."""
    regression: dict[int, float] = dataclasses.field(default_factory=lambda: {0: 0.0})
    """{step: weight of the squared error against the real score's trajectory}."""
    teacher_steps: int = 24  # of that trajectory; a multiple of the student's steps
    adversarial: dict[int, float] = dataclasses.field(default_factory=lambda: {0: 0.0})
    """{step: weight of the head's hinge term}."""
    head_lr: float = 2e-4
    head_width: int = 64
    real_guidance: dict[str, float] = dataclasses.field(default_factory=dict)
    """{text, audio or reference: guidance of the real score by several passes}, for weights without
    guidance inside; the student takes it over."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive("head_lr", self.head_lr, most=MAX_LR)
        checks.count("teacher_steps", self.teacher_steps)
        checks.count("head_width", self.head_width)
        for name in ("weight", "regression", "adversarial"):
            checks.by_step(checks.weight, name, getattr(self, name))
        for name, weight in self.real_guidance.items():
            if name not in NAMES:
                raise ValueError(f"real_guidance is of {', '.join(NAMES)}, got {name!r}")
            checks.number(f"real_guidance.{name}", weight, least=0, most=MAX_GUIDANCE)

    @property
    def has_head(self) -> bool:
        return any(weight > 0 for weight in self.adversarial.values())


class DistillDMD(SFT):
    """A student of few steps.

    Args:
        matching: the scores, and the weights of the terms.
        rollout: the student's steps and the videos that it makes in training.
        guidance: ranges of the guidance weights that all networks are told, where the weights that
            the stage starts from have guidance inside; within those that they were trained with.
        trainable: all of the student, or LoRA factors for student and fake score on one base.
        updates: accumulation and clipping, which the trainer leaves to a stage of two roles.
    """

    fake: AvatarDiT
    real: AvatarDiT
    head: TokenDiscriminator

    def __init__(
        self,
        models: Models,
        optim: Optim,
        objective: Objective,
        face_boost: float,
        mouth_boost: float,
        personality: Personality,
        matching: Matching,
        rollout: OwnRollout,
        guidance: GuidanceRanges,
        trainable: Trainable,
        updates: Updates | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            models, optim, objective, face_boost, mouth_boost, personality, Continuation(),
            PerceptualTerms(), trainable, seed,
        )  # fmt: skip
        if trainable.parts == "new":
            raise ValueError("trainable.parts is all or lora: a student learns to make video")
        for steps in rollout.num_steps.values():
            if any(matching.regression.values()) and matching.teacher_steps % steps:
                raise ValueError(
                    f"matching.teacher_steps is a multiple of rollout.num_steps, got "
                    f"{matching.teacher_steps} and {steps}"
                )
        self.matching, self.rollout, self.guidance = matching, rollout, guidance
        self.updates = updates or Updates()
        self.register_buffer("last_loss", torch.zeros(()), persistent=False)

    @property
    def has_adapters(self) -> bool:
        """Whether student and fake score are LoRA factors on the real score."""
        return self.trainable.parts == "lora"

    def roles(self) -> Mapping[str, Role]:
        clip, numbers = self.updates.gradient_clip_val, self.matching
        student = Role(("dit",), self.optim, ema=True, export=True, gradient_clip=clip)
        roles = {
            STUDENT: student,
            FAKE: numbers.fake_role((FAKE,), self.optim, clip),
            REAL: Role((REAL,)),
        }
        if self.has_adapters:
            roles = {
                STUDENT: dataclasses.replace(student, adapter=STUDENT),
                FAKE: dataclasses.replace(roles[FAKE], modules=("dit",), adapter=FAKE),
            }
        if numbers.has_head:
            lr = constant(numbers.head_lr, (0.0, 0.99))
            roles[HEAD] = Role((HEAD,), lr, shard=False, updates_per_step=numbers.fake_updates)
        return roles

    def adapt(self) -> None:
        """All roles begin as the weights that the stage starts from. ValueError for a student of
        few steps, and for guidance outside the range of these weights."""
        if self.models.init_from is not None:
            steps = read_card(self.models.init_from).can.num_steps
            if steps is not None:
                raise ValueError(
                    f"{self.models.init_from} is a student of {steps} steps already; expected "
                    "weights of stage 3 or 4a"
                )
        self.guidance.check_within(self.dit.config.guidance_ranges)
        if self.matching.real_guidance and self.dit.config.has_guidance_inside:
            raise ValueError(
                "matching.real_guidance is for weights without guidance inside; these are told "
                "theirs by the stage's guidance"
            )
        if self.has_adapters:
            numbers = self.trainable
            add_factors(
                self.dit,
                (STUDENT, FAKE),
                rank=numbers.lora_rank,
                alpha=numbers.lora_alpha,
                seed=self.seed,
            )
        else:
            self.fake, self.real = (self.network_for(role, self.dit) for role in (FAKE, REAL))
        if self.matching.has_head:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed)
                self.head = TokenDiscriminator(self.dit.config.dim, self.matching.head_width)

    def select_trainable(self) -> None:
        """The encoders stay as they are."""
        self.conditioner.requires_grad_(False)

    def card_entries(self) -> dict[str, Any]:
        steps = self.rollout.num_steps
        return {
            **super().card_entries(),
            "anchor": self.rollout.anchor,
            "num_steps": steps[max(steps)],
            "shift": self.rollout.shift,
        }

    def sampled_with(self, settings: Settings) -> Settings:
        steps = value_at(self.rollout.num_steps, self.step)
        return dataclasses.replace(
            settings, num_steps=steps, shift=self.rollout.shift, guidance_audio=1.0, renoise=True
        )

    @contextlib.contextmanager
    def network(self, role: str) -> Iterator[AvatarDiT]:
        """The network of ``role``. A backward pass belongs inside the block: blocks that are
        computed again there read the factors that are active."""
        if not self.has_adapters:
            yield {STUDENT: self.dit, FAKE: self.fake, REAL: self.real}[role]
            return
        with active(self.dit, None if role == REAL else role, STUDENT):
            yield self.dit

    @property
    def longest_window(self) -> int:
        return self.rollout.length(super().longest_window)

    def draw_windows(self, batch: Batch, generator: torch.Generator) -> Windows:
        """One kind for the batch and all ranks: they make as many chunks."""
        return self.rollout.draw(self.num_windows(batch), self.window_length, self.common)

    def iterate(
        self, clean: Tensor, cond: Cond, windows: Windows, batch: Batch, generator: torch.Generator
    ) -> tuple[Tensor, Logs]:
        """One backward pass of the fake score, and one of the student if its turn has come."""
        due = self.matching.is_due(self.num_backward[FAKE], self.updates)
        turn = self.turn(clean, cond, windows, generator)
        num_moves = 1 + int(torch.randint(turn.settings.num_steps, (), generator=self.common))
        logs: Logs = {}
        with self.network(STUDENT) as student, torch.set_grad_enabled(due):
            made = turn.make(turn.velocity(student), num_moves)
        turn, made = self.seen_by_scores(turn, made)
        weight = turn.window(self.region(windows, clean, batch))
        if due:
            loss, logs = self.student_loss(turn, made, weight, num_moves, generator)
            with self.network(STUDENT):
                self.update(STUDENT, loss)
            self.last_loss = loss.detach()
        made = made.detach()
        noised = self.noised_chunk(turn, made, generator)
        with self.network(FAKE) as fake:
            logs["fake"] = self.fake_loss(turn.velocity(fake), noised)
            self.update(FAKE, logs["fake"])
        if self.matching.has_head:
            logs["head"] = self.head_loss(turn, made, turn.window(clean), weight, generator)
            self.update(HEAD, logs["head"])
        found = compared(made, turn.window(clean), turn.prefix.shape[1])
        return self.last_loss, {**logs, **found}

    def turn(self, clean: Tensor, cond: Cond, windows: Windows, generator: torch.Generator) -> Turn:
        """The chunk that is to be made; the student makes those before it."""
        num = len(clean)
        if self.dit.config.has_guidance_inside:
            weights = self.guidance.draw(num, generator).to(clean.device)
            cond = dataclasses.replace(cond, guidance=weights)
        seeds = torch.randint(2**62, (num,), generator=generator).tolist()
        settings = self.rollout.settings(
            self.window_length,
            self.step,
            from_prompt=not bool(windows.prefix[0]),
            has_reference=cond.reference is not None,
        )
        no_text = self.conditioner.encode_text([""] * num)
        with self.network(STUDENT) as student:
            return last_turn(student, clean, cond, no_text, windows, settings, tuple(seeds))

    def seen_by_scores(
        self, turn: Turn, made: Float[Tensor, "b whole c h w"]
    ) -> tuple[Turn, Latents]:
        """What of the student's video both scores look at: here all of it."""
        return turn, made

    def student_loss(
        self, turn: Turn, made: Latents, weight: Tensor, num_moves: int, generator: torch.Generator
    ) -> tuple[Tensor, Logs]:
        """The weighted sum of the student's terms."""
        logs: Logs = {}
        matching, loss = value_at(self.matching.weight, self.step), made.new_zeros(())
        if matching > 0:
            logs["dmd"] = self.matching_term(turn, made, weight, generator)
            loss = loss + matching * logs["dmd"]
        regression = value_at(self.matching.regression, self.step)
        if regression > 0:
            logs["regression"] = self.regression_term(turn, weight, num_moves)
            loss = loss + regression * logs["regression"]
        adversarial = value_at(self.matching.adversarial, self.step)
        if adversarial > 0:
            logs["generator"] = self.generator_term(turn, made, weight, generator)
            loss = loss + adversarial * logs["generator"]
        return loss, logs

    def matching_term(
        self, turn: Turn, made: Latents, weight: Tensor, generator: torch.Generator
    ) -> Float[Tensor, ""]:
        """Half the squared distance to where both scores say the student should move to."""
        with torch.no_grad():
            noised = self.noised_chunk(turn, made.detach(), generator)
            clean = {}
            for role, guidance in ((REAL, self.matching.real_guidance), (FAKE, None)):
                with self.network(role) as dit:
                    v = turn.velocity(dit, guidance)(noised.x_t, noised.t)
                clean[role] = flow.clean_from_velocity(noised.x_t, v.float(), noised.t)
            g = distribution_matching_gradient(made, clean[REAL], clean[FAKE], noised.scored)
        return distribution_matching_loss(made, g, noised.scored, weight).mean()

    def regression_term(self, turn: Turn, weight: Tensor, num_moves: int) -> Float[Tensor, ""]:
        """Squared error of x_0 as the student sees it on the real score's trajectory from the
        same noise, against the end of the trajectory."""
        settings, free = turn.settings, turn.prefix.shape[1]
        times = flow.schedule(self.matching.teacher_steps, shift=settings.shift)
        at = (num_moves - 1) * self.matching.teacher_steps // settings.num_steps
        (noise,) = starting_noise(turn.chunk, (turn.prefix,), turn.seeds)
        with torch.no_grad(), self.network(REAL) as real:
            fn, states = turn.velocity(real), [noise[:, free:]]
            for move in trajectory(fn, noise, times, prefix=turn.prefix):
                states.append(move.after)
        jump = torch.stack([times[at], times[-1]])
        start = torch.cat([turn.prefix, states[at]], dim=1)
        with self.network(STUDENT) as student:
            seen = sample(turn.velocity(student), start, jump, prefix=turn.prefix)
        end = torch.cat([turn.prefix, states[-1]], dim=1)
        return flow_loss(seen, end, turn.scored(), weight)

    def fake_loss(self, velocity: VelocityFn, noised: Noised) -> Float[Tensor, ""]:
        """Flow matching on the student's video."""
        v = velocity(noised.x_t, noised.t)
        return flow_loss(v, noised.velocity, noised.scored)

    def noised_chunk(self, turn: Turn, clean: Latents, generator: torch.Generator) -> Noised:
        """``clean`` latents of the chunk as the scores see them; the prefix stays clean."""
        return self.matching.noised(
            clean, turn.scored(), shift=self.objective.shift, generator=generator
        )

    def generator_term(
        self, turn: Turn, made: Latents, weight: Tensor, generator: torch.Generator
    ) -> Float[Tensor, ""]:
        """What the head says of the student's video; face and mouth count more."""
        cells = self.cells(turn, made, generator)
        return generator_loss(cells, _of_tokens(weight, cells, turn))

    def head_loss(
        self, turn: Turn, made: Latents, true: Latents, weight: Tensor, generator: torch.Generator
    ) -> Float[Tensor, ""]:
        """Hinge loss of the head on true and made video."""
        fake, real = (self.cells(turn, x, generator, learn=True) for x in (made, true))
        return discriminator_loss(real, fake, _of_tokens(weight, fake, turn))

    def cells(
        self, turn: Turn, latents: Latents, generator: torch.Generator, *, learn: bool = False
    ) -> Float[Tensor, "b l 1 rows columns"]:
        """The head's logits of noised ``latents``; with ``learn`` it alone takes gradients."""
        noised = self.noised_chunk(turn, latents, generator)
        with self.network(FAKE) as fake, torch.set_grad_enabled(not learn):
            velocity = turn.velocity(fake)
            with features_into(fake, found := []):
                velocity(noised.x_t, noised.t)
        patch = fake.config.patch
        grid = (latents.shape[-2] // patch, latents.shape[-1] // patch)
        return self.head(found[0].detach() if learn else found[0], grid)

    def loss(
        self, clean: Tensor, cond: Cond, windows: Windows, batch: Batch, generator: torch.Generator
    ) -> tuple[Tensor, Logs]:
        """Squared error of the student's chunk against the clip's own, of validation: it says where
        a student goes, not how good it is."""
        turn = self.turn(clean, cond, windows, generator)
        with self.network(STUDENT) as student:
            made = turn.make(turn.velocity(student))
        true = turn.window(clean)
        weight = turn.window(self.region(windows, clean, batch))
        logs = compared(made, true, turn.prefix.shape[1])
        return flow_loss(made, true, turn.scored(), weight), logs


def _of_tokens(weight: Tensor, cells: Tensor, turn: Turn) -> Float[Tensor, "b l 1 rows columns"]:
    """The weights of latent cells as those of tokens, 0 on what is given."""
    small = F.adaptive_avg_pool2d(weight.flatten(0, 1), (cells.shape[-2], cells.shape[-1]))
    return small.unflatten(0, weight.shape[:2]) * turn.scored()[:, :, None, None, None]
