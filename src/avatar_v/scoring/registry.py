"""All scorers: found in `PACKAGES`, chosen by name, faces and weights, and built.

A module of scorers gives ``SCORERS``, classes below `Scorer`. Nothing else has to know it: the
file's being in such a package is enough.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from avatar_v.scoring import OWN, PACKAGES
from avatar_v.scoring.scorer import Scorer
from avatar_v.scoring.values import Faces, ScoreOutput

NEEDED = ("name", "version", "judge", "faces", "outputs")
"""Class variables without a default."""


def scorer_classes(packages: Sequence[str] = PACKAGES) -> dict[str, type[Scorer]]:
    """Name → class of all in ``packages``; ValueError for a file without SCORERS."""
    found: list[type[Scorer]] = []
    for package in packages:
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            found += _scorers_in(f"{package}.{module.name}")
    return {one.name: one for one in sorted(found, key=lambda one: one.name)}


def find_scorers(
    names: Sequence[str], weights: Mapping[str, str], faces: Faces
) -> tuple[list[type[Scorer]], dict[str, str]]:
    """The scorers to use, and the left out ones with the reason.

    ``names`` are names or dotted modules; none means all that apply to these faces and whose
    weights are given. ValueError for unknown names, and for a named one that cannot be used.
    """
    known = scorer_classes()
    chosen, left_out = [], {}
    for name in names or known:
        for one in _named(name, known):
            if reason := _unusable(one, weights, faces):
                if names:
                    raise ValueError(f"metric {name}: {reason}")
                left_out[name] = reason
            else:
                chosen.append(one)
    if unknown := sorted(set(weights) - set(known) - {one.name for one in chosen}):
        raise ValueError(f"--weights {', '.join(unknown)}: metrics are {', '.join(known)}")
    keys = [output.key for one in chosen for output in one.outputs]
    if twins := sorted({key for key in keys if keys.count(key) > 1}):
        raise ValueError(f"two metrics give {', '.join(twins)}")
    return chosen, left_out


def build(one: type[Scorer], weights: Mapping[str, str]) -> Scorer:
    """The scorer with its networks loaded; ValueError where their files or code are absent."""
    return _made(one, {"weights": weights[one.name]} if one.needs_weights else {})


def make_scorer(name: str, output: str = "", **options: Any) -> Scorer:
    """The scorer of one video by its name, or that of a dotted module, built with its options; of
    several the one that gives ``output``.

    ValueError for an unknown name, an output that it does not give, weights that it lacks, options
    that it does not take, and as `build`.
    """
    ones = _named(name, scorer_classes([OWN]))
    fits = [one for one in ones if output in ("", *(given.key for given in one.outputs))]
    if len(fits) != 1:
        keys = [given.key for one in ones for given in one.outputs]
        raise ValueError(f"metric {name}: output is one of {', '.join(keys)}, got {output!r}")
    if fits[0].needs_weights and "weights" not in options:
        raise ValueError(f"metric {name} needs weights: {fits[0].needs_weights}")
    return _made(fits[0], options)


def _made(one: type[Scorer], options: Mapping[str, Any]) -> Scorer:
    try:
        inspect.signature(one).bind(**options)
    except TypeError as error:
        takes = ", ".join(inspect.signature(one).parameters) or "none (__init__ has no arguments)"
        raise ValueError(
            f"metric {one.name}: its options are {takes}, got {', '.join(options) or 'none'}"
        ) from error
    try:
        return one(**options)
    except ImportError as error:
        raise ValueError(f"metric {one.name}: {error}") from error


def _named(name: str, known: Mapping[str, type[Scorer]]) -> Sequence[type[Scorer]]:
    if "/" in name or name.endswith(".py"):
        dotted = ".".join(Path(name).with_suffix("").parts).strip("./")
        raise ValueError(f"metric {name}: expected a module's name, such as {dotted}, no file")
    ones = _scorers_in(name) if "." in name else [known[name]] if name in known else []
    if not ones:
        raise ValueError(f"no metric {name!r}; there are {', '.join(known)}")
    return ones


def _unusable(one: type[Scorer], weights: Mapping[str, str], faces: Faces) -> str:
    if faces not in one.faces:
        return f"is for {' and '.join(one.faces)} faces, the manifest has {faces} ones"
    if one.needs_weights and one.name not in weights:
        return f"needs --weights {one.name}=PATH: {one.needs_weights}"
    return ""


def _scorers_in(path: str) -> tuple[type[Scorer], ...]:
    try:
        found = tuple(importlib.import_module(path).SCORERS)
    except Exception as error:  # of the code of a user, too
        first = path.partition(".")[0]
        elsewhere = isinstance(error, ModuleNotFoundError) and error.name == first
        told = f" (PYTHONPATH=. finds {first} in this folder)" if elsewhere else ""
        raise ValueError(f"{path} is no metric: {type(error).__name__}: {error}{told}") from error
    for one in found:
        if not (isinstance(one, type) and issubclass(one, Scorer)):
            raise ValueError(f"{path}.SCORERS has {one!r}, which is no class below Scorer")
        if absent := [name for name in NEEDED if not hasattr(one, name)]:
            raise ValueError(f"{path}: {one.__name__} has no {', '.join(absent)}")
        if not (
            isinstance(one.outputs, tuple)
            and one.outputs
            and all(isinstance(output, ScoreOutput) for output in one.outputs)
        ):
            raise ValueError(
                f"{path}: {one.__name__}.outputs is a tuple of ScoreOutput, got {one.outputs!r}"
            )
    return found
