"""The work of the ranks in integration/test_shard_generate.py: a video with whole weights, and the
same with weights in shards."""

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.ranks import Ranks
from avatar_v.weights.card import read_card
from avatar_v.weights.weights import load_pipeline
from forked import spawn

NUM_RANKS = 2
OPTIONS: dict[str, Any] = {
    "num_steps": 2, "guidance_reference": 2.0, "face_crop": False, "anchor": True, "gain_db": 0.0,
}  # fmt: skip


def networks(pipe: AvatarPipeline) -> dict[str, nn.Module]:
    """Those that `--shard` shards."""
    assert pipe.refiner is not None
    return {
        "dit": pipe.dit,
        "text": pipe.conditioner.text_encoder,
        "refiner": pipe.refiner.dit,
        "refiner's text": pipe.refiner.conditioner.text_encoder,
    }


def size(network: nn.Module) -> int:
    """Elements of the weights that this rank has."""
    return sum(
        (p.to_local() if isinstance(p, DTensor) else p).numel() for p in network.parameters()
    )


def work(rank: int, weights: Path, refiner: Path, clip: str, folder: Path) -> None:
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for shard in (False, True):
        place = (folder / f"store {shard}").as_uri()
        dist.init_process_group("gloo", init_method=place, rank=rank, world_size=NUM_RANKS)
        pipe = AvatarPipeline(
            *load_pipeline(weights), read_card(weights),
            device="cpu", precision="fp32", refiner=refiner, shard=shard,
            ranks=Ranks(rank, NUM_RANKS, torch.device("cpu"), {}),
        )  # fmt: skip
        if not shard:  # products on a CPU depend on where in memory weights begin: as shards do
            for network in networks(pipe).values():
                for parameter in network.parameters():
                    parameter.data = parameter.data.clone()
        found[f"sizes {shard}"] = {name: size(net) for name, net in networks(pipe).items()}
        if rank > 0:
            pipe.follow()
        else:
            made = pipe(reference=clip, audio=clip, **OPTIONS)
            found[f"frames {shard}"] = torch.stack(list(made))
            found[f"behind {shard}"] = {name: size(net) for name, net in networks(pipe).items()}
            pipe.close()
    torch.save(found, folder / f"found {rank}.pt")


def main(weights: Path, refiner: Path, clip: str, folder: Path) -> list[dict[str, Any]]:
    """What each rank found."""
    os.environ["OMP_NUM_THREADS"] = "1"
    spawn(work, (weights, refiner, clip, folder), NUM_RANKS)
    return [torch.load(folder / f"found {rank}.pt") for rank in range(NUM_RANKS)]
