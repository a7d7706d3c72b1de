"""The two backbones of the critics, and the augmentations that critics are trained under.

``residual`` is that of the critics which also serve as losses and rewards, ``convnext`` that of the
held-out critics, which only score: another architecture has other weaknesses.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

Images = Float[Tensor, "b 3 h w"]
Backbone = Literal["residual", "convnext"]


def picture_backbone(
    name: Backbone, width: int, num_heads: int
) -> tuple[nn.Module, nn.Module, int]:
    """A trunk from pictures to feature maps, the pool behind it, and the number of its outputs."""
    if name == "residual":
        trunk, pool = Trunk(width), AttentionPool(3 * width, num_heads)
    else:
        trunk, pool = ConvNeXtTrunk(width), GridPool(2 * width, num_heads)
    return trunk, pool, pool.num_out


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions around a residual; the first one may halve the picture."""

    def __init__(self, num_in: int, num_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(num_in, num_out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(num_out)
        self.conv2 = nn.Conv2d(num_out, num_out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(num_out)
        self.skip = nn.Conv2d(num_in, num_out, 1, stride, bias=False)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h2 w2"]:
        y = self.norm2(self.conv2(F.silu(self.norm1(self.conv1(x)))))
        return F.silu(y + self.skip(x))


class Trunk(nn.Module):
    """64x64 pictures to 8x8 features: 1/2 in the stem, 1/2 in each of the first two blocks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 5, 2, 2)
        self.blocks = nn.Sequential(
            ResidualBlock(width, 2 * width, 2),
            ResidualBlock(2 * width, 3 * width, 2),
            ResidualBlock(3 * width, 3 * width, 1),
        )

    def forward(self, x: Images) -> Float[Tensor, "b c h8 w8"]:
        return self.blocks(F.silu(self.stem(x)))

    def maps(self, x: Images) -> list[Float[Tensor, "b _c _h _w"]]:
        """The stem's features and those of every block, from large to small."""
        maps = [F.silu(self.stem(x))]
        for block in self.blocks:
            maps.append(block(maps[-1]))
        return maps


class AttentionPool(nn.Module):
    """Each head averages the features where it looks and says where that was.

    The mouth moves with the head; a head that finds it reads it at any place.
    """

    def __init__(self, num_features: int, num_heads: int) -> None:
        super().__init__()
        self.logits = nn.Conv2d(num_features, num_heads, 1)
        self.num_out = num_heads * (num_features + 2)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d"]:
        weights = self.logits(x).flatten(2).float().softmax(-1)
        rows = torch.linspace(-1, 1, x.shape[2], device=x.device)
        columns = torch.linspace(-1, 1, x.shape[3], device=x.device)
        grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij")).flatten(1)
        places = torch.einsum("bnk,ck->bnc", weights, grid)
        features = torch.einsum("bnk,bck->bnc", weights, x.flatten(2).float())
        return torch.cat([features, places], dim=-1).flatten(1)


class ConvNeXtBlock(nn.Module):
    """A depthwise 7x7 convolution and a two-layer network per place (Liu et al. 2022)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, 1, 3, groups=width)
        self.norm = nn.GroupNorm(1, width)
        self.expand = nn.Conv2d(width, 4 * width, 1)
        self.reduce = nn.Conv2d(4 * width, width, 1)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        return x + self.reduce(F.gelu(self.expand(self.norm(self.depthwise(x)))))


class ConvNeXtTrunk(nn.Module):
    """64x64 pictures to 8x8 features, in patches of 4x4 first and without batch statistics."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, 4)
        self.fine = nn.Sequential(ConvNeXtBlock(width), ConvNeXtBlock(width))
        self.halve = nn.Sequential(nn.GroupNorm(1, width), nn.Conv2d(width, 2 * width, 2, 2))
        self.coarse = nn.Sequential(ConvNeXtBlock(2 * width), ConvNeXtBlock(2 * width))

    def forward(self, x: Images) -> Float[Tensor, "b c h8 w8"]:
        return self.coarse(self.halve(self.fine(self.stem(x))))


class GridPool(nn.Module):
    """A few channels of every place of an 8x8 map, and the mean of all channels."""

    def __init__(self, num_features: int, num_channels: int) -> None:
        super().__init__()
        self.channels = nn.Conv2d(num_features, num_channels, 1)
        self.num_out = 64 * num_channels + num_features

    def forward(self, x: Float[Tensor, "b c 8 8"]) -> Float[Tensor, "b d"]:
        return torch.cat([self.channels(x).flatten(1), x.mean((2, 3))], dim=1).float()


def augment(images: Images, generator: torch.Generator, frames_per_clip: int = 1) -> Images:
    """What a decoder, a codec or a camera does to a picture; the face's geometry stays.

    Per picture, or alike for ``frames_per_clip`` pictures that follow one another: shift of up to
    3 of 64 pixels and zoom of up to 6 %, gain, offset and colour cast, then for some pictures
    Gaussian blur, loss of chroma resolution (as 4:2:0), 4x4-block detail loss, and noise. Input
    and output in [-1, 1].
    """
    x = _shifted(images, generator, frames_per_clip)
    num_clips = len(x) // frames_per_clip

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        drawn = low + (high - low) * torch.rand(num_clips, *shape, generator=generator)
        return drawn.repeat_interleave(frames_per_clip, 0)

    def sometimes(p: float) -> Tensor:
        return uniform(0.0, 1.0, 1, 1, 1) < p

    gain = uniform(0.8, 1.2, 1, 1, 1) * uniform(0.92, 1.08, 3, 1, 1)
    x = x * gain + uniform(-0.12, 0.12, 1, 1, 1)
    x = torch.where(sometimes(0.5), _blurred(x, uniform(0.3, 1.1)), x)
    coarse = F.interpolate(F.avg_pool2d(x, 2), x.shape[-2:], mode="bilinear", align_corners=False)
    chroma = coarse - coarse.mean(1, keepdim=True) + x.mean(1, keepdim=True)
    x = torch.where(sometimes(0.3), chroma, x)
    blocks = F.interpolate(F.avg_pool2d(x, 4), x.shape[-2:], mode="nearest")
    x = torch.where(sometimes(0.2), blocks + (x - blocks) * uniform(0.6, 1.0, 1, 1, 1), x)
    noise = torch.randn(x.shape, generator=generator) * uniform(0.0, 0.08, 1, 1, 1)
    return (x + torch.where(sometimes(0.5), noise, 0.0)).clamp(-1, 1)


def _shifted(x: Images, generator: torch.Generator, frames_per_clip: int) -> Images:
    num_clips = len(x) // frames_per_clip
    zoom = 1 + 0.06 * (2 * torch.rand(num_clips, generator=generator) - 1)
    shift = 3 / 32 * (2 * torch.rand(num_clips, 2, generator=generator) - 1)
    affine = torch.zeros(num_clips, 2, 3)
    affine[:, 0, 0] = affine[:, 1, 1] = zoom
    affine[:, :, 2] = shift
    affine = affine.repeat_interleave(frames_per_clip, 0)
    grid = F.affine_grid(affine, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _blurred(x: Images, sigma: Float[Tensor, " b"]) -> Images:
    """Separable Gaussian of 5 taps, one width per picture (in pixels)."""
    taps = torch.exp(-(torch.arange(-2.0, 3.0) ** 2) / (2 * sigma[:, None] ** 2))
    kernel = (taps / taps.sum(1, keepdim=True)).repeat_interleave(x.shape[1], 0)
    flat = x.reshape(1, -1, *x.shape[-2:])
    pad = F.pad(flat, (2, 2, 2, 2), mode="replicate")
    rows = F.conv2d(pad, kernel[:, None, :, None], groups=len(kernel))
    return F.conv2d(rows, kernel[:, None, None, :], groups=len(kernel)).reshape(x.shape)
