"""The base of a folder of weights: another folder beside it that holds what this one lacks.

Torch is not imported. How a part is stored as what it changes in the base's is base/packed.py's;
all else that a card says is weights/card.py's.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from avatar_v.base.outside import read_json
from avatar_v.base.paths import inside
from avatar_v.base.stored import converted

SCHEMA_VERSION = 3
"""Raised whenever the meaning of a stored weight, or the form of the card, changes. 2:
``style_embed`` reads styles in units of how far people differ (motion/style.style_code). 3: the
card has `Capabilities`."""
CARD = "card.json"
COMPRESSED = "compressed.safetensors"
"""In place of the weights of a part (base/packed.py)."""
ADDED = (
    "streaming", "audio_look_ahead", "audio_window", "factor", "identity", "identity_hash",
)  # fmt: skip
"""Of what weights can do, keys that older cards lack."""
UNCOMPRESSED: dict[str, Any] = {"base": None, "whole": None}
"""The default of a card without these keys, as all were before weights were compressed."""

Part = Literal["vae", "dit", "text", "audio", "motion"]
"""A folder of a pipeline."""


@dataclass(frozen=True)
class Base:
    """The weights that a compressed folder stores its differences from."""

    folder: str  # its name; it lies beside the folder of the card
    hash: str  # `hash_folder` of the base
    parts: tuple[Part, ...] = ()
    """Parts that are the base's, and which the folder does not hold."""


def card_values(folder: str | Path) -> dict[str, Any]:
    """The values of a folder's card. ValueError for another schema version."""
    values = read_json(Path(folder) / CARD)
    check_version(values, folder)
    can = values.get("can")
    if isinstance(can, dict) and "side" in can:
        side = can["side"]
        video = {"width": side, "height": side, "frame_rate_hz": 25, "framing": "face"}
        raise ValueError(
            f'{folder}/{CARD}: "side" of "can" is "video" now: write "video": {json.dumps(video)} '
            "in its place"
        )
    return with_defaults(values)


def with_defaults(card: dict[str, Any]) -> dict[str, Any]:
    """The values of a card with those that older ones lack."""
    if isinstance(can := card.get("can"), dict):
        added = dict.fromkeys(ADDED)
        card = card | {"can": added | can}
    return UNCOMPRESSED | card


def check_version(card: dict[str, Any], folder: str | Path) -> None:
    """ValueError unless a card is of the schema version that this code reads."""
    version = card.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ValueError(f"{folder} has schema version {version}, this code reads {SCHEMA_VERSION}")


def read_base(folder: str | Path) -> Base | None:
    """What the card of a folder of weights says of its base; None for whole weights and where there
    is no card."""
    where = Path(folder) / CARD
    if not where.is_file():
        return None
    return converted(card_values(folder)["base"], Base | None, where=f"{where}: base")


def part_folder(path: str | Path) -> Path:
    """The folder of a part, ``WEIGHTS/vae`` for instance: ``path`` itself, or that of the base,
    where the card says so and there is no ``path``."""
    path = Path(path)
    if not path.exists():
        named = read_base(path.parent)
        if named is not None and path.name in named.parts:
            return base_folder(path.parent) / path.name
    return path


def base_folder(folder: str | Path) -> Path:
    """The base of ``folder``, whose card names one. ValueError where it lies elsewhere than beside
    it, or is not there, or has a base itself."""
    folder, named = Path(folder), read_base(folder)
    where, beside = folder / CARD, Path(os.path.realpath(folder)).parent
    assert named is not None
    base = inside(beside, named.folder, where=where, links_out=True)
    if not (base / CARD).is_file():
        raise ValueError(
            f"{folder} is stored as what it changes in {named.folder}, weights that are not in "
            f"{beside}: copy them there too, or take a whole copy of these, made where both are "
            "(`avatar-v weights whole`)"
        )
    if read_base(base) is not None:
        raise ValueError(f"{where}: its base {base} has a base itself; expected one that has none")
    return base


def check_base(folder: str | Path) -> None:
    """`checked_base`, where the card names one."""
    if read_base(folder) is not None:
        checked_base(folder)


def checked_base(folder: str | Path) -> Path:
    """`base_folder`; ValueError, too, for other weights than those that ``folder`` changes."""
    base, named = base_folder(folder), read_base(folder)
    assert named is not None
    if (found := hash_folder(base)) != named.hash:
        raise ValueError(
            f"{folder} is stored as what it changes in weights of the hash {named.hash}; those in "
            f"{base} have {found}"
        )
    return base


def hash_folder(folder: str | Path) -> str:
    """16 hex digits of sha256 over names and bytes of all .safetensors and config.json files, and
    over the hash of the base of weights that have one; ValueError for one of such a name that is no
    file."""
    folder = Path(folder)
    digest = hashlib.sha256()
    for path in sorted(
        p for p in folder.rglob("*") if p.suffix == ".safetensors" or p.name == "config.json"
    ):
        if not path.is_file():  # a pipe would be waited for
            raise ValueError(f"{path} is no file that can be read")
        digest.update(path.relative_to(folder).as_posix().encode())
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    of_part = (folder / COMPRESSED).is_file()
    card = (folder.parent if of_part else folder) / CARD
    base = read_base(card.parent)
    digest.update(b"" if base is None else base.hash.encode())
    return digest.hexdigest()[:16]
