"""GPUs by name: their memory, and the dense bf16 peak that their makers publish."""

from dataclasses import dataclass

RESERVE_GIB = 3.0
"""Of each GPU's memory for CUDA, NCCL and gaps of the allocator: assumed, not measured."""


@dataclass(frozen=True)
class GPU:
    """One kind of GPU. Without sparsity, which makers' tables often count."""

    name: str
    memory_gib: float
    bf16_tflops: float


GPUS = {
    "h100": GPU("H100", 80.0, 989.0),
    "h200": GPU("H200", 141.0, 989.0),
    "b200": GPU("B200", 180.0, 2250.0),
    "a100": GPU("A100", 80.0, 312.0),
    "a100_40": GPU("A100 40", 40.0, 312.0),
    "l40s": GPU("L40S", 48.0, 362.0),
    "rtx4090": GPU("RTX 4090", 24.0, 165.0),
}


def gpu_of(name: str) -> GPU:
    """The GPU called ``name``; ValueError lists those there are."""
    if name not in GPUS:
        raise ValueError(f"no GPU {name!r}; there are {', '.join(GPUS)}")
    return GPUS[name]
