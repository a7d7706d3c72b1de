"""Perceptual losses of stage 3: predicted latents to a few frames, frames to critics, to a loss.

A run of ``num_latents`` latents is decoded behind the two true latents before it, so that the
causal decoder has the past that it will have when generating. Only samples late in the flow are
decoded, and with ``close_up`` only the part around the face. What a critic looks at is its own
matter (critics/look.py): whole frames, averaged down, or crops by the true clip's landmarks. Every
term has one value a sample (losses/perceptual.py); they are weighed and averaged here, last.
Nothing here waits for the device: which samples are decoded is decided by their times, which are on
the CPU.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from avatar_v.base import checks
from avatar_v.critics.look import (
    FaceJudge,
    FaceReading,
    Faces,
    FeatureReading,
    MotionReading,
)
from avatar_v.critics.sync import WINDOW_FRAMES, SyncCritic
from avatar_v.faces.objectives import What, check_objective, is_missing, objective, why_missing
from avatar_v.losses.perceptual import (
    LATE_LIMIT,
    feature_loss,
    identity_loss,
    late_weight,
    motion_loss,
    sync_loss,
)
from avatar_v.models.vae import VideoVAE
from avatar_v.motion.stats import MotionStats
from avatar_v.motion.vectors import component_weights, motion_frames
from avatar_v.training.judged_frames import (
    CONTEXT_LATENTS,
    CloseUp,
    Latents,
    Rows,
    Video,
    decode_behind,
    first_frame,
    reference_faces,
    reference_places,
    sound_windows,
)
from avatar_v.training.windows import value_at
from avatar_v.types import MOTION_NAMES, TEMPORAL_FACTOR, Batch

TERMS: tuple[What, ...] = ("identity", "motion", "features", "sync")


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
    close_up: int = 0
    """Side, in latent cells, of the square around the face that is decoded; 0: whole frames, which
    critics of drawn faces need."""
    face_critic: str = "face"  # names of shipped critics, folders, or files (faces/objectives.py)
    motion_meter: str = "motion"
    feature_critic: str = ""  # "": the face critic
    sync_critic: str = "sync"
    if_supplied: bool = False
    """Leave a term out, with a warning, where nothing is at its critic's path, or clips lack the
    landmarks that it looks by. Else an error."""

    def __post_init__(self) -> None:
        for name in TERMS:
            checks.by_step(checks.weight, name, getattr(self, name))
            if not self.is_left_out(name):
                check_objective(name, self.critic(name))
        component_weights(self.components)
        checks.positive("latest_t", self.latest_t, most=1)
        checks.each(checks.count, self, ("num_latents", "max_samples"))
        checks.number("close_up", self.close_up, least=0)
        if max(self.sync.values()) > 0 and TEMPORAL_FACTOR * self.num_latents < WINDOW_FRAMES:
            raise ValueError(f"the sync critic sees {WINDOW_FRAMES} frames: num_latents >= 2")

    def critic(self, what: What) -> str:
        """The name of a term's critic."""
        features = self.feature_critic or self.face_critic
        names = (self.face_critic, self.motion_meter, features, self.sync_critic)
        return dict(zip(TERMS, names, strict=True))[what]

    def is_left_out(self, what: What) -> bool:
        return self.if_supplied and is_missing(self.critic(what))


@dataclass(frozen=True)
class Predicted:
    """Predicted and true latents of a step; windows of l latents."""

    latents: Latents  # x̂_0, with gradient
    clean: Latents
    t: Float[Tensor, " b"]  # on the CPU
    motion: Float[Tensor, "b l md"]  # packed by the next
    motion_stats: MotionStats
    clips: Batch  # whole; the identity term compares with the face of their reference
    start: Int[Tensor, " b"]  # latent of the clip at which each window begins; on the CPU


@dataclass(frozen=True)
class DecodedRun:
    """The run of some samples that the critics look at."""

    frames: Video  # predicted, with gradient
    true: Video | None  # the same of the truth, where a term compares with it
    faces: Faces  # in these frames
    rows: Rows  # samples of the batch; on the CPU, as the next
    first: Rows  # latent of each clip at which the run begins
    run: slice  # of the window


