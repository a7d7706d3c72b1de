"""Procedural moving textures: what a video autoencoder must also code besides the world's faces.

Dead leaves (overlapping shapes of power-law sizes, Lee, Mumford and Huang 2001) and 1/f noise have
the edge and spectrum statistics of photographs; panned, zoomed, turned and occluded by a
second, pulsing layer they have the motion statistics of video. Pure functions of a generator.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

_NUM_LEAVES = 20
_NUM_WAVES = 2


def texture_clips(
    num: int, num_frames: int, size: int, *, generator: torch.Generator
) -> Float[Tensor, "b f 3 h w"]:
    """Random square clips in [-1, 1].

    Args:
        num: clips.
        num_frames: frames of each.
        size: height and width in pixels.
        generator: on the CPU; every draw comes from it.
    """
    side = size * 3 // 2
    back = _canvas(num, side, generator)
    front = _canvas(num, side, generator)
    time = torch.linspace(-0.5, 0.5, num_frames) if num_frames > 1 else torch.zeros(1)
    back = _moved(back, size, num_frames, generator)
    front = _moved(front, size, num_frames, generator)
    mask = _pulsing_mask(num, size, time * num_frames, generator)
    video = torch.lerp(back, front, mask)
    grain = 0.03 * _uniform(generator, num, 1, 1, 1, 1) ** 2
    video = video + grain * torch.randn(video.shape, generator=generator)
    return video.clamp(-1, 1)


def _uniform(
    generator: torch.Generator, *shape: int, low: float = 0.0, high: float = 1.0
) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=generator)


def _colours(num: int, count: int, generator: torch.Generator) -> Float[Tensor, "b k 3"]:
    """Colours of one clip resemble each other: mostly luminance varies, chroma a little."""
    base = _uniform(generator, num, 1, 1, low=-0.7, high=0.7)
    base = base + 0.25 * torch.randn(num, 1, 3, generator=generator)
    contrast = _uniform(generator, num, 1, 1, low=0.05, high=0.6)
    saturation = 0.35 * _uniform(generator, num, 1, 1) ** 2
    luminance = contrast * torch.randn(num, count, 1, generator=generator)
    return base + luminance + saturation * torch.randn(num, count, 3, generator=generator)


def _canvas(num: int, side: int, generator: torch.Generator) -> Float[Tensor, "b 3 s s"]:
    """A still picture: gradient, leaves from large to small, 1/f noise, then contrast."""
    axis = torch.linspace(-1, 1, side)
    y, x = axis[:, None].expand(side, side), axis[None].expand(side, side)
    slope = _colours(num, 2, generator)[..., None, None]
    picture = 0.5 * (slope[:, 0] + slope[:, 1]) + 0.5 * x * (slope[:, 0] - slope[:, 1])
    colours = _colours(num, _NUM_LEAVES, generator)[..., None, None]
    softness = (2.0 / side) * (1 + 8 * _uniform(generator, num, 1, 1, 1) ** 4)
    sizes = 0.05 * 14 ** _uniform(generator, _NUM_LEAVES).sort(descending=True).values
    for leaf in range(_NUM_LEAVES):
        alpha = _leaf(num, x, y, float(sizes[leaf]), softness, generator)
        picture = torch.lerp(picture, colours[:, leaf], alpha)
    picture = picture + _waves(num, x, y, generator)
    return (picture + _pink_noise(num, side, generator)).clamp(-1.2, 1.2)


def _leaf(
    num: int, x: Tensor, y: Tensor, scale: float, softness: Tensor, generator: torch.Generator
) -> Float[Tensor, "b 1 s s"]:
    """Coverage of one turned superellipse (from rhombus over ellipse to rectangle) per clip."""
    centre_x, centre_y = _uniform(generator, 2, num, 1, 1, 1, low=-1.1, high=1.1)
    angle = _uniform(generator, num, 1, 1, 1, high=math.pi)
    aspect = 4 ** _uniform(generator, num, 1, 1, 1, low=-0.5, high=0.5)
    power = 1.3 * 3 ** _uniform(generator, num, 1, 1, 1)
    u = (torch.cos(angle) * (x - centre_x) + torch.sin(angle) * (y - centre_y)) / (scale * aspect)
    v = (torch.cos(angle) * (y - centre_y) - torch.sin(angle) * (x - centre_x)) / (scale / aspect)
    radius = (u.abs() ** power + v.abs() ** power + 1e-9) ** (1 / power)
    return torch.sigmoid((1 - radius) * scale * 2 / softness)


def _waves(num: int, x: Tensor, y: Tensor, generator: torch.Generator) -> Float[Tensor, "b 3 s s"]:
    """Stripes: plane waves of random colour, often of no amplitude."""
    total = torch.zeros(num, 3, *x.shape)
    for _ in range(_NUM_WAVES):
        amplitude = (_uniform(generator, num, 3, 1, 1, low=-1.5) * 0.2).clamp_min(0)
        amplitude = amplitude * _uniform(generator, num, 1, 1, 1)
        frequency = 3 * 10 ** _uniform(generator, num, 1, 1, 1)
        angle = _uniform(generator, num, 1, 1, 1, high=math.pi)
        wave = torch.sin(frequency * (torch.cos(angle) * x + torch.sin(angle) * y))
        total = total + amplitude * wave
    return total


def _pink_noise(num: int, side: int, generator: torch.Generator) -> Float[Tensor, "b 3 s s"]:
    """Noise of amplitude spectrum f^-a, a in [0.7, 1.7] (photographs: about 1), mostly grey."""
    white = torch.randn(num, 3, side, side, generator=generator)
    fy, fx = torch.fft.fftfreq(side)[:, None], torch.fft.rfftfreq(side)[None]
    radius = (fx**2 + fy**2).sqrt().clamp_min(1 / side)
    falloff = radius ** -_uniform(generator, num, 1, 1, 1, low=0.7, high=1.7)
    noise = torch.fft.irfft2(torch.fft.rfft2(white) * falloff, s=(side, side))
    noise = noise / noise.std(dim=(1, 2, 3), keepdim=True)
    grey = noise.mean(1, keepdim=True) * math.sqrt(3)
    noise = torch.lerp(grey, noise, 0.5 * _uniform(generator, num, 1, 1, 1))
    return 0.3 * _uniform(generator, num, 1, 1, 1) ** 2 * noise


def _moved(
    canvas: Float[Tensor, "b 3 s s"], size: int, num_frames: int, generator: torch.Generator
) -> Float[Tensor, "b f 3 h w"]:
    """Films the canvas with a camera that pans, zooms and turns; some clips stand still."""
    num = canvas.shape[0]
    frame = torch.arange(num_frames) - (num_frames - 1) / 2
    moving = (_uniform(generator, num, 1) > 0.15).float()
    shift = 0.02 * torch.randn(2, num, 1, generator=generator) * moving * frame
    sway = 0.03 * moving * torch.sin(0.5 * frame + _uniform(generator, num, 1, high=2 * math.pi))
    zoom = 0.7 * torch.exp(0.01 * torch.randn(num, 1, generator=generator) * moving * frame)
    zoom = zoom * 1.4 ** _uniform(generator, num, 1, low=-0.7, high=0.7)
    turn = 0.01 * torch.randn(num, 1, generator=generator) * moving * frame
    cos, sin = zoom * torch.cos(turn), zoom * torch.sin(turn)
    rows = torch.stack([cos, -sin, shift[0] + sway, sin, cos, shift[1]], dim=-1)
    grid = F.affine_grid(
        rows.view(-1, 2, 3), [num * num_frames, 3, size, size], align_corners=False
    )
    stills = canvas.repeat_interleave(num_frames, dim=0)
    frames = F.grid_sample(stills, grid, padding_mode="reflection", align_corners=False)
    return frames.view(num, num_frames, 3, size, size)


def _pulsing_mask(
    num: int, size: int, frame: Float[Tensor, " f"], generator: torch.Generator
) -> Float[Tensor, "b f 1 h w"]:
    """A drifting ellipse that opens and shuts as fast as lips do; absent in a third of clips."""
    axis = torch.linspace(-1, 1, size)
    y, x = axis[:, None], axis[None]
    shape = (num, 1, 1, 1, 1)
    t = frame[None, :, None, None, None]
    centre_x, centre_y = _uniform(generator, 2, *shape, low=-0.6, high=0.6)
    drift_x, drift_y = 0.02 * torch.randn(2, *shape, generator=generator)
    phase = _uniform(generator, *shape, high=2 * math.pi)
    speed = _uniform(generator, *shape, low=0.1, high=1.5)
    pulse = 1 + 0.8 * _uniform(generator, *shape) * torch.sin(speed * t + phase)
    width = _uniform(generator, *shape, low=0.1, high=0.7)
    height = width * _uniform(generator, *shape, low=0.2, high=1.2) * pulse
    u = (x - centre_x - drift_x * t) / width
    v = (y - centre_y - drift_y * t) / height
    radius = (u**2 + v**2 + 1e-9).sqrt()
    sharpness = size / 2 * torch.minimum(width, height)
    present = (_uniform(generator, *shape) > 1 / 3).float()
    return present * torch.sigmoid((1 - radius) * sharpness)
