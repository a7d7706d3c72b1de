"""A DiT that makes its video block after block (Live Avatar §4.1).

The frames of a block see each other and blocks before it, never what comes after. What earlier
blocks leave are keys and values (models/cache.py), so a video has no end that has to be known.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from avatar_v.base.seeds import derive
from avatar_v.models.attention import KeyValue
from avatar_v.models.config import Streaming
from avatar_v.models.dit import AvatarDiT


def as_causal(dit: AvatarDiT, *, block: int, window: int | None) -> AvatarDiT:
    """A causal network with the weights of ``dit``, or ``dit`` itself where it is one already.

    Blocks have ``block`` latent frames and see ``window`` blocks before their own (None: all).
    ValueError for a causal network of other blocks, and for a refiner.
    """
    if dit.config.reads_low:
        raise ValueError("a refiner is local in time: it cannot become causal")
    config = dataclasses.replace(dit.config, causal_block=block, causal_window=window)
    if dit.config.is_causal and dit.config != config:
        raise ValueError(
            f"the weights are causal in blocks of {dit.config.causal_block} that see "
            f"{dit.config.causal_window} before them, asked for {block} and {window}"
        )
    if dit.config == config:
        return dit
    causal = AvatarDiT(config, dit.motion_stats).to(dit.patch_embed.weight)
    causal.load_state_dict(dit.state_dict())
    return causal.train(dit.training)


def check_corruption(streaming: Streaming, sequence_size: int) -> None:
    """ValueError for a sequence group: its ranks, each with some heads, would draw alike."""
    if streaming.corrupt_share > 0 and sequence_size > 1:
        raise ValueError(
            f"streaming.corrupt_share {streaming.corrupt_share:g} is for videos that one rank "
            f"computes, so tensor_parallel_size is 1, got {sequence_size}"
        )


@dataclass(frozen=True)
class Corruption:
    """Noise in the keys and values that later blocks see (History Corrupt, Live Avatar §4.2): what
    moves is to be read of the near past, who it is of the sink.

    A latent frame is noised or not, in all layers and steps alike, as an error in the picture would
    be. The noise depends on the seed, the layer and the frame's number in the video alone, so on
    one kind of device it is the same in one pass under the mask and in a stream.
    """

    share: float  # of the latent frames
    strength: float  # standard deviation, of a head's root mean square
    seed: int

    @classmethod
    def of(cls, streaming: Streaming, seed: int) -> "Corruption | None":
        """None where nothing is noised."""
        if streaming.corrupt_share == 0:
            return None
        return cls(streaming.corrupt_share, streaming.corrupt_strength, seed)

    def over(self, first: int, num_frames: int) -> Callable[[int, KeyValue], KeyValue]:
        """``as_seen`` of AvatarDiT.forward for so many frames from number ``first`` of a video."""
        chosen = [i for i in range(num_frames) if self._is_noised(first + i)]

        def as_seen(layer: int, keys: KeyValue) -> KeyValue:
            key, value = keys
            noised = [x.unflatten(1, (num_frames, -1)).clone() for x in (key, value)]
            for i in chosen:
                draw = torch.Generator(key.device)
                draw.manual_seed(derive("corrupted", self.seed, layer, first + i))
                for x in noised:
                    x[:, i] += self.strength * _noise(x[:, i], draw)
            return noised[0].flatten(1, 2), noised[1].flatten(1, 2)

        return as_seen

    def _is_noised(self, frame: int) -> bool:
        draw = torch.Generator().manual_seed(derive("corrupt", self.seed, frame))
        return float(torch.rand((), generator=draw)) < self.share


def _noise(x: Tensor, draw: torch.Generator) -> Tensor:
    """As large as ``x``, head by head and token by token."""
    size = x.detach().float().square().mean(-1, keepdim=True).sqrt()
    return (size * torch.randn(x.shape, generator=draw, device=x.device)).to(x.dtype)
