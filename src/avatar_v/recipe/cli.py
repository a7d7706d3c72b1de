"""`avatar-v run`, `fit` and `validate`: recipes in, LightningCLI underneath.

``avatar-v run recipes/2_a2v.yaml recipes/small.yaml --model.init_args.seed 1`` is
``avatar-v fit -c recipes/2_a2v.yaml -c recipes/small.yaml --model.init_args.seed 1``.

Recipes merge left to right before LightningCLI sees them:

- mappings merge key by key, but a schedule (keys are numbers) replaces the one before, and a
  changed ``class_path`` replaces the whole object;
- lists of objects (callbacks) merge by ``class_path``, new ones are appended; other lists replace;
- an overlay is a size that recipes are run at. Its mapping ``every`` holds values for all of them:
  keys and objects that a recipe lacks are left out of it. ``stages`` holds parts for some recipes,
  named by their files (``2_a2v``), which are merged behind it like the rest of the overlay. With
  ``runs`` all places of a recipe below ``runs/`` lie there instead. It is an error where nothing of
  ``every`` fits the model of a recipe, where the recipe's part is null, and where an overlay has
  parts alone, but none for this recipe;
- ``{recipes}`` in a value stands for the files that were merged.
"""

import argparse
import importlib.util
import itertools
import os
import re
import tempfile
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from avatar_v.base import checks, trust
from avatar_v.base.launched import TRY_AGAIN, run_id
from avatar_v.recipe.file import OF_OVERLAYS, check_sections, is_of_trl, read_recipe
from avatar_v.recipe.weights_there import check_weights

HELP = {
    "run": "train a recipe: avatar-v run recipes/2_a2v.yaml recipes/small.yaml [--key value]",
    "fit": "the same with -c before each recipe (LightningCLI)",
    "validate": "validation loss of a recipe (LightningCLI); --ckpt_path chooses the weights",
}
OVERWRITE = "--overwrite"
"""Of run and fit; no value of a recipe, so that no recipe of a run asks for it again."""
ROOT = "--trainer.default_root_dir"
OF_TRAINING = ("--trainer.", "--ckpt_path")
"""Options that begin so name no weights and no data."""


def add_parser(subparsers: Any) -> None:
    """List the three commands; their own options are LightningCLI's."""
    for name, text in HELP.items():
        subparsers.add_parser(name, help=text, add_help=False)


def run(args: argparse.Namespace) -> int:
    """The command without options, which is only useful for its error."""
    return run_words(args.command, [])


def run_words(command: str, words: Sequence[str]) -> int:
    """Run ``command`` with the rest of the command line. ValueError for what does not fit."""
    words = trust.split_trust(words)
    if command == "run":
        recipes, rest = split_recipes(words)
        if not recipes and set(rest) & {"-h", "--help"}:
            print(run_help())
            return 0
        if not recipes:
            raise ValueError("run needs a recipe: avatar-v run recipes/2_a2v.yaml [overlay] [...]")
        if is_of_trl(recipes[0]):
            if importlib.util.find_spec("trl") is None:
                raise ValueError(f"{recipes[0]} needs trl: pip install 'avatar_v[voices]'")
            from avatar_v.voices.recipes import run_recipe

            return run_recipe(recipes, rest)
        command = "fit"
    else:
        recipes, rest = split_configs(words)
    overwrite = command == "fit" and OVERWRITE in rest
    rest = [word for word in rest if not overwrite or word != OVERWRITE]
    with tempfile.TemporaryDirectory() as folder:
        if recipes:
            content = merge_recipes(recipes)
            _check_folders(command, content, recipes, rest)
            rest = ["-c", written(content, Path(folder)), *rest]
        return _lightning([command, *rest], recipes, overwrite=overwrite)


def _check_folders(
    command: str, content: dict[str, Any], recipes: Sequence[str], options: Sequence[str]
) -> None:
    """ValueError, before anything heavy loads, for folders that will not do. Options that may name
    others put it off: all is checked again behind them."""
    names = [word for word in options if word.startswith("-")]
    if not all(name.startswith(OF_TRAINING) for name in names):
        return
    check_weights(
        {name: content.get(name, {}) for name in ("model", "data")},
        lambda weights: made_by(weights, recipes),
    )
    root = (content.get("trainer") or {}).get("default_root_dir")
    if command == "fit" and root and not any(name.startswith(ROOT) for name in names):
        checks.folder(ROOT.lstrip("-"), str(root))


