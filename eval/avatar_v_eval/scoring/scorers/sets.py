"""FID and FVD: Fréchet distances between features of the true videos and of a system's.

Feature rows are scored and kept per video like any number; the distance is taken once a run, over
the cases that every system has (bench/summary.py). FID is Heusel et al. 2017, FVD Unterthiner et
al. 2019, with their networks or with one's own, on whole pictures; few pictures or windows of many
features make both far too high in themselves, so compare them between systems on the same cases
only. Those of drawn faces are not the papers': the world's critics see.
"""

from abc import abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.critics.frozen import as_input
from avatar_v.critics.sync import WINDOW_FRAMES, joined
from avatar_v.critics.world_sync import INPUT_SIZE, WorldSyncNet
from avatar_v.faces.face import FaceCritic
from avatar_v.scoring.clip import Footage, ScoredClip
from avatar_v.scoring.pictures import Frames
from avatar_v.scoring.sampling import sampled
from avatar_v.scoring.scorer import ANY, DRAWN, J, NetworkScorer
from avatar_v.scoring.values import ScoreOutput, Values
from avatar_v_eval.scoring.networks import GivenNetwork

I3D_FRAMES = 16
INCEPTION = (
    "inception-2015-12-05.pt (TorchScript, Apache-2.0) of https://nvlabs-fi-cdn.nvidia.com/"
    "stylegan2-ada-pytorch/pretrained/metrics/, or package.module:Name, a network from uint8 "
    "pictures to features"
)
I3D = (
    "i3d_torchscript.pt (I3D on Kinetics-400, Apache-2.0 of deepmind/kinetics-i3d) as StyleGAN-V "
    "uses it, https://www.dropbox.com/s/ge9e5ujwgetktms/i3d_torchscript.pt, or "
    "package.module:Name, a network from uint8 videos 'b 3 f h w' to features"
)


def _rows(name: str, words: str) -> tuple[ScoreOutput]:
    """The number of rows that a case adds: all that it shows by itself."""
    return (ScoreOutput(f"{name}_rows", f"{words} taken in", ""),)


class SetScorer(NetworkScorer[J]):
    """Subclasses give `features`."""

    distance: ClassVar[ScoreOutput]  # the number of a whole set; its key is the scorer's name

    @abstractmethod
    def features(self, footage: Footage) -> Float[Tensor, "n d"]:
        """Rows of one video; ValueError says why there are none."""

    def score(self, clip: ScoredClip) -> Values:
        rows = self.features(clip.video)
        return Values({self.outputs[0].key: float(len(rows))}, rows=rows)


class FidScorer(SetScorer[GivenNetwork]):
    """2 frames a second."""

    name = "fid"
    version = 1
    judge = "InceptionV3, or the network given; no detector, whole pictures"
    faces = ANY
    outputs = _rows("fid", "pictures")
    distance = ScoreOutput("fid", "FID", "lower")
    needs_weights = INCEPTION

    def __init__(self, weights: str) -> None:
        self.critic = GivenNetwork(weights, INCEPTION, ("return_features",))

    def features(self, footage: Footage) -> Float[Tensor, "n d"]:
        return footage.each(self.critic, sampled(footage.num_frames))


class FvdScorer(SetScorer[GivenNetwork]):
    """Windows of 16 frames one after the other."""

    name = "fvd"
    version = 1
    judge = "I3D, or the network given; no detector, whole pictures"
    faces = ANY
    outputs = _rows("fvd", "windows of 16 frames")
    distance = ScoreOutput("fvd", "FVD", "lower")
    needs_weights = I3D

    def __init__(self, weights: str) -> None:
        asked = ("rescale", "resize", "return_features")  # 0 … 255 of any size, no classes
        self.critic = GivenNetwork(weights, I3D, asked)

    def features(self, footage: Footage) -> Float[Tensor, "n d"]:
        rows = (self.critic(x.transpose(0, 1)[None]) for x in footage.windows(I3D_FRAMES))
        return joined(rows, footage.num_frames // I3D_FRAMES)


class FidWorldScorer(SetScorer[FaceCritic]):
    """The face critic's 160 features before its last layer, 2 frames a second."""

    name = "fid_world"
    version = 1
    judge = "FaceCritic, last hidden layer; no detector, whole pictures"
    faces = DRAWN
    outputs = _rows("fid_world", "pictures")
    distance = ScoreOutput("fid_world", "FID (world face features)", "lower")

    def __init__(self, critic: str = "face") -> None:
        self.critic = FaceCritic.from_pretrained(critic)
        hidden = list(self.critic.head)[:-1]
        self.network = nn.Sequential(self.critic.trunk, self.critic.pool, *hidden)

    def features(self, footage: Footage) -> Float[Tensor, "n d"]:
        return footage.squares.each(self._seen, sampled(footage.num_frames))

    @torch.no_grad()
    def _seen(self, frames: Frames) -> Float[Tensor, "f d"]:
        return self.network(as_input(frames, self.critic.input_size))


class FvdWorldScorer(SetScorer[WorldSyncNet]):
    """The sync critic's 128 features of five frames before its last layer, windows end to end."""

    name = "fvd_world"
    version = 1
    judge = "WorldSyncNet's picture branch, last hidden layer; no detector, whole pictures"
    faces = DRAWN
    outputs = _rows("fvd_world", "windows of 5 frames")
    distance = ScoreOutput("fvd_world", "FVD (world sync features, 5 frames)", "lower")

    def __init__(self, critic: str = "sync") -> None:
        self.critic = WorldSyncNet.from_pretrained(critic)

    def features(self, footage: Footage) -> Float[Tensor, "n d"]:
        windows = footage.squares.windows(WINDOW_FRAMES)
        return joined(map(self._seen, windows), footage.num_frames // WINDOW_FRAMES)

    @torch.no_grad()
    def _seen(self, frames: Frames) -> Float[Tensor, "1 d"]:
        pictures = as_input(frames, INPUT_SIZE)
        return self.critic.video_head[:-1](self.critic.frame_features(pictures).flatten()[None])


SCORERS = (FidScorer, FvdScorer, FidWorldScorer, FvdWorldScorer)
