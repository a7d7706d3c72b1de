"""FVD with I3D (Unterthiner et al. 2019), or with a network of one's own, on whole pictures."""

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.critics.sync import joined
from avatar_v_eval.bench.footage import Footage
from avatar_v_eval.bench.measured import Output
from avatar_v_eval.bench.metric import ANY
from avatar_v_eval.bench.networks import load_network
from avatar_v_eval.bench.pictures import Frames
from avatar_v_eval.bench.set_metric import SetMetric, rows_output

WINDOW_FRAMES = 16
SOURCE = (
    "i3d_torchscript.pt (I3D on Kinetics-400, Apache-2.0 of deepmind/kinetics-i3d) as StyleGAN-V "
    "uses it, https://www.dropbox.com/s/ge9e5ujwgetktms/i3d_torchscript.pt, or "
    "package.module:Name, a network from uint8 videos 'b 3 f h w' to features"
)


class Fvd(SetMetric):
    """Of 16 frames one after the other. Few windows of many features make it too high in itself:
    compare it only between systems on the same cases."""

    name = "fvd"
    version = 1
    judge = "I3D, or the network given; no detector, whole pictures"
    faces = ANY
    outputs = (rows_output("fvd", "windows of 16 frames"),)
    distance = Output("fvd", "FVD", "lower")
    needs_weights = SOURCE

    def __init__(self, weights: str) -> None:
        super().__init__()
        self.network, self.hash, self.is_file = load_network(weights, SOURCE)
        asked = ("rescale", "resize", "return_features")  # 0 … 255 of any size, no classes
        self.options = dict.fromkeys(asked, True) if self.is_file else {}

    def weights_hash(self) -> str:
        return self.hash

    def features(self, footage: Footage) -> Float[Tensor, "n d"]:
        windows = footage.windows(WINDOW_FRAMES)
        return joined(map(self._seen, windows), footage.num_frames // WINDOW_FRAMES)

    @torch.no_grad()
    def _seen(self, frames: Frames) -> Float[Tensor, "1 d"]:
        return self.network(frames.transpose(0, 1)[None], **self.options).float()


METRIC = Fvd
