"""The decoder of the video VAE over several ranks, each with a strip of the picture's rows.

Before a convolution over places the ranks exchange the rows at their borders with their neighbours,
and what it makes of these rows is dropped behind it. The decoder's attention, at the size of the
latents, sees whole pictures. Norms, upsampling and what is kept from frame to frame need nothing of
other rows. So the pictures are those of one rank, up to the rounding of sums in another order.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.models.vae import DecoderStream, Latents, Video, VideoVAE
from avatar_v.models.vae_network import FrameAttention

Rows = Float[Tensor, "*rest rows w"]


class Strips:
    """The rows of a picture over all ranks of the default group: consecutive ones for each rank, as
    many for all or one more for the first. Every rank calls the same methods in one order."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._sizes: list[int] = []  # of the latents' strips, while a video is decoded by strips

    def sizes(self, num_rows: int) -> list[int]:
        """The rows of each rank."""
        least, more = divmod(num_rows, self.size)
        return [least + (rank < more) for rank in range(self.size)]

    def spread(self, vae: VideoVAE) -> None:
        """Let the decoder work on strips, within `cut` alone."""
        for module in vae.core.decoder.modules():
            if isinstance(module, FrameAttention):
                module.register_forward_pre_hook(self._gather_rows)
                module.register_forward_hook(self._own_rows)
            elif isinstance(module, nn.Conv2d | nn.Conv3d) and module.kernel_size[-2] > 1:
                module.register_forward_pre_hook(self._add_neighbours)
                module.register_forward_hook(self._drop_neighbours)

    @contextmanager
    def cut(self, latents: Latents) -> Iterator[Latents]:
        """This rank's strip of ``latents``; within the block the decoder takes it for one."""
        self._sizes = self.sizes(latents.shape[-2])
        try:
            yield latents.split(self._sizes, dim=-2)[self.rank]
        finally:
            self._sizes = []

    def joined(self, strip: Video, num_rows: int) -> Float[Tensor, "b f 3 whole w"]:
        """The strips of all ranks above each other, on rank 0; elsewhere the own one. ``num_rows``
        are those of the latents."""
        sizes = self.sizes(num_rows)
        factor = strip.shape[-2] // sizes[self.rank]
        padded = _padded(strip, max(sizes) * factor)
        parts = [torch.empty_like(padded) for _ in sizes] if self.rank == 0 else None
        dist.gather(padded, parts, dst=0)
        if parts is None:
            return strip
        return torch.cat([p[..., : n * factor, :] for p, n in zip(parts, sizes, strict=True)], -2)

    def with_neighbours(self, x: Rows) -> Float[Tensor, "*rest rows+2 w"]:
        """``x`` between the last row of the strip above and the first row of the one below; zeros
        at the ends of the picture, as convolutions pad."""
        above, below = self.rank > 0, self.rank < self.size - 1
        top, bottom = x[..., :1, :], x[..., -1:, :]
        given = torch.stack([row for row, there in ((top, above), (bottom, below)) if there])
        counts = [int(abs(rank - self.rank) == 1) for rank in range(self.size)]
        taken = torch.empty_like(given, memory_format=torch.contiguous_format)
        dist.all_to_all_single(taken, given.contiguous(), counts, counts)
        rows = list(taken)
        first = rows.pop(0) if above else torch.zeros_like(top)
        last = rows.pop(0) if below else torch.zeros_like(bottom)
        return torch.cat([first, x, last], dim=-2)

    def _add_neighbours(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Of the input, and of the frames before it."""
        if not self._sizes:
            return None
        return tuple(self.with_neighbours(x) if isinstance(x, Tensor) else x for x in given)

    def _drop_neighbours(self, module: nn.Module, given: Any, made: Tensor) -> Tensor | None:
        return made[..., 1:-1, :] if self._sizes else None

    def _gather_rows(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not self._sizes:
            return None
        (x,) = given
        padded = _padded(x, max(self._sizes))
        parts = [torch.empty_like(padded) for _ in self._sizes]
        dist.all_gather(parts, padded)
        whole = [part[..., :n, :] for part, n in zip(parts, self._sizes, strict=True)]
        return (torch.cat(whole, dim=-2),)

    def _own_rows(self, module: nn.Module, given: Any, made: Tensor) -> Tensor | None:
        return made.split(self._sizes, dim=-2)[self.rank] if self._sizes else None


class StripDecoder:
    """A `DecoderStream` over the ranks of ``strips``, which `Strips.spread` has prepared. Pictures
    of fewer rows of latents than ranks are decoded whole by every rank."""

    def __init__(self, vae: VideoVAE, strips: Strips, *, clamp: bool = True) -> None:
        self._strips = strips
        self._stream = DecoderStream(vae, clamp=clamp)

    def push(self, latents: Latents) -> Video:
        """As `DecoderStream.push`, on all ranks: the frames on rank 0, a strip of them elsewhere.
        One latent at a time goes through the network, so that all ranks make as many passes."""
        num_rows = latents.shape[-2]
        if num_rows < self._strips.size:
            return self._stream.push(latents)
        with self._strips.cut(latents) as own:
            made = torch.cat([self._stream.push(one) for one in own.split(1, dim=1)], dim=1)
        return self._strips.joined(made, num_rows)


def _padded(x: Rows, num_rows: int) -> Float[Tensor, "*rest {num_rows} w"]:
    """With rows of zeros at the end, to be sent."""
    return F.pad(x, (0, 0, 0, num_rows - x.shape[-2])).contiguous()
