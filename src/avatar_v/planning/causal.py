"""A plan of causal weights: the blocks of a video, and devices that share out their steps.

Each device makes some steps of every block behind the history that these steps left
(sampling/blocks.py, parallel/timestep.py). The first one decodes and refines beside them. Left out:
handing a block on, a shorter history at the start of a video, and that the first device decodes a
chunk at a time.
"""

from dataclasses import dataclass, replace

from avatar_v.base.words import counted
from avatar_v.models.config import DiTConfig
from avatar_v.parallel.timestep import steps_of_ranks
from avatar_v.planning.gpus import GPU
from avatar_v.planning.measure import Cost, Number
from avatar_v.planning.passes import Pass
from avatar_v.planning.scaling import TERA, group_sizes, rates, scaling_table, step_time
from avatar_v.request.request import Request
from avatar_v.request.resolve import resolved, streaming_of
from avatar_v.sampling.blocks import split_blocks
from avatar_v.sampling.chunks import OVERLAP, plan
from avatar_v.weights.card import Card


@dataclass(frozen=True)
class Blocks:
    """The blocks of a video, and how often a device runs the network for each."""

    latents: int  # of a block
    history: int  # latent frames in front of it that it sees, at most
    num: int  # in the video
    num_steps: int
    is_clean: bool  # one more pass, at t = 0, leaves the keys that later blocks see

    def shares(self, devices: int) -> list[int]:
        """Passes of each device, the first one in front. ValueError as `steps_of_ranks`."""
        return [len(own) + self.is_clean for own in steps_of_ranks(self.num_steps, devices)]

    def histories(self, devices: int) -> int:
        """Of the device that keeps the most: one for each of its steps, but one that is clean."""
        return 1 if self.is_clean else max(self.shares(devices))

    def most(self, devices: int, one: Number, shared: Number, first: Number) -> Number:
        """Of the device that has the most to do for a block: ``one`` for each pass, ``shared``
        where it has any, and ``first`` on the first device."""
        return max(
            num * one + (shared if num else 0) + (0 if rank else first)
            for rank, num in enumerate(self.shares(devices))
        )


def blocks_of(
    config: DiTConfig, card: Card, made: Pass, frames: int, num_steps: int | None, devices: int
) -> Blocks:
    """Of a video of so many ``frames`` in chunks as ``made``. ValueError for what generation
    refuses: more devices than steps + 1, more than one with a clean history."""
    assert config.causal_block is not None, "the network is causal"
    asked = Request.of(reference="", audio="", num_steps=num_steps)
    asked = resolved(asked, card, has_clips=made.reference > 0, num_ranks=devices)
    assert asked.sampling.num_steps is not None, "it is resolved"
    whole = plan(frames, chunk_latents=max(made.latents, OVERLAP + 1))
    num = sum(len(split_blocks(chunk, config.causal_block)) for chunk in whole.chunks)
    before = max(whole.num_latents - config.causal_block, 0)
    if config.causal_window is not None:
        before = min(before, config.causal_window * config.causal_block)
    is_clean = streaming_of(asked, card).history == "clean"
    return Blocks(config.causal_block, before, num, asked.sampling.num_steps, is_clean)


def block_pass(made: Pass, blocks: Blocks) -> Pass:
    """A step of a block behind a whole history; ``made`` is that of a chunk."""
    return replace(made, latents=blocks.latents, history=blocks.history)


def described(blocks: Blocks, devices: int) -> str:
    """What the devices do, in words."""
    shares = ", ".join(map(str, blocks.shares(devices)))
    on = "on one device" if devices == 1 else f"on {devices} devices, which make their own steps"
    return (
        f"{counted(blocks.num, 'block')} of {blocks.latents} latents behind {blocks.history} at "
        f"most; passes for each {on}: {shares}"
    )


def times(
    cost: Cost, shared: Number, first: Number, blocks: Blocks, devices: int, gpu: GPU, mfu: float
) -> list[str]:
    """How long a step of a block takes, and how often a block comes by the slowest device.
    ``shared`` and ``first`` are operations, as `Blocks.most` takes them."""
    time, flops_s = step_time(cost, gpu, mfu), mfu * gpu.bf16_tflops * TERA
    lines = [f"a step of a block, in seconds, at {rates(gpu, mfu)}:", *scaling_table({1: time})]
    found = []
    for num in group_sizes(devices):
        low, high = (
            blocks.most(num, step_s, shared / flops_s, first / flops_s)
            for step_s in (time.overlapped, time.apart)
        )
        found.append(f"{low:.3g} to {high:.3g} s on {num}")
    return [*lines, f"the slowest device's time for a block: {', '.join(found)}"]
