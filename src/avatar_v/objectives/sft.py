"""Stage 3, personality: how a person moves, learned from another video of theirs.

The reference clip comes from another scene of the same person, with its own sound and motion; what
a step shows of it is training/personality.py's. The video follows its own motion, which in
generation the motion network makes (objectives/motion_prior.py), and once the schedule says so,
critics see a few predicted frames (Avatar V §3.3): training/perceptual.py. The loss is two terms of
one pass: ``flow_term`` and ``perceptual_term``.
"""

import dataclasses
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from avatar_v import flow
from avatar_v.losses.flow import motion_flow_loss
from avatar_v.models.conditioner import latent_validity
from avatar_v.motion.vectors import component_weights
from avatar_v.training.batch import Logs, NoisySample, TrainBatch, noise_like, noisy
from avatar_v.training.continuation import Continuation
from avatar_v.training.engine import Engine
from avatar_v.training.optim import Optim
from avatar_v.training.perceptual import PerceptualLosses, PerceptualTerms, Predicted
from avatar_v.training.personality import Personality
from avatar_v.training.settings import Models, Objective
from avatar_v.training.trainable import MOTION, Trainable, select_dit
from avatar_v.training.video import Regions, VideoSubject, velocity_loss
from avatar_v.types import Cond


@dataclass(frozen=True)
class Denoised:
    """One pass of the network over noisy windows."""

    noised: NoisySample
    v: Float[Tensor, "b l c h w"]
    motion: Float[Tensor, ""]  # loss of the motion that is denoised beside it


class SFT(Engine[TrainBatch[Cond]]):
    """Stage 2 with a reference video, its motion and perceptual losses.

    Args:
        personality: the reference's length and dropout, and how often the motion is left out.
        perceptual: which critics see predicted frames, from which step on, how strongly.
        continuation: how windows from inside a clip see the video before them.
        trainable: all of the DiT, LoRA factors, or what reads motion alone.
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
        perceptual: PerceptualTerms,
        trainable: Trainable,
        seed: int = 0,
    ) -> None:
        video = VideoSubject(
            models, objective, Regions(face_boost, mouth_boost), personality=personality,
            continuation=continuation,
        )  # fmt: skip
        super().__init__(video, optim, seed, trainable)
        self.perceptual = PerceptualLosses(perceptual)

    def select_trainable(self) -> None:
        select_dit(self, self.trainable, new=MOTION, seed=self.seed)

    def loss(self, batch: TrainBatch[Cond]) -> tuple[Tensor, Logs]:
        """Flow of the video, and perceptual losses of the predicted frames."""
        denoised = self.denoise(batch)
        video = self.flow_term(denoised, batch)
        perceptual, more = self.perceptual_term(denoised, batch)
        return video + 0.2 * denoised.motion + perceptual, {
            "video": video,
            "motion": denoised.motion,
            **more,
        }

    def denoise(self, batch: TrainBatch[Cond]) -> Denoised:
        """One pass over noisy windows."""
        assert batch.cond.reference is not None
        past = self.dit.encode_reference(batch.cond.reference)  # read in every pass of this step
        noised = self.subject.noisy(batch, self.subject.with_estimates(self.dit, batch, past))
        clean = self.subject.motion(self, batch.clips, batch.windows).to(batch.clean.device)
        moving = noisy(clean, noise_like(clean, batch.draws.own), noised.t, noised.scored)
        cond = dataclasses.replace(batch.cond, motion=moving.x_t)
        v, v_motion = self.dit(noised.x_t, noised.t, cond, past=past, joint=True)
        valid = batch.windows.crop(latent_validity(batch.clips.valid)).to(clean.device)
        weights = component_weights({"eye_open": 6.0, "mouth_open": 2.0, "yaw": 2.0})
        loss = motion_flow_loss(v_motion, moving.velocity, noised.scored & valid, weights[None])
        return Denoised(noised, v, loss)

    def flow_term(self, denoised: Denoised, batch: TrainBatch[Cond]) -> Float[Tensor, ""]:
        """Flow-matching loss of the video, face and mouth counting more."""
        return velocity_loss(denoised.v, denoised.noised, self.subject.region(batch))

    def perceptual_term(self, denoised: Denoised, batch: TrainBatch[Cond]) -> tuple[Tensor, Logs]:
        """What critics say of a few predicted frames, weighed by the schedule; and each term."""
        noised = denoised.noised
        motion = self.subject.motion(self, batch.clips, batch.windows)
        predicted = Predicted(
            latents=flow.clean_from_velocity(noised.x_t, denoised.v.float(), noised.t),
            clean=batch.clean,
            t=noised.times,
            motion=motion.to(batch.clean.device),
            motion_stats=self.conditioner.known_stats,
            clips=batch.clips,
            start=batch.windows.start,
        )
        return self.perceptual.loss(predicted, self.conditioner.vae, self.step, batch.draws.own)
