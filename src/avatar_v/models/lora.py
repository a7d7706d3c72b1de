"""LoRA (Hu et al. 2021) on a network: its factors, and the network with what they have learned.

Layers and factors are peft's, and here is the one place that makes them. One network may hold
several sets of factors, of which one is active. Adapters on a disk are weights/adapter_files.py's.
"""

import contextlib
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.base.device import without_memory
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.motion_net import MotionNet

FACTORS = "lora_"
"""In the name of every parameter that LoRA adds."""
ONLY = "default"
"""peft's name of the factors of a network that has one set of them."""
_TARGETS = re.compile(r"blocks\.\d+\.(\w+_attention\.(query|key|value|out)|ffn\.(up|down))")
Factors = Mapping[str, tuple[Tensor, Tensor]]
"""A and B of each module."""
_Network = TypeVar("_Network", AvatarDiT, MotionNet)


def add_factors(
    network: AvatarDiT | MotionNet,
    names: tuple[str, ...] = (ONLY,),
    *,
    rank: int,
    alpha: float,
    whole: tuple[str, ...] = (),
    seed: int = 0,
) -> None:
    """Freeze ``network`` and give the matrices of its blocks a set of factors for each of
    ``names``, in place; the first is active. They begin alike on all ranks, with a product of 0
    that counts ``alpha / rank``. Matrices with one of ``whole`` in their names get none."""
    from peft import LoraConfig, inject_adapter_in_model  # a second of imports

    network.requires_grad_(False)
    targets = [
        name
        for name, _ in network.named_modules()
        if _TARGETS.fullmatch(name) and not any(part in name for part in whole)
    ]
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        torch.manual_seed(seed)
        warnings.filterwarnings("ignore", message="Already found a `peft_config`")
        for name in names:
            config = LoraConfig(
                r=rank,
                lora_alpha=alpha,  # pyright: ignore[reportArgumentType]
                target_modules=list(targets),
            )
            inject_adapter_in_model(config, network, adapter_name=name)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(FACTORS in name)
    activate(network, names[0])


@torch.no_grad()
def load_factors(network: nn.Module, name: str, factors: Factors, *, where: object) -> None:
    """Give the factors called ``name`` the values A and B of each module, of the same rank.
    ValueError, which begins with ``where``, for those of other modules."""
    layers = dict(lora_layers(network))
    if layers.keys() != factors.keys():
        raise ValueError(
            f"{where} has not factors of the matrices of all blocks, and of these alone"
        )
    for module, (a, b) in factors.items():
        network.get_parameter(f"{module}.lora_A.{name}.weight").copy_(a)
        network.get_parameter(f"{module}.lora_B.{name}.weight").copy_(b)


def activate(network: nn.Module, name: str | None) -> None:
    """Switch on the factors called ``name`` and all others off; None switches all off. Which
    parameters require a gradient does not change."""
    factors = [(p, p.requires_grad) for n, p in network.named_parameters() if FACTORS in n]
    for _, layer in lora_layers(network):
        layer.enable_adapters(name is not None)
        if name is not None:
            layer.set_adapter(name)
    for parameter, required in factors:  # peft lets the active factors alone be trained
        parameter.requires_grad_(required)


@contextlib.contextmanager
def active(network: nn.Module, name: str | None, resting: str) -> Iterator[None]:
    """Within the block the factors of ``name`` alone count, with None those of no name; behind it
    those of ``resting``."""
    activate(network, name)
    try:
        yield
    finally:
        activate(network, resting)


def lora_layers(network: nn.Module) -> Iterator[tuple[str, Any]]:
    """Every layer with factors (peft's LoraLayer), with its name."""
    if any(FACTORS in name for name, _ in network.named_parameters()):
        from peft.tuners.lora import LoraLayer

        yield from ((n, x) for n, x in network.named_modules() if isinstance(x, LoraLayer))


def active_factors(network: nn.Module) -> str | None:
    """The name of the factors that count; None where there are none, or all are switched off."""
    found = next(lora_layers(network), None)
    return None if found is None or found[1].disable_adapters else found[1].active_adapters[0]


def product(a: Float[Tensor, "r i"], b: Float[Tensor, "o r"], scale: float) -> Float[Tensor, "o i"]:
    """The product that factors add to their matrix, in fp32."""
    return scale * (b.float() @ a.float())


@torch.no_grad()
def merged(network: _Network) -> _Network:
    """``network`` itself, or where it has factors a plain one whose matrices hold what the active
    ones learned; it shares all other tensors. Of sharded weights only within
    parallel/apply.whole_state."""
    if next(lora_layers(network), None) is None:
        return network
    # FSDP2 puts a class of its own over every class that it shards
    kind = AvatarDiT if isinstance(network, AvatarDiT) else MotionNet
    with without_memory():
        plain = kind(network.config)  # pyright: ignore[reportArgumentType]
    plain.load_state_dict(_plain_state(network, network.state_dict()), assign=True)
    if isinstance(network, AvatarDiT) and isinstance(plain, AvatarDiT):
        plain.motion_stats = network.motion_stats
    return plain.train(network.training)  # pyright: ignore[reportReturnType]


def _plain_state(network: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``state`` of ``network`` under the names of one without factors."""
    plain = {key.replace(".base_layer.", "."): x for key, x in state.items() if FACTORS not in key}
    adapter = active_factors(network)
    for name, layer in lora_layers(network) if adapter is not None else ():
        a, b = (state[f"{name}.{part}.{adapter}.weight"] for part in ("lora_A", "lora_B"))
        base = plain[f"{name}.weight"]
        plain[f"{name}.weight"] = (base + product(a, b, layer.scaling[adapter])).to(base.dtype)
    return plain
