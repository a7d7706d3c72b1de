"""The network of Wan's video VAE (Wan et al. 2025): plain as in 2.1, or residual as in 2.2.

Convolutions are causal in time: what they need of the frames before lies in a `Past`, so that a
stream of pieces equals the whole. Parameters and configs have the names of diffusers'
AutoencoderKLWan, so published weights load unchanged; tests/numerics/test_vae_streaming.py holds
the two beside each other. Axes here are "b c f h w", channels last in memory.
"""

from collections.abc import Iterable
from itertools import pairwise

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.kernels.channel_norm import channel_norm
from avatar_v.models.vae_config import VAEConfig

Features = Float[Tensor, "b c f h w"]
Made = Float[Tensor, "b _ _ _ _"]
"""Features of other channels, frames or size."""


class Past:
    """What a half of the network keeps of the frames that it has seen: of each causal convolution
    the last two of its input. ``is_first`` until the first piece, of one frame or latent, is
    through: that one is never halved or doubled in time."""

    def __init__(self) -> None:
        self.is_first = True
        self._last: dict[nn.Module, Tensor] = {}

    def convolved(self, conv: "CausalConv3d", x: Features) -> Made:
        """``conv`` of ``x`` behind the frames before it."""
        before = self._last.get(conv)
        made = conv(x, before)
        if x.shape[2] < 2 and before is not None:
            self._last[conv] = torch.cat([before[:, :, -1:], x], dim=2)
        else:
            self._last[conv] = x[:, :, -2:].clone()
        return made

    def halved(self, conv: "CausalConv3d", x: Features) -> Made:
        """Two frames become one, each seen with the frame before them; the first stays as it is."""
        made = x if self.is_first else conv(torch.cat([self._last[conv], x], dim=2))
        self._last[conv] = x[:, :, -1:].clone()
        return made

    def doubled(self, conv: "CausalConv3d", x: Features) -> Made:
        """A frame becomes two; the first stays as it is, and nothing remembers it."""
        if self.is_first:
            return x
        return rearrange(self.convolved(conv, x), "b (two c) f h w -> b c (f two) h w", two=2)


class CausalConv3d(nn.Conv3d):
    """A convolution that sees no later frame. ``kernel``: how many frames it sees, and the side of
    what it sees of each. Frames before the first count as zeros. With a ``stride`` in time the
    caller puts the frame before in front of ``x``."""

    def __init__(self, in_dim: int, out_dim: int, kernel: tuple[int, int], stride: int = 1) -> None:
        time, place = kernel
        super().__init__(
            in_dim,
            out_dim,
            (time, place, place),
            stride=(stride, 1, 1),
            padding=(0, place // 2, place // 2),
        )
        self._frames_before = time - 1 if stride == 1 else 0

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x: Features, before: Made | None = None
    ) -> Made:
        num_zeros = self._frames_before - (0 if before is None else before.shape[2])
        if before is not None:
            x = torch.cat([before, x], dim=2)
        if num_zeros:
            x = F.pad(x, (0, 0, 0, 0, num_zeros, 0))
        return super().forward(x)


class ChannelNorm(nn.Module):
    """x / |x|₂ · √c · gamma over the channels (dim 1), and of that with ``activates`` the SiLU."""

    def __init__(self, dim: int, *, num_axes: int = 3, activates: bool = True) -> None:
        super().__init__()
        self.scale = dim**0.5
        self.gamma = nn.Parameter(torch.ones(dim, *[1] * num_axes))
        self.activates = activates

    def forward(self, x: Float[Tensor, "b c *places"]) -> Float[Tensor, "b c *places"]:
        return channel_norm(x, (self.gamma * self.scale).to(x.dtype), activates=self.activates)


