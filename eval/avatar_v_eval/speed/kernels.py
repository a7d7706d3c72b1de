"""What the fused kernels give: each scope alone, a block, and a block with its gradients.

Ways of the same computation take turns: torch as it is (eager), torch.compile (inductor), ours, and
for a block ours as operators of a compiled graph and diffusers' block of the same shape. Where
Triton does not run, on a CPU, ours is eager torch. On a card a scope is a CUDA graph of some calls,
so that the card's time is measured and not the host's. Rows run in processes of their own, and one
that fails is told and leaves the others.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from diffusers.models.transformers.transformer_wan import WanTransformerBlock
from torch import Tensor, nn

from avatar_v.base.device import chosen_device
from avatar_v.kernels import scopes, switch
from avatar_v.models.blocks import Block
from avatar_v.models.config import DiTConfig
from avatar_v.models.layers import narrow, rotary_grid
from avatar_v.planning.gpus import gpu_called
from avatar_v.weights.presets import preset
from avatar_v_eval.intervals import median_of_repeats
from avatar_v_eval.processes import in_a_process
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.speed.device import TEXT_TOKENS, Size, awaited, captured, draw, wait
from avatar_v_eval.turns import Times, in_turns, ratio, turns_note

CALLS = 10
"""Of a scope, in one measurement of its time."""
WAYS = {
    "eager": "torch, eager",
    "inductor": "torch.compile",
    "ours_compiled": "ours in a compiled graph",
    "theirs": "diffusers",
}
ON_CARD = (("wan_1_3b", "wan_14b"), 60, 21)
ELSEWHERE = (("small",), 8, 13)
"""Presets, latent pixels of a side, and latents."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--rows", nargs="+", default=list(MEASURES), choices=list(MEASURES))
    add("--device", default="auto", help="cpu, cuda; auto: a GPU where there is one (%(default)s)")
    add("--presets", nargs="+", help="wan_1_3b and wan_14b on a GPU, else small")
    add("--grid", type=int, help="latent pixels of a side; 60 on a GPU, else 8")
    add("--latents", type=int, help="21 on a GPU, else 13")
    add("--repeats", type=int, default=5)
    add("--no-compile", action="store_true", help="without the compiled ways")
    add("--seconds", type=float, default=float("inf"), help="no row begins behind them")


def measure(options: argparse.Namespace) -> Findings:
    device, begin = str(chosen_device(options.device)), time.monotonic()
    presets, grid, latents = ON_CARD if device.startswith("cuda") else ELSEWHERE
    grid, latents = options.grid or grid, options.latents or latents
    numbers: dict[str, Number] = {}
    notes = [f"{latents} latents of {grid} x {grid}, {device}", turns_note(options.repeats)]
    ours = switch.lacking(torch.device(device))
    notes += [] if ours is None else [f"ours is eager torch here: Triton's kernels need {ours}"]
    for row in options.rows:
        for name in options.presets or presets:
            size = Size(name, grid, latents, device, options.repeats, not options.no_compile)
            if time.monotonic() - begin > options.seconds:
                notes.append(f"{row} of {name}: no time was left")
                continue
            print(f"{row} of {name} …", flush=True)
            try:
                numbers |= in_a_process(MEASURES[row], size)
            except Exception as error:  # of compilers and drivers
                notes.append(f"{row} of {name} failed: {str(error)[:300]}")
    if not numbers:
        raise ValueError("; ".join(notes[2:]))
    return Findings("Fused kernels", numbers, notes=notes)


