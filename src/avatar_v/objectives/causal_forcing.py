"""Live student, first part: stage 3 for a network that makes block after block (Live Avatar §4.2).

Diffusion forcing: each block of a window has a time of its own, so a block learns to be denoised
behind others of any noise. In generation all of them have been denoised to the same time
(sampling/blocks.py), so a share of the windows has one time for all blocks. With a clean history
(models/config.Streaming) they see the finished ones instead, which go through the network first.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v import flow
from avatar_v.base import checks
from avatar_v.models.attention import Pattern
from avatar_v.models.cache import KeyValueCache
from avatar_v.models.causal import Corruption, as_causal, check_corruption
from avatar_v.models.config import CAUSAL_FIRST, Streaming
from avatar_v.sampling.blocks import check_chunks
from avatar_v.sampling.settings import Settings
from avatar_v.training.batch import Logs, TrainBatch
from avatar_v.training.continuation import Continuation
from avatar_v.training.engine import Engine
from avatar_v.training.optim import Optim
from avatar_v.training.personality import Personality
from avatar_v.training.settings import Models, Objective
from avatar_v.training.trainable import Trainable, select_dit
from avatar_v.training.video import Regions, VideoSubject, velocity_loss
from avatar_v.training.windows import Windows
from avatar_v.types import Cond
from avatar_v.weights.card import read_card


@dataclass(frozen=True)
class Blocks:
    """The blocks of a causal network, and the times that they have in training."""

    length: int = 3  # latents of a block (Live Avatar §4.1)
    window: int = 4  # blocks before its own that a block sees
    one_time_share: float = 0.5  # of the windows have one time for all blocks (our choice)

    def __post_init__(self) -> None:
        checks.count("blocks.length", self.length)
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


class CausalForcing(Engine[TrainBatch[Cond]]):
    """Stage 3 by blocks, without perceptual losses.

    Args:
        blocks: of the network, and their times.
        streaming: what a block sees of the past.
        personality: as in stage 3.
        continuation: as in stage 3.
        trainable: all of the DiT or LoRA factors.
        face_boost: as in stage 2.
        mouth_boost: as in stage 2.
    """

    subject: VideoSubject

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
        streaming: Streaming | None = None,
        seed: int = 0,
    ) -> None:
        if objective.suffix_share > 0:
            raise ValueError("objective.suffix_share is 0: a causal network sees nothing behind it")
        self.streaming = streaming or Streaming()
        replaces = self.streaming.sink == "replaced"
        if replaces and continuation.anchor_share == 0:
            raise ValueError(
                "streaming.sink replaced: the anchor is what takes the reference's place, so "
                "continuation.anchor_share is above 0"
            )
        video = VideoSubject(
            models, objective, Regions(face_boost, mouth_boost), personality=personality,
            continuation=continuation, anchor_replaces=replaces, times=blocks.draw_times,
        )  # fmt: skip
        super().__init__(video, optim, seed, trainable)
        self.blocks = blocks

    def select_trainable(self) -> None:
        select_dit(self, self.trainable, new=(), seed=self.seed)

    def build_roles(self) -> None:
        """The same weights with another attention. ValueError for windows that blocks do not fill,
        and for distilled weights, whose velocity is not that of the data."""
        check_corruption(self.streaming, self.layout.sequence_size)
        start = self.subject.models.init_from
        if start is not None:
            steps = read_card(start).can.num_steps
            if steps is not None or self.dit.config.has_guidance_inside:
                raise ValueError(f"{start} is distilled; expected weights of stage 3 or small")
        self.dit = as_causal(self.dit, block=self.blocks.length, window=self.blocks.window)
        for length in self.subject.objective.window_latents.values():
            check_chunks(self.blocks.length, length)

    def loss(self, batch: TrainBatch[Cond]) -> tuple[Tensor, Logs]:
        """Flow of the video, each block from its own time."""
        assert batch.cond.reference is not None
        past = self.dit.encode_reference(batch.cond.reference)
        noised = self.subject.noisy(batch, self.subject.with_estimates(self.dit, batch, past))
        v = self.dit(noised.x_t, noised.t, batch.cond, past=past, **self.seen(batch, past))
        loss = velocity_loss(v, noised, self.subject.region(batch))
        return loss, {"video": loss}

    def seen(self, batch: TrainBatch[Cond], past: KeyValueCache | None) -> dict[str, Any]:
        """Where the window lies and how its blocks see those before, as AvatarDiT.forward takes
        it."""
        streaming, draws, more = self.streaming, batch.draws, dict[str, Any]()
        if streaming.max_start:
            more["start"] = int(torch.randint(streaming.max_start + 1, (), generator=draws.common))
        if streaming.corrupt_share:
            seed = int(torch.randint(2**62, (), generator=draws.own))
            corruption = Corruption.of(streaming, seed)
            assert corruption is not None
            more["as_seen"] = corruption.over(0, batch.clean.shape[1])
        if streaming.history == "clean":
            t = batch.clean.new_zeros(batch.clean.shape[:2])
            _, finished = self.dit(
                batch.clean, t, batch.cond, past=past, return_keys=True, **more
            )  # fmt: skip
            more["as_seen"] = lambda layer, _: finished.layers[layer]
        return more

    def card_entries(self) -> dict[str, Any]:
        own = {"causal_block": self.blocks.length, "streaming": self.streaming}
        return {**super().card_entries(), **own}

    def sampled_with(self, settings: Settings) -> Settings:
        return dataclasses.replace(settings, streaming=self.streaming.without_noise)
