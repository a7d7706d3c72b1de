"""Perceptual losses of stage 3: predicted latents to a few frames, frames to critics, to a loss.

A run of ``num_latents`` latents is decoded behind the two true latents before it, so that the
causal decoder has the past that it will have when generating. Only samples late in the flow are
decoded. The critics read whole 64 px pictures, as they were trained; larger pictures are averaged
down (critics/frozen.as_input). Every term has one value a sample (losses/perceptual.py); they are
weighed and averaged here, last. Nothing here waits for the device: which samples are decoded is
decided by their times, which are on the CPU.
"""

from dataclasses import dataclass, field
from typing import TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from avatar_v.base import checks
from avatar_v.critics.frozen import Critic, PictureCritic, as_input, require_objective
from avatar_v.critics.mfcc import batched_mfcc
from avatar_v.critics.motion import MotionMeter
from avatar_v.critics.sync import STEPS_PER_FRAME, WINDOW_FRAMES, WINDOW_STEPS
from avatar_v.critics.world_sync import WorldSyncNet
from avatar_v.faces.face import FaceCritic
from avatar_v.losses.perceptual import (
    LATE_LIMIT,
    feature_loss,
    identity_loss,
    late_weight,
    motion_loss,
    sync_loss,
)
from avatar_v.models.conditioner import latent_validity
from avatar_v.models.vae import VideoVAE
from avatar_v.motion.stats import MotionStats
from avatar_v.motion.vectors import component_weights, motion_frames
from avatar_v.training.windows import value_at
from avatar_v.types import SAMPLES_PER_FRAME, TEMPORAL_FACTOR, Batch

CONTEXT_LATENTS = 2
TERMS = ("identity", "motion", "features", "sync")
Latents = Float[Tensor, "b l c h w"]
Video = Float[Tensor, "b f 3 height width"]
Rows = Int[Tensor, " n"]
_Kind = TypeVar("_Kind", bound=Critic)


@dataclass(frozen=True)
class PerceptualTerms:
    """Weights by step, {step: weight from that step on}; {0: 0.0} leaves a term out."""

    identity: dict[int, float] = field(default_factory=lambda: {0: 0.0})
    motion: dict[int, float] = field(default_factory=lambda: {0: 0.0})
    features: dict[int, float] = field(default_factory=lambda: {0: 0.0})
    sync: dict[int, float] = field(default_factory=lambda: {0: 0.0})
    components: dict[str, float] = field(default_factory=dict)
    """Weights of motion's components by name in motion; all others have 1."""
    num_latents: int = 2  # decoded per sample
    max_samples: int = 4  # decoded per step, drawn from those that are late enough
    latest_t: float = LATE_LIMIT  # predictions from above this time are not decoded
    face_critic: str = "face"  # names of shipped critics, or folders
    motion_meter: str = "motion"
    sync_critic: str = "sync"

    def __post_init__(self) -> None:
        for name in TERMS:
            checks.by_step(checks.weight, name, getattr(self, name))
        component_weights(self.components)
        for critic in (self.face_critic, self.motion_meter, self.sync_critic):
            require_objective(critic)
        checks.positive("latest_t", self.latest_t, most=1)
        checks.each(checks.count, self, ("num_latents", "max_samples"))
        if max(self.sync.values()) > 0 and TEMPORAL_FACTOR * self.num_latents < WINDOW_FRAMES:
            raise ValueError(f"the sync critic sees {WINDOW_FRAMES} frames: num_latents >= 2")


@dataclass(frozen=True)
class Predicted:
    """Predicted and true latents of a step; windows of l latents."""

    latents: Latents  # x̂_0, with gradient
    clean: Latents
    t: Float[Tensor, " b"]  # on the CPU
    motion: Float[Tensor, "b l md"]  # packed by the next
    motion_stats: MotionStats
    motion_known: Bool[Tensor, "b m"] | None  # components that are true; None: all
    reference: Batch  # whose face the identity term compares with
    audio: Float[Tensor, "b s"]  # of the whole clips
    start: Int[Tensor, " b"]  # latent of the clip at which each window begins; on the CPU


