"""The work of the ranks in numerics/test_sharded_parts.py: one set of processes for all of it."""

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BatchEncoding, UMT5Config, UMT5EncoderModel

from avatar_v.models.conditioner import Conditioner
from avatar_v.models.text import UMT5TextEncoder
from avatar_v.parallel.apply import shard, shard_frozen
from avatar_v.training.muon import BatchedMuon
from avatar_v.training.roles import copy_network
from avatar_v.weights.presets import build
from forked import spawn

NUM_RANKS, NUM_LAYERS = 2, 3
SHAPES = [(7, 4)] * 3 + [(4, 10)] * 2 + [(1, 6)]
"""Odd numbers of rows and of matrices, and a matrix of which one rank has nothing."""


class Collectives(TorchDispatchMode):
    """Counts the collectives of this rank by name."""

    def __init__(self) -> None:
        super().__init__()
        self.num: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "c10d" in func.namespace and "wait" not in func.name():
            self.num[func.name().split("::")[1]] += 1
        return func(*args, **(kwargs or {}))


class Matrices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        made = (nn.Parameter(torch.randn(shape, generator=draw)) for shape in SHAPES)
        self.weights = nn.ParameterList(made)


class TinyUMT5(UMT5TextEncoder):
    """Without folder: every text has the same tokens."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        torch.manual_seed(0)
        config = UMT5Config(
            vocab_size=40, d_model=32, d_kv=8, d_ff=24, num_layers=NUM_LAYERS, num_heads=4
        )
        self.model = UMT5EncoderModel(config).requires_grad_(False).eval()
        self.num_tokens, self.dim = 8, config.d_model

    def tokenizer(self, texts: list[str], **_: Any) -> BatchEncoding:
        tokens = torch.arange(1, 6).expand(len(texts), -1)
        return BatchEncoding({"input_ids": tokens, "attention_mask": torch.ones_like(tokens)})


def muon(mesh: DeviceMesh) -> dict[str, Any]:
    """Three steps on shards and on whole matrices; the last matrix but one has no gradient in the
    second step."""
    sharded, alone = Matrices(), Matrices()
    fully_shard(sharded, mesh=mesh)
    numbers = {"lr": 0.02, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
    optimizers = [BatchedMuon(model.parameters(), **numbers) for model in (sharded, alone)]
    draw, counted = torch.Generator().manual_seed(1), Collectives()
    for step in range(3):
        for number, (p, q) in enumerate(zip(sharded.weights, alone.weights, strict=True)):
            grad = torch.randn(q.shape, generator=draw)
            dropped = step == 1 and number == len(SHAPES) - 2
            q.grad = None if dropped else grad
            p.grad = None if dropped else _like(grad, p)
        with counted:
            optimizers[0].step()
        optimizers[1].step()
    pairs = zip(sharded.weights, alone.weights, Matrices().weights, strict=True)
    off = [
        float((p.full_tensor() - q).detach().norm() / (q - start).detach().norm())
        for p, q, start in pairs
    ]
    return {"muon off": max(off), "muon collectives": dict(counted.num)}


def text_encoder(mesh: DeviceMesh) -> dict[str, Any]:
    """A frozen UMT5 in shards: what it says, its units, and what stays gathered behind a pass."""
    conditioner: Conditioner = build("tiny")[1]
    conditioner.text_encoder = TinyUMT5()
    alone = copy.deepcopy(conditioner.text_encoder)
    shard(conditioner, mesh, compute_dtype=torch.float32)
    encoder = conditioner.text_encoder
    largest: list[int] = []

    def note(*_: Any) -> None:
        largest.append(_gathered(encoder))

    for name, part in encoder.named_modules():
        if name.endswith(".DenseReluDense"):  # the end of a block, before it is put back
            part.register_forward_hook(note)
    found = encoder(["a", "b"])
    in_generation = copy.deepcopy(alone)
    shard_frozen(in_generation, mesh, offload=True)
    with torch.inference_mode():
        same = torch.equal(in_generation(["a", "b"]), alone(["a", "b"]))
    return {
        "text same in generation": same and _gathered(in_generation) == 0,
        "text off": float((found - alone(["a", "b"])).abs().max()),
        "text units": sum(isinstance(part, FSDPModule) for part in encoder.modules()),
        "text gathered": _gathered(encoder),
        "text gathered inside": max(largest),
        "text whole": sum(p.numel() for p in alone.parameters()),
    }


def two_of_one(mesh: DeviceMesh) -> dict[str, Any]:
    """A DiT and another that begins in its memory, both in shards; then one of them changes."""
    dit = build("tiny", seed=1)[0]
    other = copy_network(dit, shared=True)
    pairs = list(zip(dit.parameters(), other.parameters(), strict=True))
    found = {
        "same memory": all(p.data_ptr() == q.data_ptr() for p, q in pairs),
        "same parameters": any(p is q for p, q in pairs),
    }
    start = [p.detach().clone() for p in dit.parameters()]
    for network in (dit, other):
        shard(network, mesh, compute_dtype=torch.float32)
    with torch.no_grad():
        for p in dit.parameters():
            p.add_(1.0)
    whole = [
        [p.full_tensor() for p in network.parameters() if isinstance(p, DTensor)]
        for network in (dit, other)
    ]
    moved, kept = (
        max(float((x - y).abs().max()) for x, y in zip(of, start, strict=True)) for of in whole
    )
    return {**found, "moved": moved, "kept": kept}


def work(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    place = (folder / "store").as_uri()
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=NUM_RANKS)
    mesh = init_device_mesh("cpu", (NUM_RANKS,))
    found = muon(mesh) | text_encoder(mesh) | two_of_one(mesh)
    if rank == 0:
        torch.save(found, folder / "found.pt")
    dist.barrier()
    dist.destroy_process_group()


def main(folder: Path) -> dict[str, Any]:
    spawn(work, (folder,), NUM_RANKS)
    return torch.load(folder / "found.pt")


def _gathered(module: nn.Module) -> int:
    """Elements of the weights that this rank has whole at this moment."""
    return sum(p.numel() for p in module.parameters() if not isinstance(p, DTensor))


def _like(whole: Tensor, parameter: Tensor) -> Tensor:
    assert isinstance(parameter, DTensor)
    own = whole.chunk(NUM_RANKS)[dist.get_rank() :][:1]
    local = own[0] if own else whole[:0]
    return DTensor.from_local(
        local, parameter.device_mesh, parameter.placements,
        shape=whole.shape, stride=whole.stride(), run_check=False,
    )  # fmt: skip
