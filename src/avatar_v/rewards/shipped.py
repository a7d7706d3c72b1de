"""The rewards that come along: habits of motion, the person, the lips, the picture, penalties.

Each is named in a recipe by its path (terms.py). Rewards of habits set a level and no more:
two counts of blinks in a few seconds differ by chance far more than two persons do, so that who
blinks how often cannot be learned from them. Their coefficient is the gap between the persons' own
level and that of the samples, over the whole batch. It moves with the samples and is 0 where they
agree; a constant coefficient would run away.

Here is what scores a whole batch at once on its device, or gives credit by the batch's own level.
What judges one clip after the other is a scorer, and a reward by scored.Scored. A critic that has
been a reward no longer judges: held-out critics are refused. `Identity`, `Sync` and `MouthOpening`
take the critics of stage 3's losses, of drawn or of filmed people (faces/objectives.py); those that
must be told where the face is look where it is in the true clip, whose motion the samples follow.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from avatar_v.critics.look import FaceJudge, FaceReading, Faces, MotionReading
from avatar_v.critics.mfcc import batched_mfcc
from avatar_v.critics.quality import flicker as unsteadiness
from avatar_v.critics.quality import sharpness as laplacian
from avatar_v.critics.sync import STEPS_PER_FRAME, WINDOW_FRAMES, WINDOW_STEPS, SyncCritic
from avatar_v.faces.objectives import What, objective
from avatar_v.motion.habits import excursion, slope, visible_runs
from avatar_v.rewards.levels import blink_gap, excursion_gap, made_part
from avatar_v.types import MOTION_NAMES, SAMPLES_PER_FRAME, TEMPORAL_FACTOR, Batch

Video = Float[Tensor, "b f 3 h w"]
Motion = Float[Tensor, "b f m"]
Pictures = Float[Tensor, "c k 3 _h _w"]
"""True pictures of each condition, in [-1, 1]."""
PerLatent = Float[Tensor, "b l"]
EYE_OPEN = MOTION_NAMES.index("eye_open")
YAW = MOTION_NAMES.index("yaw")
MOUTH_OPEN = MOTION_NAMES.index("mouth_open")
MOST_PENALTY = 2.0
"""The penalty of three times as much as there should be, or more."""
LEAST_FLICKER = 0.5
"""Share of the mean flicker of a clip, below which that of a moment counts as so much."""
LEAST_SLOPE = 0.1
"""Least slope of a true mouth on its motion; a smaller one counts as this."""
LEAST_SPEED = 1e-3
"""Mean change a frame below which a component counts as one that a person does not move."""


def blinks(
    frames: Video | None, audio: Tensor, reference: Batch, motion: Motion, *, around: int = 1,
    **columns: Any,
) -> PerLatent | None:  # fmt: skip
    """Closed lids at each latent frame and ``around`` it, times the relative gap of blink rates.

    Credit goes to lids, since a rate is no property of a moment. None where the reference tells no
    rate.
    """
    gap = blink_gap(reference, motion, columns["num_given"])
    if gap is None:
        return None
    closed = 1 - by_latent(motion[..., EYE_OPEN].clamp(0, 1), "min")
    width = 2 * around + 1
    nearby = F.avg_pool1d(closed[:, None], width, 1, around, count_include_pad=False)[:, 0]
    return gap * _standard(nearby)


def sway(
    frames: Video | None, audio: Tensor, reference: Batch, motion: Motion, **columns: Any
) -> PerLatent | None:
    """How far the head is turned from its mean at each latent frame, times the relative gap."""
    return _excursion_credit(YAW, reference, motion, columns)


def amplitude(
    frames: Video | None, audio: Tensor, reference: Batch, motion: Motion, **columns: Any
) -> PerLatent | None:
    """How far the mouth's opening is from its mean, times the relative gap to the person's own."""
    return _excursion_credit(MOUTH_OPEN, reference, motion, columns)


def over_articulation(
    frames: Video | None, audio: Tensor, reference: Batch, motion: Motion, *,
    tolerance: float = 0.1, **columns: Any,
) -> Float[Tensor, " b"]:  # fmt: skip
    """A penalty from -2 to 0: by how much the mouth moves further than its person's does, beyond
    ``tolerance``, relatively. The opponent of a reward of lip-sync, which exaggeration raises
    (THEval)."""
    ratio = _against_own(MOUTH_OPEN, reference, motion, columns)
    return -(ratio - 1 - tolerance).clamp(0, MOST_PENALTY)


def frozen_motion(
    frames: Video | None, audio: Tensor, reference: Batch, motion: Motion, *,
    least: float = 0.5, **columns: Any,
) -> Float[Tensor, " b"]:  # fmt: skip
    """A penalty, at most 0: by how much the mean speed of all components falls below ``least`` of
    the person's own."""
    made = made_part(motion, columns["num_given"])
    speed = made.diff(dim=1).abs().mean(1)
    runs = visible_runs(reference.motion.to(motion), reference.valid, made.shape[1])
    own = torch.stack([run.diff(dim=1).abs().mean((0, 1)) for run in runs])
    own = own[columns["condition"]]
    share = torch.where(own > LEAST_SPEED, speed / own.clamp_min(LEAST_SPEED), torch.nan)
    return -(least - share.nanmean(1)).clamp_min(0)


