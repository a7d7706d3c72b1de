"""A z-buffer in plain torch: which triangle each pixel sees, and where in it.

Triangles are put into bins by the size of their box in pixels; each bin tries all pixels of the
box of its largest, and the nearest wins by ``scatter_reduce`` over depth and index packed in one
integer. Deterministic, no driver, on any device that torch has.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_SIDES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)
_FAR = 1 << 62
_DEPTH_STEPS = 1 << 26
_INDEX_BITS = 20


@dataclass(frozen=True)
class Fragments:
    """Pixels that are covered; n of them."""

    pixel: Tensor  # "n", row * width + column
    triangle: Tensor  # "n"
    weight: Tensor  # "n 3", of the triangle's corners, right in perspective
    depth: Tensor  # "n", distance along the axis of the camera

    def gather(self, values: Tensor, corners: Tensor) -> Tensor:
        """``values`` "v c" of vertices, interpolated: "n c"; ``corners`` "t 3" of triangles."""
        at = corners[self.triangle]
        w = self.weight
        return (
            values[at[:, 0]] * w[:, :1] + values[at[:, 1]] * w[:, 1:2] + values[at[:, 2]] * w[:, 2:]
        )


def rasterise(
    points: Tensor, corners: Tensor, height: int, width: int, *, cull: Tensor | None = None
) -> Fragments:
    """``points`` "v 3" are column, row (pixels) and depth (> 0); ``corners`` "t 3".

    Triangles with ``cull`` "t" are drawn only where they run anticlockwise in the picture.
    """
    p = points[corners]  # t 3 3
    x, y, z = p.unbind(-1)
    area = (x[:, 1] - x[:, 0]) * (y[:, 2] - y[:, 0]) - (x[:, 2] - x[:, 0]) * (y[:, 1] - y[:, 0])
    low_x, high_x = x.amin(1).ceil().clamp_min(0), x.amax(1).floor().clamp_max(width - 1)
    low_y, high_y = y.amin(1).ceil().clamp_min(0), y.amax(1).floor().clamp_max(height - 1)
    seen = (high_x >= low_x) & (high_y >= low_y) & (z.amin(1) > 1e-3)
    seen &= area.abs() > 1e-9
    if cull is not None:
        seen &= (area < 0) | ~cull
    index = seen.nonzero().squeeze(1)
    side = torch.maximum(high_x - low_x, high_y - low_y)[index] + 1
    near, far = z.min(), z.max()
    scale = (_DEPTH_STEPS - 1) / (1 / near - 1 / far + 1e-9)
    buffer = torch.full((height * width,), _FAR, dtype=torch.int64, device=points.device)
    lower = 0.0
    for limit in _SIDES:
        some = index[(side > lower) & (side <= limit)]
        lower = limit
        if len(some) == 0:
            continue
        step = torch.arange(limit, device=points.device, dtype=points.dtype)
        col = (low_x[some, None] + step).view(-1, 1, limit).expand(-1, limit, -1)
        row = (low_y[some, None] + step).view(-1, limit, 1).expand(-1, -1, limit)
        w0, w1, w2 = _weights(x[some], y[some], area[some], col, row)
        inside = (w0 >= 0) & (w1 >= 0) & (w2 >= 0)
        inside &= (col <= high_x[some].view(-1, 1, 1)) & (row <= high_y[some].view(-1, 1, 1))
        iz = 1 / z[some]
        depth = w0 * iz[:, 0, None, None] + w1 * iz[:, 1, None, None] + w2 * iz[:, 2, None, None]
        which = some.view(-1, 1, 1).expand_as(col)[inside]
        key = ((1 / near - depth[inside]) * scale).long().clamp_min(0)
        key = (key << _INDEX_BITS) | which
        pixel = (row[inside] * width + col[inside]).long()
        buffer.scatter_reduce_(0, pixel, key, "amin")
    pixel = (buffer < _FAR).nonzero().squeeze(1)
    triangle = buffer[pixel] & ((1 << _INDEX_BITS) - 1)
    col, row = (pixel % width).to(points.dtype), (pixel // width).to(points.dtype)
    one = (slice(None), None, None)
    w = _weights(x[triangle], y[triangle], area[triangle], col[one], row[one])
    w = torch.cat([part.flatten(1) for part in w], 1) / z[triangle]
    inverse = w.sum(1, keepdim=True)
    return Fragments(pixel, triangle, w / inverse, 1 / inverse.squeeze(1))


def _weights(x: Tensor, y: Tensor, area: Tensor, col: Tensor, row: Tensor) -> tuple:
    """Shares "k h w" of the corners at pixel centres, before perspective."""
    x0, x1, x2 = (v.view(-1, 1, 1) for v in x.unbind(1))
    y0, y1, y2 = (v.view(-1, 1, 1) for v in y.unbind(1))
    inverse = 1 / area.view(-1, 1, 1)
    w1 = ((col - x0) * (y2 - y0) - (x2 - x0) * (row - y0)) * inverse
    w2 = ((x1 - x0) * (row - y0) - (col - x0) * (y1 - y0)) * inverse
    return 1 - w1 - w2, w1, w2


def vertex_normals(vertices: Tensor, triangles: Tensor) -> Tensor:
    """Unit normals "v 3": of the triangles around each vertex, by their areas."""
    a, b, c = (vertices[triangles[:, k]] for k in range(3))
    face = torch.linalg.cross(b - a, c - a)
    out = torch.zeros_like(vertices)
    for k in range(3):
        out.index_add_(0, triangles[:, k], face)
    return torch.nn.functional.normalize(out, dim=1)
