"""WorldSyncNet: do these five frames and this sound belong together? For the people of the world.

A small SyncNet (sync.py has its scores), trained on rendered persons (recipes/critic_sync.yaml).
It takes whole 64 x 64 pictures and finds the mouth itself, as the motion meter does, so it needs no
boxes and its gradient reaches every pixel. Embeddings are unit vectors: a distance lies in [0, 2],
and 1 - cosine is a loss on decoded windows. Trained from scratch and not from the motion meter, so
that what a generator learns from the one can be checked by the other.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.base.stored import Count
from avatar_v.critics.frozen import Critic, as_input, whole_frames
from avatar_v.critics.layers import Backbone, picture_backbone
from avatar_v.critics.look import Faces, Video
from avatar_v.critics.sync import (
    NUM_COEFFICIENTS,
    STEPS_PER_FRAME,
    WINDOW_FRAMES,
)

INPUT_SIZE = 64


class WorldSyncNet(Critic):
    """Pictures one by one, then five of them together; sound by convolutions in time."""

    name = "sync"
    by_face = False

    def __init__(
        self,
        width: Count = 16,
        num_heads: Count = 6,
        num_features: Count = 48,
        num_dims: Count = 64,
        backbone: Backbone = "residual",
        held_out: bool = False,
    ) -> None:
        sizes = {"width": width, "num_heads": num_heads, "num_features": num_features}
        super().__init__(
            {**sizes, "num_dims": num_dims, "backbone": backbone, "held_out": held_out}
        )
        self.trunk, self.pool, num_read = picture_backbone(backbone, width, num_heads)
        self.frame_head = nn.Sequential(nn.Linear(num_read, num_features), nn.SiLU())
        self.video_head = nn.Sequential(
            nn.Linear(WINDOW_FRAMES * num_features, 128), nn.SiLU(), nn.Linear(128, num_dims)
        )
        self.audio_trunk = nn.Sequential(
            nn.BatchNorm1d(NUM_COEFFICIENTS),  # coefficients differ in scale by two orders
            nn.Conv1d(NUM_COEFFICIENTS, 48, 3, padding=1),
            nn.SiLU(),
            nn.Conv1d(48, 64, STEPS_PER_FRAME, stride=2, padding=1),
            nn.SiLU(),
            nn.Conv1d(64, 96, STEPS_PER_FRAME, stride=2, padding=1),
            nn.SiLU(),
        )
        self.audio_head = nn.Sequential(
            nn.Linear(WINDOW_FRAMES * 96, 128), nn.SiLU(), nn.Linear(128, num_dims)
        )

    def look(self, video: Video, faces: Faces | None = None) -> Float[Tensor, "b f 3 64 64"]:
        return whole_frames(video, INPUT_SIZE)

    def embed_video(self, windows: Float[Tensor, "b 5 3 h w"]) -> Float[Tensor, "b d"]:
        """Unit vectors of square pictures in [-1, 1]; differentiable, for losses."""
        features = self.frame_features(as_input(windows.flatten(0, 1), INPUT_SIZE))
        return self.embed_features(features.unflatten(0, windows.shape[:2]))[:, 0]

    def embed_audio(self, windows: Float[Tensor, "b 20 13"]) -> Float[Tensor, "b d"]:
        """Unit vectors of windows of ``sync.mfcc``."""
        x = self.audio_trunk(windows.transpose(1, 2))
        return F.normalize(self.audio_head(x.flatten(1)).float(), dim=-1)

    def frame_features(self, images: Float[Tensor, "b 3 64 64"]) -> Float[Tensor, "b k"]:
        """What single pictures say of the mouth; overlapping windows share them in training."""
        return self.frame_head(self.pool(self.trunk(images)))

    def embed_features(self, features: Float[Tensor, "b f k"]) -> Float[Tensor, "b n d"]:
        """Unit vectors of the n = f - 4 windows of runs of pictures."""
        windows = features.unfold(1, WINDOW_FRAMES, 1).transpose(2, 3).flatten(2)
        return F.normalize(self.video_head(windows).float(), dim=-1)


def sync_contrastive_loss(
    video: Float[Tensor, "b n d"],
    audio: Float[Tensor, "b n d"],
    temperature: float,
    ignore_shift: int = 1,
) -> Float[Tensor, ""]:
    """InfoNCE (van den Oord et al. 2018) both ways, against all windows and against the own clip's.

    ``video[c, i]`` and ``audio[c, i]`` are the same window of clip c. Windows of one clip up to
    ``ignore_shift`` frames apart count neither way: they share four of five frames. The second
    part sees shifts alone, so that knowing whose voice goes with whose face does not help there.
    In fp32, mean of the four cross entropies.
    """
    num_clips, num = video.shape[:2]
    if video.shape != audio.shape or num <= ignore_shift + 1:
        raise ValueError(
            f"a clip needs more than {ignore_shift + 1} windows of pictures and of sound, "
            f"got {tuple(video.shape)} and {tuple(audio.shape)}"
        )
    v, a = video.flatten(0, 1).float(), audio.flatten(0, 1).float()
    logits = v @ a.T / temperature
    index = torch.arange(num_clips * num, device=logits.device)
    same_clip = (index // num)[:, None] == (index // num)[None]
    apart = (index[:, None] - index[None]).abs()
    logits = logits.masked_fill(same_clip & (apart > 0) & (apart <= ignore_shift), -torch.inf)
    own = logits.masked_fill(~same_clip, -torch.inf)
    parts = [F.cross_entropy(x, index) for x in (logits, logits.T, own, own.T)]
    return torch.stack(parts).mean()