@dataclass(frozen=True)
class DecodedRun:
    """The run of some samples that the critics look at."""

    frames: Video  # predicted, with gradient
    before: Latents  # true latents that the decoder has seen
    rows: Rows  # samples of the batch; on the CPU, as the next
    start: int  # first latent of the run within the window
    run: slice


class PerceptualLosses:
    """The critics of some terms, loaded when a term first counts. They stay frozen."""

    def __init__(self, terms: PerceptualTerms) -> None:
        self.terms = terms
        self._critics: dict[str, Critic] = {}

    def loss(
        self, predicted: Predicted, vae: VideoVAE, step: int, generator: torch.Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted sum of the active terms, and each of them: the mean over decoded samples
        of `late_weight` times its value, so that a term fades with its samples instead of jumping.
        0 where none is active, the window is too short, or no sample is late enough."""
        weights = {name: value_at(getattr(self.terms, name), step) for name in TERMS}
        active = tuple(name for name, weight in weights.items() if weight)
        rows = self._rows(predicted.t, generator)
        last = predicted.clean.shape[1] - self.terms.num_latents
        zero = predicted.latents.new_zeros(())
        if not active or len(rows) == 0 or last < CONTEXT_LATENTS:
            return zero, {}
        start = int(torch.randint(CONTEXT_LATENTS, last + 1, (), generator=generator))
        values = self.values(predicted, rows, start, vae, active)
        late = late_weight(predicted.t[rows], self.terms.latest_t).to(zero.device)
        found = {name: (value * late).mean() for name, value in values.items()}
        total = sum((weights[name] * value for name, value in found.items()), zero)
        return total, {f"perceptual_{name}": value for name, value in found.items()}

    def values(
        self, predicted: Predicted, rows: Rows, start: int, vae: VideoVAE, active: tuple[str, ...]
    ) -> dict[str, Float[Tensor, " n"]]:
        """One value for each of the ``rows`` of every term, from the latents of the windows from
        ``start`` on."""
        run = slice(start, start + self.terms.num_latents)
        before = predicted.clean[rows, start - CONTEXT_LATENTS : start]
        frames = decode_behind(vae, before, predicted.latents[rows, run])
        decoded = DecodedRun(frames, before, rows, start, run)
        found = {}
        if "identity" in active:
            found["identity"] = self._identity(predicted, decoded, vae)
        if "motion" in active:
            found["motion"] = self._motion(predicted, decoded)
        if "features" in active:
            found["features"] = self._features(predicted, decoded, vae)
        if "sync" in active:
            found["sync"] = self._sync(predicted, decoded)
        return found

    def _rows(self, t: Float[Tensor, " b"], generator: torch.Generator) -> Rows:
        """Rows drawn from those that are late enough. Not the latest of them: what is nearly
        denoised shows the truth whatever the model does."""
        late = (t <= self.terms.latest_t).nonzero().flatten()
        order = torch.randperm(len(late), generator=generator)
        return late[order[: self.terms.max_samples]]

    def _identity(self, predicted: Predicted, decoded: DecodedRun, vae: VideoVAE) -> Tensor:
        critic = self._critic(FaceCritic, self.terms.face_critic, decoded.frames)
        faces = critic(_pictures(decoded.frames, critic)).unflatten(0, decoded.frames.shape[:2])
        person = reference_faces(vae, predicted.reference, decoded.rows)
        return identity_loss(faces, critic(_pictures(person, critic)))

    def _motion(self, predicted: Predicted, decoded: DecodedRun) -> Tensor:
        meter = self._critic(MotionMeter, self.terms.motion_meter, decoded.frames)
        read = meter(_pictures(decoded.frames, meter)).unflatten(0, decoded.frames.shape[:2])
        scale = predicted.motion_stats.deviation.to(read.device)
        components = component_weights(self.terms.components).to(read.device)[None]
        if predicted.motion_known is not None:
            components = components * predicted.motion_known.to(read.device)[decoded.rows]
        motion = predicted.motion[decoded.rows, decoded.run]
        target = motion_frames(motion, predicted.motion_stats)
        return motion_loss(read, target, scale, components)

    def _features(self, predicted: Predicted, decoded: DecodedRun, vae: VideoVAE) -> Tensor:
        with torch.no_grad():
            clean = predicted.clean[decoded.rows, decoded.run]
            true = decode_behind(vae, decoded.before, clean)
        critic = self._critic(FaceCritic, self.terms.face_critic, decoded.frames)
        seen, expected = (critic.features(_pictures(x, critic)) for x in (decoded.frames, true))
        return feature_loss(seen, expected).unflatten(0, decoded.frames.shape[:2]).mean(1)

    def _sync(self, predicted: Predicted, decoded: DecodedRun) -> Tensor:
        frames, rows = decoded.frames, decoded.rows
        critic = self._critic(WorldSyncNet, self.terms.sync_critic, frames)
        first = predicted.start[rows] + decoded.start
        sound = sound_windows(predicted.audio[rows], first, frames.shape[1])
        num = sound.shape[1]
        windows = frames.float().clamp(-1, 1).unfold(1, WINDOW_FRAMES, 1).movedim(-1, 2)
        lips = critic.embed_video(windows.flatten(0, 1)).unflatten(0, (-1, num))
        audio = critic.embed_audio(sound.flatten(0, 1).to(frames.device))
        return sync_loss(lips, audio.unflatten(0, (-1, num)))

    def _critic(self, kind: type[_Kind], name: str, like: Tensor) -> _Kind:
        if kind.name not in self._critics:
            self._critics[kind.name] = kind.as_objective(name).to(like.device)
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


@torch.no_grad()
def reference_faces(
    vae: VideoVAE, reference: Batch, rows: Rows
) -> Float[Tensor, "n 1 3 height width"]:
    """The first picture of each reference in which a face is seen, as the VAE shows it; the first
    of all where there is none."""
    if reference.latents is None:
        assert reference.video is not None
        first = reference.valid[rows].byte().argmax(1)
        rows = rows.to(first.device)
        return vae.decode(vae.encode(reference.video[rows, first][:, None]))
    first = latent_validity(reference.valid)[rows].byte().argmax(1)
    # behind what comes before it: a latent of four frames is not decoded alone
    back = torch.arange(-CONTEXT_LATENTS, 1, device=first.device)
    run = (first[:, None] + back).clamp(min=0).to(reference.latents.device)
    frames = vae.decode(reference.latents[rows.to(run.device)[:, None], run].float())
    is_first = (first == 0).to(frames.device)[:, None, None, None, None]
    return torch.where(is_first, frames[:, :1], frames[:, -1:])


def sound_windows(
    audio: Float[Tensor, "b s"], latent: Int[Tensor, " b"], num_frames: int
) -> Float[Tensor, "b n 20 13"]:
    """The sound of every run of 5 among ``num_frames`` frames from latent ``latent`` >= 1 on."""
    padded = F.pad(audio, (0, SAMPLES_PER_FRAME))  # the last MFCC reaches past the clip
    first = STEPS_PER_FRAME * (TEMPORAL_FACTOR * (latent - 1) + 1)
    steps = (first[:, None] + torch.arange(STEPS_PER_FRAME * num_frames)).to(audio.device)
    rows = torch.arange(len(audio), device=audio.device)[:, None]
    found = batched_mfcc(padded)[rows, steps]
    return found.unfold(1, WINDOW_STEPS, STEPS_PER_FRAME).movedim(-1, 2)


def _pictures(video: Video, critic: PictureCritic) -> Float[Tensor, "n 3 s s"]:
    """All frames as fp32 pictures of the critic's size."""
    return as_input(video.float().clamp(-1, 1).flatten(0, 1), critic.input_size)
