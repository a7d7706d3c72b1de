"""Stage 5b for video: preferences move the DiT, by Flow-DPO (Avatar V §3.5; arXiv 2501.13918).

A pair is two videos of one condition, of which a rater prefers one or neither (shards/pairs.py).
Windows start their clip, and both videos are encoded by the stage's VAE in the step. They share
sound, words and the person: pictures of them, which stand in the reference as single frames do
(training/personality.py), and the statistics of their motion. Each video follows the motion that
was made or read of it, so that what the DiT learns is how a motion is shown, and not which one.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from avatar_v.flow import Latents
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.identity import Looks
from avatar_v.objectives.preferences import (
    FROZEN,
    TIE,
    Preferences,
    check_ties,
    noised_pairs,
    preference,
    require_pairs,
    validation_logs,
    winners_first,
)
from avatar_v.sampling.solver import VelocityFn
from avatar_v.training.batch import Draws, Logs, TrainBatch
from avatar_v.training.engine import Engine
from avatar_v.training.motion import inherited
from avatar_v.training.optim import Optim
from avatar_v.training.policies import repeated
from avatar_v.training.roles import STUDENT, Role
from avatar_v.training.settings import Models, Objective
from avatar_v.training.subject import ClipSubject, Networks, token_side
from avatar_v.training.trainable import Trainable, select_dit
from avatar_v.training.windows import Windows, draw_window_times, smaller, value_at
from avatar_v.types import Batch, Cond, PreferenceVideos, Reference, num_frames
from avatar_v.weights.card import read_card

SAME_START = 0.05
"""Mean difference of two first frames in [-1, 1] up to which they are one picture, coded twice."""


class VideoPairSubject(ClipSubject[Cond]):
    """Both videos of each pair: all winners, then all losers (of a tie the first video, then the
    second). Nothing is dropped. ValueError for windows that do not start their clip, or have an
    end given."""

    knows_motion = True

    def __init__(self, models: Models, objective: Objective, dpo: Preferences) -> None:
        if objective.first_share != 1 or objective.suffix_share != 0:
            raise ValueError(
                "preferences of video need objective.first_share 1 and suffix_share 0, got "
                f"{objective.first_share:g} and {objective.suffix_share:g}: windows start a clip"
            )
        super().__init__(models, objective)
        self.dpo = dpo

    def check_data(self, networks: Networks, data: object, num_steps: int) -> None:
        """Also: the ties of the pairs need a loss that knows them."""
        super().check_data(networks, data, num_steps)
        check_ties(data, self.dpo)

    def draw_windows(self, batch: Batch, draws: Draws) -> Windows:
        """The beginning of each video. Its first latent may be given where both begin with one
        picture."""
        drawn = super().draw_windows(batch, draws)
        same = begin_alike(_require_videos(batch)).cpu()
        return dataclasses.replace(drawn, prefix=drawn.prefix * same)

    def begin(self, networks: Networks, batch: Batch, draws: Draws) -> TrainBatch[Cond]:
        """ValueError for pairs without pictures."""
        windows = self.draw_windows(batch, draws)
        conditioner, judged, videos = (
            networks.conditioner,
            require_pairs(batch),
            _require_videos(batch),
        )
        shown, follows = [], []
        for video, motion in ((videos.first, judged.first), (videos.second, judged.second)):
            frames = self._sized(networks, video[:, : num_frames(windows.stop)], draws.step)
            shown.append(windows.crop(conditioner.encode_video(frames)))
            follows.append(windows.crop(conditioner.pack_motion(motion)))
        clean = torch.cat(winners_first(judged, *shown))
        motion = torch.cat(winners_first(judged, *follows)).to(clean.device)
        cond = self.conditions(networks, batch, windows, draws)
        cond = dataclasses.replace(cond.map(lambda x: repeated(x, 2)), motion=motion)
        cells = clean.shape[-2] * clean.shape[-1] // networks.dit.config.patch**2
        num_tokens = clean.shape[0] * windows.length * cells
        return TrainBatch(batch, windows, clean, cond, draws, num_tokens)

    def conditions(
        self,
        networks: Networks,
        batch: Batch,
        windows: Windows,
        draws: Draws | None = None,
        *,
        step: int = 0,
    ) -> Cond:
        """The conditions that both videos of each pair share."""
        conditioner = networks.conditioner
        return Cond(
            text=conditioner.encode_captions(batch),
            audio=conditioner.encode_audio_windows(batch.audio, windows.start, windows.length),
            reference=self.build_reference(networks, batch, step if draws is None else draws.step),
        )

    def build_reference(self, networks: Networks, batch: Batch, step: int) -> Reference:
        """The pictures of each person, every one a clip of its own without sound and motion, and
        the statistics of the motion that the videos were made after."""
        videos, reference, conditioner = (
            _require_videos(batch),
            batch.reference,
            networks.conditioner,
        )
        assert reference is not None, "pairs have one"
        shown = self._sized(networks, videos.portraits, step)
        num = shown.shape[1]
        latents = conditioner.encode_image(shown.flatten(0, 1)).unflatten(0, (-1, num))
        moments = conditioner.clip_moments(
            reference.motion, reference.valid, known=reference.habits_known
        )
        pictures = Reference(
            latents.squeeze(2),
            videos.portraits_valid.to(latents.device),
            torch.arange(num, device=latents.device).expand(len(latents), -1),
            habits_known=reference.habits_known,
            moments=moments.to(latents.device),
        )
        return conditioner.with_identity(pictures, Looks(pictures.latents, videos.portraits_valid))

    def _sized(
        self, networks: Networks, video: Float[Tensor, "b f 3 h w"], step: int
    ) -> Float[Tensor, "b f 3 h2 w2"]:
        """Pictures at this step's resolution. ValueError for sides that are no whole tokens."""
        side = token_side(networks)
        if video.shape[-2] % side or video.shape[-1] % side:
            raise ValueError(
                f"judged videos of {video.shape[-2]}x{video.shape[-1]}: expected sides of whole "
                f"tokens, of {side} pixels (`avatar-v-eval votes pairs --size`)"
            )
        return smaller(video, value_at(self.objective.resolution, step), multiple=side)

    def card_entries(self, networks: Networks) -> dict[str, Any]:
        """Those of the weights that are aligned."""
        return {} if self.models.init_from is None else inherited(self.models)


