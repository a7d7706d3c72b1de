"""Networks by regions in torch.compile: each block of a DiT is a graph, in training and generation.

Blocks are alike, so a graph serves all of them; what is around them stays as it is. A graph is made
at the first call of its kind, which takes seconds to a minute: a block is called for the video, its
motion and the reference, with and without sound, and sizes that change make one more of each kind.
`compiles` says for which videos that is worth it. Results differ from those of the same blocks
uncompiled by rounding, as sums are fused in another order. Weights that come and go
(parallel/offload.py, FSDP2) end a graph at every block.
"""

import copy
import importlib.util
import os
import shutil
import sys

import torch
from torch import nn

from avatar_v.models.dit import AvatarDiT

COMPILE = ("auto", "on", "off")
PAYS_FROM = 7500
"""Passes of the network in a video from which compiling pays on a CPU, in processor time: with the
weights that ship a pass gains 0.027 s (docs/results/speed.md), and all graphs of a video of four
chunks took 200 s. Of larger networks a pass gains more, and it pays sooner."""
MOST_GRAPHS = 32
"""Kinds of calls of a block that become graphs; torch leaves the ninth uncompiled."""


def compiles(how: str, num_passes: int | None) -> bool:
    """Whether the blocks are compiled for a video of so many passes of the network; None: of a live
    sound, whose length nobody knows and whose first pictures would wait for the compiler. ``how``
    is on, off or auto, which compiles from `PAYS_FROM` passes on. ValueError for another word."""
    if how not in COMPILE:
        raise ValueError(f"compile is {', '.join(COMPILE)}, got {how!r}")
    return how == "on" or (how == "auto" and num_passes is not None and num_passes >= PAYS_FROM)


def compiled(dit: AvatarDiT, backend: str = "inductor") -> AvatarDiT:
    """The network with the same weights and compiled blocks; ``dit`` itself stays as it is."""
    other, blocks = copy.copy(dit), [copy.copy(block) for block in dit.blocks]
    other._modules = {**dit._modules, "blocks": nn.ModuleList(blocks)}
    compile_blocks(other, backend)
    return other


def compile_blocks(dit: AvatarDiT, backend: str = "inductor") -> None:
    """Each block is compiled at its first call; all share what is compiled for one."""
    import torch._dynamo.config as config  # a second of imports

    config.recompile_limit = max(config.recompile_limit, MOST_GRAPHS)
    for block in dit.blocks:
        block.compile(backend=backend)


def check_compile(how: str, device: torch.device, *, is_moved: bool) -> None:
    """Unless ``how`` is off: ValueError for another word than `COMPILE`, for a machine that has no
    compiler for ``device``, and for weights that are moved while they are used."""
    if how == "off":
        return
    compiles(how, None)
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