def saturation(
    frames: Video | None, audio: Tensor, reference: Batch, motion: Motion, *,
    truth: Pictures | None = None, tolerance: float = 0.02, **columns: Any,
) -> Float[Tensor, " b"] | None:  # fmt: skip
    """A penalty from -2 to 0: by how much more colourful the pictures are than the true ones."""
    if frames is None or truth is None:
        return None
    made, true = (_colourfulness(video) for video in (frames, truth))
    ratio = made / true[columns["condition"]].clamp_min(1e-3)
    return -(ratio - 1 - tolerance).clamp(0, MOST_PENALTY)


def sharpness(
    frames: Video | None, audio: Tensor, reference: Batch, motion: Motion, *,
    truth: Pictures | None = None, **columns: Any,
) -> Float[Tensor, " b"] | None:  # fmt: skip
    """Sharpness relative to the true pictures' (critics/quality.py), at most 1: beyond the truth it
    is raised by contrast and noise."""
    if frames is None or truth is None:
        return None
    made, true = (
        torch.stack([laplacian(as_stored(clip)).mean() for clip in video])
        for video in (frames, truth)
    )
    return (made / true[columns["condition"]].clamp_min(1e-6)).clamp(max=1)


def flicker(
    frames: Video | None, audio: Tensor, reference: Batch, motion: Motion, *,
    truth: Pictures | None = None, tolerance: float = 0.02, **columns: Any,
) -> PerLatent | None:  # fmt: skip
    """A penalty from -2 to 0 at each latent frame: by how much more its pictures flicker than the
    true ones at the same moment (critics/quality.py). Blur lowers it, and so do mouths that open
    less: set `sharpness` and `MouthOpening` beside it."""
    if frames is None or truth is None:
        return None
    made, true = (
        torch.stack([unsteadiness(as_stored(clip)) for clip in video]) for video in (frames, truth)
    )
    made, true = by_latent(made, "mean"), by_latent(true, "mean")[columns["condition"]]
    least = LEAST_FLICKER * true.mean(1, keepdim=True)  # of moments at which nothing moves
    return -(made / true.clamp_min(least).clamp_min(1e-3) - 1 - tolerance).clamp(0, MOST_PENALTY)


