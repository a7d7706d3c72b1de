"""The base of a folder of weights: another folder beside it that holds what this one lacks.

Torch is not imported. How a part is stored as what it changes in the base's is compressed.py's.
"""

import os
from pathlib import Path

from avatar_v.base.paths import inside
from avatar_v.weights.card import CARD, COMPRESSED, Base, hash_folder, read_card

__all__ = ["COMPRESSED", "base_folder", "base_of", "check_base", "checked_base", "part_folder"]


def base_of(folder: str | Path) -> Base | None:
    """What the card of a folder of weights says of its base; None for whole weights and where there
    is no card."""
    return read_card(folder).base if (Path(folder) / CARD).is_file() else None


def part_folder(path: str | Path) -> Path:
    """The folder of a part, ``WEIGHTS/vae`` for instance: ``path`` itself, or that of the base,
    where the card says so and there is no ``path``."""
    path = Path(path)
    if not path.exists():
        named = base_of(path.parent)
        if named is not None and path.name in named.parts:
            return base_folder(path.parent) / path.name
    return path


def base_folder(folder: str | Path) -> Path:
    """The base of ``folder``, whose card names one. ValueError where it lies elsewhere than beside
    it, or is not there, or has a base itself."""
    folder, named = Path(folder), base_of(folder)
    where, beside = folder / CARD, Path(os.path.realpath(folder)).parent
    assert named is not None
    base = inside(beside, named.folder, where=where, links_out=True)
    if not (base / CARD).is_file():
        raise ValueError(
            f"{folder} is stored as what it changes in {named.folder}, weights that are not in "
            f"{beside}: copy them there too, or take a whole copy of these, made where both are "
            "(`avatar-v weights whole`)"
        )
    if base_of(base) is not None:
        raise ValueError(f"{where}: its base {base} has a base itself; expected one that has none")
    return base


def check_base(folder: str | Path) -> None:
    """`checked_base`, where the card names one."""
    if base_of(folder) is not None:
        checked_base(folder)


def checked_base(folder: str | Path) -> Path:
    """`base_folder`; ValueError, too, for other weights than those that ``folder`` changes."""
    base, named = base_folder(folder), base_of(folder)
    assert named is not None
    if (found := hash_folder(base)) != named.hash:
        raise ValueError(
            f"{folder} is stored as what it changes in weights of the hash {named.hash}; those in "
            f"{base} have {found}"
        )
    return base
