"""`avatar-v doctor`: what this machine has, and what a recipe lacks before it can start.

The checks are those of `avatar-v run`; here none stops the others, so that all that is missing is
told at once, each with where to get it.
"""

import importlib.metadata
import itertools
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import av
import torch

from avatar_v.base.outside import read_json
from avatar_v.base.paths import indexed_weights
from avatar_v.base.words import counted, readable
from avatar_v.kernels import backends, scopes, switch
from avatar_v.models.base import part_folder
from avatar_v.models.config import DiTConfig
from avatar_v.models.text import ByteTextEncoder
from avatar_v.models.vae import VideoVAE
from avatar_v.parallel import exchange
from avatar_v.planning.memory import (
    GIB,
    frames_of,
    left_bytes,
)
from avatar_v.planning.recipe import Recipe, read_recipe
from avatar_v.recipe.before import check_devices, check_experiment_log
from avatar_v.recipe.cli import made_by, split_recipes
from avatar_v.recipe.weights_there import missing_weights
from avatar_v.shards.datamodule import ShardData
from avatar_v.training.engine import Engine, subject_of, trains_clips
from avatar_v.training.settings import Models
from avatar_v.types import num_latents
from avatar_v.weights.card import read_card
from avatar_v.weights.presets import preset
from avatar_v.weights.weights import BACKBONE, MOTION, PARTS, check_parts, has_motion_net

KEPT = 3
"""Checkpoints that lie on the disk at once: the last step's, the last, and the one that is being
written beside them."""


_HOW_TO_GET = {
    "train": "avatar-v-data import makes shards of videos, avatar-v shards encode their latents",
    "validation": "avatar-v-data import --validation 0.02 sets persons aside for it; or set "
    "data.init_args.validation to null",
}


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's. ``kind``: "MISSING" is what the user has to supply, "lacks" what
    some commands alone need, "hint" how to get it."""

    text: str
    kind: Literal["ok", "lacks", "MISSING", "hint"] = "ok"

    @property
    def missing(self) -> bool:
        return self.kind == "MISSING"


def machine() -> list[Finding]:
    """What there is, with or without a recipe: none of it is missing."""
    page, pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    free = shutil.disk_usage(".").free
    codecs = ".".join(map(str, av.library_versions["libavcodec"]))
    lines = [
        f"python {platform.python_version()}, torch {torch.__version__}, "
        f"lightning {importlib.metadata.version('lightning')}",
        f"processor: {counted(os.cpu_count() or 1, 'core')}, {page * pages / GIB:.0f} GiB",
        *_gpus(),
        f"disk: {free / GIB:.0f} GiB free here",
        f"media: PyAV {av.__version__} with libavcodec {codecs}; no ffmpeg command is needed",
    ]
    return [
        *(Finding(line) for line in lines),
        *_attention(),
        *_kernels(),
        *_exchanges(),
        *_extras(),
    ]


def recipe_findings(words: Sequence[str]) -> list[Finding]:
    """What a recipe with its overlays and options needs: there or missing."""
    recipes, options = split_recipes(words)
    try:
        recipe = read_recipe(recipes, options)
    except (ValueError, OSError) as error:
        return [Finding(f"recipe: {readable(error)}", "MISSING")]
    settings = {name: recipe.settings[name] for name in ("model", "data")}
    problems = missing_weights(settings, lambda folder: made_by(folder, recipes))
    absent = [Finding(text, "MISSING") for text in problems]
    found = [
        Finding("recipe: every key and value is right"),
        *_checked("devices", lambda: _devices(recipe)),
        *(absent or [Finding("weights: every folder is there")]),
        *_layouts(recipe),
        *_data(recipe),
        *_disk(recipe),
        *_checked("experiment log", lambda: check_experiment_log(recipe.trainer["logger"])),
    ]
    if any(finding.missing for finding in found):
        found += [Finding(f"before: {line}", "hint") for line in before_lines(recipes[0])]
    return found


def before_lines(path: str) -> list[str]:
    """What the header of a recipe says under "Before:"."""
    text = Path(path).read_text(encoding="utf-8").splitlines()
    header = itertools.takewhile(lambda line: line.startswith("#"), text)
    lines: list[str] = []
    for line in (line.removeprefix("#") for line in header):
        if line.startswith(" Before:"):
            lines.append(line.removeprefix(" Before:").strip())
        elif lines and line.startswith("    "):
            lines.append(line.strip())
        elif lines:
            break
    return lines


def _checked(what: str, check: Callable[[], str | None]) -> list[Finding]:
    """What a check says of ``what``, or its error."""
    try:
        return [Finding(f"{what}: {check() or 'fine'}")]
    except (ValueError, OSError) as error:
        return [Finding(f"{what}: {readable(error)}", "MISSING")]


def _gpus() -> list[str]:
    if not torch.cuda.is_available():
        return ["GPU: none that this torch can use"]
    found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [f"GPU {i}: {p.name}, {p.total_memory / GIB:.0f} GiB" for i, p in enumerate(found)]


def _attention() -> Iterator[Finding]:
    """The backends of attention that this machine has, and what each of the others needs."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    yield Finding(f"attention: {backends.told(device)}")
    for name in backends.NAMES:
        lacks = backends.lacking(name, device)
        if lacks is not None:
            yield Finding(f"attention by {name}: needs {lacks}", "lacks")
    named = _checked("attention by name", lambda: backends.check_named(device))
    yield from (finding for finding in named if finding.missing)


