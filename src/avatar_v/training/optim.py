"""Muon for hidden matrices, AdamW for the rest, as one optimiser with one schedule.

Muon is ``torch.optim.Muon``, batched on a CPU (muon.py): momentum 0.95, Nesterov,
5 Newton-Schulz steps with (3.4445, -4.7750, 2.0315). Its update is scaled by
``0.2 sqrt(max(rows, cols))`` so that it has the size of an AdamW update (Moonlight, arXiv
2502.16982; HunyuanVideo-1.5), and one learning rate serves both. Under FSDP2 its products are those
of DTensors: sharded, without a copy of its own.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LambdaLR

from avatar_v.base import checks
from avatar_v.models.lora import FACTORS
from avatar_v.training.muon import BatchedMuon

MAX_LR = 10.0
"""An update of Muon or AdamW has a size near lr, so larger ones only destroy weights."""
MAX_DECAY = 10.0


@dataclass(frozen=True)
class Optim:
    """Numbers of the optimiser and its schedule. Steps count optimiser steps."""

    lr: float  # of both halves at the end of warm-up
    num_warmup_steps: int
    final_lr_share: float = 0.1  # cosine falls to this share of lr at the last step
    weight_decay: float = 0.01  # of matrices; biases, norms and tables are not decayed
    betas: tuple[float, float] = (0.9, 0.95)  # AdamW
    muon_momentum: float = 0.95
    muon_lr_scale: float = 1.0  # lr of the Muon half over that of the AdamW half
    hidden: Literal["muon", "adamw"] = "muon"  # what updates hidden matrices
    lr_scales: dict[str, float] = field(default_factory=dict)
    """Factor on lr for parameters whose name contains the key, e.g. {"audio": 2.0}."""

    def __post_init__(self) -> None:
        checks.positive("lr", self.lr, most=MAX_LR)
        checks.count("num_warmup_steps", self.num_warmup_steps, least=0, most=1e12)
        checks.share("final_lr_share", self.final_lr_share)
        checks.number("weight_decay", self.weight_decay, least=0, most=MAX_DECAY)
        checks.entries(checks.decay, "betas", self.betas)
        checks.decay("muon_momentum", self.muon_momentum)
        checks.positive("muon_lr_scale", self.muon_lr_scale)
        checks.entries(checks.weight, "lr_scales", self.lr_scales)


class MuonAdamW(torch.optim.Optimizer):
    """Muon and AdamW over disjoint parameter groups of one optimiser.

    State and groups live here, so schedulers, clipping, checkpoints and FSDP2 see one ordinary
    optimiser; the two halves only borrow them for their step.
    """

    def __init__(self, groups: list[dict], *, betas: tuple[float, float], momentum: float) -> None:
        """``groups``: param groups with "params", "lr", "weight_decay", and "muon" True or False.
        ValueError if a Muon group holds anything but matrices, or no group is given."""
        if not groups:
            raise ValueError("nothing to optimise: no parameter requires a gradient")
        defaults = {"lr": 0.0, "weight_decay": 0.0}
        muon = BatchedMuon(
            [g for g in groups if g["muon"]] or [{"params": []}],
            lr=0.0,
            momentum=momentum,
            adjust_lr_fn="match_rms_adamw",
        )
        rest = [g for g in groups if not g["muon"]]
        self._is_fused = bool(rest) and all(_fits_fused(p) for g in rest for p in g["params"])
        adamw = torch.optim.AdamW(
            rest or [{"params": []}], lr=0.0, betas=betas, fused=self._is_fused or None
        )
        halves = [*muon.param_groups, *adamw.param_groups]
        super().__init__([g for g in halves if g["params"]], defaults)
        self._muon, self._adamw = muon, adamw
        self._begin()

    @torch.no_grad()
    def _begin(self) -> None:
        """State for every parameter, also one without a gradient so far (stage 1 has no audio):
        a sharded checkpoint is read by the names that the optimiser has."""
        for group in self.param_groups:
            for p in group["params"]:
                if group["muon"]:
                    self.state[p] = {"momentum_buffer": torch.zeros_like(p)}
                else:
                    moments = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
                    where = p.device if self._is_fused else "cpu"
                    self.state[p] = {"step": torch.tensor(0.0, device=where), **moments}

    @torch.no_grad()
    def step(self, closure=None):
        """One step of both halves. Parameters without a gradient stay as they are."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for half, is_muon in ((self._muon, True), (self._adamw, False)):
            half.state = self.state
            half.param_groups = [g for g in self.param_groups if g["muon"] is is_muon]
            half.step()
        return loss


def _fits_fused(p: Tensor) -> bool:
    """Whether one kernel may update ``p`` and its like: plain weights on a GPU."""
    return p.is_cuda and not isinstance(p, DTensor)


def build_optimizer(
    module: nn.Module, optim: Optim, names: Collection[str] | None = None
) -> MuonAdamW:
    """The optimiser of the trainable parameters of ``module``, or of those with these ``names``."""
    groups: dict[tuple[bool, float, float], list[Tensor]] = {}
    hidden = hidden_matrices(module) if optim.hidden == "muon" else set()
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad or (names is not None and name not in names):
            continue
        muon = name in hidden
        scale = math.prod(s for key, s in optim.lr_scales.items() if key in name)
        is_matrix = parameter.ndim >= 2 and name.endswith(".weight")
        decay = optim.weight_decay if is_matrix else 0.0
        lr = optim.lr * scale * (optim.muon_lr_scale if muon else 1.0)
        groups.setdefault((muon, lr, decay), []).append(parameter)
    unused = [k for k in optim.lr_scales if not any(k in n for n, _ in module.named_parameters())]
    if unused:
        raise ValueError(f"lr_scales {unused} match no parameter")
    return MuonAdamW(
        [
            {"params": params, "lr": lr, "weight_decay": decay, "muon": muon}
            for (muon, lr, decay), params in groups.items()
        ],
        betas=optim.betas,
        momentum=optim.muon_momentum,
    )


def hidden_matrices(module: nn.Module) -> set[str]:
    """Names of the weights Muon takes: matrices of linear layers inside repeated blocks (an
    ``nn.ModuleList``). Patch, time and token embeddings, heads, convolutions, tables, norms,
    biases and LoRA's factors are AdamW's."""
    names = set()
    for list_name, blocks in module.named_modules():
        if not isinstance(blocks, nn.ModuleList):
            continue
        for name, layer in blocks.named_modules(prefix=list_name):
            trained = isinstance(layer, nn.Linear) and layer.weight.requires_grad
            if trained and FACTORS not in name:
                names.add(f"{name}.weight")
    return names


def warmup_cosine(optimizer: torch.optim.Optimizer, optim: Optim, num_steps: int) -> LambdaLR:
    """Linear from 0 over the warm-up, then a cosine to ``final_lr_share`` at ``num_steps``.
    ValueError unless the warm-up is shorter than the training."""
    if not 0 <= optim.num_warmup_steps < num_steps:
        raise ValueError(
            f"a warm-up of {optim.num_warmup_steps} steps does not fit training of {num_steps}: "
            "see --model.init_args.optim.num_warmup_steps"
        )

    def factor(step: int) -> float:
        if step < optim.num_warmup_steps:
            return (step + 1) / (optim.num_warmup_steps + 1)
        done = (step - optim.num_warmup_steps) / (num_steps - optim.num_warmup_steps)
        cosine = 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
        return optim.final_lr_share + (1 - optim.final_lr_share) * cosine

    return LambdaLR(optimizer, factor)
