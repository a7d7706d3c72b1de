"""The super-resolution refiner: low-resolution video to latents of a higher one, in one step.

The network is AvatarDiT with `refines_from` and a `temporal_window` (Avatar V §2.4, §4.6).
It reads the low video twice: noised at σ as the start of its step (§4.6), and
clean beside x_t (§2.4). The low video is enlarged as pixels and encoded at the high resolution:
enlarged latents are no latents of any picture (on 16 clips of the world they decode to 18.8 dB,
enlarged pixels to 27.3). The output is what the enlarged video has and the true one has not, so a
head of zeros changes nothing, and v = (x_t - x̂_0) / t. No training and no streams here.
"""

import dataclasses

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from avatar_v.models.cache import KeyValueCache
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.vae import VideoVAE
from avatar_v.types import Cond

CONTEXT_LATENTS = 2
"""Latents on each side of a pass that are in it for their neighbours' sake. Attention reaches
``temporal_window`` further in every layer; with their product as context the result is that of
one pass over the whole video, with less it differs a little near the borders."""
FACTOR = 2.0
"""The refined picture is so many times larger, each way, where a card says nothing else."""
OVERLAP = 4
"""Tiles share one in so many of their cells with each neighbour (our choice)."""
SIGMA = 0.6
"""Where the one step starts (Avatar V §4.6)."""

Latents = Float[Tensor, "b l c h w"]
Video = Float[Tensor, "b f 3 h w"]


def predict_clean(
    dit: AvatarDiT,
    x_t: Latents,
    t: Float[Tensor, "b l"],
    cond: Cond,
    *,
    motion: Float[Tensor, "b l md"] | None = None,
    past: KeyValueCache | None = None,
    origin: tuple[int, int] = (0, 0),
) -> Latents:
    """x̂_0 of the high resolution, fp32: ``cond.low`` less what the network finds wrong with it.

    ``motion`` is that of the video itself, clean; ``past`` the encoded reference; ``origin`` the
    place, in tokens, of the first one in the whole picture. ValueError for a cond without ``low``.
    """
    cond = dataclasses.replace(cond, motion=motion)
    wrong = dit(x_t, t, cond, past=past, origin=origin)
    assert cond.low is not None  # the network has checked it
    return cond.low.float() - wrong.float()


def predict_tiled(
    dit: AvatarDiT,
    x_t: Latents,
    t: Float[Tensor, "b l"],
    cond: Cond,
    tile: tuple[int, int] | None,
    *,
    motion: Float[Tensor, "b l md"] | None = None,
    past: KeyValueCache | None = None,
) -> Latents:
    """`predict_clean` of a picture that is larger than ``tile``, in cells of its height and width:
    tile by tile, each at its place in the picture, blended where they overlap. Attention reaches no
    further than a tile, so it is the whole pass up to what lies beyond one
    (tests/numerics/test_refiner_tiles.py says how much that is). None: in one pass."""
    height, width = x_t.shape[-2:]
    if tile is None or (tile[0] >= height and tile[1] >= width):
        return predict_clean(dit, x_t, t, cond, motion=motion, past=past)
    patch, low = dit.config.patch, cond.low
    made, total = torch.zeros_like(x_t, dtype=torch.float32), x_t.new_zeros(height, width).float()
    for rows, columns, weight in tiles((height, width), tile, patch):
        part = predict_clean(
            dit,
            x_t[..., rows, columns],
            t,
            dataclasses.replace(cond, low=None if low is None else low[..., rows, columns]),
            motion=motion,
            past=past,
            origin=(rows.start // patch, columns.start // patch),
        )
        weight = weight.to(made)
        made[..., rows, columns] += weight * part
        total[rows, columns] += weight
    return made / total


def tiles(
    size: tuple[int, int], tile: tuple[int, int], patch: int
) -> list[tuple[slice, slice, Float[Tensor, "h w"]]]:
    """Rows and columns of the tiles of a picture of ``size`` cells, and how much each of their
    cells counts beside those of its neighbours."""
    spans = [_spans(length, part, patch) for length, part in zip(size, tile, strict=True)]
    return [(rows, columns, down[:, None] * across)
            for rows, down in spans[0] for columns, across in spans[1]]  # fmt: skip


def _spans(length: int, tile: int, patch: int) -> list[tuple[slice, Float[Tensor, " n"]]]:
    """Evenly spread stretches of ``tile`` cells, whole tokens, and how much each cell counts."""
    num, most = length // patch, max(1, min(tile, length) // patch)
    shared = max(1, most // OVERLAP) if most > 1 else 0
    count = 1 if num <= most else -(-(num - shared) // (most - shared))
    starts = [round(i * (num - most) / max(1, count - 1)) * patch for i in range(count)]
    place = torch.arange(most * patch) + 1
    weight = torch.minimum(place, place.flip(0)).clamp(max=max(1, shared * patch)).float()
    return [(slice(start, start + most * patch), weight) for start in starts]


def as_refiner(dit: AvatarDiT, *, sigma: float, temporal_window: int | None) -> AvatarDiT:
    """A refiner that starts from a generator's weights, or ``dit`` itself where it is one already.

    Low latents are embedded as clean ones were; the head is zero; no face vector is read, since the
    low video shows whose face it is. ValueError for a refiner of another window or start.
    """
    config = dataclasses.replace(
        dit.config, refines_from=sigma, temporal_window=temporal_window, identity_dim=None
    )
    if dit.config.reads_low:
        if dit.config != config:
            raise ValueError(f"the weights are a refiner of {dit.config}, asked for {config}")
        return dit
    refiner = AvatarDiT(config, dit.motion_stats).to(dit.patch_embed.weight)
    state = dict(dit.state_dict())
    state["low_embed.weight"] = state["patch_embed.weight"].clone()
    state.pop("identity_embed.weight", None)
    state["low_embed.bias"] = torch.zeros_like(state["patch_embed.bias"])
    for name in ("head.out.weight", "head.out.bias"):
        state[name] = torch.zeros_like(state[name])
    refiner.load_state_dict(state)
    return refiner.train(dit.training)


def enlarge(video: Video, factor: float = FACTOR) -> Float[Tensor, "b f 3 height width"]:
    """Video in [-1, 1] with every side ``factor`` times as long, in whole pixels, bicubic."""
    size = [round(side * factor) for side in video.shape[-2:]]
    larger = F.interpolate(video.flatten(0, 1).float(), size, mode="bicubic")
    return larger.clamp(-1, 1).unflatten(0, video.shape[:2])


def reduce(video: Video, factor: float = FACTOR) -> Float[Tensor, "b f 3 height width"]:
    """Video with every side ``factor`` times shorter, averaged. ValueError for other sides than
    those that are then whole pixels."""
    size = [side / factor for side in video.shape[-2:]]
    if not all(side.is_integer() for side in size):
        raise ValueError(f"sides {tuple(video.shape[-2:])} are not multiples of {factor:g}")
    frames, size = video.flatten(0, 1), [int(side) for side in size]
    if float(factor).is_integer():
        small = F.avg_pool2d(frames, int(factor))
    else:
        small = F.interpolate(frames, size, mode="bilinear", antialias=True)
    return small.unflatten(0, video.shape[:2])


@torch.no_grad()
def low_latents(
    vae: VideoVAE, video: Video, factor: float = FACTOR
) -> Float[Tensor, "b l c lh lw"]:
    """Latents, at the size of ``video``, of what is left of it after the low resolution.

    It is reduced, goes through the VAE as a generated video would, and is enlarged and encoded.
    """
    return vae.encode(enlarge(vae.decode(vae.encode(reduce(video, factor))), factor))
