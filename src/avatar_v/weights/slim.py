"""Folders of weights in fewer bytes, alone or as what they change in a base, and whole again."""

import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import torch
from safetensors.torch import save_file

from avatar_v.base.packed import compressed
from avatar_v.base.paths import whole_folder
from avatar_v.models.base import CARD, COMPRESSED, Base, Part, hash_folder, part_folder
from avatar_v.weights.card import Card, Whole, read_card
from avatar_v.weights.weights import (
    BACKBONE,
    MOTION,
    RETIRED,
    check_parts,
    load_pipeline,
    read_state,
    write_json,
    write_state,
)  # fmt: skip

ALL_PARTS = get_args(Part)


def parse_errors(words: Sequence[str], parts: Sequence[str] = ALL_PARTS) -> dict[str, float]:
    """Part → error, of PART=ERROR. ValueError for anything else."""
    errors = {}
    for word in words:
        part, _, number = word.partition("=")
        try:
            errors[part] = float(number)
        except ValueError:
            errors[part] = float("nan")
        if part not in parts or not 0 <= errors[part] < 1:
            raise ValueError(
                f"expected PART=ERROR, a part of {', '.join(parts)} and an error from 0 to "
                f"below 1 of the norm of a tensor, got {word!r}"
            )
    return errors


def make_slim(
    folder: str | Path,
    out: str | Path,
    errors: Mapping[str, float],
    base: str | Path | None = None,
) -> None:
    """Write ``folder`` to ``out``, the parts that ``errors`` names compressed, each tensor to
    within that error relative to its norm: with a ``base`` as what they change in it. Parts that
    are the same in ``base`` are left out, others copied.

    ValueError for weights that are compressed already, a base of another preset, that has a base
    or tensors that ``folder`` lacks, a part that is not there, and for an ``out`` that exists or
    does not lie beside ``base``.
    """
    folder, out = Path(folder), Path(out)
    card, parts = _check_whole(folder), [part for part in ALL_PARTS if (folder / part).is_dir()]
    if absent := sorted(set(errors) - set(parts)):
        raise ValueError(f"{folder} has no {', '.join(absent)} of its own that could be compressed")
    if out.exists():
        raise ValueError(f"{out} exists")
    base = None if base is None else _checked_base(Path(base), out, card)
    shared: list[Part] = [p for p in parts if base is not None and _same(folder / p, base / p)]
    with whole_folder(out) as new:
        for part in parts:
            if part not in shared and part in errors:
                other = None if base is None or not (base / part).is_dir() else base / part
                _compress(folder / part, other, new / part, errors[part])
            elif part not in shared:
                shutil.copytree(folder / part, new / part)
        _copy_files(folder, new)
        named = None if base is None else Base(base.name, hash_folder(base), (*shared,))
        _write_card(new, dataclasses.replace(card, base=named, whole=_hashes(folder)))
        load_pipeline(new)  # as whoever takes it will


def make_whole(folder: str | Path, out: str | Path) -> None:
    """Write the weights of ``folder`` to ``out`` with all parts as they are restored. ValueError
    for weights that do not load, and for an ``out`` that exists."""
    folder, out = Path(folder), Path(out)
    card = read_card(folder)
    check_parts(folder)
    if out.exists():
        raise ValueError(f"{out} exists")
    with whole_folder(out) as new:
        for part in ALL_PARTS:
            source = part_folder(folder / part)
            if (source / COMPRESSED).is_file():
                _copy_files(source, new / part)
                write_state(new / part, read_state(source))
            elif source.is_dir():
                shutil.copytree(source, new / part)
        _copy_files(folder, new)
        _write_card(new, dataclasses.replace(card, base=None, whole=None))
        load_pipeline(new)


def _hashes(folder: Path) -> Whole:
    motion = folder / MOTION
    found = hash_folder(motion) if motion.is_dir() else ""
    return Whole(hash_folder(folder), hash_folder(folder / "dit"), found)


def _check_whole(folder: Path) -> Card:
    card = read_card(folder)
    if card.base is not None or any((folder / p / COMPRESSED).is_file() for p in ALL_PARTS):
        raise ValueError(f"{folder} is compressed already (`avatar-v weights whole` undoes it)")
    return card


def _checked_base(base: Path, out: Path, card: Card) -> Path:
    """The base, by the name that a card gives it."""
    if read_card(base, preset=card.preset).base is not None:
        raise ValueError(f"{base} has a base itself; expected weights that have none")
    real = Path(os.path.realpath(base))
    if Path(os.path.realpath(out.absolute().parent)) != real.parent:
        raise ValueError(f"{out} does not lie beside {base}, where it would look for its base")
    return real


def _same(part: Path, other: Path) -> bool:
    """Whether two parts are the same network, however their files are laid out."""
    if not other.is_dir():
        return False
    if (part / BACKBONE).is_dir():
        return hash_folder(part) == hash_folder(other)
    texts = [{f.name: f.read_bytes() for f in each.glob("*.json")} for each in (part, other)]
    one, two = read_state(part), read_state(other)
    return (
        texts[0] == texts[1]
        and one.keys() == two.keys()
        and all(v.dtype == two[k].dtype and torch.equal(v, two[k]) for k, v in one.items())
    )


def _compress(part: Path, base: Path | None, out: Path, error: float) -> None:
    if (part / BACKBONE).is_dir():
        raise ValueError(f"{part} holds a network of another library, which is not compressed")
    state = read_state(part)
    before = {} if base is None else read_state(base)
    absent = [key for key in before if key not in state and not key.startswith(RETIRED)]
    if absent:
        raise ValueError(f"{part} lacks {', '.join(absent[:2])}, which {base} has")
    _copy_files(part, out)
    save_file(compressed(before, state, error), out / COMPRESSED)


def _copy_files(source: Path, target: Path) -> None:
    """All but tensors, their indexes and folders."""
    target.mkdir(exist_ok=True)
    for path in source.iterdir():
        is_of_tensors = path.name.endswith((".safetensors", ".index.json"))
        if path.is_file() and not is_of_tensors:
            shutil.copyfile(path, target / path.name)


def _write_card(folder: Path, card: Card) -> None:
    write_json(folder / CARD, dataclasses.asdict(card))
