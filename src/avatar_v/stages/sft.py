"""Stage 3, personality: how a person moves, learned from another video of theirs.

The reference clip comes from another scene of the same person, with its own sound and motion; what
a step shows of it is stages/personality.py's. The video follows its own motion, which in generation
the motion network makes (stages/motion_prior.py), and once the schedule says so, critics see a few
predicted frames (Avatar V §3.3): stages/perceptual.py. The loss is two terms, each a method of its
own: ``flow_term`` and ``perceptual_term``, both of one pass, ``denoise``.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v import flow
from avatar_v.losses.flow import flow_loss
from avatar_v.models.reference import NUM_STILLS
from avatar_v.stages.a2v import A2V
from avatar_v.stages.base import Logs, Noised, happens
from avatar_v.stages.continuation import Continuation, with_anchor, with_estimated_prefix
from avatar_v.stages.optim import Optim
from avatar_v.stages.perceptual import PerceptualLosses, PerceptualTerms, Predicted
from avatar_v.stages.personality import Personality, draw_reference
from avatar_v.stages.settings import Models, Objective
from avatar_v.stages.trainable import MOTION, Trainable
from avatar_v.stages.windows import Windows
from avatar_v.types import Batch, Cond


@dataclass(frozen=True)
class Denoised:
    """One pass of the network over noisy windows."""

    noised: Noised
    v: Float[Tensor, "b l c h w"]


class SFT(A2V):
    """Stage 2 with a reference video, its motion and perceptual losses.

    Args:
        personality: the reference's length and dropout, and how often the motion is left out.
        perceptual: which critics see predicted frames, from which step on, how strongly.
        continuation: how windows from inside a clip see the video before them.
        trainable: all of the DiT, LoRA factors, or what reads motion alone.
        face_boost: as in stage 2.
        mouth_boost: as in stage 2.
    """

    def __init__(
        self,
        models: Models,
        optim: Optim,
        objective: Objective,
        face_boost: float,
        mouth_boost: float,
        personality: Personality,
        continuation: Continuation,
        perceptual: PerceptualTerms,
        trainable: Trainable,
        seed: int = 0,
    ) -> None:
        super().__init__(models, optim, objective, face_boost, mouth_boost, seed, trainable)
        self.continuation = continuation
        self.personality = personality
        self.perceptual = PerceptualLosses(perceptual)

    @property
    def new_parts(self) -> tuple[str, ...]:
        return MOTION

    def conditions(
        self, batch: Batch, windows: Windows, generator: torch.Generator | None = None
    ) -> Cond:
        """Stage 2's conditions and what is drawn of the reference of each clip, without a generator
        all of it. ValueError without a reference."""
        if batch.reference is None:
            raise ValueError("stage 3 needs references: set data.init_args.pairs to true")
        common = None if generator is None else self.common
        shown = self.at_resolution(batch.reference)
        reference = draw_reference(shown, self.conditioner, self.personality, common)
        cond = dataclasses.replace(super().conditions(batch, windows), reference=reference)
        if common is None or not happens(self.personality.motion_dropout, common):
            motion = self._motion(windows, batch).to(reference.latents.device)
            cond = dataclasses.replace(cond, motion=motion)
        if generator is not None and happens(self.continuation.anchor_share, self.common):
            return self._anchored(cond, windows, batch)
        return cond

    @property
    def knows_motion(self) -> bool:
        return True

    @property
    def reads_stills(self) -> bool:
        return self.personality.stills_share > 0

    @property
    def reference_dropout(self) -> float:
        return self.personality.reference_dropout

    def card_entries(self) -> dict[str, Any]:
        return {
            **super().card_entries(),
            "reference": True,
            "motion": self.personality.motion_dropout < 1,
            "faces": self.personality.faces,
            "stills": NUM_STILLS if self.personality.stills_share > 0 else 0,
            "anchor": self.continuation.anchor_share > 0,
        }

    def loss(
        self, clean: Tensor, cond: Cond, windows: Windows, batch: Batch, generator: torch.Generator
    ) -> tuple[Tensor, Logs]:
        """Flow of the video, and perceptual losses of the predicted frames."""
        denoised = self.denoise(clean, cond, windows, generator)
        video = self.flow_term(denoised, windows, clean, batch)
        perceptual, more = self.perceptual_term(denoised, clean, windows, batch, generator)
        return video + perceptual, {"video": video, **more}

    def denoise(
        self, clean: Tensor, cond: Cond, windows: Windows, generator: torch.Generator
    ) -> Denoised:
        """One pass over noisy windows."""
        assert cond.reference is not None
        past = self.dit.encode_reference(cond.reference)  # read in every pass of this step
        shown = clean
        if self.continuation.estimate_share > 0:
            shown = with_estimated_prefix(
                self.dit, cond, windows, clean, self.continuation, generator, past=past
            )
        noised = self.noised(windows, shown, generator)
        return Denoised(noised, self.dit(noised.x_t, noised.t, cond, past=past))

    def flow_term(
        self, denoised: Denoised, windows: Windows, clean: Tensor, batch: Batch
    ) -> Float[Tensor, ""]:
        """Flow-matching loss of the video, face and mouth counting more."""
        noised, weight = denoised.noised, self.region(windows, clean, batch)
        return flow_loss(denoised.v, noised.velocity, noised.scored, weight)

    def perceptual_term(
        self,
        denoised: Denoised,
        clean: Tensor,
        windows: Windows,
        batch: Batch,
        generator: torch.Generator,
    ) -> tuple[Tensor, Logs]:
        """What critics say of a few predicted frames, weighed by the schedule; and each term."""
        noised = denoised.noised
        assert batch.reference is not None
        predicted = Predicted(
            latents=flow.clean_from_velocity(noised.x_t, denoised.v.float(), noised.t),
            clean=clean,
            t=noised.times,
            motion=self._motion(windows, batch).to(clean.device),
            motion_stats=self.conditioner.known_stats,
            motion_known=batch.motion_known,
            reference=batch.reference,
            audio=batch.audio,
            start=windows.start,
        )
        return self.perceptual.loss(predicted, self.conditioner.vae, self.step, generator)

    def _motion(self, windows: Windows, batch: Batch) -> Float[Tensor, "b l md"]:
        return windows.crop(self.conditioner.pack_motion(batch.motion))

    def _anchored(self, cond: Cond, windows: Windows, batch: Batch) -> Cond:
        if batch.latents is not None:
            first = batch.latents[:, :1].float()
        else:  # the VAE is causal: its first latent is that of the first frame alone
            video = self.at_resolution(batch).video
            assert video is not None, "clean latents were made of it"
            first = self.conditioner.encode_image(video[:, 0])
        start = torch.zeros(first.shape[0], dtype=torch.long)
        audio = self.conditioner.encode_audio_windows(batch.audio, start, 1)
        motion = self.conditioner.pack_motion(batch.motion)[:, :1].to(first.device)
        stats = self.conditioner.motion_stats
        return with_anchor(cond, windows, first, audio, motion, stats)