def written(content: dict[str, Any], folder: Path) -> str:
    """The path of a merged recipe in ``folder``, for LightningCLI."""
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), "utf-8")
    return str(path)


def run_help(folder: Path = Path("recipes")) -> str:
    """The help of `run`, with the recipes that lie in ``folder``."""
    return f"""usage: avatar-v run RECIPE [OVERLAY ...] [--KEY VALUE ...]

Trains a recipe, with overlays that change it and options that change both.

  avatar-v run recipes/2_a2v.yaml recipes/small.yaml --trainer.max_steps 100

--KEY VALUE          any value of the recipe by its path, as --model.init_args.seed 1
--ckpt_path last     go on from the last checkpoint of the run
--overwrite          begin anew in a folder that holds a run, which is replaced
--trust MODULE       recipes may name classes and functions of this module of yours
--print_config       show the merged recipe with all defaults, and end
Each recipe begins with its data, its time and what it leaves; avatar-v fit --help has all options
of the trainer.

{_listed(folder)}"""


def _listed(folder: Path) -> str:
    """Recipes and overlays, each with the first sentence of its header."""
    found: dict[str, list[str]] = {"recipes": [], "overlays": []}
    for path in sorted(folder.glob("*.yaml")):
        lines = itertools.takewhile(lambda line: line.startswith("#"), path.open(encoding="utf-8"))
        header = " ".join(line.strip("# \n") for line in lines)
        kind = "overlays" if header.startswith("Overlay") else "recipes"
        about = header.removeprefix("Overlay: ").partition(". ")[0].partition(" Data: ")[0]
        about = textwrap.shorten(about.rstrip("."), 58, placeholder=" …")
        found[kind].append(f"  {path!s:<37} {about}")
    if not any(found.values()):
        return f"The recipes are in the folder {folder} of the checkout; there is none here."
    return "\n".join(f"{kind}:\n" + "\n".join(lines) for kind, lines in found.items() if lines)


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
    """The one recipe that ``paths`` merge to. FileNotFoundError, or ValueError for bad YAML and for
    names that a recipe may not have."""
    if not paths:
        raise ValueError("no recipe stands before the options: expected recipes/2_a2v.yaml or so")
    stage = Path(paths[0]).stem
    merged: dict[str, Any] = {}
    for path in paths:
        content = read_recipe(path)
        every, parts, runs = (content.pop(key, None) for key in OF_OVERLAYS)
        has_parts, parts = parts is not None, parts or {}
        if runs is not None:
            if not isinstance(runs, str) or not runs.strip("/"):
                raise ValueError(f"{path}: runs is a folder, got {runs!r}")
            merged = replaced(merged, r"^runs/", f"{runs}/")
        merged = merge(merged, content)
        if every is not None:
            check_sections(f"{path}, every", every)
            known, refused = known_part(every, merged), stage in parts and parts[stage] is None
            if refused or not _says_something(known.get("model", {})):
                raise ValueError(f"{path} is no size of {stage}")
            merged = merge(merged, known)
        if stage in parts:
            check_sections(f"{path}, part {stage}", parts[stage])
            merged = merge(merged, parts[stage])
        elif has_parts and every is None:
            raise ValueError(f"{path} has no part for {stage}, only for {', '.join(parts)}")
    merged = replaced(merged, r"\{recipes\}", " ".join(paths))
    trust.check_names(merged)
    return merged


def known_part(new: Any, old: Any) -> Any:
    """What of ``new`` has a place in ``old``: keys of mappings, and objects by their class_path."""
    if isinstance(new, dict) and isinstance(old, dict) and not _is_schedule(new):
        return {key: known_part(part, old[key]) for key, part in new.items() if key in old}
    if _objects(new) and _objects(old):
        there = {item["class_path"] for item in old}
        return [item for item in new if item["class_path"] in there]
    return new


