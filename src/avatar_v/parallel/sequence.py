"""Sequence parallelism: the tokens of one video over the ranks of a sequence group.

Every rank holds all latent frames of a video and a share of the places in each, so what is given
per latent frame (times, audio, motion) needs no cut, and any number of frames fits. Places that
the ranks do not divide are padded; the padding is dropped behind each exchange, so no mask knows
it. Around self-attention the group is a grid (USP, arXiv 2405.07719):

- Ulysses (arXiv 2309.14509): an all-to-all turns tokens of all heads into all tokens of some heads,
  q, k and v in one exchange, and a second one turns the outputs back. Its degree divides the heads.
- Ring (parallel/ring.py) over the rest: 12 heads on 8 ranks are Ulysses 4 x ring 2.

The reference stream is computed by every rank, which keeps the keys and values of its own heads, so
reference tokens never cross the wire. Text is replicated, and so are motion tokens: one per frame,
each rank attends with its heads, and their outputs are gathered.

All ranks get the whole velocity. In training each computes the same loss from it; gradients are
those of the sum of the ranks' losses, which data parallelism then divides by the number of ranks.

torch.distributed.tensor.experimental.context_parallel does not fit: it cuts all attention of a
region alike and takes no key mask, so replicated reference keys and cross-attention would be cut.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from avatar_v.kernels.key_mask import KeyMask
from avatar_v.kernels.norm import rotate
from avatar_v.models.attention import (
    Blocked,
    ExtraKV,
    Heads,
    attend_self,
    mask_of_extra,
)
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.spread import Cores
from avatar_v.parallel.mesh import Layout
from avatar_v.parallel.ring import Ring, attend_few, attend_ring

# pyright: reportIncompatibleMethodOverride=false


OwnKeyValue = tuple[Float[Tensor, "b k own width"], Float[Tensor, "b k own width"]]
OwnExtra = tuple[Float[Tensor, "b extra own width"], Float[Tensor, "b extra own width"]]


def degrees(num_heads: int, num_ranks: int) -> tuple[int, int]:
    """(Ulysses, ring) of so many ranks: Ulysses takes as many as divide the heads."""
    ulysses = math.gcd(num_heads, num_ranks)
    return ulysses, num_ranks // ulysses


def sequence_mesh(layout: Layout, num_heads: int, device_type: str) -> DeviceMesh:
    """All ranks as (data, ring, ulysses). Ranks of a Ulysses group have consecutive numbers: they
    exchange the most, and neighbours are linked best. All ranks call this together."""
    ulysses, ring = degrees(num_heads, layout.sequence_size)
    return init_device_mesh(
        device_type,
        (layout.num_data_ranks, ring, ulysses),
        mesh_dim_names=("data", "ring", "ulysses"),
    )


def spread(dit: AvatarDiT, mesh: DeviceMesh) -> None:
    """Let ``dit`` compute its videos together with the other ranks of its sequence group: they call
    it at the same time with the same values. ``mesh`` is that of `sequence_mesh`."""
    dit.spread = SequenceGroup(mesh, dit.config.num_heads)


class SequenceGroup:
    """The place of a rank in its sequence group. ValueError for heads that Ulysses divides not."""

    def __init__(self, mesh: DeviceMesh, num_heads: int) -> None:
        self.ulysses, self.ring = mesh["ulysses"], mesh["ring"]
        if num_heads % self.num_ulysses:
            raise ValueError(
                f"{num_heads} heads are not divided by a Ulysses degree of {self.num_ulysses}"
            )
        self.num_heads = num_heads

    @property
    def num_ulysses(self) -> int:
        return self.ulysses.size()

    @property
    def num_ring(self) -> int:
        return self.ring.size()

    def __deepcopy__(self, memo: dict) -> "SequenceGroup":
        return self  # a copy of a network has the same neighbours

    def of(self, num_frames: int, num_tokens: int, *, keep_keys: bool) -> "SequenceShares":
        if keep_keys and self.num_ring > 1:
            raise ValueError(
                f"a stream keeps the keys of whole frames, and in a ring of {self.num_ring} each "
                f"rank has a part of them: use as many ranks as divide the {self.num_heads} heads"
            )
        return SequenceShares(self, num_frames, num_tokens)

    def own_heads(self, x: Heads) -> Float[Tensor, "b s own width"]:
        """The heads of this rank, in memory of their own."""
        if self.num_ulysses == 1:
            return x
        return x.chunk(self.num_ulysses, dim=2)[self.ulysses.get_local_rank()].contiguous()

    def all_heads(self, x: Float[Tensor, "b s own width"]) -> Heads:
        """The heads of all ranks, of tokens that all ranks have."""
        return torch.cat(_gathered(x, self.ulysses), dim=2)


@dataclass(frozen=True)
class SequenceShares:
    """The shares of a group's ranks in a video of ``num_frames`` x ``num_tokens``."""

    group: SequenceGroup
    num_frames: int
    num_tokens: int

    @property
    def cores(self) -> Cores:
        return Cores(self.attend_video, self.attend_motion)

    def own(self, x: Float[Tensor, "b l n d"]) -> Float[Tensor, "b l m d"]:
        place = self._ring_rank * self.group.num_ulysses + self.group.ulysses.get_local_rank()
        return _padded(x, self._num_places, dim=2)[:, :, self._run(place)]

    def whole(self, x: Float[Tensor, "b l m d"]) -> Float[Tensor, "b l n d"]:
        for mesh in (self.group.ulysses, self.group.ring):
            x = torch.cat(_gathered(x, mesh), dim=2)
        return x[:, :, : self.num_tokens]

    def attend_video(
        self,
        query: Heads,
        key: Heads,
        value: Heads,
        rotary: Float[Tensor, "positions 1 half 2"],
        *,
        beside: ExtraKV | None = None,
        extra: OwnExtra | None = None,
        key_mask: KeyMask | None = None,
        blocked: Blocked | None = None,
    ) -> tuple[Heads, OwnKeyValue]:
        """`attend_self` of the whole video, of which this rank has its tokens. The keys and values
        that it returns are those of its heads (and of its part of a ring)."""
        assert beside is None
        query, key, value = self._to_heads(torch.stack([query, key, value]))
        if self.group.num_ring == 1:
            y, kept = attend_self(
                query, key, value, rotary, extra=extra, key_mask=key_mask, blocked=blocked
            )
            return self._to_tokens(y), kept
        table, ring = self._here(rotary), self._ring()
        y = attend_ring(
            rotate(query, table), rotate(key, table), value, ring,
            extra=extra, extra_mask=mask_of_extra(key_mask, extra), blocked=blocked,
        )  # fmt: skip
        return self._to_tokens(y), (key, value)

    def attend_motion(
        self,
        query: Heads,
        key: Heads,
        value: Heads,
        rotary: Float[Tensor, "*positions 1 half 2"],
        *,
        beside: ExtraKV | None = None,
        extra: OwnExtra | None = None,
        key_mask: KeyMask | None = None,
        blocked: Blocked | None = None,
    ) -> tuple[Heads, OwnKeyValue]:
        """`attend_self` of motion tokens, which all ranks have; ``beside`` is the video."""
        query, key, value = (self.group.own_heads(x) for x in (query, key, value))
        if self.group.num_ring == 1:
            y, kept = attend_self(
                query, key, value, rotary,
                beside=beside, extra=extra, key_mask=key_mask, blocked=blocked,
            )  # fmt: skip
            return self.group.all_heads(y), kept
        assert beside is not None, "motion tokens stand beside their video"
        near = (rotate(beside.key, self._here(beside.rotary)), beside.value)
        y = attend_few(
            rotate(query, rotary), rotate(key, rotary), value, near, self._ring(),
            gather=partial(_gathered, mesh=self.group.ring),
            extra=extra, extra_mask=mask_of_extra(key_mask, extra), blocked=blocked,
        )  # fmt: skip
        return self.group.all_heads(y), (key, value)

    def _to_heads(self, x: Float[Tensor, "three b lm all width"]) -> tuple[Heads, Heads, Heads]:
        """Some tokens of all heads → all tokens, of this part of the ring, of some heads."""
        num, (three, batch, _, heads, width) = self.group.num_ulysses, x.shape
        x = x.view(three, batch, self.num_frames, -1, num, heads // num, width)
        x = _exchanged(x.movedim(4, 0), self.group.ulysses)  # "u three b l m heads width"
        x = x.permute(1, 2, 3, 0, 4, 5, 6).flatten(3, 4)[:, :, :, : self._num_here]
        query, key, value = x.flatten(2, 3).unbind(0)
        return query, key, value

    def _to_tokens(self, x: Float[Tensor, "b ln own width"]) -> Float[Tensor, "b lm heads width"]:
        num = self.group.num_ulysses
        x = x.view(x.shape[0], self.num_frames, self._num_here, *x.shape[2:])
        x = _padded(x, num * self._num_own, dim=2).unflatten(2, (num, -1))
        x = _exchanged(x.movedim(2, 0), self.group.ulysses)  # "u b l m heads width"
        return x.permute(1, 2, 3, 0, 4, 5).flatten(3, 4).flatten(1, 2)

    def _here(self, rotary: Float[Tensor, "positions 1 half 2"]) -> Float[Tensor, "here 1 half 2"]:
        """The rotary table of this part of the ring."""
        first = self._ring_rank * self.group.num_ulysses * self._num_own
        table = rotary.unflatten(0, (self.num_frames, self.num_tokens))
        return table[:, first : first + self._num_here].flatten(0, 1)

    def _ring(self) -> Ring:
        size = self.group.num_ulysses * self._num_own
        return Ring(
            self.group.ring,
            self.num_frames,
            tuple(self._num_in(j) for j in range(self.group.num_ring)),
            size,
        )

    def _run(self, place: int) -> slice:
        return slice(place * self._num_own, (place + 1) * self._num_own)

    def _num_in(self, ring_rank: int) -> int:
        """Places of a frame, without padding, in a part of the ring."""
        size = self.group.num_ulysses * self._num_own
        return min(max(self.num_tokens - ring_rank * size, 0), size)

    @property
    def _ring_rank(self) -> int:
        return self.group.ring.get_local_rank()

    @property
    def _num_here(self) -> int:
        return self._num_in(self._ring_rank)

    @property
    def _num_own(self) -> int:
        """Places of a frame, with padding, that a rank has."""
        return -(-self.num_tokens // (self.group.num_ulysses * self.group.num_ring))

    @property
    def _num_places(self) -> int:
        return self._num_own * self.group.num_ulysses * self.group.num_ring


def _exchanged(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """Part i of the first axis goes to rank i, and what it sent comes back in its place."""
    return x if mesh.size() == 1 else _Exchange.apply(x, mesh.get_group())


def _gathered(x: Tensor, mesh: DeviceMesh) -> tuple[Tensor, ...]:
    """``x`` of every rank. As an exchange, whose gradient is the sum over the ranks."""
    if mesh.size() == 1:
        return (x,)
    return _exchanged(x.expand(mesh.size(), *x.shape), mesh).unbind(0)


class _Exchange(torch.autograd.Function):
    """An all-to-all is its own adjoint. Of torch's own forms with gradients, one is deprecated and
    the other private, and renamed with each version."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        received = torch.empty_like(x, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, x.contiguous(), group=group)
        return received

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return _Exchange.apply(grad, ctx.group), None


def _padded(x: Tensor, size: int, *, dim: int) -> Tensor:
    missing = size - x.shape[dim]
    if missing == 0:
        return x
    return torch.cat([x, x.new_zeros(*x.shape[:dim], missing, *x.shape[dim + 1 :])], dim=dim)