class ResidualBlock(nn.Module):
    def __init__(self, in_dim: int, out_dim: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = ChannelNorm(in_dim)
        self.conv1 = CausalConv3d(in_dim, out_dim, (3, 3))
        self.norm2 = ChannelNorm(out_dim)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = CausalConv3d(out_dim, out_dim, (3, 3))
        same = in_dim == out_dim
        self.conv_shortcut = nn.Identity() if same else CausalConv3d(in_dim, out_dim, (1, 1))

    def forward(self, x: Features, past: Past) -> Made:
        y = past.convolved(self.conv1, self.norm1(x))
        y = past.convolved(self.conv2, self.dropout(self.norm2(y)))
        return y + self.conv_shortcut(x)


class FrameAttention(nn.Module):
    """Self-attention of one head within each frame."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = ChannelNorm(dim, num_axes=2, activates=False)
        self.to_qkv = nn.Conv2d(dim, dim * 3, 1)
        self.proj = nn.Conv2d(dim, dim, 1)

    def forward(self, x: Features) -> Features:
        b, _, _, h, _ = x.shape
        frames = rearrange(x, "b c f h w -> (b f) c h w")
        qkv = rearrange(self.to_qkv(self.norm(frames)), "n c h w -> n 1 (h w) c")
        query, key, value = qkv.contiguous().chunk(3, dim=-1)
        seen = F.scaled_dot_product_attention(query, key, value)
        made = self.proj(rearrange(seen, "n 1 (h w) c -> n c h w", h=h))
        return x + rearrange(made, "(b f) c h w -> b c f h w", b=b)


class MiddleBlock(nn.Module):
    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        first = ResidualBlock(dim, dim, dropout)
        self.attentions = nn.ModuleList([FrameAttention(dim)])
        self.resnets = nn.ModuleList([first, ResidualBlock(dim, dim, dropout)])

    def forward(self, x: Features, past: Past) -> Made:
        x = self.attentions[0](self.resnets[0](x, past))
        return self.resnets[1](x, past)


class Downsample(nn.Module):
    """Half as many rows and columns, and with ``in_time`` half as many frames."""

    def __init__(self, dim: int, *, in_time: bool) -> None:
        super().__init__()
        self.resample = nn.Sequential(
            nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(dim, dim, 3, stride=(2, 2))
        )
        self.time_conv = CausalConv3d(dim, dim, (3, 1), stride=2) if in_time else None

    def forward(self, x: Features, past: Past) -> Made:
        x = _by_frame(self.resample, x)
        return x if self.time_conv is None else past.halved(self.time_conv, x)


class Upsample(nn.Module):
    """Twice as many rows and columns, and with ``in_time`` twice as many frames."""

    def __init__(self, dim: int, out_dim: int, *, in_time: bool) -> None:
        super().__init__()
        self.resample = nn.Sequential(
            nn.Upsample(scale_factor=(2.0, 2.0), mode="nearest-exact"),
            nn.Conv2d(dim, out_dim, 3, padding=1),
        )
        self.time_conv = CausalConv3d(dim, dim * 2, (3, 1)) if in_time else None

    def forward(self, x: Features, past: Past) -> Made:
        x = x if self.time_conv is None else past.doubled(self.time_conv, x)
        return _by_frame(self.resample, x)


class ResidualDown(nn.Module):
    """Of Wan 2.2: beside the blocks lies the mean of the pixels and channels that become one."""

    def __init__(
        self, in_dim: int, out_dim: int, config: VAEConfig, in_time: bool, is_last: bool
    ) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(_resnets(in_dim, out_dim, config.num_res_blocks, config))
        self.downsampler = None if is_last else Downsample(out_dim, in_time=in_time)
        self._factors = 2 if in_time else 1, 1 if is_last else 2
        self._out_dim = out_dim
        _check_shared(in_dim * self._factors[0] * self._factors[1] ** 2, out_dim)

    def forward(self, x: Features, past: Past) -> Made:
        mean = self._mean(x)
        for block in self.resnets:
            x = block(x, past)
        if self.downsampler is not None:
            x = self.downsampler(x, past)
        return x + mean

    def _mean(self, x: Features) -> Made:
        time, place = self._factors
        x = F.pad(x, (0, 0, 0, 0, -x.shape[2] % time, 0))
        axes = "b c (f ft) (h fh) (w fw) -> b (c ft fh fw) f h w"
        x = rearrange(x, axes, ft=time, fh=place, fw=place)
        return x.unflatten(1, (self._out_dim, -1)).mean(2)


class ResidualUp(nn.Module):
    """Of Wan 2.2: beside the blocks lies each number, repeated where it becomes several."""

    def __init__(
        self, in_dim: int, out_dim: int, config: VAEConfig, in_time: bool, is_last: bool
    ) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(_resnets(in_dim, out_dim, config.num_res_blocks + 1, config))
        self.upsampler = None if is_last else Upsample(out_dim, out_dim, in_time=in_time)
        self._time = 2 if in_time else 1
        self._num_copies = out_dim * self._time * 4 // in_dim
        _check_shared(0 if is_last else out_dim * self._time * 4, in_dim)

    def forward(self, x: Features, past: Past) -> Made:
        given = x
        for block in self.resnets:
            x = block(x, past)
        if self.upsampler is None:
            return x
        return self.upsampler(x, past) + self._repeated(given, past.is_first)

    def _repeated(self, x: Features, is_first: bool) -> Made:
        x = x.repeat_interleave(self._num_copies, dim=1)
        axes = "b (c ft fh fw) f h w -> b c (f ft) (h fh) (w fw)"
        x = rearrange(x, axes, ft=self._time, fh=2, fw=2)
        return x[:, :, self._time - 1 :] if is_first else x


class PlainUp(nn.Module):
    """Of Wan 2.1: upsampling halves the channels."""

    def __init__(
        self, in_dim: int, out_dim: int, config: VAEConfig, in_time: bool, is_last: bool
    ) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(_resnets(in_dim, out_dim, config.num_res_blocks + 1, config))
        up = [] if is_last else [Upsample(out_dim, out_dim // 2, in_time=in_time)]
        self.upsamplers = nn.ModuleList(up)

    def forward(self, x: Features, past: Past) -> Made:
        for block in (*self.resnets, *self.upsamplers):
            x = block(x, past)
        return x


class Encoder(nn.Module):
    """Pictures to mean and log-variance of latents, stacked along channels."""

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        dims = [config.base_dim * m for m in (1, *config.dim_mult)]
        self.conv_in = CausalConv3d(config.in_channels, dims[0], (3, 3))
        blocks: list[nn.Module] = []
        for (in_dim, out_dim), in_time, is_last in _levels(dims, config.temperal_downsample):
            if config.is_residual:
                blocks.append(ResidualDown(in_dim, out_dim, config, in_time, is_last))
                continue
            blocks += _resnets(in_dim, out_dim, config.num_res_blocks, config)
            if not is_last:
                blocks.append(Downsample(out_dim, in_time=in_time))
        self.down_blocks = nn.ModuleList(blocks)
        self.mid_block = MiddleBlock(dims[-1], config.dropout)
        self.norm_out = ChannelNorm(dims[-1])
        self.conv_out = CausalConv3d(dims[-1], config.z_dim * 2, (3, 3))

    def forward(self, x: Features, past: Past) -> Made:
        """One frame where ``past`` is new, else a multiple of four."""
        return _through(self, (*self.down_blocks, self.mid_block), x, past)


class Decoder(nn.Module):
    """Latents to pictures."""

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        widths = (config.dim_mult[-1], *reversed(config.dim_mult))
        dims = [(config.decoder_base_dim or config.base_dim) * m for m in widths]
        self.conv_in = CausalConv3d(config.z_dim, dims[0], (3, 3))
        self.mid_block = MiddleBlock(dims[0], config.dropout)
        make = ResidualUp if config.is_residual else PlainUp
        blocks: list[nn.Module] = []
        in_times = config.temperal_downsample[::-1]
        for (in_dim, out_dim), in_time, is_last in _levels(dims, in_times):
            if blocks and not config.is_residual:  # the upsampling before has halved them
                in_dim //= 2
            blocks.append(make(in_dim, out_dim, config, in_time, is_last))
        self.up_blocks = nn.ModuleList(blocks)
        self.norm_out = ChannelNorm(dims[-1])
        self.conv_out = CausalConv3d(dims[-1], config.out_channels, (3, 3))

    def forward(self, x: Features, past: Past) -> Made:
        """One latent where ``past`` is new, else any number."""
        return _through(self, (self.mid_block, *self.up_blocks), x, past)


class VAENetwork(nn.Module):
    """Both halves, and the convolutions at the latents."""

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.quant_conv = CausalConv3d(config.z_dim * 2, config.z_dim * 2, (1, 1))
        self.post_quant_conv = CausalConv3d(config.z_dim, config.z_dim, (1, 1))
        self.decoder = Decoder(config)
        for conv in self.modules():
            if isinstance(conv, nn.Conv3d):  # the layout that kernels of CPUs and GPUs prefer
                conv.weight.data = conv.weight.data.to(memory_format=torch.channels_last_3d)

    def moments(self, pixels: Features, past: Past) -> Made:
        """Mean and log-variance of the latents, stacked along channels."""
        if patch := self.config.patch_size:
            axes = "b c f (h ph) (w pw) -> b (c pw ph) f h w"
            pixels = rearrange(pixels, axes, ph=patch, pw=patch)
        pixels = pixels.contiguous(memory_format=torch.channels_last_3d)
        return self.quant_conv(self.encoder(pixels, past))

    def pixels(self, latents: Features, past: Past) -> Made:
        latents = latents.contiguous(memory_format=torch.channels_last_3d)
        x = self.decoder(self.post_quant_conv(latents), past)
        if patch := self.config.patch_size:
            axes = "b (c pw ph) f h w -> b c f (h ph) (w pw)"
            x = rearrange(x, axes, ph=patch, pw=patch)
        return x


def _through(half: Encoder | Decoder, blocks: Iterable[nn.Module], x: Features, past: Past) -> Made:
    x = past.convolved(half.conv_in, x)
    for block in blocks:
        x = block(x, past)
    x = past.convolved(half.conv_out, half.norm_out(x))
    past.is_first = False
    return x


def _check_shared(num: int, among: int) -> None:
    if num % among:
        raise ValueError(f"{num} channels cannot be shared among {among} (dim_mult)")


def _levels(
    dims: list[int], in_times: tuple[bool, ...]
) -> list[tuple[tuple[int, int], bool, bool]]:
    """Of each level its widths, whether time changes behind it, and whether nothing does."""
    times = (*in_times, False)
    levels = zip(pairwise(dims), times, strict=True)
    return [(pair, time, i == len(in_times)) for i, (pair, time) in enumerate(levels)]


def _resnets(in_dim: int, out_dim: int, num: int, config: VAEConfig) -> list[nn.Module]:
    dims = [in_dim, *[out_dim] * num]
    return [ResidualBlock(a, b, config.dropout) for a, b in pairwise(dims)]


def _by_frame(module: nn.Module, x: Features) -> Made:
    made = module(rearrange(x, "b c f h w -> (b f) c h w"))
    return rearrange(made, "(b f) c h w -> b c f h w", b=x.shape[0])
