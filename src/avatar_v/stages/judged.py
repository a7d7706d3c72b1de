"""Human-aware terms of stage 3: predicted latents to a few frames, frames to critics, to a loss.

A run of ``num_latents`` latents is decoded behind the two true latents before it, so that the
causal decoder has the past that it will have when generating. Only samples late in the flow are
decoded (losses/human.py). The critics read whole 64 px pictures, as they were trained; larger
pictures are averaged down (critics/frozen.as_input).
"""

from dataclasses import dataclass, field
from typing import TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from avatar_v.critics.face import FaceCritic
from avatar_v.critics.frozen import Critic, PictureCritic, as_input
from avatar_v.critics.motion import MotionMeter
from avatar_v.critics.sync import STEPS_PER_FRAME, WINDOW_FRAMES, audio_windows, mfcc
from avatar_v.critics.world_sync import WorldSyncNet
from avatar_v.losses.human import (
    LATE_LIMIT,
    identity_loss,
    late_weight,
    motion_loss,
    perceptual_loss,
    sync_loss,
)
from avatar_v.models.motion import SCALE, component_weights, motion_frames
from avatar_v.models.vae import VideoVAE
from avatar_v.stages.windows import value_at
from avatar_v.types import SAMPLES_PER_FRAME, TEMPORAL_FACTOR

CONTEXT_LATENTS = 2
TERMS = ("identity", "motion", "closed_loop", "perceptual", "sync")
Latents = Float[Tensor, "b l c h w"]
Video = Float[Tensor, "b f 3 height width"]
_Kind = TypeVar("_Kind", bound=Critic)


@dataclass(frozen=True)
class HumanTerms:
    """Weights by step, {step: weight from that step on}; {0: 0.0} leaves a term out."""

    identity: dict[int, float] = field(default_factory=lambda: {0: 0.0})
    motion: dict[int, float] = field(default_factory=lambda: {0: 0.0})
    closed_loop: dict[int, float] = field(default_factory=lambda: {0: 0.0})
    perceptual: dict[int, float] = field(default_factory=lambda: {0: 0.0})
    sync: dict[int, float] = field(default_factory=lambda: {0: 0.0})
    components: dict[str, float] = field(default_factory=dict)
    """Weights of motion's components by name in motion and closed_loop; all others have 1."""
    num_latents: int = 2  # decoded per sample
    max_samples: int = 4  # decoded per step, drawn from those that are late enough
    latest_t: float = LATE_LIMIT  # predictions from above this time are not judged
    face_critic: str = "face"  # names of shipped critics, or folders
    motion_meter: str = "motion"
    sync_critic: str = "sync"

    def __post_init__(self) -> None:
        for name in TERMS:
            schedule = getattr(self, name)
            if min(schedule.values(), default=-1) < 0 or 0 not in schedule:
                raise ValueError(f"{name} needs weights >= 0 from step 0 on, got {schedule}")
        component_weights(self.components)
        if not 0 < self.latest_t <= 1:
            raise ValueError(f"latest_t is in (0, 1], got {self.latest_t}")
        if self.num_latents < 1 or self.max_samples < 1:
            raise ValueError("num_latents and max_samples are at least 1")
        if max(self.sync.values()) > 0 and TEMPORAL_FACTOR * self.num_latents < WINDOW_FRAMES:
            raise ValueError(f"the sync critic sees {WINDOW_FRAMES} frames: num_latents >= 2")


@dataclass(frozen=True)
class Judged:
    """What a step predicted and what is true of it; windows of l latents."""

    predicted: Latents  # x̂_0, with gradient
    clean: Latents
    t: Float[Tensor, " b"]
    motion: Float[Tensor, "b l md"]  # packed
    motion_known: Bool[Tensor, "b m"] | None  # components that are true; None: all
    predicted_motion: Float[Tensor, "b l md"] | None  # of the motion stream, where it ran
    first: Float[Tensor, "b c h w"]  # the reference's first latent, one frame
    audio: Float[Tensor, "b s"]  # of the whole clips
    start: Int[Tensor, " b"]  # latent of the clip at which each window begins


