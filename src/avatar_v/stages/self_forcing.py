"""Live student, second part: few steps by distribution matching (Live Avatar §4.2, alg. 1).

The student is the causal network of the first part; both scores are the weights of stage 3, which
see a window as a whole. In each step blocks see earlier ones at the same time t, so a window in one
pass under the causal mask is the very video that generation makes block after block
(sampling/blocks.py; tests/numerics/test_blocks.py): training takes the pass. What a block sees of
the past is noisy in all steps but the last, which is the paper's History Corrupt; unlike alg. 1,
gradients pass into the past, and each step has a past of its own, as in generation.

A student's windows are longer than the scores', so that blocks leave its sight. The scores look at
a part, which continues the student's own latents.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base import checks
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.reference import anchor_frame
from avatar_v.sampling.blocks import check_chunks
from avatar_v.sampling.chunks import OVERLAP, Span
from avatar_v.stages.distill_cfg import GuidanceRanges
from avatar_v.stages.distill_dmd import DistillDMD, Matching
from avatar_v.stages.optim import Optim
from avatar_v.stages.own_rollout import Latents, OwnRollout, Turn
from avatar_v.stages.personality import Personality
from avatar_v.stages.roles import Updates
from avatar_v.stages.settings import Models, Objective
from avatar_v.stages.trainable import Trainable
from avatar_v.stages.windows import Windows
from avatar_v.types import Batch, Reference
from avatar_v.weights.weights import load_dit


@dataclass(frozen=True)
class CausalStudent:
    """The student that is trained, and what the scores see of its video."""

    causal_weights: str  # pipeline folder of stage 4d, e.g. runs/4d_causal_forcing/weights
    score_latents: int  # of the part of a window that both scores look at: those of their training

    def __post_init__(self) -> None:
        checks.count("student.score_latents", self.score_latents, least=OVERLAP + 1)


class SelfForcing(DistillDMD):
    """A causal student of few steps. ``models.init_from`` are the weights of both scores, and of
    the encoders and the motion network.

    Args:
        student: the causal network to begin with, and the scores' part of its windows.
        matching: the scores and the weights of the terms; no regression, since no trajectory of the
            scores ends in a causal network's video.
        rollout: the student's steps; ``prompt_share`` and ``image_share`` make a whole.
        personality: as in stage 3.
        trainable: all of the student.
        updates: as in stage 4b.
        face_boost: as in stage 2.
        mouth_boost: as in stage 2.
    """

    begins_as: AvatarDiT

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
        rollout: OwnRollout,
        trainable: Trainable,
        updates: Updates | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            models, optim, objective, face_boost, mouth_boost, personality, matching, rollout,
            GuidanceRanges(), trainable, updates, seed,
        )  # fmt: skip
        if self.has_adapters:
            raise ValueError("trainable.parts is all: student and scores have other weights")
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
        self.student = student

    def load_networks(self) -> None:
        """Also the causal network that the student begins as."""
        super().load_networks()
        self.begins_as = load_dit(f"{self.student.causal_weights}/dit")

    def adapt(self) -> None:
        """The scores are what the stage starts from. ValueError for a student that is not causal,
        and for scores that are."""
        if self.dit.config.is_causal or self.dit.config.has_guidance_inside:
            raise ValueError(
                f"{self.models.init_from}: the scores are weights of stage 3, guided by several "
                "passes (matching.real_guidance), that see whole windows"
            )
        super().adapt()
        student = self.begins_as
        del self.begins_as
        student.motion_stats = self.dit.motion_stats
        block = student.config.causal_block
        if block is None:
            raise ValueError(
                f"student.causal_weights {self.student.causal_weights} are not causal: "
                "recipes/4d_causal_forcing.yaml makes some"
            )
        for length in self.objective.window_latents.values():
            check_chunks(block, length)
        self.dit = student.train()

    def card_entries(self) -> dict[str, Any]:
        return {**super().card_entries(), "causal_block": self.dit.config.causal_block}

    @property
    def longest_window(self) -> int:
        return max(self.objective.window_latents.values())

    def draw_windows(self, batch: Batch, generator: torch.Generator) -> Windows:
        """Videos from their beginning, with or without a first frame, alike on all ranks."""
        kind = float(torch.rand((), generator=self.common))
        start = torch.zeros(self.num_windows(batch), dtype=torch.long)
        prefix = torch.full_like(start, int(kind >= self.rollout.prompt_share))
        return Windows(start, prefix, start, self.window_length)

    def seen_by_scores(
        self, turn: Turn, made: Float[Tensor, "b whole c h w"]
    ) -> tuple[Turn, Latents]:
        """A part of the window, drawn alike on all ranks: from its beginning as often as from
        anywhere else. One from inside begins with two of the student's own latents, and the first
        frame of the video is its anchor."""
        length = self.student.score_latents
        last = made.shape[1] - length
        begin = 0
        if last > 0 and float(torch.rand((), generator=self.common)) >= 0.5:
            begin = 1 + int(torch.randint(last, (), generator=self.common))
        part = Span(begin, begin + length)
        run = slice(part.start, part.stop)
        audio, motion = (None if x is None else x[:, run] for x in (turn.audio, turn.motion))
        chunk = dataclasses.replace(turn.chunk, latents=part, new_latents=part)
        seen = dataclasses.replace(turn, chunk=chunk, audio=audio, motion=motion)
        if begin == 0:
            return seen, made[:, run]
        num_given = OVERLAP
        chunk = dataclasses.replace(chunk, index=1, mode="prefix2v", num_prefix=num_given)
        prefix, rest = made[:, run].split([num_given, length - num_given], dim=1)
        seen = dataclasses.replace(
            seen, chunk=chunk, prefix=prefix.detach(), anchor=self._anchor(turn, made)
        )
        return seen, torch.cat([seen.prefix, rest], dim=1)

    def _anchor(self, turn: Turn, made: Latents) -> Reference | None:
        """The first frame of the student's video, as generation shows it later on."""
        if not turn.settings.anchor or turn.reference is None:
            return None
        audio, motion = (None if x is None else x[:, :1] for x in (turn.audio, turn.motion))
        stats = self.dit.motion_stats
        first = made[:, :1].detach()
        return anchor_frame(first, turn.reference, audio=audio, motion=motion, stats=stats)
