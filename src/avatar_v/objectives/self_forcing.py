"""Live student, second part: few steps by distribution matching (Live Avatar §4.2, alg. 1).

The student is the causal network of the first part; both scores are the weights of stage 3, which
see a window as a whole. In each step blocks see earlier ones at the same time t, so a window in one
pass under the causal mask is the very video that generation makes block after block
(sampling/blocks.py; tests/numerics/test_blocks.py): training takes the pass. What a block sees of
the past is noisy in all steps but the last, as in the paper; unlike alg. 1, gradients pass into the
past, and each step has a past of its own, as in generation. With ``student.gradients`` blocks the
student makes block after block as generation does. That follows alg. 2 in two things: the past
takes no gradient, and activations are those of one block. Two differ: the scores look once at the
window instead of once for each block, and each step reads the past of its own step.

A student's windows are longer than the scores', so that blocks leave its sight. The scores look at
a part, which continues the student's own latents.
"""

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base import checks
from avatar_v.models.causal import check_corruption
from avatar_v.models.config import DiTConfig, Streaming
from avatar_v.models.discriminator import TokenDiscriminator
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.lora import Factors, active, add_factors, load_factors
from avatar_v.models.reference import anchor_frame
from avatar_v.motion.stats import MotionStats
from avatar_v.objectives.distribution_matching import (
    DistributionMatching,
    Matching,
    validation_loss,
)
from avatar_v.objectives.matching import FAKE, REAL
from avatar_v.sampling.blocks import check_chunks
from avatar_v.sampling.chunks import OVERLAP, Span
from avatar_v.sampling.settings import Settings
from avatar_v.training.batch import Draws, Logs, TrainBatch
from avatar_v.training.chunk_rollout import ChunkRollout, Latents, SelfRollout, roll_out_chunk
from avatar_v.training.engine import Engine
from avatar_v.training.optim import Optim
from avatar_v.training.personality import Personality
from avatar_v.training.roles import STUDENT, Role, Updates
from avatar_v.training.settings import Models, Objective
from avatar_v.training.trainable import Trainable
from avatar_v.training.video import Regions, VideoSubject
from avatar_v.training.windows import Windows
from avatar_v.types import Cond, Reference
from avatar_v.weights.adapter import check_adapters
from avatar_v.weights.adapter_files import read_adapter
from avatar_v.weights.card import AdapterSpec, read_adapter_card, read_card
from avatar_v.weights.weights import load_dit


@dataclass(frozen=True)
class CausalStudent:
    """The student that is trained, and what the scores see of its video."""

    causal_weights: str
    """Pipeline folder of stage 4d, runs/4d_causal_forcing/weights; of LoRA its adapter beside it"""
    score_latents: int  # of the part of a window that both scores look at: those of their training
    gradients: Literal["window", "blocks"] = "window"
    """Of one pass over the window, into the past, too; or of one block after another."""

    def __post_init__(self) -> None:
        checks.count("student.score_latents", self.score_latents, least=OVERLAP + 1)


@dataclass(frozen=True)
class StreamWindows:
    """Videos from their beginning, with or without a first frame, alike on all ranks."""

    prompt_share: float  # of batches without one

    def draw(self, num: int, clip_latents: int, length: int, draws: Draws) -> Windows:
        kind = float(torch.rand((), generator=draws.common))
        start = torch.zeros(num, dtype=torch.long)
        prefix = torch.full_like(start, int(kind >= self.prompt_share))
        return Windows(start, prefix, start, length)

    def longest(self, length: int) -> int:
        return length


