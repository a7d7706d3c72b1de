"""Merging: the sum of weights and the adapters that were learned on them, and what fits which.

Every adapter adds its change to the weights as they came, so their order does not matter. What does
not fit is said before anything is changed. Their files are adapter_files.py's.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from avatar_v.base.device import without_memory
from avatar_v.base.outside import read_json
from avatar_v.base.paths import whole_folder
from avatar_v.base.states import check_numbers, check_state
from avatar_v.models.base import CARD, hash_folder, part_folder
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.lora import product
from avatar_v.models.motion_net import MotionNet, MotionNetConfig
from avatar_v.weights.adapter_files import Adapter, read_adapter
from avatar_v.weights.card import AdapterCard, AdapterSpec, Card, read_adapter_card, read_card
from avatar_v.weights.weights import face_vectors, load_dit, load_pipeline, save_dit, save_pipeline

ADDED = (
    "guidance_ranges", "refines_from", "temporal_window", "causal_block", "causal_window",
    "identity_dim",
)  # fmt: skip
"""Fields of a DiT's config that a stage may change in the weights that it starts from."""
_Network = TypeVar("_Network", AvatarDiT, MotionNet)


def load_merged(
    base: str | Path,
    chosen: Sequence[AdapterSpec],
    *,
    vae: str | Path | None = None,
    any_vae: bool = False,
) -> tuple[AvatarDiT, Conditioner]:
    """A pipeline with adapters in its matrices; what `check_adapters` finds is checked before.

    Each adapter adds its change to the weights of ``base``. ValueError for an adapter that was
    trained with another VAE than that of ``base`` or ``vae`` (unless ``any_vae``), and for what
    `read_adapter` and `load_pipeline` refuse.
    """
    base, adapters = Path(base), _adapters(chosen)
    dit, conditioner = load_pipeline(base, vae=vae)
    asked = [(a, a.about.vae_hash) for a, _ in adapters if a.about.vae_hash and not any_vae]
    found = conditioner.vae.hash() if asked else ""
    for adapter, trained_with in asked:
        if trained_with != found:
            raise ValueError(
                f"{adapter.folder} was trained with another VAE ({trained_with}) than that of "
                f"{vae or base}: `avatar-v weights merge {base} {adapter.folder} --vae DIR` takes "
                "the folder of its own"
            )
    dit = merge_into(dit, [pair for pair in adapters if pair[0].about.part == "dit"])
    of_motion = [pair for pair in adapters if pair[0].about.part == "motion"]
    if of_motion:
        if conditioner.motion_net is None:
            raise ValueError(f"{of_motion[0][0].folder} is of a motion network, {base} has none")
        conditioner.motion_net = merge_into(conditioner.motion_net, of_motion)
    can = adapters[-1][0].about.card.can
    conditioner.hear(can.audio_look_ahead, can.audio_window)
    conditioner.face_vectors = face_vectors(can, adapters[-1][0].folder)
    stats = next((a.stats for a, _ in reversed(adapters) if a.stats), conditioner.motion_stats)
    dit.motion_stats = conditioner.motion_stats = stats
    return dit.eval(), conditioner.eval()


