"""What a card makes of the DiT: training, blocks, the reference, and a change of networks.

- train: whole steps of the DiT at the size of the recipes, random latents and conditions: tokens a
  second, the share of the card's peak, and the peak of memory beside the planned one;
- block: one block, and one denoising step, against diffusers' (as they are, and compiled), against
  ours compiled and, on a card, against ours replayed as a CUDA graph, in turns;
- reference: a denoising step with a cached reference of 1 to 32 times the video, over one without;
- switch: from one network in main memory to another on the card;
- generation: a denoising step of a chunk with sound and motion: what all steps share computed in
  it or before, and its blocks compiled or not. On a CPU in processor time.

Each row runs in a process of its own. Nothing is read or downloaded: weights are random.
"""

import argparse
import copy
import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from avatar_v.base.device import chosen_device
from avatar_v.models.blocks import ContextKeys
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.layers import narrow
from avatar_v.parallel.apply import checkpoint_blocks
from avatar_v.parallel.compiling import compile_blocks, compiled_s
from avatar_v.planning.gpus import gpu_called
from avatar_v.planning.measure import as_on_gpus, cost_of, pretending, without_values
from avatar_v.training.optim import Optim, build_optimizer
from avatar_v.types import Cond, Reference
from avatar_v.weights.presets import preset
from avatar_v.weights.wan import config_to_wan, state_to_wan
from avatar_v_eval.intervals import median_of_repeats
from avatar_v_eval.processes import in_a_process
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.turns import in_turns, ratio, turns_note

TEXT_TOKENS = 64
RATIOS = (1, 2, 4, 8, 16, 32)
Stance = Literal["default", "force_eager"]
ROWS = ("train", "block", "reference", "switch", "generation")


@dataclasses.dataclass(frozen=True)
class Size:
    """Of the network, of pictures in latent pixels, of windows, and of the measurement."""

    preset: str
    grid: int
    latents: int
    device: str
    repeats: int
    compiles: bool


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--rows", nargs="+", default=list(ROWS), choices=ROWS)
    add("--device", default="auto", help="cpu, cuda; auto: a GPU where there is one (%(default)s)")
    add("--preset", default="wan_1_3b", choices=("tiny", "small", "wan_1_3b"))
    add("--grid", type=int, default=60, help="latent pixels of a side; 60: 480 px (%(default)s)")
    add("--latents", type=int, default=21, help="of a window (%(default)s)")
    add("--repeats", type=int, default=5)
    add("--no-compile", action="store_true", help="without the compiled ways")


def measure(options: argparse.Namespace) -> Findings:
    device = str(chosen_device(options.device))
    compiles = not options.no_compile
    size = Size(options.preset, options.grid, options.latents, device, options.repeats, compiles)
    numbers: dict[str, Number] = {}
    for row in options.rows:
        print(f"{row} …", flush=True)
        numbers |= in_a_process(MEASURES[row], size)
    return Findings(
        "The DiT on a card",
        numbers,
        notes=[
            f"{size.preset}, random weights, {size.latents} latents of {size.grid} x {size.grid}, "
            f"{TEXT_TOKENS} tokens of text, bf16 autocast, on {device}",
            turns_note(size.repeats),
        ],
    )


