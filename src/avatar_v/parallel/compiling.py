"""Networks by regions in torch.compile: each block of a DiT is a graph, in training and generation.

Blocks are alike, so a graph serves all of them; what is around them stays as it is. A graph is made
at the first call of its kind, which takes seconds to a minute: a block is called for the video, its
motion and the reference, with and without sound, and sizes that change make one more of each kind.
Results differ from those of the same blocks uncompiled by rounding, as sums are fused in another
order. Weights that come and go (parallel/offload.py, FSDP2) end a graph at every block.
"""

import importlib.util
import os
import shutil
import sys

import torch

from avatar_v.models.dit import AvatarDiT

MOST_GRAPHS = 32
"""Kinds of calls of a block that become graphs; torch leaves the ninth uncompiled."""


def compile_blocks(dit: AvatarDiT, backend: str = "inductor") -> None:
    """Each block is compiled at its first call; all share what is compiled for one."""
    import torch._dynamo.config as config  # a second of imports

    config.recompile_limit = max(config.recompile_limit, MOST_GRAPHS)
    for block in dit.blocks:
        block.compile(backend=backend)


def check_compile(device: torch.device, *, is_moved: bool) -> None:
    """ValueError for a machine that has no compiler for ``device``, and for weights that are moved
    while they are used."""
    if is_moved:
        raise ValueError(
            "--compile: blocks are compiled with weights that stay, so it goes neither with "
            "--offload nor with --shard"
        )
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        raise ValueError("--compile needs triton on a GPU, which torch's builds for CUDA bring")
    name = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(name) is None:
        raise ValueError(f"--compile needs a C++ compiler, and there is no {name} (or set CXX)")


def compiled_s() -> float:
    """Seconds that compiling has taken in this process."""
    from torch._dynamo.utils import calculate_time_spent

    return calculate_time_spent()["total_wall_time"]
