"""Pixels between files and networks: sizes, ranges, and the check that decoded ones are numbers."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

Frames = UInt8[Tensor, "f 3 h w"]


def sized(
    pixels: UInt8[Tensor, "f 3 _h _w"], size: tuple[int, int]
) -> Float[Tensor, "f 3 _h2 _w2"]:
    """0 … 255 to [-1, 1], at this height and width where they have another."""
    x = pixels.float()
    if tuple(x.shape[2:]) != size:
        x = F.interpolate(x, size, mode="bilinear", antialias=True).clamp(0, 255)
    return x / 127.5 - 1


def padded(video: Float[Tensor, "*b 3 _h _w"], token: int) -> Float[Tensor, "*b 3 _h2 _w2"]:
    """With the border repeated, alike on both sides, up to whole tokens of ``token`` pixels."""
    down, across = (-side % token for side in video.shape[-2:])
    if down == across == 0:
        return video
    pad = (across // 2, across - across // 2, down // 2, down - down // 2)
    frames = video.flatten(0, -4)
    return F.pad(frames, pad, mode="replicate").unflatten(0, video.shape[:-3])


def middle(frames: Frames, size: tuple[int, int]) -> UInt8[Tensor, "f 3 _h _w"]:
    """The part in the middle of each picture that has this height and width."""
    top, left = ((a - b) // 2 for a, b in zip(frames.shape[2:], size, strict=True))
    return frames[..., top : top + size[0], left : left + size[1]]


def to_uint8(video: Float[Tensor, "*any 3 h w"]) -> UInt8[Tensor, "*any 3 h w"]:
    """[-1, 1] to 0 … 255, on the CPU; what lies beyond is clamped."""
    return ((video.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).cpu()


def decoded(video: Float[Tensor, "f 3 h w"], chunk: int) -> Frames:
    """`to_uint8` of a piece of a chunk as the decoder leaves it, not clamped. ValueError unless all
    of it are finite numbers; on a GPU that comes with the frames and is not waited for alone."""
    finite = torch.isfinite(video).all()
    frames = to_uint8(video)
    _check(finite, chunk)
    return frames


def clamped(video: Float[Tensor, "*b 3 h w"], chunk: int) -> Float[Tensor, "*b 3 h w"]:
    """In [-1, 1], where it is decoded to be encoded again. ValueError as `decoded`."""
    _check(torch.isfinite(video).all(), chunk)
    return video.clamp(-1, 1)


def _check(finite: Tensor, chunk: int) -> None:
    if not bool(finite):
        raise ValueError(
            f"chunk {chunk} was decoded to pixels that are not finite numbers: the decoder of the "
            "VAE or the precision (--precision fp32) is at fault"
        )