def train_numbers(size: Size) -> dict[str, Number]:
    """Optimiser steps of one window, activations checkpointed."""
    dit = network(size).requires_grad_(True)
    checkpoint_blocks(dit)
    optimizer = build_optimizer(dit, Optim(lr=1e-4, num_warmup_steps=0))
    x, t, text = inputs(size, dit)

    def step() -> None:
        with torch.autocast(x.device.type, torch.bfloat16):
            loss = dit(x, t, Cond(text=text)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait(size)

    with FlopCounterMode(display=False) as counter:
        step()
    if size.compiles:
        compile_blocks(dit)
    times = in_turns({"step": step}, size.repeats)["step"]
    tokens = x.shape[1] * (size.grid // dit.config.patch) ** 2
    numbers = {
        "train_tokens": median_of_repeats([tokens / s for s in times]).described(
            "training: video tokens", unit="tokens/s"
        ),
        "train_tflops": median_of_repeats(
            [counter.get_total_flops() / s / 1e12 for s in times]
        ).described("training: operations, recomputed ones among them", unit="TFLOP/s"),
        "train_gib_planned": Number(planned_gib(size), 1).described(
            "training: planned peak of memory", unit="GiB"
        ),
    }
    if size.device.startswith("cuda"):
        peak = torch.cuda.max_memory_allocated() / 2**30
        numbers["train_gib"] = Number(peak, 1).described("training: peak of memory", unit="GiB")
        card = gpu_called(torch.cuda.get_device_name())
        if card is not None:
            shares = [counter.get_total_flops() / s / 1e12 / card.bf16_tflops for s in times]
            numbers["train_share"] = median_of_repeats(shares).described(
                f"training: share of the peak of {card.name}", target="≥ 0.45"
            )
    return numbers


def planned_gib(size: Size) -> float:
    """Of `train_numbers` by the means of `avatar-v plan`: weights, gradients and both moments in
    fp32, and what is alive beside them."""
    with torch.device("meta"):
        dit = AvatarDiT(preset(size.preset).dit)
    checkpoint_blocks(dit)
    size = dataclasses.replace(size, device="cpu")
    with pretending(), as_on_gpus():
        without_values(dit, torch.float32)
        x, t, text = inputs(size, dit)

        def loss() -> Tensor:
            return dit(x, t, Cond(text=text)).float().square().mean()

        peak = cost_of(loss, bf16=True, trains=True).peak
    return (16 * sum(p.numel() for p in dit.parameters()) + peak) / 2**30


def block_numbers(size: Size) -> dict[str, Number]:
    """Ours against diffusers', on the same weights, without gradients."""
    dit = network(size)
    with torch.device(size.device):
        peer = WanTransformer3DModel(**config_to_wan(dit.config))
    peer.load_state_dict(state_to_wan(dit))
    x, t, text = inputs(size, dit)
    ours = {"ours": partial(dit, x, t, Cond(text=text))}
    theirs = partial(peer, x.transpose(1, 2), t[:, 0] * 1000, text, return_dict=False)
    ways: dict[str, Callable[[], object]] = {**ours, "theirs": theirs}
    if size.compiles:
        compiled, compiled_peer = copy.deepcopy(dit), copy.deepcopy(peer)
        compile_blocks(compiled)
        for block in compiled_peer.blocks:
            block.compile()
        ways["ours_compiled"] = partial(compiled, x, t, Cond(text=text))
        ways["theirs_compiled"] = partial(
            compiled_peer, x.transpose(1, 2), t[:, 0] * 1000, text, return_dict=False
        )
    awaited_ways = {name: awaited(way, size) for name, way in ways.items()}
    if size.device.startswith("cuda"):
        awaited_ways["ours_graph"] = captured(ways["ours"], size)
    times = in_turns(awaited_ways, size.repeats)
    words = {
        "theirs": "diffusers' time for one denoising step / ours",
        "theirs_compiled": "diffusers' time for one denoising step, compiled / ours",
        "ours_compiled": "time of our blocks compiled for one denoising step / ours",
        "ours_graph": "time of one denoising step replayed as a CUDA graph / ours",
    }
    numbers = {
        f"step_{way}": ratio(times, way, "ours").described(text)
        for way, text in words.items()
        if way in times
    }
    per_block = [s / dit.config.num_layers * 1e3 for s in times["ours"]]
    numbers["block_ms"] = median_of_repeats(per_block).described(
        "a block: time of a denoising step over its blocks", unit="ms"
    )
    return numbers


def reference_numbers(size: Size) -> dict[str, Number]:
    """The reference is encoded once; a step then reads its keys and values."""
    dit = network(size)
    x, t, text = inputs(size, dit)
    ways: dict[str, Callable[[], object]] = {
        "none": awaited(partial(dit, x, t, Cond(text=text)), size)
    }
    numbers: dict[str, Number] = {}
    for num in RATIOS:
        latents = draw(size, 1, num * size.latents, *x.shape[2:])
        valid = torch.ones(latents.shape[:2], dtype=torch.bool)
        segment = torch.zeros(latents.shape[:2], dtype=torch.long)
        reference = Reference(latents, valid, segment).to(size.device)
        begin = time.perf_counter()
        try:
            with torch.inference_mode(), torch.autocast(x.device.type, torch.bfloat16):
                cache = dit.encode_reference(reference)
                assert cache is not None, "it has frames"
                cache = cache.rotated()  # once, as generation does
            wait(size)
        except torch.OutOfMemoryError:
            print(f"reference of {num} windows: it does not fit", flush=True)
            break
        numbers[f"encode_s_{num}"] = Number(time.perf_counter() - begin, 1).described(
            f"a reference of {num} windows encoded, the first time", unit="s"
        )
        ways[str(num)] = awaited(partial(dit, x, t, Cond(text=text), past=cache), size)
    times = in_turns(ways, size.repeats)
    return numbers | {
        f"with_{num}": ratio(times, num, "none").described(
            f"a denoising step with a reference of {num} windows / without one"
        )
        for num in ways
        if num != "none"
    }


def switch_numbers(size: Size) -> dict[str, Number]:
    """One network leaves, another arrives from pinned memory."""
    dit = network(size).to(torch.bfloat16)
    host = {k: v.cpu() for k, v in dit.state_dict().items()}
    if size.device.startswith("cuda"):
        host = {k: v.pin_memory() for k, v in host.items()}
    state = dit.state_dict()

    def change() -> None:
        for key, value in host.items():
            state[key].copy_(value, non_blocking=True)
        wait(size)

    change()
    times = [1e3 * s for s in in_turns({"change": change}, size.repeats)["change"]]
    return {
        "switch_ms": median_of_repeats(times).described(
            "weights of another network of this size: from main memory onto the card", unit="ms"
        )
    }


def generation_numbers(size: Size) -> dict[str, Number]:
    """Compiled and uncompiled blocks are of one network, which fits where two do not."""
    dit = network(size)
    for parameter in dit.parameters():
        if not parameter.any():  # what a new network leaves out
            nn.init.normal_(parameter, std=0.02)
    narrow(dit, torch.bfloat16)  # as generation keeps them
    x, t, text = inputs(size, dit)
    config, lead = dit.config, (1, size.latents)
    sound = draw(size, *lead, config.num_audio_tokens, config.audio_dim)
    cond = Cond(text=text, audio=sound, motion=draw(size, *lead, config.motion_dim))
    shared: list[ContextKeys] = []
    found: dict[str, Tensor] = {}

    def step(name: str, contexts: list[ContextKeys] | None, stance: Stance) -> None:
        with torch.compiler.set_stance(stance):
            found[name] = dit(x, t, cond, contexts=contexts)

    ways = {
        "anew": partial(step, "anew", None, "force_eager"),
        "shared": partial(step, "shared", shared, "force_eager"),
    }
    if size.compiles:
        compile_blocks(dit)
        ways["compiled"] = partial(step, "compiled", shared, "default")
    clock = time.perf_counter if size.device.startswith("cuda") else time.process_time
    times = in_turns({k: awaited(v, size) for k, v in ways.items()}, size.repeats, clock=clock)
    pairs = [pair for layer in shared for pair in layer if pair is not None]
    num_bytes = sum(part.numel() * part.element_size() for pair in pairs for part in pair)
    words = "a denoising step with sound and motion"
    numbers = {
        "shared_s": median_of_repeats(times["shared"]).described(words, unit="s"),
        "shared": ratio(times, "anew", "shared").described(
            f"{words}: keys of text and sound computed in it / there from the first step"
        ),
        "shared_same": Number(float((found["anew"] - found["shared"]).abs().max()), 1).described(
            "largest difference of the two velocities"
        ),
        "shared_mib": Number(num_bytes / 2**20, 1).described(
            "keys and values of text and sound, of one pass", unit="MiB"
        ),
    }
    if not size.compiles:
        return numbers
    gain = median_of_repeats(
        [a - b for a, b in zip(times["shared"], times["compiled"], strict=True)]
    )
    off, whole = found["compiled"] - found["shared"], found["shared"].float().std()
    return numbers | {
        "compiled": ratio(times, "shared", "compiled").described(
            f"{words}: as it is / its blocks compiled"
        ),
        "compiled_off": Number(float(off.abs().max() / whole), 1).described(
            "largest difference of the two velocities, in their standard deviations"
        ),
        "warm_up_s": Number(compiled_s(), 1).described("compiling, by the clock", unit="s"),
        "pays_after": Number(compiled_s() / gain.value, 1).described(
            "denoising steps after which compiling has paid for itself"
        ),
    }


MEASURES: dict[str, Callable[[Size], dict[str, Number]]] = {
    "train": train_numbers,
    "block": block_numbers,
    "reference": reference_numbers,
    "switch": switch_numbers,
    "generation": generation_numbers,
}


def network(size: Size) -> AvatarDiT:
    with torch.device(size.device):
        return AvatarDiT(preset(size.preset).dit).eval().requires_grad_(False)


def inputs(size: Size, dit: AvatarDiT) -> tuple[Tensor, Tensor, Tensor]:
    """Noise, times and text of one window."""
    x = draw(size, 1, size.latents, dit.config.latent_channels, size.grid, size.grid)
    text = draw(size, 1, TEXT_TOKENS, dit.config.text_dim)
    return x, torch.full((1, size.latents), 0.5, device=size.device), text


def draw(size: Size, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(size.device)


def awaited(way: Callable[[], object], size: Size) -> Callable[[], None]:
    """The way without gradients in bf16, until the card has done it."""

    def call() -> None:
        kind = torch.device(size.device).type
        with torch.inference_mode(), torch.autocast(kind, torch.bfloat16):
            way()
        wait(size)

    return call


def captured(way: Callable[[], object], size: Size) -> Callable[[], None]:
    """As `awaited`, by one launch for all of its kernels."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        with torch.cuda.stream(stream):
            way()  # what is made at a first call is made outside
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            way()

    def call() -> None:
        graph.replay()
        wait(size)

    return call


def wait(size: Size) -> None:
    if size.device.startswith("cuda"):
        torch.cuda.synchronize()
