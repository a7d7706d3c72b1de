"""Stage 3, personality: how a person moves, learned from another video of theirs.

The reference clip comes from another scene of the same person, with its own sound and motion; what
a step shows of it is stages/personality.py's. The motion of the target is denoised beside its
picture, and once the schedule says so, critics judge a few predicted frames (Avatar V
§3.3). Decoding and judging are stages/judged.py's.
"""

import dataclasses
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from avatar_v import flow
from avatar_v.losses.flow import flow_loss
from avatar_v.models.conditioner import latent_validity
from avatar_v.models.motion import component_weights, pack_motion
from avatar_v.models.reference import NUM_STILLS
from avatar_v.stages.a2v import A2V
from avatar_v.stages.base import Logs, happens
from avatar_v.stages.continuation import Continuation, with_anchor, with_estimated_prefix
from avatar_v.stages.judged import HumanTerms, Judged, Judges
from avatar_v.stages.motion_alone import draw_motion_windows
from avatar_v.stages.optim import Optim
from avatar_v.stages.personality import Personality, draw_reference
from avatar_v.stages.settings import Models, Objective
from avatar_v.stages.trainable import Trainable, select
from avatar_v.stages.windows import Windows
from avatar_v.types import TEMPORAL_FACTOR, Batch, Cond


