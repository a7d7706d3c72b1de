"""One block of the DiT and one step of it, against diffusers' Wan, eager and compiled, in turns;
and the backends of attention.

Both networks hold the same random weights, in bf16 under autocast, without sound and reference,
which Wan does not have. A block is told by networks of one block and of three: half of what three
take more. Attention is that of one video at full size, in each backend that torch has here.
"""

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from avatar_v.base.device import chosen_device
from avatar_v.models.dit import AvatarDiT
from avatar_v.parallel.apply import checkpoint_blocks
from avatar_v.types import Cond, num_frames
from avatar_v.weights.presets import preset
from avatar_v.weights.random import randomise
from avatar_v.weights.wan import config_to_wan, state_to_wan
from avatar_v_eval.intervals import median_of_repeats
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.speed.full_size import ON_GPU
from avatar_v_eval.turns import Times, in_turns, turns_note

WAYS = ("ours", "ours_compiled", "theirs", "theirs_compiled")
LABELS = {
    "ours_compiled": "ours compiled",
    "theirs": "diffusers eager",
    "theirs_compiled": "diffusers compiled",
}
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
TEXT_TOKENS = 512
DEPTHS = (1, 3)


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--device", default="cuda", help="cuda, or cpu for a trial (%(default)s)")
    add("--preset", default="wan_1_3b", choices=("tiny", "small", "wan_1_3b"))
    add("--side", type=int, default=ON_GPU[0], help="pixels (%(default)s)")
    add("--latents", type=int, default=ON_GPU[1], help="of the video (%(default)s)")
    add(
        "--compiled",
        default="all",
        choices=("all", "blocks", "none"),
        help="which networks are compiled, too: a whole step takes minutes to (%(default)s)",
    )
    add("--repeats", type=int, default=5)


def measure(options: argparse.Namespace) -> Findings:
    device = chosen_device(options.device)
    depth = preset(options.preset).dit.num_layers
    numbers: dict[str, Number] = {}
    for trains in (False, True):
        word = "forward and backward" if trains else "forward"
        found = {}
        for layers in sorted({*DEPTHS, depth}):
            print(f"{word}, {layers} blocks …", flush=True)
            is_compiled = options.compiled == "all" or (
                options.compiled == "blocks" and layers in DEPTHS
            )
            ways = [way for way in WAYS if is_compiled or not way.endswith("compiled")]
            found[layers] = pass_times(options, device, ways, layers, trains=trains)
        key, few = "train" if trains else "forward", {n: found[n] for n in DEPTHS}
        numbers |= way_numbers(f"block_{key}", f"one block, {word}", block_times(few))
        numbers |= way_numbers(f"step_{key}", f"one step, {word}", found[depth])
    numbers |= attention_numbers(options, device)
    return Findings(
        "The DiT against diffusers' Wan",
        numbers,
        notes=[
            f"{options.preset}, random weights under bf16 autocast, on {device.type}: "
            f"{options.latents} latents ({num_frames(options.latents)} frames) at {options.side} "
            f"px, text of {TEXT_TOKENS} tokens, activation checkpointing where gradients "
            f"are taken; {turns_note(options.repeats)}",
            f"a block: half of what a network of {DEPTHS[1]} takes longer than one of {DEPTHS[0]}",
        ],
    )


def pass_times(
    options: argparse.Namespace,
    device: torch.device,
    ways: list[str],
    layers: int,
    *,
    trains: bool,
) -> Times:
    """Seconds of a pass of each way, in turns."""
    calls = prepared(
        options.preset, options.side, options.latents, layers, device, checkpoints=trains
    )
    timed = {way: partial(_pass, *calls[way], device, trains) for way in ways}
    return in_turns(timed, options.repeats)


