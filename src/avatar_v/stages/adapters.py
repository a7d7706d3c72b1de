"""LoRA factors of several roles on one frozen base (LongLive's distillation, arXiv 2509.22622).

Student and fake score are two sets of factors, and the base without any is the real score: the
memory of one model. LoRA is peft's.
"""

import contextlib
import warnings
from collections.abc import Iterator

from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer

from avatar_v.models.dit import AvatarDiT
from avatar_v.stages.trainable import FACTORS, LORA_TARGETS, Trainable


def add_adapters(dit: AvatarDiT, names: tuple[str, ...], numbers: Trainable) -> None:
    """Freeze ``dit`` and give it a set of factors for each of ``names``, in place. The first is
    active."""
    dit.requires_grad_(False)
    for name in names:
        config = LoraConfig(
            r=numbers.lora_rank,
            lora_alpha=numbers.lora_alpha,  # pyright: ignore[reportArgumentType]
            target_modules=LORA_TARGETS,
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Already found a `peft_config`")
            inject_adapter_in_model(config, dit, adapter_name=name)
    for name, parameter in dit.named_parameters():
        parameter.requires_grad_(FACTORS in name)
    _activate(dit, names[0])


@contextlib.contextmanager
def adapter(dit: AvatarDiT, name: str | None, resting: str) -> Iterator[AvatarDiT]:
    """Within the block the factors of ``name`` alone count, with None the base alone; behind it
    those of ``resting``. Which parameters require a gradient does not change."""
    _activate(dit, name)
    try:
        yield dit
    finally:
        _activate(dit, resting)


def _activate(dit: AvatarDiT, name: str | None) -> None:
    factors = [(p, p.requires_grad) for n, p in dit.named_parameters() if FACTORS in n]
    for layer in dit.modules():
        if isinstance(layer, LoraLayer):
            layer.enable_adapters(name is not None)
            if name is not None:
                layer.set_adapter(name)
    for parameter, required in factors:  # peft lets the active factors alone be trained
        parameter.requires_grad_(required)