class Judges:
    """The critics of some terms, loaded when a term first counts. They stay frozen."""

    def __init__(self, terms: HumanTerms) -> None:
        self.terms = terms
        self._critics: dict[str, Critic] = {}

    def loss(
        self, judged: Judged, vae: VideoVAE, step: int, generator: torch.Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted sum of the active terms, and each of them. 0 where none is active, the
        window is too short, or no sample is late enough."""
        terms = self.terms
        weights = {name: value_at(getattr(terms, name), step) for name in TERMS}
        chosen = self._chosen(judged.t, generator)
        last = judged.clean.shape[1] - terms.num_latents
        zero = judged.predicted.new_zeros(())
        if not any(weights.values()) or len(chosen) == 0 or last < CONTEXT_LATENTS:
            return zero, {}
        start = int(torch.randint(CONTEXT_LATENTS, last + 1, (), generator=generator))
        found = self._values(judged, chosen, start, vae, weights)
        total = sum((weights[name] * value for name, value in found.items()), zero)
        return total, {f"human_{name}": value for name, value in found.items()}

    def _chosen(self, t: Float[Tensor, " b"], generator: torch.Generator) -> Tensor:
        """Rows drawn from those that are late enough. Not the latest of them: what is nearly
        denoised shows the truth whatever the model does."""
        late = (t.cpu() <= self.terms.latest_t).nonzero().flatten()
        order = torch.randperm(len(late), generator=generator)
        return late[order[: self.terms.max_samples]].to(t.device)

    def _values(
        self, judged: Judged, rows: Tensor, start: int, vae: VideoVAE, weights: dict[str, float]
    ) -> dict[str, Tensor]:
        """Every active term of the latents from ``start`` on of the chosen samples."""
        run = slice(start, start + self.terms.num_latents)
        before = judged.clean[rows, start - CONTEXT_LATENTS : start]
        frames = decode_behind(vae, before, judged.predicted[rows, run])
        weight = late_weight(judged.t[rows], self.terms.latest_t)
        found = {}
        if weights["identity"]:
            person = vae.decode(judged.first[rows, None].float())
            found["identity"] = self._identity(frames, person, weight)
        if weights["motion"] or weights["closed_loop"]:
            read = self._motion(frames)
            scale = SCALE.to(read.device)
            components = component_weights(self.terms.components).to(read.device)[None]
            if judged.motion_known is not None:
                components = components * judged.motion_known.to(read.device)[rows]
            if weights["motion"]:
                true = motion_frames(judged.motion[rows, run])
                found["motion"] = motion_loss(read, true, scale, weight, components)
            if weights["closed_loop"] and judged.predicted_motion is not None:
                said = motion_frames(judged.predicted_motion[rows, run])
                found["closed_loop"] = motion_loss(read, said, scale, weight, components)
        if weights["perceptual"]:
            with torch.no_grad():
                true = decode_behind(vae, before, judged.clean[rows, run])
            found["perceptual"] = self._perceptual(frames, true, weight)
        if weights["sync"]:
            sound = sound_windows(judged.audio[rows], judged.start[rows] + start, frames.shape[1])
            found["sync"] = self._sync(frames, sound, weight)
        return found

    def _identity(
        self, frames: Video, person: Float[Tensor, "b 1 3 h w"], weight: Tensor
    ) -> Tensor:
        critic = self._critic(FaceCritic, self.terms.face_critic, frames)
        faces = critic(_pictures(frames, critic)).unflatten(0, frames.shape[:2])
        return identity_loss(faces, critic(_pictures(person, critic)), weight)

    def _motion(self, frames: Video) -> Float[Tensor, "b f m"]:
        meter = self._critic(MotionMeter, self.terms.motion_meter, frames)
        return meter(_pictures(frames, meter)).unflatten(0, frames.shape[:2])

    def _perceptual(self, frames: Video, true: Video, weight: Tensor) -> Tensor:
        critic = self._critic(FaceCritic, self.terms.face_critic, frames)
        seen, expected = (critic.features(_pictures(x, critic)) for x in (frames, true))
        return perceptual_loss(seen, expected, weight.repeat_interleave(frames.shape[1]))

    def _sync(self, frames: Video, sound: Float[Tensor, "b n 20 13"], weight: Tensor) -> Tensor:
        critic = self._critic(WorldSyncNet, self.terms.sync_critic, frames)
        num = sound.shape[1]
        windows = frames.float().clamp(-1, 1).unfold(1, WINDOW_FRAMES, 1).movedim(-1, 2)
        lips = critic.embed_video(windows.flatten(0, 1)).unflatten(0, (-1, num))
        heard = critic.embed_audio(sound.flatten(0, 1).to(frames.device))
        return sync_loss(lips, heard.unflatten(0, (-1, num)), weight)

    def _critic(self, kind: type[_Kind], name: str, like: Tensor) -> _Kind:
        if kind.name not in self._critics:
            self._critics[kind.name] = kind.from_pretrained(name).to(like.device)
        critic = self._critics[kind.name]
        assert isinstance(critic, kind)
        return critic


def decode_behind(vae: VideoVAE, before: Latents, latents: Latents) -> Video:
    """Frames of ``latents`` in [-1, 1], the decoder having seen ``before``; 4 frames a latent.
    Gradients reach ``latents`` alone."""
    decoder = vae.stream_decoder(clamp=False)
    with torch.no_grad():
        decoder.push(before)
    return decoder.push(latents)


def sound_windows(
    audio: Float[Tensor, "b s"], latent: Int[Tensor, " b"], num_frames: int
) -> Float[Tensor, "b n 20 13"]:
    """The sound of every run of 5 among ``num_frames`` frames from latent ``latent`` >= 1 on."""
    rows = []
    for waveform, index in zip(audio, latent.tolist(), strict=True):
        first = TEMPORAL_FACTOR * (index - 1) + 1
        padded = F.pad(waveform, (0, SAMPLES_PER_FRAME))  # the last MFCC reaches past the clip
        steps = mfcc(padded)[STEPS_PER_FRAME * first : STEPS_PER_FRAME * (first + num_frames)]
        rows.append(audio_windows(steps))
    return torch.stack(rows)


def _pictures(video: Video, critic: PictureCritic) -> Float[Tensor, "n 3 s s"]:
    """All frames as fp32 pictures of the critic's size."""
    return as_input(video.float().clamp(-1, 1).flatten(0, 1), critic.input_size)