def replaced(value: Any, pattern: str, words: str) -> Any:
    """``value`` with ``words`` for what matches ``pattern``, in all texts of it."""
    if isinstance(value, dict):
        return {key: replaced(part, pattern, words) for key, part in value.items()}
    if isinstance(value, list):
        return [replaced(part, pattern, words) for part in value]
    return re.sub(pattern, lambda _: words, value) if isinstance(value, str) else value


def merge(old: Any, new: Any) -> Any:
    """``new`` over ``old`` by the rules of this module; neither is changed."""
    if isinstance(old, dict) and isinstance(new, dict):
        if "class_path" in old and new.get("class_path", old["class_path"]) != old["class_path"]:
            return new
        if _is_schedule(new):
            return new
        return {key: merge(old.get(key), new.get(key, old.get(key))) for key in {**old, **new}}
    if _objects(old) and _objects(new):
        merged = {item["class_path"]: item for item in old}
        for item in new:
            merged[item["class_path"]] = merge(merged.get(item["class_path"]), item)
        return list(merged.values())
    return new


def _says_something(value: Any) -> bool:
    return any(map(_says_something, value.values())) if isinstance(value, dict) else value != []


def _is_schedule(value: dict[Any, Any]) -> bool:
    return any(isinstance(key, int) for key in value)


def _objects(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, dict) and "class_path" in item for item in value)
    )


def made_by(folder: str, recipes: Sequence[str]) -> str | None:
    """The command whose run leaves ``folder``: a recipe beside the first of ``recipes``, under the
    same overlays, whose ``default_root_dir`` holds it. None where no recipe does."""
    first, *overlays = recipes
    for other in sorted(Path(first).parent.glob("*.yaml")):
        words = [str(other), *overlays]
        try:
            root = merge_recipes(words).get("trainer", {}).get("default_root_dir")
        except (ValueError, OSError):
            continue  # an overlay, or a recipe that these overlays have no part for
        if root and Path(folder).is_relative_to(root):
            return " ".join(["avatar-v run", *words])
    return None


def misspelt_in(recipes: Sequence[str], words: Sequence[str], options: Iterable[str]) -> str | None:
    """One line about the first key of ``recipes``, or option in ``words``, that is none of the
    parser's ``options`` nor taken by a constructor; None where all are known."""
    from avatar_v.recipe.keys import misspelt

    if not recipes:
        return misspelt({}, words, (), "", options)
    return misspelt(merge_recipes(recipes), words, recipes, Path(recipes[0]).stem, options)


def _lightning(words: list[str], recipes: Sequence[str], *, overwrite: bool) -> int:
    from lightning.fabric.utilities.rank_zero import rank_zero_only

    from avatar_v.callbacks.finite import FiniteTraining
    from avatar_v.callbacks.progress import StepProgress
    from avatar_v.callbacks.terminated import CheckpointAtTerm, StoppedAtTerm, Terminated
    from avatar_v.callbacks.whole_steps import WholeSteps
    from avatar_v.parallel.launched import RankGone, following
    from avatar_v.recipe.lightning_cli import RecipeCLI, quiet
    from avatar_v.training.finite import EndedTogether

    quiet()
    launched = run_id() is not None
    try:
        with following() as follower:
            RecipeCLI(
                words,
                callbacks=[
                    *([] if launched else [Terminated()]),
                    *(FiniteTraining(), WholeSteps(), StepProgress()),
                ],
                callbacks_behind=[CheckpointAtTerm()] if launched else [],
                made_by=lambda folder: made_by(folder, recipes) if recipes else None,
                misspelt=lambda options: misspelt_in(recipes, words, options),
                overwrite=overwrite,
                follower=follower,
            )
    except RankGone as gone:
        if gone.is_told_here:
            raise
        return 2
    except StoppedAtTerm as stopped:
        if rank_zero_only.rank == 0:
            print(f"{stopped}: its checkpoint goes on with --ckpt_path last")
        return TRY_AGAIN
    except EndedTogether:
        if int(os.environ.get("LOCAL_RANK", "0")) == 0:
            raise
        return 2  # the first rank says it
    return 0