def _kernels() -> Iterator[Finding]:
    """Whether the Triton kernels run here, and give what their specifications give."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    yield Finding(f"kernels: {switch.told(device)}")
    lacks = switch.lacking(device)
    if lacks is not None:
        yield Finding(f"kernels of Triton: need {lacks}", "lacks")
    else:
        for name, scope in scopes.scopes(scopes.Size(2, 5, 2, 16, device=device.type)).items():
            yield from _checked(f"kernel {name}", partial(_as_specified, scope))
    named = _checked("kernels by name", lambda: switch.check_named(device))
    yield from (finding for finding in named if finding.missing)


def _exchanges() -> Iterator[Finding]:
    """How ranks of sequence parallelism would exchange here."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    yield Finding(f"exchanges between ranks: {exchange.told(device)}")
    named = _checked("exchanges by name", lambda: exchange.check_named(device))
    yield from (finding for finding in named if finding.missing)


def _as_specified(scope: scopes.Scope) -> str:
    """ValueError for a kernel that fails, or gives something else than its specification."""
    try:
        off = scopes.difference(scope)
    except Exception as error:  # of compilers and drivers
        raise ValueError(f"{error}; {switch.VARIABLE}=plain does without") from error
    if not off <= scopes.LARGEST_DIFFERENCE:
        raise ValueError(
            f"off its specification by {off:.1e}; {switch.VARIABLE}=plain does without"
        )
    return f"runs, within {off:.0e} of its specification"


def _extras() -> Iterator[Finding]:
    """The extras of the package, and what is not installed of each."""
    needs: dict[str, list[str]] = {}
    for line in importlib.metadata.requires("avatar_v") or []:
        match = re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)", line)
        if match:
            absent = needs.setdefault(match[2], [])
            if not _installed(match[1]):
                absent.append(match[1])
    for extra, absent in needs.items():
        if absent:
            get = f"{', '.join(absent)}: pip install 'avatar_v[{extra}]'"
            yield Finding(f"extra {extra}: no {get}", "lacks")
        else:
            yield Finding(f"extra {extra}: there")


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _devices(recipe: Recipe) -> str:
    check_devices(recipe.trainer)
    trainer, layout = recipe.trainer, recipe.spread.layout
    here = layout.world_size // int(trainer["num_nodes"])
    asks_for_gpus = trainer["accelerator"] in ("gpu", "cuda") and not recipe.takes_all_devices
    if asks_for_gpus and torch.cuda.device_count() < here:
        raise ValueError(
            f"the recipe asks for {here} GPUs on each node, and this one has "
            f"{torch.cuda.device_count()}: --trainer.devices {torch.cuda.device_count()}"
        )
    return f"{counted(layout.world_size, 'rank')}, {recipe.spread.kind}"


def _layouts(recipe: Recipe) -> Iterator[Finding]:
    """Of the folders of weights that are there: whether they hold what their key promises."""
    if not trains_clips(recipe.model):
        return
    models = subject_of(recipe.model).models
    checks: dict[str, tuple[str | None, Callable[[str, Models], None]]] = {
        "init_from": (models.init_from, _pipeline),
        "dit": (models.dit, _dit),
        "vae": (models.vae, _vae),
        "text": (models.text, _encoder),
        "audio": (models.audio, _encoder),
    }
    for key, (folder, check) in checks.items():
        if folder is not None and Path(folder).is_dir():
            yield from _checked(f"models.{key} {folder}", partial(check, folder, models))
    stats = models.motion_stats
    if stats is not None and "/" in stats and not Path(stats).exists():
        command = f"avatar-v shards stats SHARDS --out {stats}"
        yield Finding(f"models.motion_stats: no {stats}; first run: {command}", "MISSING")


def _pipeline(folder: str, models: Models) -> None:
    read_card(folder, preset=models.preset)
    check_parts(Path(folder))
    motion = [MOTION] if has_motion_net(folder) else []
    for part in [part_folder(Path(folder) / name) for name in (*PARTS, *motion)]:
        backbone = part / BACKBONE  # a text or audio encoder of another library
        if backbone.is_dir():
            _encoder(str(backbone), models)
        else:
            _require_weights(part, "*.safetensors")