class PerceptualLosses:
    """The critics of the terms that ever count, frozen. Errors as `faces.objectives.objective`, and
    ValueError for ``close_up`` beside a critic of whole frames."""

    def __init__(self, terms: PerceptualTerms) -> None:
        self.terms, self._warned = terms, False
        used: list[What] = [name for name in TERMS if max(getattr(terms, name).values()) > 0]
        missing = [why_missing(x, terms.critic(x)) for x in used if terms.is_left_out(x)]
        if missing:
            rank_zero_warn(f"terms of the loss that are off: {'; '.join(missing)}")
        self.critics: dict[What, FaceJudge] = {
            x: objective(x, terms.critic(x)) for x in used if not terms.is_left_out(x)
        }
        if whole := [x.name for x in self.critics.values() if terms.close_up and not x.by_face]:
            raise ValueError(f"close_up is {terms.close_up}, but whole frames go to {whole}")

    def loss(
        self, predicted: Predicted, vae: VideoVAE, step: int, generator: torch.Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted sum of the active terms, and each of them: the mean over decoded samples
        of `late_weight` times its value, so that a term fades with its samples instead of jumping.
        0 where none is active, the window is too short, or no sample is late enough. ValueError, or
        a warning with ``if_supplied``, for clips without landmarks beside critics that look by
        them, whichever terms are active."""
        usable = self._usable(predicted.clips)
        weights = {str(name): value_at(getattr(self.terms, name), step) for name in usable}
        active: tuple[What, ...] = tuple(name for name in usable if weights[name])
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
        self, predicted: Predicted, rows: Rows, start: int, vae: VideoVAE, active: tuple[What, ...]
    ) -> dict[What, Float[Tensor, " n"]]:
        """One value for each of the ``rows`` of every term, from the latents of the windows from
        ``start`` on. 0 where a critic is told of a face that is not visible throughout."""
        decoded = self._decoded(predicted, rows, start, vae, active)
        found: dict[What, Tensor] = {}
        with torch.autocast(decoded.frames.device.type, enabled=False):
            for name in active:
                critic = self.critics[name]
                if isinstance(critic, torch.nn.Module):
                    critic.to(decoded.frames.device)
                if name == "identity":
                    found[name] = self._identity(critic, predicted, decoded, vae)
                if name == "motion":
                    found[name] = self._motion(critic, predicted, decoded)
                if name == "features":
                    found[name] = self._features(critic, decoded)
                if name == "sync":
                    found[name] = self._sync(critic, predicted, decoded)
                if critic.by_face:
                    found[name] = found[name] * decoded.faces.valid.all(1)
        return found

    def _usable(self, clips: Batch) -> list[What]:
        """The terms whose critics know where to look."""
        blind = [x for x, critic in self.critics.items() if critic.by_face]
        if not blind or clips.landmarks is not None:
            return list(self.critics)
        lacks = (
            f"{', '.join(blind)}: the critics look by 68 landmarks, which a clip of "
            f"{', '.join(clips.key[:4])} lacks: import clips with the extra faces"
        )
        if not self.terms.if_supplied:
            raise ValueError(lacks)
        if not self._warned:
            self._warned = True
            rank_zero_warn(f"terms of the loss that are off for some clips: {lacks}")
        return [x for x in self.critics if x not in blind]

    def _rows(self, t: Float[Tensor, " b"], generator: torch.Generator) -> Rows:
        """Rows drawn from those that are late enough. Not the latest of them: what is nearly
        denoised shows the truth whatever the model does."""
        late = (t <= self.terms.latest_t).nonzero().flatten()
        order = torch.randperm(len(late), generator=generator)
        return late[order[: self.terms.max_samples]]

    def _decoded(
        self, predicted: Predicted, rows: Rows, start: int, vae: VideoVAE, active: tuple[What, ...]
    ) -> DecodedRun:
        run = slice(start, start + self.terms.num_latents)
        first = predicted.start[rows] + start
        frame = torch.arange(TEMPORAL_FACTOR * self.terms.num_latents)
        faces = Faces.of(predicted.clips).at(rows[:, None], first_frame(first)[:, None] + frame)
        made, clean = predicted.latents[rows, run], predicted.clean[rows, : run.stop]
        if self.terms.close_up:
            size = (clean.shape[3], clean.shape[4])
            part = CloseUp.around(faces, self.terms.close_up, *size)
            made, clean, faces = part.of(made), part.of(clean), part.faces(faces, *size)
        before = clean[:, start - CONTEXT_LATENTS : start]
        frames, true = decode_behind(vae, before, made), None
        if "features" in active or ("motion" in active and self.critics["motion"].by_face):
            with torch.no_grad():
                true = decode_behind(vae, before, clean[:, run])
        return DecodedRun(frames, true, faces, rows, first, run)

    def _identity(
        self, critic: FaceJudge, predicted: Predicted, decoded: DecodedRun, vae: VideoVAE
    ) -> Float[Tensor, " n"]:
        reference = predicted.clips.reference
        assert reference is not None
        assert isinstance(critic, FaceReading)
        person = reference_faces(vae, reference, decoded.rows)
        where = reference_places(reference, decoded.rows) if critic.by_face else None
        own = critic.read(critic.look(person, where)[:, 0])
        value = identity_loss(_read(critic, decoded.frames, decoded.faces), own)
        return value if where is None else value * where.valid[:, 0]

    def _motion(
        self, critic: FaceJudge, predicted: Predicted, decoded: DecodedRun
    ) -> Float[Tensor, " n"]:
        """Filmed faces are compared with what the critic reads in the true frames: what landmarks
        said of the clip's motion is off in another way."""
        assert isinstance(critic, MotionReading)
        read = _read(critic, decoded.frames, decoded.faces)
        columns = [MOTION_NAMES.index(name) for name in critic.reads]
        scale = predicted.motion_stats.deviation[columns].to(read.device)
        components = component_weights(self.terms.components)[columns].to(read.device)[None]
        if critic.by_face:
            assert decoded.true is not None
            with torch.no_grad():
                target = _read(critic, decoded.true, decoded.faces)
            return motion_loss(read, target, scale, components)
        known = predicted.clips.motion_known
        if known is not None:
            components = components * known.to(read.device)[decoded.rows]
        motion = predicted.motion[decoded.rows, decoded.run]
        target = motion_frames(motion, predicted.motion_stats)
        return motion_loss(read, target, scale, components)

    def _features(self, critic: FaceJudge, decoded: DecodedRun) -> Float[Tensor, " n"]:
        assert isinstance(critic, FeatureReading)
        assert decoded.true is not None
        seen, expected = (
            critic.features(critic.look(x, decoded.faces).flatten(0, 1))
            for x in (decoded.frames, decoded.true)
        )
        return feature_loss(seen, expected).unflatten(0, decoded.frames.shape[:2]).mean(1)

    def _sync(
        self, critic: FaceJudge, predicted: Predicted, decoded: DecodedRun
    ) -> Float[Tensor, " n"]:
        assert isinstance(critic, SyncCritic)
        faces, audio = critic.look(decoded.frames, decoded.faces), predicted.clips.audio
        sound = sound_windows(audio[decoded.rows], decoded.first, faces.shape[1])
        num = sound.shape[1]
        windows = faces.unfold(1, WINDOW_FRAMES, 1).movedim(-1, 2)
        lips = critic.embed_video(windows.flatten(0, 1)).unflatten(0, (-1, num))
        heard = critic.embed_audio(sound.flatten(0, 1).to(faces.device))
        return sync_loss(lips, heard.unflatten(0, (-1, num)))


def _read(critic: FaceReading, video: Video, faces: Faces) -> Float[Tensor, "b f d"]:
    return critic.read(critic.look(video, faces).flatten(0, 1)).unflatten(0, video.shape[:2])
