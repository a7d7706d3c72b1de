"""Stage 3, personality: how a person moves, learned from another video of theirs.

The reference clip comes from another scene of the same person, with its own sound and motion, and
is cut to a length drawn anew in every step, down to one frame; in a share of the steps single
frames of it stand for it, beside the habits of such a run. Close-ups of the face may come with it.
The motion of the target is denoised beside its picture (ALGORITHMS §1.3), and once the schedule
says so, critics judge a few predicted frames (§2; Avatar V §3.3). Decoding and judging are
stages/judged.py's.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from avatar_v import flow
from avatar_v.losses.flow import flow_loss
from avatar_v.models.conditioner import clip_moments, latent_validity
from avatar_v.models.motion import component_weights, pack_motion
from avatar_v.models.reference import NUM_FACES, NUM_STILLS
from avatar_v.stages.a2v import A2V
from avatar_v.stages.base import Logs, happens
from avatar_v.stages.continuation import Continuation, with_anchor, with_estimated_prefix
from avatar_v.stages.judged import HumanTerms, Judged, Judges
from avatar_v.stages.motion_alone import draw_motion_windows
from avatar_v.stages.optim import Optim
from avatar_v.stages.settings import Models, Objective
from avatar_v.stages.trainable import Trainable, select
from avatar_v.stages.windows import Windows
from avatar_v.types import TEMPORAL_FACTOR, Batch, Cond, Reference, num_latents

PICTURE_DROPOUT = 0.5
"""Least share of steps without faces among those whose reference is one latent."""


@dataclass(frozen=True)
class Personality:
    """Numbers of the reference and the motion stream."""

    min_reference_latents: int = 1  # of a step, drawn between the two (draw_run)
    max_reference_latents: int = 1_000_000  # cut to what the clip has
    reference_dropout: float = 0.1  # share of samples without a reference
    reference_motion_dropout: float = 0.0  # share of steps whose reference is without its motion
    motion_weight: float = 1.0  # of the motion stream's flow loss; 0 trains without the stream
    motion_dropout: float = 0.1  # share of steps that run without the motion stream
    known_share: float = 0.0  # share of samples whose motion is there before their video
    alone_windows: int = 0  # further windows of each clip, of motion without its video
    motion_components: dict[str, float] = field(default_factory=dict)
    """Weights of motion's components by name in the motion stream's loss; all others have 1."""
    stills_share: float = 0.0
    """Share of steps in which single frames stand for the reference's video, beside the habits of
    its motion (`avatar-v shards stills`); generation then reads frames, too (Card.stills)."""
    faces: bool = False  # close-ups of the reference's face are read (`avatar-v shards faces`)
    faces_dropout: float = 0.2  # share of steps without them (more with one latent)

    def __post_init__(self) -> None:
        low, high = self.min_reference_latents, self.max_reference_latents
        if not 1 <= low <= high:
            raise ValueError(f"a reference has 1 <= min <= max latents, got {low} and {high}")
        shares = ("reference_dropout", "reference_motion_dropout", "motion_dropout")
        for name in (*shares, "known_share", "stills_share", "faces_dropout"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is in [0, 1], got {getattr(self, name)}")
        if self.motion_weight < 0:
            raise ValueError(f"motion_weight is not negative, got {self.motion_weight}")
        if self.alone_windows < 0:
            raise ValueError(f"alone_windows is not negative, got {self.alone_windows}")
        component_weights(self.motion_components)


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
        """Stage 2's conditions and a run of the reference of each clip, or frames that stand for
        it, drawn alike for the whole batch and all ranks; without a generator all of it, or all of
        them. ValueError without a reference."""
        if batch.reference is None:
            raise ValueError("stage 3 needs references: set data.init_args.pairs to true")
        start, length, with_motion = 0, num_latents(batch.reference.motion.shape[1]), True
        if generator is not None:
            start, length = draw_run(
                length,
                self.personality.min_reference_latents,
                self.personality.max_reference_latents,
                self.common,
            )
            with_motion = not happens(self.personality.reference_motion_dropout, self.common)
        if self._shows_stills(generator):
            reference = self._stills(batch.reference, start, length, generator)
        else:
            reference = self.conditioner.encode_reference(batch.reference, start, length)
        if not with_motion:
            reference = dataclasses.replace(reference, motion=None, moments=None)
        if self.personality.faces:
            if reference.faces is None:
                raise ValueError(
                    "personality.faces needs clips with close-ups of the face (and their latents): "
                    "add them with `avatar-v shards faces`"
                )
            common = None if generator is None else self.common
            reference = draw_faces(reference, self.personality, common)
        else:
            reference = reference.without_faces()
        cond = dataclasses.replace(super().conditions(batch, windows), reference=reference)
        if generator is not None and happens(self.continuation.anchor_share, self.common):
            return self._anchored(cond, batch)
        return cond

    def _shows_stills(self, generator: torch.Generator | None) -> bool:
        """Whether single frames stand for the reference; without a generator where any do."""
        share = self.personality.stills_share
        return share > 0 and (generator is None or happens(share, self.common))

    def _stills(
        self, batch: Batch, start: int, length: int, generator: torch.Generator | None
    ) -> Reference:
        """Some of the stills of a reference, drawn alike for the whole batch and all ranks, with
        the moments of a run of its motion; without a generator all of them. The run itself where no
        clip of the batch shows a face."""
        places = torch.arange(NUM_STILLS)
        if generator is not None:
            _, num = draw_run(NUM_STILLS, 1, NUM_STILLS, self.common)
            places = torch.randperm(NUM_STILLS, generator=self.common)[:num].sort().values
        if batch.stills is not None and batch.stills.shape[1] == 0:
            return self.conditioner.encode_reference(batch, start, length)
        reference = self.conditioner.encode_stills(batch, places)
        moments = clip_moments(batch.motion, batch.valid, slice(start, start + length))
        return dataclasses.replace(reference, moments=moments.to(reference.latents.device))

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
        components = component_weights(self.personality.motion_components)
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
        components: Float[Tensor, " m"],
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
        return motion_flow_loss(v, flow.velocity(drawn.motion, noise), drawn.scored, components)

    def _anchored(self, cond: Cond, batch: Batch) -> Cond:
        first = self.conditioner.clean_latents(batch)[:, :1]
        start = torch.zeros(first.shape[0], dtype=torch.long)
        audio = self.conditioner.encode_audio_windows(batch.audio, start, 1)
        motion = pack_motion(batch.motion)[:, :1].to(first.device)
        return with_anchor(cond, first, audio, motion)

    def _first_latent(self, batch: Batch) -> Tensor:
        """The reference's first frame, as a latent: the face that predictions are judged by."""
        reference = batch.reference
        assert reference is not None
        if reference.latents is not None:
            return reference.latents[:, 0].float()
        assert reference.video is not None
        return self.conditioner.encode_image(reference.video[:, 0])[:, 0]


