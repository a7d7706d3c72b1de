"""`avatar-v run`, `fit` and `validate`: recipes in, LightningCLI underneath.

``avatar-v run recipes/2_a2v.yaml recipes/small.yaml --model.init_args.seed 1`` is
``avatar-v fit -c recipes/2_a2v.yaml -c recipes/small.yaml --model.init_args.seed 1``.

Recipes merge left to right before LightningCLI sees them:

- mappings merge key by key, but a schedule (keys are numbers) replaces the one before, and a
  changed ``class_path`` replaces the whole object;
- lists of objects (callbacks) merge by ``class_path``, new ones are appended; other lists replace;
- an overlay may hold a mapping ``stages``, one part per stage recipe, named by its file
  (``2_a2v``). The part of the first recipe is merged after the rest of the overlay, the others are
  ignored; an overlay that has parts but none for this recipe is an error.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

HELP = {
    "run": "train a recipe: avatar-v run recipes/2_a2v.yaml recipes/small.yaml [--key value]",
    "fit": "the same with -c before each recipe (LightningCLI)",
    "validate": "validation loss of a recipe (LightningCLI); --ckpt_path chooses the weights",
}


def add_parser(subparsers: Any) -> None:
    """List the three commands; their own options are LightningCLI's."""
    for name, text in HELP.items():
        subparsers.add_parser(name, help=text, add_help=False)


def run(args: argparse.Namespace) -> int:
    """The command without options, which is only useful for its error."""
    return run_words(args.command, [])


def run_words(command: str, words: Sequence[str]) -> int:
    """Run ``command`` with the rest of the command line. ValueError for what does not fit."""
    if command == "run":
        recipes, rest = split_recipes(words)
        if not recipes and set(rest) & {"-h", "--help"}:
            print(__doc__)
            print("All options of a stage: avatar-v fit --help, or --print_config behind a recipe.")
            return 0
        if not recipes:
            raise ValueError("run needs a recipe: avatar-v run recipes/2_a2v.yaml [overlay] [...]")
        command = "fit"
    else:
        recipes, rest = split_configs(words)
    with tempfile.TemporaryDirectory() as folder:
        if recipes:
            merged = Path(folder) / "recipe.yaml"
            merged.write_text(yaml.safe_dump(merge_recipes(recipes), sort_keys=False), "utf-8")
            rest = ["-c", str(merged), *rest]
        return _lightning([command, *rest])


def split_recipes(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Recipes are the words before the first option."""
    first = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    return list(words[:first]), list(words[first:])


def split_configs(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The values of -c and --config, and the other words in their order."""
    recipes, rest = [], []
    stream = iter(words)
    for word in stream:
        option, equals, value = word.partition("=")
        if option not in ("-c", "--config"):
            rest.append(word)
            continue
        value = value if equals else next(stream, "")
        if not value:
            raise ValueError(f"{option} needs a recipe file")
        recipes.append(value)
    return recipes, rest


def merge_recipes(paths: Sequence[str]) -> dict[str, Any]:
    """The one recipe that ``paths`` merge to. FileNotFoundError, or ValueError for bad YAML."""
    stage = Path(paths[0]).stem
    merged: dict[str, Any] = {}
    for path in paths:
        content = _load(path)
        parts = content.pop("stages", None)
        merged = merge(merged, content)
        if parts is None:
            continue
        if stage not in parts:
            raise ValueError(f"{path} has no part for {stage}, only for {', '.join(parts)}")
        merged = merge(merged, parts[stage])
    return merged


def merge(old: Any, new: Any) -> Any:
    """``new`` over ``old`` by the rules of this module; neither is changed."""
    if isinstance(old, dict) and isinstance(new, dict):
        if "class_path" in old and new.get("class_path", old["class_path"]) != old["class_path"]:
            return new
        if any(isinstance(key, int) for key in new):
            return new
        return {key: merge(old.get(key), new.get(key, old.get(key))) for key in {**old, **new}}
    if _objects(old) and _objects(new):
        merged = {item["class_path"]: item for item in old}
        for item in new:
            merged[item["class_path"]] = merge(merged.get(item["class_path"]), item)
        return list(merged.values())
    return new


def _objects(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, dict) and "class_path" in item for item in value)
    )


def _load(path: str) -> dict[str, Any]:
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(
            f"{path} is not a recipe: expected a mapping, got {type(content).__name__}"
        )
    return content


def _lightning(words: list[str]) -> int:
    from avatar_v.stages.recipe import RecipeCLI, quiet

    quiet()
    RecipeCLI(words)
    return 0
