"""The subject of the VAE's training: the VAE that it starts from, windows of clips with the weight
of every pixel, and textures beside them."""

from dataclasses import dataclass

import lightning as L
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from avatar_v.base import checks
from avatar_v.losses.flow import box_cover, region_weight
from avatar_v.losses.reconstruction import passing_change
from avatar_v.models.vae import Video, VideoVAE
from avatar_v.objectives.textures import texture_clips
from avatar_v.training.batch import Draws
from avatar_v.training.subject import Subject
from avatar_v.types import Batch, num_latents


@dataclass(frozen=True)
class VAELoss:
    """Weights of the loss, and what a step sees."""

    window_shares: dict[int, float]  # {frames: share of the steps}, frames 4k + 1
    texture_fraction: float  # of a batch: textures beside the data's clips
    gradient_weight: float = 0.5
    temporal_weight: float = 0.0  # of the error's change from frame to frame
    kl_weight: float = 1e-4
    face_boost: float = 0.5  # added to a pixel's weight of 1 inside the face box
    mouth_boost: float = 2.0  # added inside the mouth box
    change_boost: float = 0.0  # added where a face's pixel is briefly unlike itself: lids, lips
    feature_weight: float = 0.0  # of the distance of the face critic's feature maps
    crop: int | None = None  # side of a square around a point of the face; None: whole pictures

    def __post_init__(self) -> None:
        for frames in self.window_shares:
            num_latents(frames)
        checks.entries(checks.weight, "window_shares", self.window_shares)
        if not any(self.window_shares.values()):
            raise ValueError(f"window_shares needs a share above 0, got {self.window_shares}")
        names = ("gradient_weight", "temporal_weight", "kl_weight", "face_boost", "mouth_boost")
        checks.each(checks.weight, self, (*names, "change_boost", "feature_weight"))
        checks.decay("texture_fraction", self.texture_fraction)
        if self.crop is not None and (self.crop < 8 or self.crop % 8):
            raise ValueError(f"crop is a multiple of 8 pixels (the VAE's factor), got {self.crop}")


@dataclass(frozen=True)
class VideoWindows:
    """The windows of video that a step of the VAE trains on."""

    video: Video
    weight: Float[Tensor, "b f 1 h w"]  # of every pixel in the loss
    generator: torch.Generator  # of the draws that follow

    @property
    def size(self) -> int:
        return len(self.video)

    @property
    def num_tokens(self) -> int:
        """Frames."""
        return self.video.shape[0] * self.video.shape[1]


class FrameSubject(Subject[VideoWindows]):
    """Windows of clips, and textures beside them, for a VAE of ``preset``: fresh, or that of the
    folder ``init_from``."""

    def __init__(self, preset: str, init_from: str | None, numbers: VAELoss) -> None:
        if preset not in PRESETS:
            raise ValueError(f"preset is one of {sorted(PRESETS)}, got {preset!r}")
        self.preset, self.init_from, self.weights = preset, init_from, numbers

    def load(self, seed: int, trainer: L.Trainer | None) -> dict[str, nn.Module]:
        if self.init_from is None:
            return {"vae": fresh(self.preset, seed)}
        return {"vae": trained(self.preset, self.init_from)}

    def begin(self, networks: object, batch: Batch, draws: Draws) -> VideoWindows:
        return VideoWindows(*self.window(batch, draws.own), draws.own)

    def window(
        self, batch: Batch, generator: torch.Generator
    ) -> tuple[Video, Float[Tensor, "b f 1 h w"]]:
        """A window of every clip, then textures; and the loss weight of every pixel."""
        video = require_video(batch)
        frames = self._draw_length(generator)
        if video.shape[1] < frames:
            raise ValueError(f"windows of {frames} frames do not fit clips of {video.shape[1]}")
        last = video.shape[1] - frames
        starts = torch.randint(last + 1, (len(video),), generator=generator)
        rows = torch.arange(len(video))[:, None]
        columns = starts[:, None] + torch.arange(frames)
        height, width = video.shape[-2:]
        weight = region_weight(
            batch.face_box,
            batch.mouth_box,
            height=height,
            width=width,
            face_boost=self.weights.face_boost,
            mouth_boost=self.weights.mouth_boost,
        )
        video, weight = video[rows, columns], weight[rows, columns]
        face = box_cover(batch.face_box, height, width)[rows, columns]
        side = self.weights.crop
        if side is not None:
            corners = draw_corners(batch.face_box, height, width, side, generator)
            video, weight, face = (cropped(x, corners, side) for x in (video, weight, face))
        if self.weights.change_boost > 0:
            weight = weight + self.weights.change_boost * face * passing_change(video)
        share = self.weights.texture_fraction
        num_textures = round(len(video) * share / (1 - share))
        if num_textures == 0:
            return video, weight
        height, width = video.shape[-2:]
        square = max(height, width)
        drawn = texture_clips(num_textures, frames, square, generator=generator).to(video)
        textures = drawn[..., :height, :width]
        plain = torch.ones_like(weight[:1]).expand(num_textures, -1, -1, -1, -1)
        return torch.cat([video, textures]), torch.cat([weight, plain])

    def _draw_length(self, generator: torch.Generator) -> int:
        lengths = list(self.weights.window_shares)
        shares = torch.tensor([float(self.weights.window_shares[k]) for k in lengths])
        return lengths[int(torch.multinomial(shares, 1, generator=generator))]


