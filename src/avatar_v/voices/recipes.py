"""`avatar-v run` of the recipes of voices that trl trains.

Such a recipe is a file of YAML with a key ``trl``, fields of its recipe's class (sft.py, grpo.py),
and ``trainer``, which holds fields of trl's configuration by their names there.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import yaml

from avatar_v.base.outside import read_text

KINDS = ("sft", "grpo")


def run_recipe(recipes: Sequence[str], options: Sequence[str]) -> int:
    """``avatar-v run RECIPE --KEY VALUE``; with ``--ckpt_path last`` it goes on from the last
    checkpoint. ValueError for what does not fit."""
    import jsonargparse

    known, train = _recipe_of(recipes[0])
    parser = jsonargparse.ArgumentParser(prog="avatar-v run", exit_on_error=False)
    parser.add_argument("--trl", choices=KINDS)
    parser.add_class_arguments(known)
    parser.add_argument("--recipe", action="config")
    parser.add_argument("--ckpt_path", choices=["last"])
    words = [word for recipe in recipes for word in ("--recipe", recipe)]
    try:
        found = parser.parse_args([*words, *options])
    except jsonargparse.ArgumentError as error:
        raise ValueError(f"{recipes[0]}: {error}") from error
    names = [one.name for one in dataclasses.fields(known)]
    made = parser.instantiate(found)
    folder = train(
        known(**{name: made[name] for name in names}), resume=found.ckpt_path is not None
    )
    print(f"the model is in {folder}, a folder for avatar-v voice --engine")
    return 0


def _recipe_of(path: str) -> tuple[Any, Any]:
    """The class of the recipe in a file, and what trains it."""
    kind = yaml.safe_load(read_text(path, what="recipe")).get("trl")
    if kind == "sft":
        from avatar_v.voices import sft

        return sft.SftRecipe, sft.train
    if kind == "grpo":
        from avatar_v.voices import grpo

        return grpo.GrpoRecipe, grpo.train
    raise ValueError(f"{path}: trl is one of {', '.join(KINDS)}, not {kind!r}")
