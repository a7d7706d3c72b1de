"""training/optim.py: Muon and AdamW as one optimiser."""

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn

from avatar_v.training import muon
from avatar_v.training.optim import Optim, build_optimizer, hidden_matrices, warmup_cosine

OPTIM = Optim(lr=0.01, num_warmup_steps=2, weight_decay=0.1)


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(5, 8)
        self.table = nn.Parameter(torch.randn(6, 8))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.LayerNorm(8))
            for _ in range(2)
        )
        self.conv = nn.Conv1d(8, 8, 3)
        self.head = nn.Linear(8, 4)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.embed(x) + self.table[:3]
        for block in self.blocks:
            y = y + block(y)
        return self.head(self.conv(y.transpose(1, 2)).transpose(1, 2))


def run(toy: Toy, optimizer: torch.optim.Optimizer, num_steps: int) -> None:
    for i in range(num_steps):
        x = torch.randint(5, (4, 3), generator=torch.Generator().manual_seed(i))
        optimizer.zero_grad()
        toy(x).square().mean().backward()
        optimizer.step()


def test_muon_takes_the_matrices_of_the_blocks_alone() -> None:
    expected = {f"blocks.{i}.{j}.weight" for i in range(2) for j in (0, 2)}
    assert hidden_matrices(Toy()) == expected


def test_every_trainable_parameter_is_in_one_group() -> None:
    toy = Toy()
    optimizer = build_optimizer(toy, OPTIM)
    grouped = [id(p) for g in optimizer.param_groups for p in g["params"]]
    assert sorted(grouped) == sorted(id(p) for p in toy.parameters() if p.requires_grad)
    decayed = {id(p) for g in optimizer.param_groups if g["weight_decay"] for p in g["params"]}
    assert id(toy.table) not in decayed
    assert id(toy.head.bias) not in decayed
    assert id(toy.conv.weight) in decayed


def test_both_halves_equal_torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # torch's Muon iterates in bf16 on every processor
    monkeypatch.setattr(muon, "emulates_bf16", lambda device: False)
    ours, theirs = Toy(), Toy()
    run(ours, build_optimizer(ours, OPTIM), 3)
    hidden = hidden_matrices(theirs)
    named = [(n, p) for n, p in theirs.named_parameters() if p.requires_grad]
    theirs_muon = torch.optim.Muon(
        [p for n, p in named if n in hidden],
        lr=0.01, weight_decay=0.1, momentum=0.95, nesterov=True, ns_steps=5,
        ns_coefficients=(3.4445, -4.7750, 2.0315), adjust_lr_fn="match_rms_adamw",
    )  # fmt: skip
    decay = [p for n, p in named if n not in hidden and n.endswith(".weight") and p.ndim > 1]
    rest = [p for n, p in named if n not in hidden and not (n.endswith(".weight") and p.ndim > 1)]
    adamw = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
        lr=0.01, betas=(0.9, 0.95),
    )  # fmt: skip
    for i in range(3):
        x = torch.randint(5, (4, 3), generator=torch.Generator().manual_seed(i))
        theirs.zero_grad()
        theirs(x).square().mean().backward()
        theirs_muon.step()
        adamw.step()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        # the same kernels on the same numbers; only the grouping of AdamW's vectors differs
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7, msg=name)


def test_a_muon_update_has_the_size_of_an_adamw_update() -> None:
    """0.2 sqrt(max(rows, cols)) U, U near-orthogonal, has RMS 0.2 on every shape; AdamW's is
    0.2 to 0.4 in practice (Moonlight §2.2)."""
    blocks = nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 256), nn.Linear(256, 64)])
    optimizer = build_optimizer(blocks, Optim(lr=1.0, num_warmup_steps=0, weight_decay=0.0))
    before = [linear.weight.detach().clone() for linear in blocks]
    for i, linear in enumerate(blocks):
        generator = torch.Generator().manual_seed(i)
        linear.weight.grad = torch.randn(linear.weight.shape, generator=generator)
        linear.bias.grad = torch.zeros_like(linear.bias)
    optimizer.step()
    for old, linear in zip(before, blocks, strict=True):
        rms = (linear.weight.detach() - old).square().mean().sqrt().item()
        # five Newton-Schulz steps leave singular values in about [0.7, 1.2] instead of 1
        assert 0.2 * 0.7 < rms < 0.2 * 1.2, tuple(linear.weight.shape)


def test_state_restores_exactly() -> None:
    straight, broken = Toy(), Toy()
    optimizer = build_optimizer(straight, OPTIM)
    run(straight, optimizer, 2)
    first = build_optimizer(broken, OPTIM)
    run(broken, first, 2)
    again = Toy()
    again.load_state_dict(broken.state_dict())
    second = build_optimizer(again, OPTIM)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    run(straight, optimizer, 3)
    run(again, second, 3)
    for a, b in zip(straight.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_lr_scales_reach_their_parameters() -> None:
    toy = Toy()
    optim = Optim(lr=0.01, num_warmup_steps=2, lr_scales={"head": 3.0}, muon_lr_scale=2.0)
    lrs = {id(p): g["lr"] for g in build_optimizer(toy, optim).param_groups for p in g["params"]}
    assert lrs[id(toy.head.weight)] == pytest.approx(0.03)
    assert lrs[id(toy.embed.weight)] == pytest.approx(0.01)
    assert lrs[id(toy.blocks[0][0].weight)] == pytest.approx(0.02)  # type: ignore[index]
    with pytest.raises(ValueError, match="match no parameter"):
        build_optimizer(toy, Optim(lr=0.01, num_warmup_steps=0, lr_scales={"haed": 3.0}))


def test_warm_up_then_cosine() -> None:
    toy = Toy()
    optimizer = build_optimizer(toy, OPTIM)
    schedule = warmup_cosine(optimizer, OPTIM, 12)
    lrs = []
    for _ in range(12):
        lrs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert lrs[:3] == pytest.approx([0.01 / 3, 0.02 / 3, 0.01])
    assert lrs[7] == pytest.approx(0.01 * (0.1 + 0.9 * 0.5))  # half way
    assert all(a > b for a, b in pairwise(lrs[2:]))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001)
    with pytest.raises(ValueError, match="warm-up"):
        warmup_cosine(optimizer, OPTIM, 2)


def test_nothing_to_train_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing to optimise"):
        build_optimizer(Toy().requires_grad_(False), OPTIM)