def draw_corners(
    face_box: Float[Tensor, "b f 4"],
    height: int,
    width: int,
    side: int,
    generator: torch.Generator,
) -> Int[Tensor, "b 2"]:
    """Top and left of a square of ``side`` pixels a clip, its centre a point of the clip's mean
    face box, moved inside the picture. ValueError for pictures that are smaller."""
    if side > min(height, width):
        raise ValueError(f"crops of {side} px do not fit pictures of {height} x {width}")
    left, top, right, bottom = face_box.mean(1).unbind(-1)
    point = torch.rand(len(face_box), 2, generator=generator).to(face_box.device)
    y = (top + point[:, 0] * (bottom - top)) * height - side / 2
    x = (left + point[:, 1] * (right - left)) * width - side / 2
    y, x = y.round().long().clamp(0, height - side), x.round().long().clamp(0, width - side)
    return torch.stack([y, x], dim=1)


def cropped(
    x: Float[Tensor, "b f c h w"], corners: Int[Tensor, "b 2"], side: int
) -> Float[Tensor, "b f c side side"]:
    """The square of each clip, the same in all its frames."""
    along = torch.arange(side, device=x.device)
    rows = (corners[:, :1] + along)[:, None, None, :, None]
    columns = (corners[:, 1:] + along)[:, None, None, None]
    b, f, c = (torch.arange(n, device=x.device) for n in x.shape[:3])
    return x[b.view(-1, 1, 1, 1, 1), f.view(-1, 1, 1, 1), c.view(-1, 1, 1), rows, columns]


PRESETS = {"tiny": VideoVAE.tiny, "small": VideoVAE.small}


def fresh(preset: str, seed: int, log_var: float = -5.0) -> VideoVAE:
    """Untrained weights of this seed. The posterior starts narrow (``log_var``), since at a
    standard deviation of 1 the first steps would see noise."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        vae = PRESETS[preset]()
    with torch.no_grad():
        bias = vae.core.quant_conv.bias
        assert bias is not None
        bias[vae.latent_channels :] = log_var
    return vae


def trained(preset: str, folder: str) -> VideoVAE:
    """The weights of ``folder``; ValueError unless they have the shapes of the preset."""
    vae, expected = VideoVAE.from_pretrained(folder), fresh(preset, seed=0)
    shapes = [{n: p.shape for n, p in v.named_parameters()} for v in (vae, expected)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"{folder} holds no VAE of the preset {preset!r}")
    return vae


def require_video(batch: Batch) -> Video:
    if batch.video is None:
        raise ValueError("the VAE is trained on video: shards without it, or decode_video=False")
    return batch.video