def draw_run(whole: int, least: int, most: int, generator: torch.Generator) -> tuple[int, int]:
    """Start and length of a run of ``least`` to ``most`` latents of a reference of ``whole``.

    The logarithm of the length is uniform: one latent more says much where there are two and
    little where there are a hundred, and a step costs in proportion to the length.
    """
    high = min(most, whole)
    low = min(least, high)
    uniform = float(torch.rand((), generator=generator))
    length = min(int(low * ((high + 1) / low) ** uniform), high)
    return int(torch.randint(whole - length + 1, (), generator=generator)), length


def draw_faces(
    reference: Reference, numbers: Personality, generator: torch.Generator | None
) -> Reference:
    """``reference`` with some of its faces, drawn alike for the whole batch, or with none.

    A reference of one latent stands for a picture: it shows one face, or in half of the steps none,
    so that a picture alone stays a trained condition. Without a generator the faces are evenly
    spread over those there are, and none are dropped.
    """
    assert reference.faces is not None
    assert reference.faces_valid is not None
    is_picture = reference.latents.shape[1] == 1
    whole = reference.faces.shape[1]
    num = min(1 if is_picture else NUM_FACES, whole)
    if generator is None:
        chosen = ((torch.arange(num) + 0.5) * whole / max(num, 1)).long()
    else:
        dropout = max(numbers.faces_dropout, PICTURE_DROPOUT if is_picture else 0.0)
        dropped = float(torch.rand((), generator=generator)) < dropout
        # a generator of its own: what is drawn from the common one must not depend on the clips
        own = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=generator)))
        chosen = torch.randperm(whole, generator=own)[:num]
        if dropped:
            return reference.without_faces()
    return dataclasses.replace(
        reference, faces=reference.faces[:, chosen], faces_valid=reference.faces_valid[:, chosen]
    )


def motion_flow_loss(
    v: Float[Tensor, "b l md"],
    target: Float[Tensor, "b l md"],
    scored: Bool[Tensor, "b l"],
    components: Float[Tensor, " m"],
) -> Float[Tensor, ""]:
    """Mean squared error of motion velocity over the latent frames that count, ``components``
    weighing those of each of their four vectors; 0 if no frame counts."""
    weight = components.repeat(TEMPORAL_FACTOR).to(v.device)
    squared = ((v.float() - target.float()).square() * weight).mean(-1) * scored
    return squared.sum() / scored.sum().clamp_min(1)
