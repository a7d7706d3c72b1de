"""Ring attention: keys and values go round a group of ranks, each of which keeps its queries.

Ring Attention (arXiv 2310.01889). What was seen so far is merged by its log-sum-exp in fp32; the
next part travels while this one is computed. Reference keys are the same on all ranks and are read
with the rank's own part. In the backward pass keys and values go round again, with the sums of
their gradients behind them, so no rank ever holds more than two parts.

A part has all latent frames and some places of each (parallel/sequence.py), so attention that is
local or causal in time is a choice of frames in every part.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from avatar_v.kernels.attention import QueryBlock
from avatar_v.kernels.key_mask import KeyMask
from avatar_v.kernels.partial import Part, attend_part, merge, part_gradients
from avatar_v.models.attention import Blocked, ExtraKeyValue, Heads, KeyValue

# pyright: reportIncompatibleMethodOverride=false


@dataclass(frozen=True)
class Ring:
    """The ranks that a video's keys go round, and how they share its places."""

    mesh: DeviceMesh
    num_frames: int
    sizes: tuple[int, ...]  # places of a frame of each rank, without padding
    padded: int  # and with it: what travels is of one size

    @property
    def rank(self) -> int:
        return self.mesh.get_local_rank()

    def after(self, x: Tensor) -> Callable[[], Tensor]:
        """``x`` sets off to the next rank; the result waits for that of the rank before."""
        num, flat = len(self.sizes), x.contiguous().view(-1)
        to, source = [0] * num, [0] * num
        to[(self.rank + 1) % num] = source[(self.rank - 1) % num] = flat.numel()
        coming = torch.empty_like(flat)
        work = dist.all_to_all_single(
            coming, flat, source, to, group=self.mesh.get_group(), async_op=True
        )
        assert work is not None

        def arrived() -> Tensor:
            work.wait()
            return coming.view(x.shape)

        return arrived

    def pad(self, x: Float[Tensor, "two b ln heads width"]) -> Float[Tensor, "two b l m heads w"]:
        x = x.unflatten(2, (self.num_frames, self.sizes[self.rank]))
        missing = self.padded - x.shape[3]
        return torch.nn.functional.pad(x, (0, 0, 0, 0, 0, missing)).contiguous()

    def drop(self, x: Float[Tensor, "two b l m heads width"], rank: int) -> tuple[Tensor, Tensor]:
        """The keys and values of ``rank`` without padding, "b l n heads width"."""
        key, value = x[:, :, :, : self.sizes[rank]].unbind(0)
        return key, value


def attend_ring(
    query: Heads,
    key: Heads,
    value: Heads,
    ring: Ring,
    *,
    extra: ExtraKeyValue | None,
    extra_mask: KeyMask | None,
    blocked: Blocked | None,
) -> Heads:
    """Attention of this rank's queries over the keys of the whole ring (rotated), and ``extra``.

    Only the keys and values of the video move: of them every rank sends (R - 1) / R · 2 forward,
    in a ring of R, and backward the same and 2 of gradients, where 1 is a whole ring's keys.
    """
    extra_key, extra_value = (key[:, :0], value[:, :0]) if extra is None else extra
    seen = None if extra_mask is None else extra_mask.seen
    return _RingAttention.apply(
        query, key, value, extra_key, extra_value, seen, ring, _blocks(ring, blocked)
    )


def attend_few(
    query: Heads,
    key: Heads,
    value: Heads,
    near: KeyValue,
    ring: Ring,
    *,
    gather: Callable[[Tensor], tuple[Tensor, ...]],
    extra: ExtraKeyValue | None,
    extra_mask: KeyMask | None,
    blocked: Blocked | None,
) -> Heads:
    """Attention of one token a frame, the same on all ranks, over themselves, ``extra``, and the
    parts ``near`` of the ring's ranks.

    So few queries do not need the keys: their unfinished sums are gathered. In fp32, with the
    scores in memory. Tokens and extra keys, which all ranks have, are counted on rank 0.
    """
    sees = each_other = None
    if blocked is not None:
        pattern, num = blocked.pattern, ring.num_frames
        sees = _dense(pattern.blocks(num), num, query.device)
        each_other = _dense(pattern.blocks_beside(num), num, query.device)
    size = ring.sizes[ring.rank]
    parts = [(*near, None if sees is None else sees.repeat_interleave(size, dim=1))]
    if ring.rank == 0:
        parts.append((key, value, each_other))
        if extra is not None:
            seen = None if extra_mask is None else extra_mask.seen[:, None, None, :]
            parts.append((*extra, seen))
    scores = torch.cat([_scores(query, k, mask) for k, _, mask in parts], dim=-1)
    values = torch.cat([v for _, v, _ in parts], dim=1).float()
    nothing = scores.new_full((*scores.shape[:3], 1), float("-inf"))
    highest = torch.cat([scores.detach(), nothing], dim=-1).amax(-1, keepdim=True)
    highest = torch.stack(gather(highest)).amax(0)
    weights = torch.exp(scores - highest)
    sums = torch.einsum("bhqk,bkhw->bqhw", weights, values)
    total = torch.cat([sums, weights.sum(-1).transpose(1, 2)[..., None]], dim=-1)
    total = torch.stack(gather(total)).sum(0)
    return (total[..., :-1] / total[..., -1:]).to(query.dtype)