def merge_to(
    base: str | Path,
    chosen: Sequence[AdapterSpec],
    out: str | Path,
    *,
    any_base: bool = False,
    vae: str | Path | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write what `load_merged` gives to ``out``; where ``base`` is the folder of a DiT alone, that
    DiT. ValueError for an ``out`` that exists."""
    base, out = Path(base), Path(out)
    if out.exists():
        raise ValueError(f"{out} exists")
    if (base / CARD).is_file():
        card = check_adapters(base, chosen, any_base=any_base)
        dit, conditioner = load_merged(base, chosen, vae=vae, any_vae=any_base)
        if [each.scale for each in chosen] != [1.0]:
            words = " ".join(map(str, chosen))
            card = dataclasses.replace(card, recipe=f"{base} with {words}")
        save_pipeline(out, dit, conditioner, card, dtype=dtype)
        return
    if vae is not None:
        raise ValueError(f"--vae is for a pipeline, and {base} is the folder of a DiT alone")
    adapters = _adapters(chosen)
    for adapter, _ in adapters:
        _check_base(adapter.about, base, adapter.folder, any_base=any_base)
    with whole_folder(out) as partial:
        save_dit(partial, merge_into(load_dit(base), adapters), dtype=dtype)


def check_adapters(base: Path, chosen: Sequence[AdapterSpec], *, any_base: bool = False) -> Card:
    """The card of the last adapter, before any network is loaded. ValueError for adapters of
    another preset or, unless ``any_base``, of other weights, and for one that is named twice."""
    _check_once(chosen)
    preset = read_card(base).preset
    for each in chosen:
        about = read_adapter_card(each.folder)
        part = part_folder(base / about.part)
        _check_base(about, part, each.folder, any_base=any_base)
        if preset != about.card.preset:
            raise _unfit(about, part, each.folder)
    return read_adapter_card(chosen[-1].folder).card


def _check_base(about: AdapterCard, part: Path, folder: Path, *, any_base: bool) -> None:
    """ValueError unless ``part`` holds the very network that the adapter in ``folder`` was trained
    on; where that is not recorded, shapes alone are compared later."""
    if any_base or not about.base_hash:
        return
    whole = read_card(part.parent).whole if (part.parent / CARD).is_file() else None
    was = None if whole is None else {"dit": whole.dit, "motion": whole.motion}[about.part]
    if about.base_hash not in (hash_folder(part), was):
        raise _unfit(about, part, folder)


def _unfit(about: AdapterCard, part: Path, folder: Path) -> ValueError:
    """The error about an adapter of other weights than those of ``part``: what differs, and which
    weights its card names."""
    said = _difference(read_adapter(folder), part)
    if said is None:
        said = (
            f"shapes agree, but these are other weights ({hash_folder(part)}): `avatar-v weights "
            "merge --any-base` takes it anyway"
        )
    weights = f"{about.base or 'fresh weights'} (preset {about.card.preset}"
    weights += f", {about.base_hash})" if about.base_hash else ")"
    return ValueError(
        f"the adapter {folder} does not fit {part}: {said}; by its card it was trained on {weights}"
    )


def _difference(adapter: Adapter, part: Path) -> str | None:
    """The first matrix of the adapter that the network in ``part`` lacks or has in another shape,
    in words; None where all are there."""
    if not (part / "config.json").is_file():
        return f"there is no {part.name} network in these weights"
    kind = AvatarDiT if isinstance(adapter.config, DiTConfig) else MotionNet
    where = part / "config.json"
    config = type(adapter.config).from_dict(read_json(where), where=str(where))
    with without_memory():
        state = kind(config).state_dict()  # pyright: ignore[reportArgumentType]
    for module, (a, b) in adapter.factors.items():
        own, matrix = (b.shape[0], a.shape[1]), state.get(f"{module}.weight")
        if matrix is None:
            return f"it changes {module}, which these weights lack"
        if tuple(matrix.shape) != own:
            return f"{module} is {own} in it and {tuple(matrix.shape)} in these weights"
    return None


@torch.no_grad()
def merge_into(network: _Network, adapters: Iterable[tuple[Adapter, float]]) -> _Network:
    """``network``, whose matrices are changed in place, or one with what the adapters add to it
    besides. Changes are of the weights as they came, so their order does not matter. ValueError,
    before anything is changed, for keys and shapes that do not fit; and for a sum that is not
    finite."""
    adapters, state = list(adapters), network.state_dict()
    config, added = network.config, set()
    for adapter, scale in adapters:
        _check_config(network.config, adapter)
        with without_memory():
            wanted = type(network)(adapter.config)  # pyright: ignore[reportArgumentType]
        _check_fits(adapter, scale, state, wanted.state_dict())
        twice = added & adapter.whole.keys()
        if twice:
            raise ValueError(f"{adapter.folder}: another adapter has brought {min(twice)} already")
        added |= adapter.whole.keys() - state.keys()
        config = _united(config, adapter)
    start = {key: state[key].clone() for a, _ in adapters for key in a.whole if key in state}
    changed: set[str] = set()
    for adapter, scale in adapters:
        for key, value in adapter.whole.items():
            if key not in start:
                state[key] = value
            elif key in changed:
                state[key] += scale * (value - start[key])
            else:  # exact for a scale of 1
                state[key].copy_(start[key].lerp(value, scale))
        changed |= set(adapter.whole)
    for adapter, scale in adapters:  # behind all parts that are set as a whole
        for module, (a, b) in adapter.factors.items():
            state[f"{module}.weight"] += product(a, b, scale * adapter.weight)
    check_numbers(state, where=f"the sum with {', '.join(str(a.folder) for a, _ in adapters)}")
    result = network
    if config != network.config:
        with without_memory():
            result = type(network)(config)  # pyright: ignore[reportArgumentType]
    result.load_state_dict(state, assign=True)
    return result


def check_network(adapter: Adapter) -> None:
    """ValueError for factors and parts that do not fit the adapter's own network."""
    kind = AvatarDiT if isinstance(adapter.config, DiTConfig) else MotionNet
    with without_memory():
        wanted = kind(adapter.config).state_dict()  # pyright: ignore[reportArgumentType]
    _check_fits(adapter, 1.0, wanted, wanted)


def _check_once(chosen: Sequence[AdapterSpec]) -> None:
    """ValueError for no adapter, or one that is named twice."""
    if not chosen:
        raise ValueError("expected an adapter or more, got none")
    folders = [each.folder.resolve() for each in chosen]
    for folder in folders:
        if folders.count(folder) > 1:
            raise ValueError(f"adapter {folder} is named twice: {folder}:2 is twice its strength")


def _adapters(chosen: Sequence[AdapterSpec]) -> list[tuple[Adapter, float]]:
    _check_once(chosen)
    return [(read_adapter(each.folder), each.scale) for each in chosen]


def _united(config: DiTConfig | MotionNetConfig, adapter: Adapter) -> DiTConfig | MotionNetConfig:
    """``config`` with what the adapter's stage added to the network. ValueError where another
    adapter has added it differently."""
    ours, theirs = dataclasses.asdict(config), dataclasses.asdict(adapter.config)
    added = {key: theirs[key] for key in theirs if key in ADDED and theirs[key] is not None}
    for key, value in added.items():
        if ours[key] not in (None, value):
            raise ValueError(
                f"{adapter.folder}: {key} is {value}, and another has made it {ours[key]}"
            )
    return dataclasses.replace(config, **added)


def _check_config(config: DiTConfig | MotionNetConfig, adapter: Adapter) -> None:
    """ValueError for the adapter of another network, but for what a stage adds to one."""
    ours, theirs = dataclasses.asdict(config), dataclasses.asdict(adapter.config)
    wrong = {
        key: (ours.get(key), theirs.get(key))
        for key in {**ours, **theirs}
        if ours.get(key) != theirs.get(key) and (key not in ADDED or ours.get(key) is not None)
    }
    if wrong:
        said = ", ".join(
            f"{key} {ours}, of the adapter {own}" for key, (ours, own) in wrong.items()
        )
        raise ValueError(f"{adapter.folder} is of another network than the weights: {said}")


def _check_fits(
    adapter: Adapter, scale: float, state: dict[str, Tensor], wanted: dict[str, Tensor]
) -> None:
    """ValueError for factors of matrices that are not among those ``wanted`` or of other shapes,
    for parts that are in neither ``state`` nor the adapter, and for parts that ``state`` lacks with
    another scale than 1."""
    new = [key for key in wanted if key not in state]
    expected = {key: wanted[key] for key in (*new, *adapter.whole) if key in wanted}
    found = dict(adapter.whole)
    for module, (a, b) in adapter.factors.items():
        found |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
        matrix = wanted.get(f"{module}.weight")
        if matrix is not None and matrix.dim() == 2:
            expected[f"{module}.lora_A.weight"] = matrix.new_empty(adapter.rank, matrix.shape[1])
            expected[f"{module}.lora_B.weight"] = matrix.new_empty(matrix.shape[0], adapter.rank)
    check_state(expected, found, where=str(adapter.folder))
    if new and scale != 1:
        raise ValueError(
            f"{adapter.folder} has parts that the weights lack ({new[0]}), so its scale is 1, got "
            f"{scale:g}"
        )