class SelfForcing(Engine[TrainBatch[Cond]]):
    """A causal student of few steps. ``models.init_from`` are the weights of both scores, and of
    the encoders and the motion network.

    Args:
        student: the causal network to begin with, and the scores' part of its windows.
        matching: the scores and the weights of the terms; no regression, since no trajectory of the
            scores ends in a causal network's video.
        rollout: the student's steps; ``prompt_share`` and ``image_share`` make a whole.
        trainable: all of the student, or LoRA factors for student and fake score on the real one.
        streaming: what a block sees of the past; None: what it saw in 4d.
        updates: as in stage 4b.
        personality: as in stage 3.
        face_boost: as in stage 2.
        mouth_boost: as in stage 2.
    """

    subject: VideoSubject
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
        student: CausalStudent,
        matching: Matching,
        rollout: SelfRollout,
        trainable: Trainable,
        streaming: Streaming | None = None,
        updates: Updates | None = None,
        seed: int = 0,
    ) -> None:
        if trainable.parts == "new":
            raise ValueError("trainable.parts is all or lora: a student learns to make video")
        if any(matching.regression.values()):
            raise ValueError("matching.regression is 0 for a causal student")
        if rollout.prompt_share + rollout.image_share != 1:
            raise ValueError("rollout.prompt_share and image_share make 1: streams have no chunks")
        for length in objective.window_latents.values():
            if length < student.score_latents:
                raise ValueError(
                    f"windows have at least student.score_latents, {student.score_latents}, got "
                    f"{length}"
                )
        regions = Regions(face_boost, mouth_boost)
        windows = StreamWindows(rollout.prompt_share)
        video = VideoSubject(models, objective, regions, personality=personality, windows=windows)
        super().__init__(video, optim, seed, trainable, updates)
        self.rollout = rollout
        self.matching = DistributionMatching(matching, objective.shift)
        self.student, self.asked_streaming = student, streaming
        self.streaming = streaming or Streaming()
        self._check_streaming()
        self.configs: dict[str, DiTConfig] = {}

    @property
    def has_adapters(self) -> bool:
        """Whether student and fake score are LoRA factors on the real score."""
        return self.trainable.parts == "lora"

    def roles(self) -> Mapping[str, Role]:
        return self.matching.roles(self.optim, self.updates, adapters=self.has_adapters)

    def build_roles(self) -> None:
        """The scores are what the stage starts from. ValueError for a student that is not causal,
        and for scores that are."""
        if self.dit.config.is_causal or self.dit.config.has_guidance_inside:
            raise ValueError(
                f"{self.subject.models.init_from}: the scores are weights of stage 3, guided by "
                "several passes (matching.real_guidance), that see whole windows"
            )
        if self.matching.numbers.has_head:
            size = self.layout.sequence_size
            self.head = self.matching.build_head(self.dit.config.dim, self.seed, size)
        if self.has_adapters:
            self._add_adapters()
        else:
            self.fake, self.real = (self.network_for(role, self.dit) for role in (FAKE, REAL))
            student = self.causal_start()
            student.motion_stats = self.dit.motion_stats
            self.dit = student
        block = self.dit.config.causal_block
        if block is None:
            raise ValueError(
                f"student.causal_weights {self.student.causal_weights} are not causal: "
                "recipes/4d_causal_forcing.yaml makes some"
            )
        for length in self.subject.objective.window_latents.values():
            check_chunks(block, length)
        trained = self.trained_streaming()
        if self.asked_streaming is None:
            self.streaming = trained
            self._check_streaming()
        elif self.asked_streaming != trained:
            warnings.warn(
                f"{self.student.causal_weights} were trained with {trained}, and the student is "
                f"with {self.asked_streaming}",
                stacklevel=2,
            )
        check_corruption(self.streaming, self.layout.sequence_size)

    def _check_streaming(self) -> None:
        if self.streaming.needs_blocks and self.student.gradients != "blocks":
            raise ValueError(
                "student.gradients is blocks where the history is clean or the sink is replaced: "
                "one pass over a window cannot make them"
            )
        if self.streaming.sink == "replaced" and not self.rollout.anchor:
            raise ValueError(
                "streaming.sink replaced: the anchor is what takes the reference's place, so "
                "rollout.anchor is true"
            )

    def _add_adapters(self) -> None:
        """Student and fake score as factors on the real score, and the attention of each."""
        scores, (config, factors) = self.dit.config, self.causal_factors()
        rank, alpha = self.trainable.lora_rank, self.trainable.lora_alpha
        add_factors(self.dit, (STUDENT, FAKE), rank=rank, alpha=alpha, seed=self.seed)
        if factors is not None:
            load_factors(self.dit, STUDENT, factors, where=self.student.causal_weights)
        self.configs = {STUDENT: config, FAKE: scores, REAL: scores}
        self.dit.config = config

    def causal_start(self) -> AvatarDiT:
        """The causal DiT that the student starts from."""
        return load_dit(f"{self.student.causal_weights}/dit")

    def trained_streaming(self) -> Streaming:
        """What the student saw of the past in 4d. ValueError if it heard sound otherwise."""
        folder = self.student.causal_weights
        can = (read_adapter_card(folder).card if self.has_adapters else read_card(folder)).can
        self.conditioner.check_heard(
            can.audio_look_ahead, can.audio_window, where=f"student.causal_weights {folder}"
        )
        return can.streaming or Streaming()

    def causal_factors(self) -> tuple[DiTConfig, Factors | None]:
        """The shape and the factors of stage 4d's adapter, which the student's start from (None: as
        they are). ValueError for one of other weights than the scores', and of other sizes than
        the recipe's."""
        folder, start = self.student.causal_weights, self.subject.models.init_from
        assert start is not None
        check_adapters(Path(start), [AdapterSpec(Path(folder))])
        adapter, asked = read_adapter(folder), self.trainable
        alpha = adapter.weight * adapter.rank
        if (adapter.rank, alpha) != (asked.lora_rank, asked.lora_alpha):
            raise ValueError(
                f"the adapter {folder} has rank {adapter.rank} and alpha {alpha:g}; expected those "
                f"of the student, trainable.lora_rank {asked.lora_rank} and lora_alpha "
                f"{asked.lora_alpha:g}"
            )
        if adapter.whole or not isinstance(adapter.config, DiTConfig):
            raise ValueError(f"{folder} has more than the factors of a DiT: expected those of 4d")
        return adapter.config, adapter.factors

    def select_trainable(self) -> None:
        """The encoders stay as they are."""
        self.conditioner.requires_grad_(False)

    @contextlib.contextmanager
    def network(self, role: str) -> Iterator[AvatarDiT]:
        """The network of ``role``. Its adapter and its attention, causal or not, count within."""
        if not self.has_adapters:
            yield {STUDENT: self.dit, FAKE: self.fake, REAL: self.real}[role]
            return
        with active(self.dit, None if role == REAL else role, STUDENT):
            self.dit.config = self.configs[role]
            try:
                yield self.dit
            finally:
                self.dit.config = self.configs[STUDENT]

    def iterate(self, batch: TrainBatch[Cond]) -> tuple[Tensor, Logs]:
        """One backward pass of the fake score, and one of the student if its turn has come."""
        rollout, region = self.chunk(batch), self.subject.region(batch)
        return self.matching.iterate(self, batch, rollout, region, self.part_for_scores)

    def chunk(self, batch: TrainBatch[Cond]) -> ChunkRollout:
        """The whole stream, which is to be made."""
        length, streaming, start = self.subject.window_length(self.step), self.streaming, 0
        made = roll_out_chunk(self.dit, self.conditioner, batch, self.rollout, length)
        if streaming.max_start:
            start = int(torch.randint(streaming.max_start + 1, (), generator=batch.draws.common))
        settings = dataclasses.replace(
            made.settings, streaming=streaming, window_latents=length, seed=made.seeds[0]
        )
        return dataclasses.replace(
            made, settings=settings, start=start, gradients=self.student.gradients
        )

    def part_for_scores(
        self, rollout: ChunkRollout, made: Latents, draws: Draws
    ) -> tuple[ChunkRollout, Float[Tensor, "b part c h w"]]:
        """A part of the window, drawn alike on all ranks: from its beginning as often as from
        anywhere else. One from inside begins with two of the student's own latents, and the first
        frame of the video is its anchor."""
        length = self.student.score_latents
        last = made.shape[1] - length
        begin = 0
        if last > 0 and float(torch.rand((), generator=draws.common)) >= 0.5:
            begin = 1 + int(torch.randint(last, (), generator=draws.common))
        part = Span(begin, begin + length)
        run = slice(part.start, part.stop)
        audio, motion = (None if x is None else x[:, run] for x in (rollout.audio, rollout.motion))
        chunk = dataclasses.replace(rollout.chunk, latents=part, new_latents=part)
        seen = dataclasses.replace(rollout, chunk=chunk, audio=audio, motion=motion)
        if begin == 0:
            return seen, made[:, run]
        chunk = dataclasses.replace(chunk, index=1, mode="prefix2v", num_prefix=OVERLAP)
        prefix, rest = made[:, run].split([OVERLAP, length - OVERLAP], dim=1)
        anchor = _anchor(rollout, made, self.dit.motion_stats)
        seen = dataclasses.replace(seen, chunk=chunk, prefix=prefix.detach(), anchor=anchor)
        return seen, torch.cat([seen.prefix, rest], dim=1)

    def loss(self, batch: TrainBatch[Cond]) -> tuple[Tensor, Logs]:
        """The loss of validation."""
        return validation_loss(self.chunk(batch), self.dit, batch, self.subject.region(batch))

    def card_entries(self) -> dict[str, Any]:
        block = self.dit.config.causal_block
        own = {"causal_block": block, "streaming": self.streaming}
        return {**super().card_entries(), **self.rollout.card_entries(), **own}

    def sampled_with(self, settings: Settings) -> Settings:
        settings = dataclasses.replace(settings, streaming=self.streaming.without_noise)
        return self.rollout.sampled_with(settings, self.step)


def _anchor(rollout: ChunkRollout, made: Latents, stats: MotionStats | None) -> Reference | None:
    """The first frame of the student's video, as generation shows it later on."""
    if not rollout.settings.anchor or rollout.reference is None:
        return None
    audio, motion = (None if x is None else x[:, :1] for x in (rollout.audio, rollout.motion))
    first = made[:, :1].detach()
    return anchor_frame(first, rollout.reference, audio=audio, motion=motion, stats=stats)