class SFT(A2V):
    """Stage 2 with a reference video, the motion stream and human-aware losses.

    Args:
        personality: the reference's length and dropout, the motion stream's weight.
        human: which critics judge predicted frames, from which step on, how strongly.
        continuation: how windows from inside a clip see the video before them.
        trainable: all of the DiT, LoRA factors, or the motion stream alone.
        face_boost, mouth_boost: as in stage 2.
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
        human: HumanTerms,
        trainable: Trainable,
        seed: int = 0,
    ) -> None:
        super().__init__(models, optim, objective, face_boost, mouth_boost, seed)
        self.continuation = continuation
        self.trainable = trainable
        self.personality = personality
        self.judges = Judges(human)

    def select_trainable(self) -> None:
        select(self.dit, self.conditioner, self.trainable)
        if self.trainable.parts == "lora" and self.device_mesh is not None:
            raise ValueError("LoRA trains whole replicas: use strategy ddp, not ModelParallel")

    def conditions(
        self, batch: Batch, windows: Windows, generator: torch.Generator | None = None
    ) -> Cond:
        """Stage 2's conditions and what is drawn of the reference of each clip, without a generator
        all of it. ValueError without a reference."""
        if batch.reference is None:
            raise ValueError("stage 3 needs references: set data.init_args.pairs to true")
        common = None if generator is None else self.common
        reference = draw_reference(batch.reference, self.conditioner, self.personality, common)
        cond = dataclasses.replace(super().conditions(batch, windows), reference=reference)
        if generator is not None and happens(self.continuation.anchor_share, self.common):
            return self._anchored(cond, windows, batch)
        return cond

    @property
    def reference_dropout(self) -> float:
        return self.personality.reference_dropout

    def card_entries(self) -> dict[str, Any]:
        return {
            "reference": True,
            "motion": self.personality.motion_weight > 0,
            "faces": self.personality.faces,
            "stills": NUM_STILLS if self.personality.stills_share > 0 else 0,
            "anchor": self.continuation.anchor_share > 0,
        }

    def loss(
        self, clean: Tensor, cond: Cond, windows: Windows, batch: Batch, generator: torch.Generator
    ) -> tuple[Tensor, Logs]:
        motion = windows.crop(pack_motion(batch.motion).to(clean.device))
        skip = happens(self.personality.motion_dropout, self.common)
        skip = skip or self.personality.motion_weight == 0
        shown, moved = clean, None if skip else motion
        if self.continuation.estimate_share > 0:
            shown, moved = with_estimated_prefix(
                self.dit, cond, windows, shown, moved, self.continuation, generator
            )
        noised = self.noised(windows, shown, generator)
        noise = torch.randn(motion.shape, generator=generator).to(motion)
        weight = self.region(windows, clean, batch)
        components = _weights_of_known(self.personality.motion_components, batch)
        if moved is None:
            v, predicted = self.dit(noised.x_t, noised.t, cond), None
            loss = flow_loss(v, noised.velocity, noised.scored, weight)
            logs = {"video": loss}
        else:
            t_motion = noised.t
            if self.personality.known_share > 0:
                # denoised beside its video it teaches nothing: both hide the same thing at first,
                # and once motion is clear the picture shows it already
                known = (
                    torch.rand(len(noised.t), generator=generator) < self.personality.known_share
                )
                t_motion = noised.t * ~known[:, None].to(noised.t.device)
            motion_t = flow.interpolate(moved, noise, t_motion)
            v, v_motion = self.dit(noised.x_t, noised.t, cond, motion_t=motion_t, t_motion=t_motion)
            valid = windows.crop(latent_validity(batch.valid)).to(clean.device)
            hidden = noised.scored & valid & (t_motion > 0)
            logs = {
                "video": flow_loss(v, noised.velocity, noised.scored, weight),
                "motion": motion_flow_loss(
                    v_motion, flow.velocity(motion, noise), hidden, components
                ),
            }
            loss = logs["video"] + self.personality.motion_weight * logs["motion"]
            predicted = flow.clean_from_velocity(motion_t, v_motion, t_motion)
        if self.personality.alone_windows > 0 and self.personality.motion_weight > 0:
            logs["motion_alone"] = self._motion_alone_loss(batch, cond, components, generator)
            loss = loss + self.personality.motion_weight * logs["motion_alone"]
        judged, more = self.judges.loss(
            Judged(
                predicted=flow.clean_from_velocity(noised.x_t, v.float(), noised.t),
                clean=clean,
                t=noised.t.amax(1),
                motion=motion,
                motion_known=batch.motion_known,
                predicted_motion=predicted,
                first=self._first_latent(batch),
                audio=batch.audio,
                start=windows.start,
            ),
            self.conditioner.vae,
            self.global_step,
            generator,
        )
        return loss + judged, {**logs, **more}

    def _motion_alone_loss(
        self,
        batch: Batch,
        cond: Cond,
        components: Float[Tensor, "b m"],
        generator: torch.Generator,
    ) -> Tensor:
        drawn = draw_motion_windows(
            self.personality.alone_windows,
            batch,
            cond,
            self.conditioner,
            self.objective,
            length=self.window_length,
            max_reference_latents=self.personality.max_reference_latents,
            generator=generator,
        )
        noise = torch.randn(drawn.motion.shape, generator=generator).to(drawn.motion)
        motion_t = flow.interpolate(drawn.motion, noise, drawn.t)
        _, v = self.dit(None, drawn.t, drawn.cond, motion_t=motion_t, moments=drawn.moments)
        components = components.repeat_interleave(self.personality.alone_windows, dim=0)
        return motion_flow_loss(v, flow.velocity(drawn.motion, noise), drawn.scored, components)

    def _anchored(self, cond: Cond, windows: Windows, batch: Batch) -> Cond:
        first = self.conditioner.clean_latents(batch)[:, :1]
        start = torch.zeros(first.shape[0], dtype=torch.long)
        audio = self.conditioner.encode_audio_windows(batch.audio, start, 1)
        motion = pack_motion(batch.motion)[:, :1].to(first.device)
        return with_anchor(cond, windows, first, audio, motion)

    def _first_latent(self, batch: Batch) -> Tensor:
        """The reference's first frame, as a latent: the face that predictions are judged by."""
        reference = batch.reference
        assert reference is not None
        if reference.latents is not None:
            return reference.latents[:, 0].float()
        assert reference.video is not None
        return self.conditioner.encode_image(reference.video[:, 0])[:, 0]


def motion_flow_loss(
    v: Float[Tensor, "b l md"],
    target: Float[Tensor, "b l md"],
    scored: Bool[Tensor, "b l"],
    components: Float[Tensor, "#b m"],
) -> Float[Tensor, ""]:
    """Mean squared error of motion velocity over the latent frames that count, ``components``
    weighing those of each of their four vectors; 0 if no frame counts."""
    weight = components.repeat(1, TEMPORAL_FACTOR)[:, None].to(v.device)
    squared = ((v.float() - target.float()).square() * weight).mean(-1) * scored
    return squared.sum() / scored.sum().clamp_min(1)


def _weights_of_known(weights: dict[str, float], batch: Batch) -> Float[Tensor, "b m"]:
    """`component_weights` of every clip, 0 where its motion was not read: that is no target."""
    components = component_weights(weights).expand(len(batch.motion), -1)
    known = batch.motion_known
    return components if known is None else components * known.to(components)
