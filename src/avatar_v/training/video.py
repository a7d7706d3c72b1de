"""Windows of video, and what a stage conditions them on: words, sound, and the person.

What is switched on makes the stages: words alone are stage 1, sound beside them stage 2, a
reference with its motion stage 3.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base import checks
from avatar_v.losses.flow import flow_loss, latent_boxes, region_weight
from avatar_v.models.cache import KeyValueCache
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.reference import NUM_STILLS
from avatar_v.training.batch import Draws, NoisySample, TrainBatch, noise_like, noisy
from avatar_v.training.continuation import Continuation, with_anchor, with_estimated_prefix
from avatar_v.training.personality import Personality, draw_reference
from avatar_v.training.settings import Models, Objective
from avatar_v.training.subject import ClipSubject, Networks, WindowSource
from avatar_v.training.windows import Windows, bernoulli, draw_window_times
from avatar_v.types import Batch, Cond, Reference

Latents = Float[Tensor, "b l c h w"]


@runtime_checkable
class DrawTimes(Protocol):
    """Times of windows, 0 on what is given."""

    def __call__(
        self, windows: Windows, *, shift: float, generator: torch.Generator
    ) -> Float[Tensor, "b l"]: ...


@dataclass(frozen=True)
class Regions:
    """Factors of the flow loss at the face and the mouth."""

    face_boost: float = 0.0
    mouth_boost: float = 0.0

    def __post_init__(self) -> None:
        checks.weight("face_boost", self.face_boost)
        checks.weight("mouth_boost", self.mouth_boost)


class VideoSubject(ClipSubject[Cond]):
    """Latents of video.

    Args:
        regions: weights of face and mouth.
        has_audio: whether the conditions hold audio.
        personality: what is shown of a reference; None: there is none.
        continuation: how windows from inside a clip see the video before them.
        anchor_replaces: whether the anchor takes the reference's place (Streaming.sink).
        windows: where they lie, if not as the objective says.
        times: what draws their times.
    """

    def __init__(
        self,
        models: Models,
        objective: Objective,
        regions: Regions | None = None,
        *,
        has_audio: bool = True,
        personality: Personality | None = None,
        continuation: Continuation | None = None,
        anchor_replaces: bool = False,
        windows: WindowSource | None = None,
        times: DrawTimes = draw_window_times,
    ) -> None:
        super().__init__(models, objective, windows)
        self.regions, self.has_audio, self.times = regions or Regions(), has_audio, times
        if models.identity is not None and personality is None:
            raise ValueError("models.identity is of a reference's face: stages 1 and 2 have none")
        self.personality, self.continuation = personality, continuation or Continuation()
        self.anchor_replaces = anchor_replaces
        self.knows_motion = personality is not None
        self.reads_stills = personality is not None and personality.stills_share > 0

    def begin(self, networks: Networks, batch: Batch, draws: Draws) -> TrainBatch[Cond]:
        windows = self.draw_windows(batch, draws)
        clean, cond = self.encode(networks, batch, windows, draws)
        return TrainBatch(
            batch, windows, clean, cond, draws, self.num_tokens(networks, clean, draws)
        )

    def encode(
        self, networks: Networks, batch: Batch, windows: Windows, draws: Draws
    ) -> tuple[Latents, Cond]:
        """Clean latents of the windows, and their conditions after dropout."""
        conditioner = networks.conditioner
        cond = conditioner.drop(
            self.conditions(networks, batch, windows, draws),
            text=self.objective.text_dropout,
            audio=self.objective.audio_dropout,
            reference=self.reference_dropout,
            generator=draws.own,
        )
        shown = self.at_resolution(networks, batch, draws.step)
        return windows.crop(conditioner.clean_latents(shown, windows.stop)), cond

    def conditions(
        self,
        networks: Networks,
        batch: Batch,
        windows: Windows,
        draws: Draws | None = None,
        *,
        step: int = 0,
    ) -> Cond:
        """ValueError without a reference where one is read."""
        conditioner, common = networks.conditioner, None if draws is None else draws.common
        at, reference = step if draws is None else draws.step, None
        if self.personality is not None:
            reference = self._reference(networks, batch, common, at)
        cond = Cond(text=conditioner.encode_captions(batch), reference=reference)
        if self.has_audio:
            audio = conditioner.encode_audio_windows(batch.audio, windows.start, windows.length)
            cond = dataclasses.replace(cond, audio=audio)
        if self.personality is None or reference is None:
            return cond
        if common is None or not bernoulli(self.personality.motion_dropout, common):
            motion = self.motion(networks, batch, windows).to(reference.latents.device)
            cond = dataclasses.replace(cond, motion=motion)
        if common is not None and bernoulli(self.continuation.anchor_share, common):
            return self._anchored(networks, cond, windows, batch, at)
        return cond

    def _reference(
        self, networks: Networks, batch: Batch, common: torch.Generator | None, step: int
    ) -> Reference:
        """The part of each clip's reference that is shown; without a generator all of it."""
        assert self.personality is not None
        if batch.reference is None:
            raise ValueError("stage 3 needs references: set data.init_args.pairs to true")
        shown = self.at_resolution(networks, batch.reference, step)
        return draw_reference(shown, networks.conditioner, self.personality, common)

    def _anchored(
        self, networks: Networks, cond: Cond, windows: Windows, batch: Batch, step: int
    ) -> Cond:
        conditioner = networks.conditioner
        if batch.latents is not None:
            first = batch.latents[:, :1].float()
        else:  # the VAE is causal: its first latent is that of the first frame alone
            video = self.at_resolution(networks, batch, step).video
            assert video is not None, "clean latents are made of it"
            first = conditioner.encode_image(video[:, 0])
        start = torch.zeros(first.shape[0], dtype=torch.long)
        audio = conditioner.encode_audio_windows(batch.audio, start, 1)
        motion = conditioner.pack_motion(batch.motion)[:, :1].to(first.device)
        stats, replaces = conditioner.motion_stats, self.anchor_replaces
        return with_anchor(cond, windows, first, audio, motion, stats, replaces=replaces)

    @property
    def reference_dropout(self) -> float:
        """Share of samples that lose their reference."""
        return 0.0 if self.personality is None else self.personality.reference_dropout

    def motion(self, networks: Networks, batch: Batch, windows: Windows) -> Float[Tensor, "b l md"]:
        """The windows' own motion, normalised."""
        return windows.crop(networks.conditioner.pack_motion(batch.motion))

    def noisy(self, batch: TrainBatch, clean: Latents | None = None) -> NoisySample:
        """The windows at one logit-normal time each; ``clean`` in place of their own latents."""
        clean = batch.clean if clean is None else clean
        noise = noise_like(clean, batch.draws.own)
        shift, own = self.objective.shift, batch.draws.own
        times = self.times(batch.windows, shift=shift, generator=own)
        return noisy(clean, noise, times, batch.windows.scored())

    def with_estimates(
        self, network: AvatarDiT, batch: TrainBatch[Cond], past: KeyValueCache | None
    ) -> Latents:
        """The clean latents, some prefixes replaced by what ``network`` estimates of them."""
        if self.continuation.estimate_share == 0:
            return batch.clean
        return with_estimated_prefix(
            network, batch.cond, batch.windows, batch.clean, self.continuation, batch.draws.own,
            past=past,
        )  # fmt: skip

    def region(self, batch: TrainBatch) -> Float[Tensor, "b l 1 h w"]:
        """Weight of every latent cell of the windows: face and mouth count more."""
        clips, windows = batch.clips, batch.windows
        return region_weight(
            windows.crop(latent_boxes(clips.face_box, clips.valid)),
            windows.crop(latent_boxes(clips.mouth_box, clips.valid)),
            height=batch.clean.shape[-2],
            width=batch.clean.shape[-1],
            face_boost=self.regions.face_boost,
            mouth_boost=self.regions.mouth_boost,
        )

    def num_tokens(self, networks: Networks, clean: Latents, draws: Draws) -> int:
        """Tokens of the generated stream in one step of this rank."""
        patch = networks.dit.config.patch
        length = self.window_length(draws.step)
        return clean.shape[0] * length * (clean.shape[3] // patch) * (clean.shape[4] // patch)

    def card_entries(self, networks: Networks) -> dict[str, Any]:
        entries = super().card_entries(networks)
        if self.personality is None:
            return entries
        return {
            **entries,
            "reference": True,
            "motion": self.personality.motion_dropout < 1,
            "faces": self.personality.faces,
            "stills": NUM_STILLS if self.personality.stills_share > 0 else 0,
            "anchor": self.continuation.anchor_share > 0,
        }


def velocity_loss(
    v: Latents, noised: NoisySample, weight: Float[Tensor, "b l 1 h w"] | None = None
) -> Float[Tensor, ""]:
    """Rectified-flow loss of the velocity that a network gives for a noisy sample."""
    return flow_loss(v, noised.velocity, noised.scored, weight)
