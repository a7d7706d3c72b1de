"""Flow-matching loss with region weights ``W = 1 + boost · mask(face, mouth)``.

Pure functions. A mask here is the share of a latent cell that a box covers, in [0, 1], so that a
mouth smaller than a cell still counts by its area.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from avatar_v.flow import Latents
from avatar_v.types import TEMPORAL_FACTOR, num_latents


def flow_loss(
    v: Latents,
    target: Latents,
    scored: Bool[Tensor, "b l"],
    weight: Float[Tensor, "b l 1 h w"] | None = None,
) -> Float[Tensor, ""]:
    """Mean of ``W (v - target)²`` over the scored latent frames, divided by the mean of W there.

    ``scored`` is False for frames that were given clean (prefix). Computed in fp32. Without a
    ``weight`` W = 1; a constant W changes nothing. Some frame has to be scored, as one is in all
    windows that training draws; the device is not asked, and a loss of none is not a number.
    """
    squared = (v.float() - target.float()).square().mean(dim=2, keepdim=True)
    w = torch.ones_like(squared) if weight is None else weight.float()
    w = w * scored[:, :, None, None, None]
    return (w * squared).sum() / w.sum()


def region_weight(
    face: Float[Tensor, "b l 4"],
    mouth: Float[Tensor, "b l 4"],
    *,
    height: int,
    width: int,
    face_boost: float,
    mouth_boost: float,
) -> Float[Tensor, "b l 1 h w"]:
    """``W = 1 + face_boost · cover(face) + mouth_boost · cover(mouth)`` on the latent grid."""
    return (
        1
        + face_boost * box_cover(face, height, width)
        + mouth_boost * box_cover(mouth, height, width)
    )


def box_cover(boxes: Float[Tensor, "b l 4"], height: int, width: int) -> Float[Tensor, "b l 1 h w"]:
    """Share of each cell of a ``height`` x ``width`` grid that a box (x0, y0, x1, y1 in [0, 1])
    covers; boxes with x1 <= x0 or y1 <= y0 cover nothing."""
    x0, y0, x1, y1 = boxes.float().unbind(-1)
    across = _overlap(x0, x1, width)
    down = _overlap(y0, y1, height)
    return (down[..., :, None] * across[..., None, :])[:, :, None]


def latent_boxes(
    boxes: Float[Tensor, "b f 4"], valid: Bool[Tensor, "b f"]
) -> Float[Tensor, "b l 4"]:
    """For each latent frame the smallest box around the boxes of its video frames (1 for the
    first latent, 4 for the others). Frames without a visible face do not count; a latent frame
    with none gets the empty box (1, 1, 0, 0)."""
    num_latents(boxes.shape[1])  # raises unless f = 4k + 1
    seen = valid[..., None]
    low = torch.where(seen, boxes[..., :2], torch.ones_like(boxes[..., :2]))
    high = torch.where(seen, boxes[..., 2:], torch.zeros_like(boxes[..., 2:]))
    return torch.cat([_per_latent(low, "min"), _per_latent(high, "max")], dim=-1)


def _overlap(start: Tensor, stop: Tensor, num_cells: int) -> Tensor:
    """Share of each of ``num_cells`` equal cells of [0, 1] inside [start, stop]."""
    edges = torch.linspace(0, 1, num_cells + 1, device=start.device)
    low = torch.maximum(edges[:-1], start[..., None])
    high = torch.minimum(edges[1:], stop[..., None])
    return (high - low).clamp(min=0) * num_cells


def _per_latent(x: Float[Tensor, "b f 2"], how: str) -> Float[Tensor, "b l 2"]:
    reduce = torch.amin if how == "min" else torch.amax
    rest = x[:, 1:].unflatten(1, (-1, TEMPORAL_FACTOR)) if x.shape[1] > 1 else x[:, :0, None]
    return torch.cat([x[:, :1], reduce(rest, dim=2)], dim=1)


def motion_flow_loss(
    v: Float[Tensor, "b l md"],
    target: Float[Tensor, "b l md"],
    scored: Bool[Tensor, "b l"],
    components: Float[Tensor, "#b m"],
) -> Float[Tensor, ""]:
    """Mean squared error of motion velocity over the latent frames that count, ``components``
    weighing those of each of their four vectors; 0 if no frame counts."""
    weight = components.repeat(1, TEMPORAL_FACTOR)[:, None].to(v.device)
    squared = ((v.float() - target.float()).square() * weight).mean(-1) * scored
    return squared.sum() / scored.sum().clamp_min(1)