def prepared(
    name: str,
    side: int,
    latents: int,
    layers: int,
    device: torch.device,
    *,
    checkpoints: bool = False,
) -> dict[str, tuple[Callable[[], Tensor], nn.Module]]:
    """A pass of each way, and its network. The compiled ones compile when they are called."""
    config = dataclasses.replace(preset(name).dit, num_layers=layers)
    with device:
        dit, peer = AvatarDiT(config), WanTransformer3DModel(**config_to_wan(config))
    randomise(dit)
    peer.load_state_dict(state_to_wan(dit))
    if checkpoints:
        checkpoint_blocks(dit)
        peer.train().enable_gradient_checkpointing()
    cells = side // 8
    draw = torch.Generator().manual_seed(1)
    shape = (1, latents, config.latent_channels, cells, cells)
    x = torch.randn(shape, generator=draw).to(device)
    text = torch.randn(1, TEXT_TOKENS, config.text_dim, generator=draw).to(device)
    t = torch.full((1, latents), 0.5, device=device)
    theirs = x.transpose(1, 2)

    def ours_by(network: Callable[..., Tensor]) -> Tensor:
        return network(x, t, Cond(text=text))

    def theirs_by(network: Callable[..., tuple[Tensor, ...]]) -> Tensor:
        return network(theirs, t[:, 0] * 1000, text, return_dict=False)[0]

    return {
        "ours": (partial(ours_by, dit), dit),
        "ours_compiled": (partial(ours_by, torch.compile(dit)), dit),
        "theirs": (partial(theirs_by, peer), peer),
        "theirs_compiled": (partial(theirs_by, torch.compile(peer)), peer),
    }


def block_times(found: Mapping[int, Times]) -> Times:
    """Seconds of one block in each turn."""
    few, more = (found[depth] for depth in DEPTHS)
    between = DEPTHS[1] - DEPTHS[0]
    return {
        way: [(b - a) / between for a, b in zip(few[way], more[way], strict=True)] for way in few
    }


def way_numbers(key: str, label: str, times: Times) -> dict[str, Number]:
    """Milliseconds of ours, and the others' time over it within each turn."""
    numbers = {
        f"{key}_ms": median_of_repeats([1000 * s for s in times["ours"]]).described(
            f"{label}: ours", unit="ms"
        )
    }
    for way in times:
        if way != "ours":
            pairs = zip(times[way], times["ours"], strict=True)
            numbers[f"{key}_{way}"] = median_of_repeats([a / b for a, b in pairs]).described(
                f"{label}: {LABELS[way]} / ours eager"
            )
    return numbers


def attention_numbers(options: argparse.Namespace, device: torch.device) -> dict[str, Number]:
    """Milliseconds of self-attention of the whole video in each backend that takes it here."""
    config, rows = preset(options.preset).dit, {}
    tokens = options.latents * (options.side // (8 * config.patch)) ** 2
    draw = torch.Generator().manual_seed(0)
    shape = (3, 1, config.num_heads, tokens, config.head_dim)
    query, key, value = torch.randn(shape, generator=draw).to(device, torch.bfloat16)

    def attend(backend: SDPBackend) -> None:
        with torch.inference_mode(), sdpa_kernel(backend):
            F.scaled_dot_product_attention(query, key, value)
        _wait(device)

    for name, backend in BACKENDS.items():
        try:
            attend(backend)
        except RuntimeError as error:  # out of memory, or no such kernel on this device
            print(f"attention, {name}: left out ({str(error).splitlines()[0]})", flush=True)
            continue
        took = in_turns({name: partial(attend, backend)}, options.repeats)[name]
        rows[f"attention_{name}_ms"] = median_of_repeats([1000 * s for s in took]).described(
            f"attention of {tokens:,} tokens, forward: {name}", unit="ms"
        )
    return rows


def _pass(
    call: Callable[[], Tensor], network: nn.Module, device: torch.device, trains: bool
) -> None:
    with torch.set_grad_enabled(trains), torch.autocast(device.type, torch.bfloat16):
        v = call()
    if trains:
        v.float().square().mean().backward()
        network.zero_grad(set_to_none=True)
    _wait(device)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
