"""Which parts of a DiT a stage trains: all of it, LoRA factors, or what the stage before lacked.

LoRA (Hu et al. 2021) is peft's. Its factors are merged into the matrices when weights are written,
so a pipeline folder is the same whichever way it was trained.
"""

import copy
from dataclasses import dataclass
from typing import Literal

from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import nn

from avatar_v import checks
from avatar_v.models.dit import AvatarDiT

NEW = (
    "motion_embed", "motion_norm", "motion_inject", "style_embed", "face_embed",
    "anchor_embed",
)  # fmt: skip
"""The motion stream, habits and the marks of faces and anchor, which stage 2 does not train."""
LORA_TARGETS = r".*blocks\.\d+\.(\w+_attention\.(query|key|value|out)|ffn\.(up|down))"
FACTORS = "lora_"
"""In the name of every parameter that LoRA adds."""


@dataclass(frozen=True)
class Trainable:
    """``parts``: "all"; "lora", factors on the matrices of every block beside the motion stream;
    "new", the motion stream alone. Encoders train along with "all" only."""

    parts: Literal["all", "lora", "new"] = "all"
    lora_rank: int = 16
    lora_alpha: float = 32.0  # the factors' product counts alpha / rank

    def __post_init__(self) -> None:
        checks.count("lora_rank", self.lora_rank)
        checks.positive("lora_alpha", self.lora_alpha)


def select(dit: AvatarDiT, conditioner: nn.Module, trainable: Trainable) -> None:
    """Freeze everything else, and add LoRA's factors, in place."""
    if trainable.parts == "all":
        return
    conditioner.requires_grad_(False)
    dit.requires_grad_(False)
    if trainable.parts == "lora":
        config = LoraConfig(
            r=trainable.lora_rank,
            lora_alpha=trainable.lora_alpha,  # pyright: ignore[reportArgumentType]
            target_modules=LORA_TARGETS,
        )
        inject_adapter_in_model(config, dit)
    for name, parameter in dit.named_parameters():
        if any(part in name for part in NEW):
            parameter.requires_grad_(True)


def merged(dit: AvatarDiT) -> AvatarDiT:
    """``dit`` itself, or a copy whose matrices hold what LoRA learned."""
    if not any(isinstance(module, LoraLayer) for module in dit.modules()):
        return dit
    dit = copy.deepcopy(dit)
    for name, module in list(dit.named_modules()):
        if isinstance(module, LoraLayer):
            module.merge(safe_merge=True)  # pyright: ignore[reportCallIssue]
            parent, _, child = name.rpartition(".")
            setattr(dit.get_submodule(parent), child, module.get_base_layer())
    return dit
