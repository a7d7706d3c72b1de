"""Whether the folders of weights that a recipe begins with are there, and of its preset. Torch is
not imported."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from avatar_v.models.base import part_folder
from avatar_v.stages.settings import NULL
from avatar_v.weights.card import ASSETS, SHIPPED, read_card

WAN = "Wan 2.1 T2V in diffusers' layout (Wan-AI/Wan2.1-T2V-1.3B-Diffusers on huggingface.co)"
SOURCES = {
    "init_from": "",
    "causal_weights": "",
    "dit": f"avatar-v weights import-wan makes it of {WAN}",
    "vae": f"it is the folder vae of {WAN}",
    "text": f"UMT5 and its tokenizer are in {WAN}",
    "audio": "get wav2vec 2.0: facebook/wav2vec2-base-960h on huggingface.co, for 14B a large one",
}
"""Settings of a stage that name a folder of weights, and where it comes from if no recipe makes
it."""
MadeBy = Callable[[str], str | None]
"""The command that makes a folder of weights, or None where no recipe here does."""


def check_weights(settings: Mapping[str, Any], made_by: MadeBy) -> None:
    """ValueError for the first folder of weights in ``settings`` that does not exist, with what to
    do, and for a stage's of another preset. A name without a slash may be one that ships."""
    for problem in missing_weights(settings, made_by):
        raise ValueError(problem)
    model = settings.get("model") or {}
    models = (model.get("init_args") or {}).get("models") or {}
    start, preset = models.get("init_from"), models.get("preset")
    if start is None or preset is None:
        return
    found = read_card(ASSETS / start if (ASSETS / start).is_dir() else start).preset
    if found != preset:
        raise ValueError(
            f"model.init_args.models.init_from: {start} holds weights of preset {found}, and "
            f"models.preset is {preset}: take weights of that preset, or an overlay of preset "
            f"{found}"
        )


def missing_weights(settings: Mapping[str, Any], made_by: MadeBy) -> Iterator[str]:
    """What `check_weights` says of each such folder."""
    for path, folder in _folders(settings):
        if part_folder(folder).exists() or (ASSETS / folder).exists():
            continue
        if "/" not in folder and path.endswith("models.init_from"):
            names = ", ".join(SHIPPED)
            yield f"{path}: there are no weights {folder!r}; expected a folder, or one of {names}"
            continue
        command = made_by(folder)
        source = SOURCES[path.rpartition(".")[2]]
        first = f"first run: {command}" if command is not None else source
        yield f"{path}: there are no weights in {folder}{first and f'; {first}'}"


def _folders(settings: Mapping[Any, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        where = f"{path}.{name}" if path else str(name)
        if isinstance(value, Mapping):
            yield from _folders(value, where)
        elif name in SOURCES and isinstance(value, str) and value != NULL:
            yield where, value