class OfCritic:
    """A reward by a critic that a loss may have, too: the name of one that ships (the default), a
    folder or a file; errors as `objective`."""

    what: ClassVar[What]
    default: ClassVar[str]

    def __init__(self, critic: str = "") -> None:
        self.critic = objective(self.what, critic or self.default)

    def ready(self, video: Tensor, faces: Faces | None) -> FaceJudge:
        """The critic, where the pictures are. ValueError if it is not told where to look."""
        if self.critic.by_face and (faces is None or faces.landmarks is None):
            raise ValueError(f"{self.critic.name} looks by 68 landmarks, which the clips lack")
        if isinstance(self.critic, torch.nn.Module):
            self.critic.to(video.device)
        return self.critic


class MouthOpening(OfCritic):
    """How far the mouth in the pictures goes along with that of the motion at each latent frame,
    times how much further it goes along in the true pictures: the gap of both slopes. The opponent
    of rewards of still and sharp pictures, which mouths that open less raise.

    Neither the error of a moment nor the size of the movement is such an opponent: where a moment
    is uncertain a smaller opening is nearer to it, and mouths that tremble move, too.
    """

    what, default = "motion", "motion"

    def __call__(
        self, frames: Video | None, audio: Tensor, reference: Batch, motion: Motion, *,
        truth: Pictures | None = None, faces: Faces | None = None, **columns: Any,
    ) -> PerLatent | None:  # fmt: skip
        if frames is None or truth is None:
            return None
        critic = self.ready(frames, faces)
        assert isinstance(critic, MotionReading)
        given, condition = columns["num_given"], columns["condition"]
        mouth = critic.reads.index("mouth_open")
        there = _of_samples(faces, condition)
        shown, true = (
            _read(critic, x, where)[..., mouth].to(motion)
            for x, where in ((frames, there), (truth, faces))
        )
        target = motion[..., MOUTH_OPEN]
        made = _made_slope(target, shown, given).mean()
        aim = _made_slope(target, true[condition], given).mean().clamp_min(LEAST_SLOPE)
        along = (target - _middle(target, given)) * (shown - _middle(shown, given))
        return (1 - made / aim) * _standard(by_latent(along, "mean"))


class Identity(OfCritic):
    """The mean cosine of the pictures' faces, where one is visible, with those of the person's
    ``portrait``."""

    what, default = "identity", "face"

    def __call__(
        self, frames: Video | None, audio: Tensor, reference: Batch, motion: Motion, *,
        portrait: Pictures | None = None, faces: Faces | None = None,
        portrait_faces: Faces | None = None, **columns: Any,
    ) -> Float[Tensor, " b"] | None:  # fmt: skip
        if frames is None or portrait is None:
            return None
        critic = self.ready(frames, faces)
        assert isinstance(critic, FaceReading)
        own = F.normalize(_read(critic, portrait, portrait_faces).mean(1), dim=-1)
        there = _of_samples(faces, columns["condition"])
        cosines = (_read(critic, frames, there) * own[columns["condition"], None]).sum(-1)
        return cosines.mean(1) if not critic.by_face else _where_seen(cosines, there).nanmean(1)


class Sync(OfCritic):
    """How well lips fit the sound at each latent frame: the cosine of picture and sound, averaged
    over the windows of five frames whose middle lies there."""

    what, default = "sync", "sync"

    def __call__(
        self, frames: Video | None, audio: Tensor, reference: Batch, motion: Motion, *,
        faces: Faces | None = None, **columns: Any,
    ) -> PerLatent | None:  # fmt: skip
        if frames is None:
            return None
        critic = self.ready(frames, faces)
        assert isinstance(critic, SyncCritic)
        there = _of_samples(faces, columns["condition"])
        windows = critic.look(frames, there).unfold(1, WINDOW_FRAMES, 1).movedim(-1, 2)
        sound = sound_windows(audio, windows.shape[1]).to(frames.device)
        lips = critic.embed_video(windows.flatten(0, 1))
        heard = critic.embed_audio(sound.flatten(0, 1))
        fit = F.cosine_similarity(lips, heard).unflatten(0, windows.shape[:2])
        middle = WINDOW_FRAMES // 2  # frames at both ends that are the middle of no window
        fit = F.pad(fit[:, None], (middle, middle), mode="replicate")[:, 0]
        return by_latent(_where_seen(fit, there) if critic.by_face else fit, "mean")


