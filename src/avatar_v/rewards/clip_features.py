"""ClipFeatures: a clip with its sound as one row of numbers, by the frozen critics of the world.

What a preference is learned from (preference.py): how the face moves and how far beside the
person's own, what the critics' last hidden layers say of the pictures, whether the face is the
person's, and how well lips fit the sound, also where it is shifted. No network is trained here.
"""

import hashlib

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from avatar_v.critics.frozen import PictureCritic, as_input
from avatar_v.critics.motion import MotionMeter
from avatar_v.critics.sync import WINDOW_FRAMES
from avatar_v.critics.world_sync import WorldSyncNet
from avatar_v.faces.face import FaceCritic
from avatar_v.motion.habits import LEAST_EXCURSION, excursion, visible_runs
from avatar_v.rewards.feature_part import FeaturePart, Video
from avatar_v.rewards.shipped import sound_windows
from avatar_v.types import MOTION_NAMES

MAX_SHIFT = 7
"""Frames by which the sound is shifted against the lips."""
MOST_RATIO = 2.0
"""Logarithms of ratios of excursions are cut here."""
NUM_SPREAD = 3


class ClipFeatures(FeaturePart):
    """ValueError for a critic that is held out, a missing one, and clips of less than six frames.

    Args:
        motion: A shipped critic's name, or a folder.
        face: The same.
        sync: The same.
    """

    def __init__(self, motion: str = "motion", face: str = "face", sync: str = "sync") -> None:
        self.config = {"motion": motion, "face": face, "sync": sync}
        self.motion = MotionMeter.as_objective(motion)
        self.face = FaceCritic.as_objective(face)
        self.sync = WorldSyncNet.as_objective(sync)

    @property
    def num(self) -> int:
        last = (self.motion.head[-1], self.face.head[-1])
        hidden = sum(layer.in_features for layer in last if isinstance(layer, nn.Linear))
        return 4 * len(MOTION_NAMES) + hidden + 2 * NUM_SPREAD + 2 * MAX_SHIFT + 3

    def hash(self) -> str:
        hashes = "".join(critic.hash() for critic in (self.motion, self.face, self.sync))
        return hashlib.sha256(hashes.encode()).hexdigest()[:12]

    @torch.no_grad()
    def __call__(
        self,
        frames: Video,
        audio: Float[Tensor, "b s"],
        portrait: Float[Tensor, "c k 3 _h _w"],
        own_motion: Float[Tensor, "c r m"],
        own_valid: Bool[Tensor, "c r"],
        condition: Int[Tensor, " b"],
    ) -> Float[Tensor, "b d"]:
        if frames.shape[1] <= WINDOW_FRAMES:
            raise ValueError(f"a clip has more than {WINDOW_FRAMES} frames, got {frames.shape[1]}")
        for critic in (self.motion, self.face, self.sync):
            critic.to(frames.device)
        pictures = as_input(frames.clamp(-1, 1).flatten(0, 1), self.motion.input_size)
        hidden, out = (x.unflatten(0, frames.shape[:2]) for x in _read(self.motion, pictures))
        read = self.motion.center + self.motion.scale * out
        seen, faces = (x.unflatten(0, frames.shape[:2]) for x in _read(self.face, pictures))
        lips = self.sync.frame_features(pictures).unflatten(0, frames.shape[:2])
        own = self.face(as_input(portrait.clamp(-1, 1).flatten(0, 1), self.face.input_size))
        own = F.normalize(own.unflatten(0, portrait.shape[:2]).mean(1), dim=-1)[condition]
        parts = (
            read.mean(1),
            read.std(1),
            read.diff(dim=1).abs().mean(1),
            _beside_own(read, own_motion.to(read), own_valid, condition),
            hidden.mean(1),
            seen.mean(1),
            _spread((F.normalize(faces, dim=-1) * own[:, None]).sum(-1)),
            self._fit(lips, audio),
        )
        return torch.cat(parts, dim=1).float()

    def _fit(
        self, lips: Float[Tensor, "b f k"], audio: Float[Tensor, "b s"]
    ) -> Float[Tensor, "b fit"]:
        """The mean cosine of lips and sound at every shift, how much the true place has over the
        best, how far off that is, and the spread over time."""
        seen = self.sync.embed_features(lips)
        num = seen.shape[1]
        sound = sound_windows(audio, num).to(seen.device)
        heard = self.sync.embed_audio(sound.flatten(0, 1)).unflatten(0, sound.shape[:2])
        padded = F.pad(heard, (0, 0, MAX_SHIFT, MAX_SHIFT))
        shifts = range(2 * MAX_SHIFT + 1)
        cosines = torch.stack([(seen * padded[:, s : s + num]).sum(-1) for s in shifts], dim=-1)
        there = torch.tensor([max(num - abs(s - MAX_SHIFT), 1) for s in shifts]).to(cosines)
        table = cosines.sum(1) / there
        best, place = table.max(1)
        off = (place - MAX_SHIFT).abs() / MAX_SHIFT
        more = torch.stack([table[:, MAX_SHIFT] - best, off], dim=1)
        return torch.cat([table, more, _spread(cosines[..., MAX_SHIFT])], dim=1)


def _read(
    critic: PictureCritic, images: Float[Tensor, "n 3 h w"]
) -> tuple[Float[Tensor, "n k"], Float[Tensor, "n d"]]:
    """The last hidden layer of a critic and what it makes of it."""
    assert isinstance(critic, (MotionMeter, FaceCritic))
    hidden = critic.head[:-1](critic.pool(critic.trunk(images)))
    return hidden, critic.head[-1](hidden).float()


def _spread(values: Float[Tensor, "b n"]) -> Float[Tensor, "b 3"]:
    """NUM_SPREAD numbers."""
    return torch.stack([values.mean(1), values.amin(1), values.std(1)], dim=1)


def _beside_own(
    read: Float[Tensor, "b f m"],
    motion: Float[Tensor, "c r m"],
    valid: Bool[Tensor, "c r"],
    condition: Int[Tensor, " b"],
) -> Float[Tensor, "b m"]:
    """The logarithm of how far each component moves over how far the person's does, in runs as
    long; 0 where that is not known."""
    runs = visible_runs(motion, valid, read.shape[1])
    own = torch.stack([excursion(run).mean((0, 1)) for run in runs])[condition]  # NaN without runs
    far = excursion(read).mean(1).clamp_min(LEAST_EXCURSION)
    ratio = (far / own.clamp_min(LEAST_EXCURSION)).log()
    return torch.where(own.isfinite(), ratio.clamp(-MOST_RATIO, MOST_RATIO), 0.0)
