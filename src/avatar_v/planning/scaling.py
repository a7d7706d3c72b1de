"""The time of a denoising step on several GPUs: what they compute, read, write and send.

Operations and bytes are counted while the code of one rank runs on tensors without memory
(planning/measure.py), with the exchanges of sequence parallelism in it. Only their rates are
assumed. Left out are launches of kernels, waiting for a message to begin, ranks that are not
equally fast, and what a link takes of the multiprocessors and of the memory's bandwidth.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch.distributed as dist

from avatar_v.models.dit import AvatarDiT
from avatar_v.parallel.mesh import Layout
from avatar_v.parallel.sequence import sequence_mesh, spread
from avatar_v.planning.gpus import GPU, LINK_SHARE, MEMORY_SHARE
from avatar_v.planning.measure import Cost, Number

TERA, GIGA = 1e12, 1e9


@dataclass(frozen=True)
class StepTime:
    """Seconds that each limit takes by itself, on the GPU with the largest share of the tokens."""

    products: Number  # matrix products
    attention: Number
    memory: Number  # all that operators read and write, without fusion
    links: Number  # all that is sent to other GPUs

    @property
    def compute(self) -> Number:
        return self.products + self.attention

    @property
    def apart(self) -> Number:
        """Nothing overlaps: the slowest that these rates allow."""
        return self.compute + self.memory + self.links

    @property
    def overlapped(self) -> Number:
        """All overlap, and the longest hides the others: the fastest that these rates allow."""
        return max(self.compute, self.memory, self.links)

    @property
    def limit(self) -> str:
        """What takes the longest."""
        return max(("compute", "memory", "links"), key=lambda name: getattr(self, name))


def step_time(cost: Cost, gpu: GPU, mfu: float) -> StepTime:
    """Of a step that costs ``cost`` on one rank; ``mfu`` is the share of the bf16 peak that
    products and attention reach."""
    flops_s, memory_s = mfu * gpu.bf16_tflops * TERA, MEMORY_SHARE * gpu.memory_gb_s * GIGA
    return StepTime(
        products=(cost.flops - cost.attention) / flops_s,
        attention=cost.attention / flops_s,
        memory=cost.moved / memory_s,
        links=cost.sent / (LINK_SHARE * gpu.link_gb_s * GIGA),
    )


def exposed_links(cost: Cost, gpu: GPU, mfu: float) -> Number:
    """Seconds of the links that computing waits for: messages travel one after another, and each
    is waited for where its result is read. Products, attention and memory are computed apart."""
    flops_s, memory_s = mfu * gpu.bf16_tflops * TERA, MEMORY_SHARE * gpu.memory_gb_s * GIGA
    waited, free, there = 0.0, 0.0, dict[int, float]()
    for event in cost.events:
        now = event.flops / flops_s + event.moved / memory_s + waited
        if event.size:
            free = max(free, now) + event.size / (LINK_SHARE * gpu.link_gb_s * GIGA)
            there[event.message] = free
        else:
            waited += max(there.pop(event.message) - now, 0.0)
    return waited


def pcie_time(size: Number, gpu: GPU) -> Number:
    """Seconds in which so many bytes come from main memory."""
    return size / (LINK_SHARE * gpu.pcie_gb_s * GIGA)


def gather_time(size: Number, num_gpus: int, gpu: GPU) -> Number:
    """Seconds in which a GPU receives what it lacks of so many bytes in shards."""
    return size * (num_gpus - 1) / num_gpus / (LINK_SHARE * gpu.link_gb_s * GIGA)


def group_sizes(num_gpus: int) -> list[int]:
    """The powers of two below ``num_gpus``, and it."""
    powers = (2**i for i in range(num_gpus.bit_length()))
    return [*(size for size in powers if size < num_gpus), num_gpus]


@contextlib.contextmanager
def spread_over(num_ranks: int, *networks: AvatarDiT) -> Iterator[None]:
    """Within the block ``networks`` compute as rank 0 of so many, which has the most tokens.
    Nothing is sent: torch's fake process group takes the messages."""
    if num_ranks == 1:
        yield
        return
    dist.init_process_group("fake", rank=0, world_size=num_ranks)
    try:
        for dit in networks:
            layout = Layout(num_ranks, 0, num_ranks)
            spread(dit, sequence_mesh(layout, dit.config.num_heads, "cpu"))
        yield
    finally:
        for dit in networks:
            dit.spread = None
        dist.destroy_process_group()


def rates(gpu: GPU, mfu: float) -> str:
    """The assumed rates in words."""
    link = "NVLink" if gpu.nvlink_gb_s else "PCIe"
    return (
        f"{mfu:.0%} of {gpu.bf16_tflops:.0f} TFLOP/s, {MEMORY_SHARE:.0%} of "
        f"{gpu.memory_gb_s / 1000:.2f} TB/s of memory, {LINK_SHARE:.0%} of "
        f"{gpu.link_gb_s:.0f} GB/s of {link}"
    )


def scaling_table(times: Mapping[int, StepTime]) -> list[str]:
    """One line for each number of GPUs, in seconds."""
    names = ("products", "attention", "memory", "links", "apart", "overlapped")
    lines = ["GPUs" + "".join(f"{name:>12}" for name in names) + "  limit"]
    for num, time in times.items():
        values = "".join(f"{getattr(time, name):12.3g}" for name in names)
        lines.append(f"{num:>4}{values}  {time.limit}")
    return lines
