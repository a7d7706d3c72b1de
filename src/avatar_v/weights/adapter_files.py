"""Adapters on disk: what LoRA learned, apart from the weights that it was learned on.

A folder in peft's layout (adapter_config.json, adapter_model.safetensors) with three files of our
own beside it: adapter.json (weights/card.AdapterCard), config.json of the network with the adapter,
and motion statistics where it knows motion. Layers that a stage adds are trained in full
and stored as peft's ``modules_to_save``. `PeftModel.from_pretrained` reads the folder. Only
safetensors and JSON are read here. Their merging is adapter.py's.
"""

import copy
import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from safetensors.torch import save_file
from torch import Tensor

from avatar_v.base.outside import read_json
from avatar_v.base.paths import whole_folder
from avatar_v.base.states import check_numbers, read_tensors
from avatar_v.base.stored import Size, Within, converted, shown
from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.lora import FACTORS, active_factors
from avatar_v.models.motion_net import MotionNet, MotionNetConfig
from avatar_v.motion.stats import MotionStats, read_stats, stats_path, write_stats
from avatar_v.weights.card import ADAPTER_CARD, ADAPTER_CONFIG, AdapterCard, read_adapter_card
from avatar_v.weights.weights import write_json

if TYPE_CHECKING:  # a second of imports
    import peft

STATE = "adapter_model.safetensors"
PREFIX = "base_model.model."
"""Before every key of peft's layout."""
PLAIN: dict[str, Any] = {
    "peft_type": "LORA", "bias": "none", "use_dora": False, "use_rslora": False,
    "lora_bias": False, "fan_in_fan_out": False, "rank_pattern": {}, "alpha_pattern": {},
    "layer_replication": None, "target_parameters": None,
}  # fmt: skip
"""What peft knows and is not merged: all but these values is refused."""
Alpha = Annotated[float, Within(0, 1e6)]


@dataclass(frozen=True)
class Adapter:
    """A stored adapter. ``factors``: A and B of each module; ``whole``: tensors of the network that
    were trained whole, by their names."""

    folder: Path
    about: AdapterCard
    config: DiTConfig | MotionNetConfig
    weight: float  # of B A: alpha / rank
    rank: int
    factors: dict[str, tuple[Tensor, Tensor]]
    whole: dict[str, Tensor]
    stats: MotionStats | None


def save_adapter(
    folder: str | Path,
    network: AvatarDiT | MotionNet,
    about: AdapterCard,
    stats: MotionStats | None = None,
) -> None:
    """Write the active factors of ``network`` and what else of it requires a gradient, in fp32, in
    place of what ``folder`` held. It appears whole or not at all. ValueError for factors that are
    not finite."""
    folder, name = Path(folder), active_factors(network)
    assert name is not None, "a network with factors"
    ending = f".{name}.weight"
    whole = {n for n, p in network.named_parameters() if p.requires_grad and FACTORS not in n}
    state = {
        PREFIX + key.removesuffix(ending) + ".weight" * key.endswith(ending): value
        for key, value in network.state_dict().items()
        if key in whole or (FACTORS in key and key.endswith(ending))
    }
    config: peft.LoraConfig = copy.copy(network.peft_config[name])  # pyright: ignore
    modules = {key.rpartition(".")[0] for key in whole}
    config.modules_to_save = sorted(module for module in modules if module) or None
    config.base_model_name_or_path, config.inference_mode = about.base, True
    write_adapter(folder, config, state, about, network.config, stats)


def write_adapter(
    folder: Path,
    lora: "peft.LoraConfig",
    state: Mapping[str, Tensor],
    about: AdapterCard,
    config: DiTConfig | MotionNetConfig,
    stats: MotionStats | None = None,
) -> None:
    """Write an adapter of the network of ``config``, in fp32: ``state`` has peft's keys. The folder
    appears whole or not at all. ValueError for numbers that are not finite."""
    state = {key: value.detach().float().cpu().contiguous() for key, value in state.items()}
    check_numbers(state, where=folder)
    with whole_folder(folder) as partial:
        lora.save_pretrained(str(partial))
        save_file(state, partial / STATE)
        write_json(partial / ADAPTER_CARD, dataclasses.asdict(about))
        write_json(partial / "config.json", dataclasses.asdict(config))
        if stats is not None:
            write_stats(partial, stats)


def read_adapter(folder: str | Path) -> Adapter:
    """ValueError for missing or damaged files, a kind of adapter that cannot be merged, and numbers
    that are not finite."""
    folder = Path(folder)
    about = read_adapter_card(folder)
    kind = DiTConfig if about.part == "dit" else MotionNetConfig
    where = str(folder / "config.json")
    config = kind.from_dict(read_json(folder / "config.json"), where=where)
    rank, alpha = _numbers(read_json(folder / ADAPTER_CONFIG), folder / ADAPTER_CONFIG)
    pickled = folder / STATE.replace(".safetensors", ".bin")
    if pickled.is_file() and not (folder / STATE).is_file():
        raise ValueError(f"{pickled} could run code and is not read: expected {STATE}")
    state = read_tensors(folder / STATE)
    check_numbers(state, where=folder)
    state = {key.removeprefix(PREFIX): value.float() for key, value in state.items()}
    factors = {}
    for key in [key for key in state if key.endswith(".lora_A.weight")]:
        module = key.removesuffix(".lora_A.weight")
        if f"{module}.lora_B.weight" not in state:
            raise ValueError(f"{folder / STATE}: {module} has lora_A and no lora_B")
        factors[module] = (state.pop(key), state.pop(f"{module}.lora_B.weight"))
    stats = read_stats(folder) if stats_path(folder).is_file() else None
    return Adapter(folder, about, config, alpha / rank, rank, factors, state, stats)


def plain_alpha(values: dict[str, Any], where: Path, *, but: Collection[str] = ()) -> float:
    """The alpha of peft's settings. ValueError for what is no plain LoRA; keys of `PLAIN` in
    ``but`` may have any value."""
    wrong = {
        key: values[key]
        for key, plain in PLAIN.items()
        if key not in but and values.get(key, plain) != plain
    }
    if wrong:
        raise ValueError(f"{where}: expected a plain LoRA, got {shown(wrong)}")
    return converted(values.get("lora_alpha"), Alpha, where=f"{where}: lora_alpha")


def _numbers(values: dict[str, Any], where: Path) -> tuple[int, float]:
    """Rank and alpha. ValueError for what is no plain LoRA."""
    rank = converted(values.get("r"), Size, where=f"{where}: r")
    return rank, plain_alpha(values, where)