def _dit(folder: str, models: Models) -> None:
    where = Path(folder) / "config.json"
    config = DiTConfig.from_dict(read_json(where), where=str(where))
    _require_weights(Path(folder), "*.safetensors")
    audio, wanted = models.audio, config.audio_dim
    stored = Path(audio or "") / "config.json"
    if audio is not None and stored.is_file():
        width = read_json(stored).get("hidden_size")
        if width != wanted:
            raise ValueError(f"it hears sound {wanted} wide, and {audio} gives {width}")


def _vae(folder: str, models: Models) -> None:
    VideoVAE.from_pretrained(folder)


def _encoder(folder: str, models: Models) -> None:
    """transformers' layout, or that of a diffusers pipeline with text_encoder/ and tokenizer/."""
    split = Path(folder) / "text_encoder"
    inside = split if split.is_dir() else Path(folder)
    read_json(inside / "config.json")
    _require_weights(inside, "*.safetensors", "*.bin")
    if split.is_dir() and not (Path(folder) / "tokenizer").is_dir():
        raise ValueError("it has text_encoder/ and no tokenizer/")


def _require_weights(folder: Path, *patterns: str) -> None:
    """ValueError for a folder without a file of one of the patterns, or without one that its index
    names."""
    files = [path for pattern in patterns for path in folder.glob(pattern)]
    absent = [path.name for path in indexed_weights(folder) if not path.is_file()]
    if absent or not files:
        raise ValueError(f"{folder} lacks {', '.join(absent) or 'its weights (*.safetensors)'}")


def _data(recipe: Recipe) -> Iterator[Finding]:
    """Training and validation shards: read as `run` reads them, and long enough."""
    data = recipe.data
    if not isinstance(data, ShardData):
        return
    folders = {"train": data.train_folder, "validation": data.validation_folder}
    there = []
    for split, folder in folders.items():
        if folder is not None:
            found = _checked(f"data.{split} {folder}", partial(_num_clips, data, folder))
            there += [finding for finding in found if not finding.missing]
            yield from found
            if found[0].missing:
                yield Finding(f"{split}: {_HOW_TO_GET[split]}", "hint")
    if trains_clips(recipe.model) and len(there) == len([f for f in folders.values() if f]):
        most = num_latents(frames_of(recipe))
        yield from _checked("length of the clips", partial(data.require_length, most))
        if note := subject_of(recipe.model).unlearned(data.most_latents, most):
            yield Finding(f"length of the clips: {note}", "hint")
        yield from _latents(data, recipe.model)


def _latents(data: ShardData, stage: Engine) -> Iterator[Finding]:
    """Whether latents are those of the VAE that will decode them, and have the stills that the
    stage reads."""
    models = subject_of(stage).models
    inside = None if models.init_from is None else Path(models.init_from) / "vae"
    folder = models.vae or inside
    if folder is not None and part_folder(folder).is_dir():
        vae = VideoVAE.from_pretrained(folder)
        yield from _checked("latents", lambda: data.require_vae(vae.hash()))
    most_bytes = _most_bytes(models)
    if most_bytes is not None:
        yield from _checked("captions", lambda: data.require_captions(most_bytes))
    if subject_of(stage).reads_stills:
        yield from _checked("stills", data.require_stills)


def _most_bytes(models: Models) -> int | None:
    """Of a caption; None for a text encoder that counts tokens, and where none is there yet."""
    folder = models.text or (models.init_from and Path(models.init_from) / "text")
    if folder is None:
        return ByteTextEncoder.tiny().num_bytes if preset(models.preset).embedded else None
    config = part_folder(folder) / "config.json"
    return read_json(config).get("num_bytes") if config.is_file() else None


def _num_clips(data: ShardData, folder: str) -> str:
    return counted(sum(map(len, data.read_index(folder).members.values())), "clip")


def _disk(recipe: Recipe) -> list[Finding]:
    """Whether the disk takes what the run leaves. A stage that refuses its networks has no size."""
    if not trains_clips(recipe.model):
        return [Finding("disk: a few hundred MB are enough")]
    try:
        checkpoint, weights = left_bytes(recipe)
    except (ValueError, OSError) as error:
        return [Finding(f"networks: the stage cannot build them: {readable(error)}", "MISSING")]
    return _checked("disk", lambda: _room(recipe, KEPT * checkpoint / GIB, weights / GIB))


def _room(recipe: Recipe, checkpoints: float, weights: float) -> str:
    """Of so many GiB. ValueError for a disk without it."""
    needed = (checkpoints + weights) * GIB
    root = Path(recipe.trainer["default_root_dir"]).absolute()
    free = shutil.disk_usage(next(p for p in (root, *root.parents) if p.exists())).free
    words = (
        f"{checkpoints:.1f} GiB for three checkpoints and {weights:.1f} for the weights, "
        f"{free / GIB:.1f} GiB free"
    )
    if free < needed:
        raise ValueError(f"{words} in {root}: free some, or set trainer.default_root_dir elsewhere")
    return words
