"""Stage 5b for video: preferences move the DiT, by Flow-DPO (Avatar V §3.5; arXiv 2501.13918).

A pair is two videos of one condition, of which a rater prefers one or neither (shards/pairs.py).
Windows start their clip, and both videos are encoded by the stage's VAE in the step. They share
sound, words and the person: pictures of them, which stand in the reference as single frames do
(stages/personality.py), and the statistics of their motion. Each video follows the motion that was
made or read of it, so that what the DiT learns is how a motion is shown, and not which one.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from avatar_v.flow import Latents
from avatar_v.models.dit import AvatarDiT
from avatar_v.sampling.solver import VelocityFn
from avatar_v.stages.base import Logs, Stage
from avatar_v.stages.dpo import (
    FROZEN,
    TIE,
    Preferences,
    check_ties,
    judged_of,
    noised_pairs,
    preference,
    validation_logs,
    winners_first,
)
from avatar_v.stages.optim import Optim
from avatar_v.stages.policies import repeated
from avatar_v.stages.roles import STUDENT, Role
from avatar_v.stages.settings import Models, Objective
from avatar_v.stages.trainable import Trainable, select
from avatar_v.stages.windows import Windows, draw_window_times, smaller, value_at
from avatar_v.types import Batch, Cond, JudgedVideos, Reference, num_frames
from avatar_v.weights.card import read_card

SAME_START = 0.05
"""Mean difference of two first frames in [-1, 1] up to which they are one picture, coded twice."""


class AlignVideoDPO(Stage):
    """DPO of the video network.

    Args:
        dpo: how strongly preferences count, and ties.
        trainable: all of the DiT, or LoRA factors.
    """

    frozen: AvatarDiT

    def __init__(
        self,
        models: Models,
        optim: Optim,
        objective: Objective,
        dpo: Preferences,
        seed: int = 0,
        trainable: Trainable | None = None,
    ) -> None:
        """ValueError for windows that do not start their clip, or have an end given."""
        if objective.first_share != 1 or objective.suffix_share != 0:
            raise ValueError(
                "preferences of video need objective.first_share 1 and suffix_share 0, got "
                f"{objective.first_share:g} and {objective.suffix_share:g}: windows start a clip"
            )
        super().__init__(models, optim, objective, seed, trainable)
        self.dpo = dpo

    def roles(self) -> Mapping[str, Role]:
        return {
            STUDENT: Role(("dit", "conditioner"), self.optim, ema=True, export=True),
            FROZEN: Role((FROZEN,)),
        }

    @property
    def knows_motion(self) -> bool:
        return True

    def adapt(self) -> None:
        """Keep the network of the start. ValueError for a student of few steps, or with guidance
        inside, whose flow errors say nothing of what it samples."""
        start = self.models.init_from
        steps = None if start is None else read_card(start).can.num_steps
        if steps is not None:
            raise ValueError(f"{start} is a student of {steps} steps: align its teacher")
        if self.dit.config.has_guidance_inside:
            raise ValueError(f"{start or self.models.dit} has guidance inside: align its teacher")
        self.frozen = self.network_for(FROZEN, self.dit)

    def select_trainable(self) -> None:
        """The DiT alone: what the encoders say is compared with what the start made of it."""
        self.conditioner.requires_grad_(False)
        select(self.dit, self.trainable, new=self.new_parts, seed=self.seed)

    def on_fit_start(self) -> None:
        """Also: the ties of the pairs need a loss that knows them."""
        super().on_fit_start()
        data = self.trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        check_ties(data, self.dpo)

    def draw_windows(self, batch: Batch, generator: torch.Generator) -> Windows:
        """The beginning of each video. Its first latent may be given where both begin with one
        picture."""
        drawn = super().draw_windows(batch, generator)
        same = begin_alike(_videos_of(batch)).cpu()
        return dataclasses.replace(drawn, prefix=drawn.prefix * same)

    def conditions(
        self, batch: Batch, windows: Windows, generator: torch.Generator | None = None
    ) -> Cond:
        """What both videos of each pair share."""
        return Cond(
            text=self.conditioner.encode_text(batch.text),
            audio=self.conditioner.encode_audio_windows(batch.audio, windows.start, windows.length),
            reference=self.reference_of(batch),
        )

    def reference_of(self, batch: Batch) -> Reference:
        """The pictures of each person, every one a clip of its own without sound and motion, and
        the statistics of the motion that the videos were made after."""
        videos, reference = _videos_of(batch), batch.reference
        assert reference is not None, "pairs have one"
        shown = self._sized(videos.portraits)
        num = shown.shape[1]
        latents = self.conditioner.encode_image(shown.flatten(0, 1)).unflatten(0, (-1, num))
        moments = self.conditioner.clip_moments(
            reference.motion, reference.valid, known=reference.habits_known
        )
        return Reference(
            latents.squeeze(2),
            videos.portraits_valid.to(latents.device),
            torch.arange(num, device=latents.device).expand(len(latents), -1),
            habits_known=reference.habits_known,
            moments=moments.to(latents.device),
        )

    def encode(
        self, batch: Batch, windows: Windows, generator: torch.Generator
    ) -> tuple[Tensor, Cond]:
        """Latents of all winners, then of all losers (of a tie the first video, then the second),
        and the condition of each. Nothing is dropped. ValueError for pairs without pictures."""
        judged, videos = judged_of(batch), _videos_of(batch)
        shown, follows = [], []
        for video, motion in ((videos.first, judged.first), (videos.second, judged.second)):
            frames = self._sized(video[:, : num_frames(windows.stop)])
            shown.append(windows.crop(self.conditioner.encode_video(frames)))
            follows.append(windows.crop(self.conditioner.pack_motion(motion)))
        clean = torch.cat(winners_first(judged, *shown))
        motion = torch.cat(winners_first(judged, *follows)).to(clean.device)
        cond = self.conditions(batch, windows).map(lambda x: repeated(x, 2))
        return clean, dataclasses.replace(cond, motion=motion)

    def loss(
        self, clean: Tensor, cond: Cond, windows: Windows, batch: Batch, generator: torch.Generator
    ) -> tuple[Tensor, Logs]:
        """Flow-DPO of the videos."""
        num = len(clean) // 2
        noise = torch.randn(num, *clean.shape[1:], generator=generator)
        t = draw_window_times(windows, shift=self.objective.shift, generator=generator)
        pairs = noised_pairs(clean, noise, t, windows.scored(), judged_of(batch).winner == TIE)
        return preference(
            _velocity(self.dit, cond), _velocity(self.frozen, cond), pairs, self.dpo
        )  # fmt: skip

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """The loss and the terms of it on pairs that are not trained on."""
        found = validation_logs(*self.loss_at(batch, batch_idx, validation=True))
        self.log_dict(found, batch_size=len(batch.motion), sync_dist=True)

    def card_entries(self) -> dict[str, Any]:
        """Those of the weights that are aligned."""
        start = self.models.init_from
        return {} if start is None else read_card(start).can.inherited()

    def _sized(self, video: Float[Tensor, "b f 3 h w"]) -> Float[Tensor, "b f 3 h2 w2"]:
        """Pictures at this step's resolution. ValueError for sides that are no whole tokens."""
        side = self.token_side
        if video.shape[-2] % side or video.shape[-1] % side:
            raise ValueError(
                f"judged videos of {video.shape[-2]}x{video.shape[-1]}: expected sides of whole "
                f"tokens, of {side} pixels (`avatar-v-eval votes pairs --size`)"
            )
        return smaller(video, value_at(self.objective.resolution, self.step), multiple=side)


def begin_alike(videos: JudgedVideos) -> Bool[Tensor, " b"]:
    """Whether both videos of a pair begin with one picture, but for what codecs lose."""
    first, second = videos.first[:, 0], videos.second[:, 0]
    return (first - second).abs().flatten(1).mean(1) <= SAME_START


def _videos_of(batch: Batch) -> JudgedVideos:
    """ValueError for pairs without pictures."""
    videos = judged_of(batch).videos
    if videos is None:
        raise ValueError(
            "preferences of video need pairs with pictures: set data.init_args.videos to true"
        )
    return videos


def _velocity(dit: AvatarDiT, cond: Cond) -> VelocityFn:
    """Of the ``dit``. The reference of a pair is encoded once for both of its videos."""
    reference = cond.reference
    assert reference is not None, "encode gives one"
    once = reference.map(lambda x: x[: len(x) // 2])

    def velocity(x_t: Latents, t: Float[Tensor, "b l"]) -> Latents:
        past = dit.encode_reference(once)
        keys = None if past is None else past.rotated().repeat(2)
        known = dataclasses.replace(cond, reference=None, moments=dit.moments_of(reference))
        return dit(x_t, t, known, past=keys)

    return velocity
