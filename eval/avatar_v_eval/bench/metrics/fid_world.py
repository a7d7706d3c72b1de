"""FID of drawn faces: how far a system's pictures are from the true ones, as the face critic sees.

Not the FID of papers, whose features are InceptionV3's: see fid.py. Needs no weights.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.critics.frozen import as_input
from avatar_v.faces.face import FaceCritic
from avatar_v_eval.bench.footage import Footage
from avatar_v_eval.bench.measured import Output
from avatar_v_eval.bench.metric import DRAWN
from avatar_v_eval.bench.pictures import Frames
from avatar_v_eval.bench.sampling import sampled
from avatar_v_eval.bench.set_metric import SetMetric, rows_output


class FidWorld(SetMetric):
    """The critic's 160 features before its last layer, 2 frames a second."""

    name = "fid_world"
    version = 1
    judge = "FaceCritic, last hidden layer; no detector, whole pictures"
    faces = DRAWN
    outputs = (rows_output("fid_world", "pictures"),)
    distance = Output("fid_world", "FID (world face features)", "lower")

    def __init__(self) -> None:
        super().__init__()
        self.critic = FaceCritic.from_pretrained()
        hidden = list(self.critic.head)[:-1]
        self.network = nn.Sequential(self.critic.trunk, self.critic.pool, *hidden)

    def weights_hash(self) -> str:
        return self.critic.hash()

    def features(self, footage: Footage) -> Float[Tensor, "n d"]:
        return footage.squares.each(self._seen, sampled(footage.num_frames))

    @torch.no_grad()
    def _seen(self, frames: Frames) -> Float[Tensor, "f d"]:
        return self.network(as_input(frames, self.critic.input_size))


METRIC = FidWorld