def scope_numbers(size: Size) -> dict[str, Number]:
    """Forward, from the same tensors."""
    config, on_card = preset(size.preset).dit, size.device.startswith("cuda")
    shape = scopes.Size(
        size.latents, (size.grid // config.patch) ** 2, config.num_heads, config.head_dim,
        torch.bfloat16 if on_card else torch.float32, size.device,
    )  # fmt: skip
    card = gpu_called(torch.cuda.get_device_name()) if on_card else None
    numbers: dict[str, Number] = {}
    for name, (function, given) in scopes.scopes(shape).items():
        key, label = f"{size.preset}_{name}", f"{size.preset}: {name}"
        if has_ours(size):
            off = Number(scopes.difference((function, given)), 1)
            numbers[f"{key}_off"] = off.described(f"{label}: largest difference, {shape.dtype}")
        ways = {
            way: (captured if on_card else awaited)(partial(many, call, given), size)
            for way, call in ways_of(function, size).items()
        }
        times = in_turns(ways, size.repeats)
        moved = (*given, *scopes.tensors_of(function(*given)))
        gigabytes = CALLS * sum(x.numel() * x.element_size() for x in moved) / 1e9
        rates = median_of_repeats([gigabytes / s for s in times["ours"]])
        peak = "" if card is None else f", of {card.memory_gb_s:.0f} of {card.name}"
        numbers[f"{key}_rate"] = rates.described(f"{label}, ours{peak}", unit="GB/s")
        numbers |= ratios(key, label, times)
    return numbers


def many(call: Callable[..., object], given: tuple[Any, ...]) -> None:
    for _ in range(CALLS):
        call(*given)


def block_numbers(size: Size) -> dict[str, Number]:
    """Without gradients, weights in bf16 and the residual stream in fp32, as it is generated."""
    config = preset(size.preset).dit
    block, given, text = block_of(config, size)
    narrow(block, torch.bfloat16)
    ways = {way: partial(call, *given, text=text) for way, call in ways_of(block, size).items()}
    every = {**ways, "theirs": their_block(config, size)}
    times = in_turns({way: awaited(call, size) for way, call in every.items()}, size.repeats)
    return ratios(f"{size.preset}_block", f"{size.preset}: a block", times)


def trained_numbers(size: Size) -> dict[str, Number]:
    """Forward and backward of a block with weights in fp32."""
    block, given, text = block_of(preset(size.preset).dit, size)
    block.requires_grad_(True)

    def step(call: Callable[..., Any]) -> None:
        with torch.autocast(torch.device(size.device).type, torch.bfloat16):
            out = call(*given, text=text)[0]
        out.float().square().mean().backward()
        block.zero_grad(set_to_none=True)
        wait(size)

    ways = {name: partial(step, call) for name, call in ways_of(block, size).items()}
    times = in_turns(ways, size.repeats)
    return ratios(f"{size.preset}_trained", f"{size.preset}: a block with its gradients", times)


MEASURES: dict[str, Callable[[Size], dict[str, Number]]] = {
    "block": block_numbers,
    "scopes": scope_numbers,
    "trained": trained_numbers,
}
"""In order of worth."""


def block_of(config: DiTConfig, size: Size) -> tuple[Block, tuple[Any, ...], Tensor]:
    """A block that hears nothing, as diffusers' does, what it is given, and its text."""
    tokens = (size.grid // config.patch) ** 2
    with torch.device(size.device):
        block = Block(config, has_audio=False).requires_grad_(False)
    nn.init.normal_(block.modulation, std=config.dim**-0.5)
    side = size.grid // config.patch
    rotary = rotary_grid(size.latents, side, side, config.head_dim, torch.device(size.device))
    x, text = (
        draw(size, 1, size.latents, tokens, config.dim),
        draw(size, 1, TEXT_TOKENS, config.dim),
    )
    return block, (x, draw(size, 1, size.latents, 6, config.dim), rotary), text


def their_block(config: DiTConfig, size: Size) -> Callable[[], object]:
    """Diffusers' block of the same shape."""
    with torch.device(size.device):
        block = WanTransformerBlock(
            config.dim, config.ffn_dim, config.num_heads, cross_attn_norm=True, eps=config.eps
        ).to(torch.bfloat16)
    num_tokens = size.latents * (size.grid // config.patch) ** 2
    angle = draw(size, 1, num_tokens, 1, config.head_dim)
    x, text = draw(size, 1, num_tokens, config.dim), draw(size, 1, TEXT_TOKENS, config.dim)
    return partial(block, x, text, draw(size, 1, 6, config.dim), (angle.cos(), angle.sin()))


def ways_of(function: Callable[..., Any], size: Size) -> dict[str, Callable[..., Any]]:
    """Ours, and torch eager and compiled; of a module also ours inside a compiled graph."""

    def call(*given: Any, **named: Any) -> Any:
        return function(*given, **named)

    torch._dynamo.reset()  # what other functions left counts against this one
    ways = {"ours": ("triton" if has_ours(size) else "plain", call)}
    if has_ours(size):
        ways["eager"] = ("plain", call)
    if size.compiles:
        ways["inductor"] = ("plain", torch.compile(call))
    if size.compiles and has_ours(size) and isinstance(function, nn.Module):
        ways["ours_compiled"] = ("triton", torch.compile(call))
    return {way: partial(as_named, *named) for way, named in ways.items()}


def has_ours(size: Size) -> bool:
    return switch.lacking(torch.device(size.device)) is None


def as_named(way: str, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
    with switch.using(way):
        return call(*given, **named)


def ratios(key: str, label: str, times: Times) -> dict[str, Number]:
    """Of every way over ours, and of torch.compile over ours in a compiled graph."""
    numbers = {
        f"{key}_{way}": ratio(times, way, "ours").described(f"{label}: time of {words} / ours")
        for way, words in WAYS.items()
        if way in times
    }
    if "ours_compiled" in times:
        numbers[f"{key}_compiled"] = ratio(times, "inductor", "ours_compiled").described(
            f"{label}: time of torch.compile / {WAYS['ours_compiled']}", target="≥ 1.33"
        )
    return numbers
