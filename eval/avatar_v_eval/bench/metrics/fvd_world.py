"""FVD of drawn faces: how far a system's movement is from the true one, as the sync critic sees.

Not the FVD of papers, whose features are I3D's: see fvd.py. Needs no weights.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.critics.frozen import as_input
from avatar_v.critics.sync import WINDOW_FRAMES, joined
from avatar_v.critics.world_sync import INPUT_SIZE, WorldSyncNet
from avatar_v_eval.bench.footage import Footage
from avatar_v_eval.bench.measured import Output
from avatar_v_eval.bench.metric import DRAWN
from avatar_v_eval.bench.pictures import Frames
from avatar_v_eval.bench.set_metric import SetMetric, rows_output


class FvdWorld(SetMetric):
    """The critic's 128 features of five frames before its last layer, windows end to end."""

    name = "fvd_world"
    version = 1
    judge = "WorldSyncNet's picture branch, last hidden layer; no detector, whole pictures"
    faces = DRAWN
    outputs = (rows_output("fvd_world", "windows of 5 frames"),)
    distance = Output("fvd_world", "FVD (world sync features, 5 frames)", "lower")

    def __init__(self) -> None:
        super().__init__()
        self.critic = WorldSyncNet.from_pretrained()

    def weights_hash(self) -> str:
        return self.critic.hash()

    def features(self, footage: Footage) -> Float[Tensor, "n d"]:
        windows = footage.squares.windows(WINDOW_FRAMES)
        return joined(map(self._seen, windows), footage.num_frames // WINDOW_FRAMES)

    @torch.no_grad()
    def _seen(self, frames: Frames) -> Float[Tensor, "1 d"]:
        pictures = as_input(frames, INPUT_SIZE)
        return self.critic.video_head[:-1](self.critic.frame_features(pictures).flatten()[None])


METRIC = FvdWorld
