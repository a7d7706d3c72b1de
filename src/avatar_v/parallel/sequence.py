"""Sequence parallelism: the tokens of one video over the ranks of a sequence group.

Every rank holds all latent frames of a video and a share of the places in each, so what is given
per latent frame (times, audio, motion) needs no cut, and any number of frames fits. Places that
the ranks do not divide are padded; the padding is dropped behind each exchange, so no mask knows
it. Around self-attention the group is a grid (USP, arXiv 2405.07719):

- Ulysses (arXiv 2309.14509): an all-to-all turns tokens of all heads into all tokens of some heads,
  of q, k and v, and another one turns the outputs back. Its degree divides the heads. Exchanges may
  overlap with computing (exchange.py): while q travels k is projected, while k travels v, while v
  travels q and k are rotated, and while the outputs of some heads travel the next ones attend.
- Ring (parallel/ring.py) over the rest: 12 heads on 8 ranks are Ulysses 4 x ring 2.

The reference stream is computed by every rank, which keeps the keys and values of its own heads, so
reference tokens never cross the wire. Text is replicated, and so are motion tokens: one per frame,
each rank attends with its heads, and their outputs are gathered.

All ranks get the whole velocity. In training each computes the same loss from it; gradients are
those of the sum of the ranks' losses, which data parallelism then divides by the number of ranks.

torch.distributed.tensor.experimental.context_parallel does not fit: it cuts all attention of a
region alike and takes no key mask, so replicated reference keys and cross-attention would be cut.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from avatar_v.kernels.key_mask import KeyMask
from avatar_v.kernels.norm import rotate
from avatar_v.models.attention import (
    Blocked,
    ExtraKV,
    Heads,
    SendingCore,
    attend_rotated,
    attend_self,
    mask_of_extra,
)
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.spread import Cores
from avatar_v.parallel import exchange, fastest
from avatar_v.parallel.exchange import BLOCKING, Arrived, Collective, Transport, Way, begun
from avatar_v.parallel.mesh import Layout
from avatar_v.parallel.ring import Ring, attend_few, attend_ring
from avatar_v.parallel.symmetric import Symmetric

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
    limited = exchange.sms_options(device_type)
    return init_device_mesh(
        device_type,
        (layout.num_data_ranks, ring, ulysses),
        mesh_dim_names=("data", "ring", "ulysses"),
        backend_override=None if limited is None else {"ulysses": limited},
    )


def spread(dit: AvatarDiT, mesh: DeviceMesh) -> None:
    """Let ``dit`` compute its videos together with the other ranks of its sequence group: they call
    it at the same time with the same values. ``mesh`` is that of `sequence_mesh`."""
    dit.spread = SequenceGroup(mesh, dit.config.num_heads, dit.config.head_dim)


class SequenceGroup:
    """The place of a rank in its sequence group, for heads of ``width``. ValueError for heads that
    Ulysses divides not, and for exchanges that cannot be here."""

    def __init__(self, mesh: DeviceMesh, num_heads: int, width: int = 64) -> None:
        self.ulysses, self.ring = mesh["ulysses"], mesh["ring"]
        if num_heads % self.num_ulysses:
            raise ValueError(
                f"{num_heads} heads are not divided by a Ulysses degree of {self.num_ulysses}"
            )
        self.num_heads, self.width = num_heads, width
        self.ways: dict[tuple[int, int], Way] = {}  # by frames and tokens, those chosen by time
        self.transport: Transport = Collective(self.ulysses.get_group())
        if exchange.asked().name == "symmetric" and self.num_ulysses > 1:
            self.transport = Symmetric(self.ulysses.get_group())

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
        shares = SequenceShares(self, num_frames, num_tokens)
        return replace(shares, way=self._way(shares))

    def _way(self, shares: "SequenceShares") -> Way:
        """As asked for; else the fastest on GPUs, and blocking elsewhere."""
        if self.num_ulysses == 1:
            return BLOCKING
        way = exchange.asked().way
        if way is not None:
            return way
        if self.ulysses.device_type != "cuda" or torch.compiler.is_compiling():
            return BLOCKING
        key = (shares.num_frames, shares.num_tokens)
        if key not in self.ways:
            self.ways[key] = self.fastest_way(shares, torch.device("cuda"))
        return self.ways[key]

    def fastest_way(self, shares: "SequenceShares", device: torch.device) -> Way:
        """By a measurement that the ranks of the group make together."""
        x = torch.empty(1, shares.num_frames, shares.num_tokens, 1, device=device)
        trial = fastest.Trial(
            (shares.num_frames * shares.own(x).shape[2], x[0].numel(), self.num_heads, self.width),
            device, lambda way: replace(shares, way=way).cores.video,
        )  # fmt: skip
        return fastest.way_of(trial, self.num_ulysses, (self.ulysses, self.ring))

    def own_heads(self, x: Heads) -> Float[Tensor, "b s own width"]:
        """The heads of this rank, in memory of their own."""
        if self.num_ulysses == 1:
            return x
        return x.chunk(self.num_ulysses, dim=2)[self.ulysses.get_local_rank()].contiguous()

    def all_heads(self, x: Float[Tensor, "b s own width"]) -> Heads:
        """The heads of all ranks, of tokens that all ranks have."""
        return torch.cat(_gathered(x, self.ulysses), dim=2)


class VideoCore(SendingCore):
    """Self-attention of a video over its ranks."""

    def __init__(self, shares: "SequenceShares") -> None:
        self._shares = shares

    def send(self, x: Heads) -> Heads | Arrived:
        return self._shares.send(x)

    def __call__(
        self, query: Heads | Arrived, key: Heads | Arrived, value: Heads | Arrived,
        *args: Any, **named: Any,
    ) -> tuple[Heads, OwnKeyValue]:  # fmt: skip
        return self._shares.attend_video(query, key, value, *args, **named)


@dataclass(frozen=True)
class SequenceShares:
    """The shares of a group's ranks in a video of ``num_frames`` x ``num_tokens``."""

    group: SequenceGroup
    num_frames: int
    num_tokens: int
    way: Way = BLOCKING

    @property
    def cores(self) -> Cores:
        return Cores(VideoCore(self), self.attend_motion)

    def own(self, x: Float[Tensor, "b l n d"]) -> Float[Tensor, "b l m d"]:
        place = self._ring_rank * self.group.num_ulysses + self.group.ulysses.get_local_rank()
        return _padded(x, self._num_places, dim=2)[:, :, self._run(place)]

    def whole(self, x: Float[Tensor, "b l m d"]) -> Float[Tensor, "b l n d"]:
        for mesh in (self.group.ulysses, self.group.ring):
            x = torch.cat(_gathered(x, mesh), dim=2)
        return x[:, :, : self.num_tokens]

    def send(self, x: Heads) -> Heads | Arrived:
        """Queries, keys or values as `attend_video` takes them: on their way already, or as they
        are where exchanges block."""
        if not self.way.overlaps or torch.compiler.is_compiling():
            return x
        return self._to_heads(x[None])

    def attend_video(
        self,
        query: Heads | Arrived,
        key: Heads | Arrived,
        value: Heads | Arrived,
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
        table = rotary if self.group.num_ring == 1 else self._here(rotary)
        arriving = self._arriving(query, key, value)
        turned, key = rotate(next(arriving), table), next(arriving)
        rotated, value = (turned, rotate(key, table)), next(arriving)
        own = (key, value)
        if self.group.num_ring > 1:
            y = attend_ring(
                *rotated, value, self._ring(),
                extra=extra, extra_mask=mask_of_extra(key_mask, extra), blocked=blocked,
            )  # fmt: skip
            return self._to_tokens([y]), own
        tiles = self._tiles(rotated, own, extra, blocked)
        outs = (
            attend_rotated(turned, pair, rotary, None, more, key_mask, blocked)
            for turned, pair, more in tiles
        )
        return self._to_tokens(outs), own

    def _arriving(self, *sent: Heads | Arrived) -> Iterator[Heads]:
        """Each of them, of all tokens, when it is there. What has not set off goes in one exchange,
        which backward does, too."""
        waiting = [x for x in sent if isinstance(x, Tensor)]
        if waiting:
            yield from self._to_heads(torch.stack(waiting))().unbind(0)
        for x in sent:
            if not isinstance(x, Tensor):
                yield x()[0]

    def _tiles(
        self,
        rotated: tuple[Heads, Heads],
        own: OwnKeyValue,
        extra: OwnExtra | None,
        blocked: Blocked | None,
    ) -> Iterable[tuple[Any, Any, Any]]:
        """Some heads after others, where their outputs travel so. Attention by a pattern is of all
        heads at once."""
        size = 0 if torch.compiler.is_compiling() else self.way.heads
        if size == 0 or size >= own[0].shape[2] or blocked is not None:
            return [(rotated, own, extra)]
        parts = [zip(*(x.split(size, dim=2) for x in pair), strict=True) for pair in (rotated, own)]
        if extra is None:
            return zip(*parts, itertools.repeat(None))
        return zip(*parts, zip(*(x.split(size, dim=2) for x in extra), strict=True), strict=True)

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

    def _to_heads(self, x: Float[Tensor, "num b lm all width"]) -> Arrived:
        """Some tokens of all heads → all tokens, of this part of the ring, of some heads."""
        num, (_, batch, _, heads, width) = self.group.num_ulysses, x.shape
        x = x.view(
            -1, batch, self.num_frames, x.shape[2] // self.num_frames, num, heads // num, width
        )
        arrived = self._begun(x.movedim(4, 0))  # "u num b l m heads width"

        def joined() -> Float[Tensor, "num b ln heads width"]:
            y = arrived().permute(1, 2, 3, 0, 4, 5, 6).flatten(3, 4)[:, :, :, : self._num_here]
            return y.flatten(2, 3)

        return joined

    def _to_tokens(
        self, tiles: Iterable[Float[Tensor, "b ln some width"]]
    ) -> Float[Tensor, "b lm heads width"]:
        """The heads of this rank, some after others, of all tokens → its tokens of all heads. A
        tile sets off when it is there; all are waited for behind the last."""
        num, arrivals = self.group.num_ulysses, list[Arrived]()
        for x in tiles:
            x = x.view(x.shape[0], self.num_frames, self._num_here, *x.shape[2:])
            x = _padded(x, num * self._num_own, dim=2).unflatten(2, (num, -1))
            arrivals.append(self._begun(x.movedim(2, 0)))  # "u b l m heads width"
        parts = [arrived().permute(1, 2, 3, 0, 4, 5) for arrived in arrivals]
        y = parts[0] if len(parts) == 1 else torch.cat(parts, dim=4)
        return y.flatten(3, 4).flatten(1, 2)

    def _begun(self, x: Float[Tensor, "u ..."]) -> Arrived:
        """An exchange in the Ulysses group."""
        if self.group.num_ulysses == 1:
            return lambda: x
        return begun(x, self.group.transport)

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


def _gathered(x: Tensor, mesh: DeviceMesh) -> tuple[Tensor, ...]:
    """``x`` of every rank. As an exchange, whose gradient is the sum over the ranks."""
    if mesh.size() == 1:
        return (x,)
    parts = x.expand(mesh.size(), *x.shape)
    return begun(parts, Collective(mesh.get_group()))().unbind(0)


def _padded(x: Tensor, size: int, *, dim: int) -> Tensor:
    missing = size - x.shape[dim]
    if missing == 0:
        return x
    return torch.cat([x, x.new_zeros(*x.shape[:dim], missing, *x.shape[dim + 1 :])], dim=dim)