class AlignVideoDPO(Engine[TrainBatch[Cond]]):
    """DPO of the video network.

    Args:
        dpo: how strongly preferences count, and ties.
        trainable: all of the DiT, or LoRA factors.
    """

    subject: VideoPairSubject
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
        super().__init__(VideoPairSubject(models, objective, dpo), optim, seed, trainable)

    def roles(self) -> Mapping[str, Role]:
        return {
            STUDENT: Role(("dit", "conditioner"), self.optim, ema=True, export=True),
            FROZEN: Role((FROZEN,)),
        }

    def build_roles(self) -> None:
        """Keep the network of the start. ValueError for a student of few steps, or with guidance
        inside, whose flow errors say nothing of what it samples."""
        models = self.subject.models
        start = models.init_from
        steps = None if start is None else read_card(start).can.num_steps
        if steps is not None:
            raise ValueError(f"{start} is a student of {steps} steps: align its teacher")
        if self.dit.config.has_guidance_inside:
            raise ValueError(f"{start or models.dit} has guidance inside: align its teacher")
        self.frozen = self.network_for(FROZEN, self.dit)

    def select_trainable(self) -> None:
        """The DiT alone: what the encoders say is compared with what the start made of it."""
        select_dit(self, self.trainable, new=(), encoders=False, seed=self.seed)

    def loss(self, batch: TrainBatch[Cond]) -> tuple[Tensor, Logs]:
        """Flow-DPO of the videos."""
        own, windows, shift = batch.draws.own, batch.windows, self.subject.objective.shift
        noise = torch.randn(batch.size // 2, *batch.clean.shape[1:], generator=own)
        t = draw_window_times(windows, shift=shift, generator=own)
        tied = require_pairs(batch.clips).winner == TIE
        pairs = noised_pairs(batch.clean, noise, t, windows.scored(), tied)
        student, frozen = (_velocity(dit, batch.cond) for dit in (self.dit, self.frozen))
        return preference(student, frozen, pairs, self.subject.dpo)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """The loss and the terms of it on pairs that are not trained on."""
        found = validation_logs(*self.loss_at(batch, batch_idx, validation=True))
        self.log_dict(found, batch_size=len(batch.motion), sync_dist=True)


def begin_alike(videos: PreferenceVideos) -> Bool[Tensor, " b"]:
    """Whether both videos of a pair begin with one picture, but for what codecs lose."""
    first, second = videos.first[:, 0], videos.second[:, 0]
    return (first - second).abs().flatten(1).mean(1) <= SAME_START


def _require_videos(batch: Batch) -> PreferenceVideos:
    """ValueError for pairs without pictures."""
    videos = require_pairs(batch).videos
    if videos is None:
        raise ValueError(
            "preferences of video need pairs with pictures: set data.init_args.videos to true"
        )
    return videos


def _velocity(dit: AvatarDiT, cond: Cond) -> VelocityFn:
    """The velocity of the ``dit``. The reference of a pair is encoded once for both videos."""
    reference = cond.reference
    assert reference is not None, "encode gives one"
    once = reference.map(lambda x: x[: len(x) // 2])

    def velocity(x_t: Latents, t: Float[Tensor, "b l"]) -> Latents:
        past = dit.encode_reference(once)
        keys = None if past is None else past.rotated().repeat(2)
        known = dataclasses.replace(cond, reference=None, moments=dit.reference_moments(reference))
        return dit(x_t, t, known, past=keys)

    return velocity
