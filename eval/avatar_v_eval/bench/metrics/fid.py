"""FID with InceptionV3 (Heusel et al. 2017), or with a network of one's own, on whole pictures."""

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v_eval.bench.footage import Footage
from avatar_v_eval.bench.measured import Output
from avatar_v_eval.bench.metric import ANY
from avatar_v_eval.bench.networks import load_network
from avatar_v_eval.bench.pictures import Frames
from avatar_v_eval.bench.sampling import sampled
from avatar_v_eval.bench.set_metric import SetMetric, rows_output

SOURCE = (
    "inception-2015-12-05.pt (TorchScript, Apache-2.0) of https://nvlabs-fi-cdn.nvidia.com/"
    "stylegan2-ada-pytorch/pretrained/metrics/, or package.module:Name, a network from uint8 "
    "pictures to features"
)


class Fid(SetMetric):
    """2 frames a second. With a few hundred pictures of 2048 features each it is far too high in
    itself: compare it only between systems on the same cases."""

    name = "fid"
    version = 1
    judge = "InceptionV3, or the network given; no detector, whole pictures"
    faces = ANY
    outputs = (rows_output("fid", "pictures"),)
    distance = Output("fid", "FID", "lower")
    needs_weights = SOURCE

    def __init__(self, weights: str) -> None:
        super().__init__()
        self.network, self.hash, self.is_file = load_network(weights, SOURCE)
        self.options = {"return_features": True} if self.is_file else {}

    def weights_hash(self) -> str:
        return self.hash

    def features(self, footage: Footage) -> Float[Tensor, "n d"]:
        return footage.each(self._seen, sampled(footage.num_frames))

    @torch.no_grad()
    def _seen(self, frames: Frames) -> Float[Tensor, "f d"]:
        return self.network(frames, **self.options).float()


METRIC = Fid