def _read(critic: FaceReading, frames: Video, faces: Faces | None) -> Float[Tensor, "b f d"]:
    return critic.read(critic.look(frames, faces).flatten(0, 1)).unflatten(0, frames.shape[:2])


def _of_samples(faces: Faces | None, condition: Int[Tensor, " b"]) -> Faces | None:
    """Of each condition to each sample's."""
    if faces is None:
        return None
    return faces.at(condition[:, None], torch.arange(faces.valid.shape[1])[None])


def _where_seen(values: Float[Tensor, "b f"], faces: Faces | None) -> Float[Tensor, "b f"]:
    """NaN in frames without a visible face."""
    assert faces is not None
    return torch.where(faces.valid, values, torch.nan)


def _made_slope(
    target: Float[Tensor, "b f"], shown: Float[Tensor, "b f"], num_given: int
) -> Float[Tensor, " b"]:
    """Over the frames that a sample made."""
    return slope(*(made_part(x[..., None], num_given)[..., 0] for x in (target, shown)))


def _middle(x: Float[Tensor, "b f"], num_given: int) -> Float[Tensor, "b 1"]:
    return made_part(x[..., None], num_given)[..., 0].mean(1, keepdim=True)


def sound_windows(audio: Float[Tensor, "b s"], num: int) -> Float[Tensor, "b num 20 13"]:
    """The sound of each window of five frames, as sync critics take it."""
    sound = batched_mfcc(F.pad(audio, (0, SAMPLES_PER_FRAME)))
    return sound.unfold(1, WINDOW_STEPS, STEPS_PER_FRAME).movedim(-1, 2)[:, :num]


def by_latent(values: Float[Tensor, "b f"], how: str) -> PerLatent:
    """The "mean" or "min" over the frames of each latent frame, the first of which has one."""
    later = values[:, 1:].unflatten(1, (-1, TEMPORAL_FACTOR))
    reduced = later.amin(-1) if how == "min" else later.mean(-1)
    return torch.cat([values[:, :1], reduced], dim=1)


def _excursion_credit(
    component: int, reference: Batch, motion: Motion, columns: dict[str, Any]
) -> PerLatent | None:
    gap = excursion_gap(component, reference, motion, columns["num_given"])
    if gap is None:
        return None
    middle = made_part(motion, columns["num_given"]).mean(1, keepdim=True)
    far = by_latent((motion - middle)[..., component].abs(), "mean")
    return gap * _standard(far)


def _against_own(
    component: int, reference: Batch, motion: Motion, columns: dict[str, Any]
) -> Float[Tensor, " b"]:
    """How far each sample moves a component over how far its person does; NaN where that is not
    known."""
    made = made_part(motion, columns["num_given"])
    far = excursion(made)[..., component].mean(1)
    runs = visible_runs(reference.motion.to(motion), reference.valid, made.shape[1])
    own = torch.stack([excursion(run)[..., component].mean() for run in runs])  # NaN without runs
    condition: Int[Tensor, " b"] = columns["condition"]
    return far / own[condition].clamp_min(1e-4)


def _standard(values: PerLatent) -> PerLatent:
    """In units of their spread over the batch."""
    return values / values.std().clamp_min(1e-4)


def as_stored(video: Float[Tensor, "f 3 h w"]) -> UInt8[Tensor, "f 3 h w"]:
    """Pictures as files hold them."""
    return ((video.float().clamp(-1, 1) + 1) * 127.5).round().byte()


def _colourfulness(video: Float[Tensor, "n f 3 h w"]) -> Float[Tensor, " n"]:
    """The mean distance of the largest from the smallest of red, green and blue."""
    x = video.float().clamp(-1, 1)
    return (x.amax(2) - x.amin(2)).mean((1, 2, 3)) / 2