def _dense(blocks: list[QueryBlock], num_frames: int, device: torch.device) -> Bool[Tensor, "l l"]:
    """Which frame sees which."""
    sees = torch.zeros(num_frames, num_frames, dtype=torch.bool, device=device)
    for block in blocks:
        for run in block.seen:
            sees[slice(*block.frames), slice(*run)] = True
    return sees


def _scores(
    query: Heads, key: Float[Tensor, "b k heads width"], mask: Tensor | None
) -> Float[Tensor, "b heads s k"]:
    scores = torch.einsum("bqhw,bkhw->bhqk", query.float(), key.float()) / query.shape[-1] ** 0.5
    return scores if mask is None else scores.masked_fill(~mask, float("-inf"))


def _blocks(ring: Ring, blocked: Blocked | None) -> list[QueryBlock]:
    if blocked is not None:
        return blocked.pattern.blocks(ring.num_frames)
    whole = (0, ring.num_frames)
    return [QueryBlock(whole, (whole,))]


class _RingAttention(torch.autograd.Function):
    """Forward and backward of `attend_ring`; "b l n heads width" inside."""

    @staticmethod
    def forward(
        ctx, query, key, value, extra_key, extra_value, extra_mask, ring: Ring, blocks
    ) -> Tensor:
        q = query.unflatten(1, (ring.num_frames, -1))
        held, num = ring.pad(torch.stack([key, value])), len(ring.sizes)
        out = q.new_zeros(q.shape, dtype=torch.float32)
        lse = q.new_full(q.shape[:-1], float("-inf"), dtype=torch.float32)
        for step in range(num):
            coming = ring.after(held) if step + 1 < num else None
            keys, values = ring.drop(held, (ring.rank - step) % num)
            first = (extra_key, extra_value, extra_mask) if step == 0 else None
            for own, _, part in _parts(q, keys, values, blocks, first):
                run = slice(*own)
                more, more_lse = attend_part(*part)
                out[:, run], lse[:, run] = merge(
                    out[:, run], lse[:, run],
                    more.view_as(out[:, run]), more_lse.view_as(lse[:, run]),
                )  # fmt: skip
            held = held if coming is None else coming()
        y = out.to(query.dtype).flatten(1, 2)
        ctx.save_for_backward(query, key, value, extra_key, extra_value, extra_mask, y, lse)
        ctx.ring, ctx.blocks = ring, blocks
        return y

    @staticmethod
    def backward(ctx, grad):
        query, key, value, extra_key, extra_value, extra_mask, y, lse = ctx.saved_tensors
        ring, num = ctx.ring, len(ctx.ring.sizes)
        q, dy, y = (x.unflatten(1, (ring.num_frames, -1)) for x in (query, grad, y))
        dq = torch.zeros_like(q, dtype=torch.float32)
        d_extra = torch.zeros_like(torch.stack([extra_key, extra_value]), dtype=torch.float32)
        held = ring.pad(torch.stack([key, value]))
        sums = torch.zeros_like(held, dtype=torch.float32)
        for step in range(num):
            rank = (ring.rank - step) % num
            coming = ring.after(held) if step + 1 < num else None
            keys, values = ring.drop(held, rank)
            sums = sums if step == 0 else ring.after(sums)()
            dk, dv = ring.drop(sums, rank)
            first = (extra_key, extra_value, extra_mask) if step == 0 else None
            for own, seen, part in _parts(q, keys, values, ctx.blocks, first):
                run = slice(*own)
                y_run, lse_run = y[:, run].flatten(1, 2), lse[:, run].flatten(1, 2)
                a, b, c = part_gradients(dy[:, run].flatten(1, 2), part, y_run, lse_run)
                dq[:, run] += a.view(q[:, run].shape)
                start = 0
                for frames in seen:
                    piece = dk[:, slice(*frames)]
                    stop = start + piece.shape[1] * piece.shape[2]
                    piece += b[:, start:stop].view(piece.shape)
                    dv[:, slice(*frames)] += c[:, start:stop].view(piece.shape)
                    start = stop
                if first is not None:
                    d_extra[0] += b[:, start:]
                    d_extra[1] += c[:, start:]
            held = held if coming is None else coming()
        sums = ring.after(sums)()
        dk, dv = (x.flatten(1, 2).to(key.dtype) for x in ring.drop(sums, ring.rank))
        d_extra = d_extra.to(key.dtype)
        dq = dq.flatten(1, 2).to(query.dtype)
        return dq, dk, dv, d_extra[0], d_extra[1], None, None, None


def _parts(
    q: Tensor, keys: Tensor, values: Tensor, blocks: list[QueryBlock], extra: tuple | None
) -> Iterator[tuple[tuple[int, int], tuple[tuple[int, int], ...], Part]]:
    """Each block of queries with what it sees of one part: (frames, runs of frames, arguments of
    `attend_part`). ``extra`` lies behind, with the part that is read first."""
    for block in blocks:
        runs = [(keys[:, slice(*run)], values[:, slice(*run)]) for run in block.seen]
        k = [x.flatten(1, 2) for x, _ in runs]
        v = [x.flatten(1, 2) for _, x in runs]
        mask = None
        if extra is not None:
            k.append(extra[0])
            v.append(extra[1])
            if extra[2] is not None:
                num = sum(x.shape[1] for x in k[:-1])
                own = extra[2].new_ones(extra[2].shape[0], num)
                mask = torch.cat([own, extra[2]], dim=1)
        query = q[:, slice(*block.frames)].flatten(1, 2)
        yield block.frames, block.seen, (query, torch.cat(k, dim=1), torch.cat(v, dim=1), mask)
