"""Distribution matching of video (DMD2, arXiv 2405.14867): the student's terms, the fake score's
and the head's, whichever network the student is.

The student's chunk is noised, and two networks say what it was made of. The student moves along the
difference of both. Two terms more are off at weight 0: the squared error against the end of the
real score's own trajectory from the same noise, and hinge terms of a head that reads the fake
score's features and tells made from true video.

A batch trains the fake score once; every ``fake_updates``-th group of batches trains the student,
too.
"""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v import flow
from avatar_v.base import checks
from avatar_v.losses.adversarial import discriminator_loss, generator_loss
from avatar_v.losses.distill import distribution_matching_gradient, distribution_matching_loss
from avatar_v.losses.flow import flow_loss
from avatar_v.models.discriminator import TokenDiscriminator, features_into
from avatar_v.models.dit import AvatarDiT
from avatar_v.objectives.matching import FAKE, REAL, Scores, compared
from avatar_v.sampling.guidance import NAMES
from avatar_v.sampling.rollout import starting_noise
from avatar_v.sampling.solver import sample, trajectory
from avatar_v.training.batch import Draws, Logs, NoisySample, TrainBatch
from avatar_v.training.chunk_rollout import ChunkRollout, Latents
from avatar_v.training.optim import MAX_LR, Optim
from avatar_v.training.roles import STUDENT, Role, Updates, constant
from avatar_v.training.settings import MAX_GUIDANCE
from avatar_v.training.windows import value_at
from avatar_v.types import Cond

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


@runtime_checkable
class Host(Protocol):
    """The engine whose networks are matched."""

    step: int
    updates: Updates
    num_backward: dict[str, int]

    def network(self, role: str) -> AbstractContextManager[AvatarDiT]:
        """The network of a role. A backward pass belongs inside the block."""
        ...

    def update(self, role: str, loss: Tensor | Iterator[Tensor]) -> bool: ...

    def get_submodule(self, target: str) -> nn.Module: ...


@dataclass(frozen=True)
class ScoredChunk:
    """The chunk of the student's video that both scores look at."""

    rollout: ChunkRollout
    made: Latents
    true: Latents
    weight: Float[Tensor, "b l 1 h w"]  # face and mouth count more


