"""Muon whose Newton-Schulz products are batched over all matrices of one shape, on a CPU and where
they are small, and spread over the ranks that hold shards of them.

``torch.optim.Muon`` orthogonalises one matrix at a time, which suits large ones on GPUs; on a CPU,
and where a product takes less time than its launch, one over a stack costs less than many. Of
FSDP2's shards each rank gets one whole matrix of every ``world size`` of a shape, orthogonalises it
and gives the rows back: each element crosses the wire twice, where products of shards would gather
every matrix 15 times on every rank. The products are in bf16 as torch's, or in fp32 on a processor
that emulates bf16. State and hyper-parameters are torch's, and so is the whole step of any group of
plain matrices on a GPU.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed import all_to_all_single
from torch.distributed.tensor import DTensor, Shard

from avatar_v.base.device import emulates_bf16

LARGEST_STACKED = 2**20
"""Numbers of a matrix that is stacked on a GPU, too (our choice)."""


class BatchedMuon(torch.optim.Muon):
    """``torch.optim.Muon`` with ``adjust_lr_fn="match_rms_adamw"`` and Nesterov momentum."""

    @torch.no_grad()
    def step(self, closure=None):
        """One step. Parameters without a gradient stay as they are."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups, others = self.param_groups, []
        for group in groups:
            if all(_is_plain(p) for p in group["params"]):
                self._step_batched(group, self._updates)
            elif all(_is_sharded(p) for p in group["params"]):
                self._step_batched(group, self._updates_of_shards)
            else:
                others.append(group)
        self.param_groups = others
        super().step()
        self.param_groups = groups
        return loss

    def _step_batched(
        self, group: dict, updates: Callable[[dict, list[Tensor]], Iterable[Tensor]]
    ) -> None:
        by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for parameter in group["params"]:
            if parameter.grad is not None:
                by_shape[parameter.shape].append(parameter)
        for shape, parameters in by_shape.items():
            size = 0.2 * max(shape) ** 0.5  # of an AdamW update (Moonlight, arXiv 2502.16982)
            for parameter, change in zip(parameters, updates(group, parameters), strict=True):
                own = _local(parameter)
                own.mul_(1 - group["lr"] * group["weight_decay"])
                own.add_(change, alpha=-group["lr"] * size)

    def _updates(self, group: dict, parameters: list[Tensor]) -> Tensor:
        directions = [self._direction(p, group["momentum"]) for p in parameters]
        return _orthogonal(group, torch.stack(directions))

    def _updates_of_shards(self, group: dict, parameters: list[Tensor]) -> Iterator[Tensor]:
        """The rows of this rank of every update, of one matrix a rank at a time."""
        first = parameters[0]
        assert isinstance(first, DTensor)
        ranks, (num_rows, width) = first.device_mesh.get_group(), first.shape
        rows = _rows_of_ranks(num_rows, ranks.size())
        mine, none = rows[ranks.rank()], [0] * len(rows)
        for start in range(0, len(parameters), len(rows)):
            turn = parameters[start : start + len(rows)]
            shards = torch.cat([self._direction(p, group["momentum"]) for p in turn])
            of_mine = [mine] * len(turn) + none[len(turn) :]  # rows for each rank's matrix
            of_whole = rows if ranks.rank() < len(turn) else none  # of each rank in this one's
            whole = shards.new_empty(sum(of_whole), width)
            all_to_all_single(whole, shards, of_whole, of_mine, group=ranks)
            if len(whole):
                whole = _orthogonal(group, whole[None])[0].contiguous()
            back = torch.empty_like(shards)
            all_to_all_single(back, whole, of_mine, of_whole, group=ranks)
            yield from back.view(len(turn), mine, width)

    def _direction(self, parameter: Tensor, momentum: float) -> Tensor:
        """Nesterov momentum of this rank's part of the gradient; the buffer keeps torch's name."""
        state = self.state[parameter]
        assert parameter.grad is not None
        grad = _local(parameter.grad)
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer = _local(state["momentum_buffer"]).lerp_(grad, 1 - momentum)
        return grad.lerp(buffer, momentum)


def orthogonalise(
    matrices: Float[Tensor, "n rows columns"],
    *,
    coefficients: tuple[float, float, float],
    num_steps: int,
    eps: float,
) -> Float[Tensor, "n rows columns"]:
    """Each matrix with its singular values brought near 1, by the quintic Newton-Schulz iteration
    ``X ← a X + (b X Xᵀ + c (X Xᵀ)²) X`` in bf16, or fp32 where bf16 is
    emulated; the iteration corrects its own rounding."""
    a, b, c = coefficients
    tall = matrices.shape[1] > matrices.shape[2]
    dtype = torch.float32 if emulates_bf16(matrices.device) else torch.bfloat16
    x = (matrices.mT if tall else matrices).to(dtype)
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(num_steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


def _orthogonal(group: dict, matrices: Tensor) -> Tensor:
    """`orthogonalise` by the numbers of a group."""
    return orthogonalise(
        matrices,
        coefficients=group["ns_coefficients"],
        num_steps=group["ns_steps"],
        eps=group["eps"],
    )


def _rows_of_ranks(num_rows: int, num_ranks: int) -> list[int]:
    """How many rows of a matrix each rank holds: all alike, but for the last that have some."""
    most = -(-num_rows // num_ranks)
    return [max(0, min(most, num_rows - rank * most)) for rank in range(num_ranks)]


def _local(x: Tensor) -> Tensor:
    return x.to_local() if isinstance(x, DTensor) else x


def _is_sharded(parameter: Tensor) -> bool:
    """Whether it is sharded by rows, over one dimension of ranks."""
    return isinstance(parameter, DTensor) and parameter.placements == (Shard(0),)


def _is_plain(parameter: Tensor) -> bool:
    is_small = parameter.device.type == "cpu" or parameter.numel() <= LARGEST_STACKED
    return is_small and not isinstance(parameter, DTensor)
