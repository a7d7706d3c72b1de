"""GPUs by name: memory, dense bf16 peak and bandwidths that their makers publish, and the shares of
the bandwidths that a plan assumes to be reached.

Sources: NVIDIA's data sheets of the H100 (SXM), H200 (SXM), DGX B200 (an eighth of the system),
A100 (SXM, 80 and 40 GB) and L40S, and the Ada white paper for the RTX 4090. Peaks are without
sparsity, which those tables often count. Links are one way: half of what is published.
"""

from dataclasses import dataclass

RESERVE_GIB = 3.0
"""Of each GPU's memory for CUDA, NCCL and gaps of the allocator: assumed, not measured."""
MEMORY_SHARE = 0.8
"""Of the memory's bandwidth that is reached: assumed."""
LINK_SHARE = 0.8
"""Of a link's bandwidth that is reached: assumed. NCCL's maintainers name 370 of 450 GB/s for the
NVLink of an H100 (github.com/NVIDIA/nccl-tests/issues/212)."""


@dataclass(frozen=True)
class GPU:
    """One kind of GPU. Bandwidths are in GB/s; that of ``nvlink`` is to all others of its node
    together, 0 where there is none."""

    name: str
    memory_gib: float
    bf16_tflops: float
    memory_gb_s: float
    pcie_gb_s: float
    nvlink_gb_s: float = 0.0

    @property
    def link_gb_s(self) -> float:
        """Of what joins the GPUs of a node."""
        return self.nvlink_gb_s or self.pcie_gb_s


GPUS = {
    "h100": GPU("H100", 80.0, 989.0, 3350.0, 64.0, 450.0),
    "h200": GPU("H200", 141.0, 989.0, 4800.0, 64.0, 450.0),
    "b200": GPU("B200", 180.0, 2250.0, 8000.0, 64.0, 900.0),
    "a100": GPU("A100", 80.0, 312.0, 2039.0, 32.0, 300.0),
    "a100_40": GPU("A100 40", 40.0, 312.0, 1555.0, 32.0, 300.0),
    "l40s": GPU("L40S", 48.0, 362.0, 864.0, 32.0),
    "rtx4090": GPU("RTX 4090", 24.0, 165.0, 1008.0, 32.0),
}


def gpu_of(name: str) -> GPU:
    """The GPU called ``name``; ValueError lists those there are."""
    if name not in GPUS:
        raise ValueError(f"no GPU {name!r}; there are {', '.join(GPUS)}")
    return GPUS[name]


def gpu_called(name: str) -> GPU | None:
    """The GPU that a driver calls so, such as "NVIDIA H100 80GB HBM3"; None for any other, also of
    cards for PCIe, which are slower under the same name."""
    words = name.upper()
    if "PCIE" in words or "NVL" in words:
        return None
    found = [gpu for gpu in GPUS.values() if all(x in words for x in gpu.name.upper().split())]
    return max(found, key=lambda gpu: len(gpu.name), default=None)