class DistributionMatching:
    """The turns of student, fake score and head on one batch. ``shift`` is that of training."""

    def __init__(self, numbers: Matching, shift: float) -> None:
        self.numbers, self.shift = numbers, shift
        self.last_loss: Tensor | None = None

    def roles(self, optim: Optim, updates: Updates, *, adapters: bool = False) -> dict[str, Role]:
        """Student, both scores and the head as networks of their own; with ``adapters`` student and
        fake score as factors on the real one, which is the frozen base of ``dit``."""
        clip, numbers = updates.gradient_clip_val, self.numbers
        roles = {
            STUDENT: Role(("dit",), optim, ema=True, export=True, gradient_clip=clip),
            FAKE: numbers.fake_role((FAKE,), optim, clip),
            REAL: Role((REAL,)),
        }
        if numbers.has_head:
            lr = constant(numbers.head_lr, (0.0, 0.99))
            roles[HEAD] = Role((HEAD,), lr, shard=False, updates_per_step=numbers.fake_updates)
        if adapters:
            del roles[REAL]
            roles[STUDENT] = dataclasses.replace(roles[STUDENT], adapter=STUDENT)
            roles[FAKE] = dataclasses.replace(roles[FAKE], modules=("dit",), adapter=FAKE)
        return roles

    def build_head(self, dim: int, seed: int, sequence_size: int) -> TokenDiscriminator:
        """A fresh head for features of ``dim``. ValueError for a sequence group, whose ranks have
        the features of some tokens each."""
        if sequence_size > 1:
            raise ValueError(
                "matching.adversarial is for videos that one rank computes, so "
                f"tensor_parallel_size is 1, got {sequence_size}"
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return TokenDiscriminator(dim, self.numbers.head_width)

    def iterate(
        self,
        host: Host,
        batch: TrainBatch[Cond],
        rollout: ChunkRollout,
        region: Float[Tensor, "b whole 1 h w"],
        part: Callable[[ChunkRollout, Latents, Draws], tuple[ChunkRollout, Latents]] | None = None,
    ) -> tuple[Tensor, Logs]:
        """One backward pass of the fake score, and one of the student if its turn has come.
        ``part`` chooses what of the student's video the scores see; None: all of it."""
        due = self.numbers.is_due(host.num_backward[FAKE], host.updates)
        num_moves = 1 + int(
            torch.randint(rollout.settings.num_steps, (), generator=batch.draws.common)
        )
        logs: Logs = {}
        with host.network(STUDENT) as student, torch.set_grad_enabled(due):
            made, steps = rollout.roll(student, num_moves, with_steps=due)
        whole = made if steps is None else made.requires_grad_(due)
        if part is not None:
            rollout, made = part(rollout, whole, batch.draws)
        chunk = ScoredChunk(rollout, made, rollout.window(batch.clean), rollout.window(region))
        if due:
            loss, logs = self.student_loss(host, chunk, num_moves, batch.draws.own)
            with host.network(STUDENT):
                if steps is None:
                    host.update(STUDENT, loss)
                else:
                    (gradient,) = torch.autograd.grad(loss, whole)
                    host.update(STUDENT, steps.parts(gradient))
            self.last_loss = loss.detach()
        chunk = dataclasses.replace(chunk, made=made.detach())
        noised = self.noisy(rollout, chunk.made, batch.draws.own)
        with host.network(FAKE) as fake:
            v = rollout.velocity(fake)(noised.x_t, noised.t)
            logs["fake"] = flow_loss(v, noised.velocity, noised.scored)
            host.update(FAKE, logs["fake"])
        if self.numbers.has_head:
            logs["head"] = self.head_loss(host, chunk, batch.draws.own)
            host.update(HEAD, logs["head"])
        logs |= compared(chunk.made, chunk.true, rollout.prefix.shape[1])
        return made.new_zeros(()) if self.last_loss is None else self.last_loss, logs

    def student_loss(
        self, host: Host, chunk: ScoredChunk, num_moves: int, generator: torch.Generator
    ) -> tuple[Tensor, Logs]:
        """The weighted sum of the student's terms."""
        numbers, logs = self.numbers, Logs()
        matching, loss = value_at(numbers.weight, host.step), chunk.made.new_zeros(())
        if matching > 0:
            logs["dmd"] = self.matching_term(host, chunk, generator)
            loss = loss + matching * logs["dmd"]
        regression = value_at(numbers.regression, host.step)
        if regression > 0:
            logs["regression"] = self.regression_term(host, chunk, num_moves)
            loss = loss + regression * logs["regression"]
        adversarial = value_at(numbers.adversarial, host.step)
        if adversarial > 0:
            logs["generator"], pull = self.generator_term(host, chunk, adversarial, generator)
            loss = loss + adversarial * logs["generator"] + (pull - pull.detach())
        return loss, logs

    def generator_term(
        self, host: Host, chunk: ScoredChunk, weight: float, generator: torch.Generator
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """The head's term without a gradient, and a number with that of ``weight`` times it. The
        backward pass through the fake score belongs in here: blocks that are computed again read
        the factors that are active."""
        cells = self.cells(host, chunk.rollout, chunk.made, generator)
        term = generator_loss(cells, _of_tokens(chunk, cells))
        with host.network(FAKE):
            (gradient,) = torch.autograd.grad(weight * term, chunk.made)
        return term.detach(), (chunk.made * gradient).sum()

    def matching_term(
        self, host: Host, chunk: ScoredChunk, generator: torch.Generator
    ) -> Float[Tensor, ""]:
        """Half the squared distance to where both scores say the student should move to."""
        rollout, made = chunk.rollout, chunk.made
        with torch.no_grad():
            noised = self.noisy(rollout, made.detach(), generator)
            clean = {}
            for role, guidance in ((REAL, self.numbers.real_guidance), (FAKE, None)):
                with host.network(role) as dit:
                    v = rollout.velocity(dit, guidance)(noised.x_t, noised.t)
                clean[role] = flow.clean_from_velocity(noised.x_t, v.float(), noised.t)
            g = distribution_matching_gradient(made, clean[REAL], clean[FAKE], noised.scored)
        return distribution_matching_loss(made, g, noised.scored, chunk.weight).mean()

    def regression_term(self, host: Host, chunk: ScoredChunk, num_moves: int) -> Float[Tensor, ""]:
        """Squared error of x_0 as the student sees it on the real score's trajectory from the
        same noise, against the end of the trajectory."""
        rollout = chunk.rollout
        settings, free = rollout.settings, rollout.prefix.shape[1]
        times = flow.schedule(self.numbers.teacher_steps, shift=settings.shift)
        at = (num_moves - 1) * self.numbers.teacher_steps // settings.num_steps
        (noise,) = starting_noise(rollout.chunk, (rollout.prefix,), rollout.seeds)
        with torch.no_grad(), host.network(REAL) as real:
            fn, states = rollout.velocity(real), [noise[:, free:]]
            for move in trajectory(fn, noise, times, prefix=rollout.prefix):
                states.append(move.after)
        jump = torch.stack([times[at], times[-1]])
        start = torch.cat([rollout.prefix, states[at]], dim=1)
        with host.network(STUDENT) as student:
            seen = sample(rollout.velocity(student), start, jump, prefix=rollout.prefix)
        end = torch.cat([rollout.prefix, states[-1]], dim=1)
        return flow_loss(seen, end, rollout.scored(), chunk.weight)

    def head_loss(
        self, host: Host, chunk: ScoredChunk, generator: torch.Generator
    ) -> Float[Tensor, ""]:
        """Hinge loss of the head on true and made video; face and mouth count more."""
        fake, real = (
            self.cells(host, chunk.rollout, x, generator, learn=True)
            for x in (chunk.made, chunk.true)
        )
        return discriminator_loss(real, fake, _of_tokens(chunk, fake))

    def cells(
        self,
        host: Host,
        rollout: ChunkRollout,
        latents: Latents,
        generator: torch.Generator,
        *,
        learn: bool = False,
    ) -> Float[Tensor, "b l 1 rows columns"]:
        """The head's logits of noised ``latents``; with ``learn`` it alone takes gradients."""
        noised = self.noisy(rollout, latents, generator)
        with host.network(FAKE) as fake, torch.set_grad_enabled(not learn):
            velocity = rollout.velocity(fake)
            with features_into(fake, found := []):
                velocity(noised.x_t, noised.t)
        patch = fake.config.patch
        grid = (latents.shape[-2] // patch, latents.shape[-1] // patch)
        return host.get_submodule(HEAD)(found[0].detach() if learn else found[0], grid)

    def noisy(
        self, rollout: ChunkRollout, clean: Latents, generator: torch.Generator
    ) -> NoisySample:
        """``clean`` latents of the chunk as the scores see them; the prefix stays clean."""
        return self.numbers.noisy(clean, rollout.scored(), shift=self.shift, generator=generator)


def validation_loss(
    rollout: ChunkRollout, student: AvatarDiT, batch: TrainBatch[Cond], region: Tensor
) -> tuple[Tensor, Logs]:
    """Squared error of the student's chunk against the clip's own: it says where a student goes,
    not how good it is."""
    (made, _), true = rollout.roll(student), rollout.window(batch.clean)
    logs = compared(made, true, rollout.prefix.shape[1])
    return flow_loss(made, true, rollout.scored(), rollout.window(region)), logs


def _of_tokens(chunk: ScoredChunk, cells: Tensor) -> Float[Tensor, "b l 1 rows columns"]:
    """The weights of latent cells as those of tokens, 0 on what is given."""
    weight = chunk.weight
    small = F.adaptive_avg_pool2d(weight.flatten(0, 1), (cells.shape[-2], cells.shape[-1]))
    return small.unflatten(0, weight.shape[:2]) * chunk.rollout.scored()[:, :, None, None, None]
