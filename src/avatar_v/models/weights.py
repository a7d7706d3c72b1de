"""Weights on disk: pipeline folders, their parts, and errors that name what does not fit.

A pipeline is ``DIR/{vae,dit,text,audio}/{config.json,model.safetensors}`` and ``DIR/card.json``,
which says which preset, schema, recipe and commit made it. Frozen encoders keep their network in
``backbone/`` in transformers' layout. Large states are sharded, with an index, as on the Hub.
"""

import dataclasses
import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from avatar_v.models.audio import HiddenStateAudioEncoder, LogMelEncoder
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.text import ByteTextEncoder, UMT5TextEncoder
from avatar_v.models.vae import VideoVAE

SCHEMA_VERSION = 2
"""Raised whenever the meaning of a stored weight changes. 2: ``style_embed`` reads habits in units
of how far people differ (models/motion.STYLE_SCALE)."""

PARTS = ("vae", "dit", "text", "audio")
TEXT_ENCODERS = (ByteTextEncoder, UMT5TextEncoder)
AUDIO_ENCODERS = (LogMelEncoder, HiddenStateAudioEncoder)
STEM = "model"
BACKBONE = "backbone"
MAX_SHARD_SIZE = "5GB"
ASSETS = Path(__file__).resolve().parents[1] / "assets"
"""What ships with the package, by name."""


@dataclass(frozen=True)
class Card:
    """Where weights come from: what a stranger needs to make them again."""

    preset: str
    recipe: str = ""  # path of the recipe, with its overlays
    commit: str = ""
    log: str = ""  # training log or its address
    reference: bool = False  # trained to read a reference video, not only its first frame
    motion: bool = False  # trained to denoise motion beside the video
    faces: bool = False  # trained to read close-ups of the face beside the reference
    stills: int = 0
    """Of each clip of the reference the network is shown so many single frames, spread over it, and
    the statistics of all its motion; 0: the clip itself."""
    stills_from_prompt: int = 0
    """The same where no first frame is given (Request.from_prompt), where that is more."""
    anchor: bool = False  # trained with the first frame of the video behind the reference
    guidance_audio: float = 2.0  # what generation takes where none is asked for; 1 is none
    guidance_motion: float = 1.0  # of the reference, in motion alone (guidance.guided)
    motion_first: bool = False  # generation makes motion before its video, else beside it
    schema_version: int = SCHEMA_VERSION

    def num_stills(self, *, from_prompt: bool) -> int:
        """Single frames that stand for each clip of the reference; 0: none do."""
        return max(self.stills, self.stills_from_prompt) if from_prompt else self.stills

    def __post_init__(self) -> None:
        for name in ("stills", "stills_from_prompt"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} of a card are at least 0, got {getattr(self, name)}")
        for name in ("guidance_audio", "guidance_motion"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name} of a card is a finite number, got {getattr(self, name)}")


def weights_folder(name_or_path: str | Path) -> Path:
    """The folder of a shipped name or of a path; ValueError if it is neither."""
    named = ASSETS / name_or_path
    for folder in (named, Path(name_or_path)):
        if (folder / "card.json").is_file():
            return folder
    raise ValueError(
        f"no weights {str(name_or_path)!r}: expected a name that ships with the package (small; as "
        "a refiner small_refiner) or a folder with card.json, as `avatar-v run` leaves it"
    )


def save_pipeline(
    folder: str | Path,
    dit: AvatarDiT,
    conditioner: Conditioner,
    card: Card,
    *,
    dtype: torch.dtype = torch.float32,
    overwrite: bool = False,
) -> None:
    """Write all parts as ``dtype``. The folder appears whole or not at all.

    ValueError if it exists (unless ``overwrite``) or if the encoders do not fit the DiT.
    """
    folder = Path(folder)
    conditioner.check_fits(dit.config)
    if folder.exists() and not overwrite:
        raise ValueError(f"{folder} exists")
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    conditioner.vae.save_pretrained(partial / "vae", dtype)
    save_dit(partial / "dit", dit, dtype=dtype)
    _save_encoder(partial / "text", conditioner.text_encoder, dtype)
    _save_encoder(partial / "audio", conditioner.audio_encoder, dtype)
    write_json(partial / "card.json", dataclasses.asdict(card))
    if folder.exists():
        shutil.rmtree(folder)
    partial.rename(folder)


def load_pipeline(
    folder: str | Path, *, preset: str | None = None, vae: str | Path | None = None
) -> tuple[AvatarDiT, Conditioner]:
    """Read a pipeline, in fp32 and evaluation mode; ``vae`` is a folder that replaces its own.

    ValueError, before any network is built, for a missing file, weights of another schema version,
    or of another preset than ``preset``; after that for every key that does not fit, by name.
    """
    folder = Path(folder)
    read_card(folder, preset=preset)
    missing = [part for part in PARTS if not (folder / part / "config.json").is_file()]
    if missing:
        raise ValueError(f"{folder} lacks {', '.join(f'{part}/config.json' for part in missing)}")
    conditioner = Conditioner(
        VideoVAE.from_pretrained(folder / "vae" if vae is None else vae),
        _load_text(folder / "text"),
        _load_audio(folder / "audio"),
    )
    dit = load_dit(folder / "dit")
    conditioner.check_fits(dit.config)
    return dit.eval(), conditioner.eval()


def read_card(folder: str | Path, *, preset: str | None = None) -> Card:
    """The card of a pipeline; ValueError for another schema version, or preset if one is given."""
    folder = Path(folder)
    values = read_json(folder / "card.json")
    version = values.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ValueError(f"{folder} has schema version {version}, this code reads {SCHEMA_VERSION}")
    fields = {field.name for field in dataclasses.fields(Card)}
    if set(values) != fields:
        raise ValueError(f"{folder}/card.json has keys {sorted(values)}, expected {sorted(fields)}")
    card = Card(**values)
    if preset is not None and card.preset != preset:
        raise ValueError(f"{folder} holds weights of preset {card.preset!r}, expected {preset!r}")
    return card


def save_dit(folder: str | Path, dit: AvatarDiT, *, dtype: torch.dtype = torch.float32) -> None:
    """config.json and model.safetensors of one DiT, stored as ``dtype``."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", dataclasses.asdict(dit.config))
    write_state(folder, {k: v.detach().to(dtype) for k, v in dit.state_dict().items()})


def load_dit(folder: str | Path, *, dtype: torch.dtype = torch.float32) -> AvatarDiT:
    """The DiT in ``folder``, as ``dtype``; ValueError names every key that does not fit."""
    folder = Path(folder)
    config = DiTConfig.from_dict(read_json(folder / "config.json"), where=f"{folder}/config.json")
    with torch.device("meta"):
        dit = AvatarDiT(config)
    state = {key: value.to(dtype) for key, value in read_state(folder).items()}
    check_state(dit.state_dict(), state, where=str(folder))
    dit.load_state_dict(state, assign=True)
    return dit.requires_grad_(True)


def check_state(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], *, where: str) -> None:
    """One ValueError with every missing, unexpected and misshapen key."""
    lines = [f"missing: {key}" for key in expected if key not in found]
    lines += [f"unexpected: {key}" for key in found if key not in expected]
    lines += [
        f"shape of {key}: {tuple(found[key].shape)}, expected {tuple(value.shape)}"
        for key, value in expected.items()
        if key in found and found[key].shape != value.shape
    ]
    if lines:
        raise ValueError(f"weights in {where} do not fit the model:\n  " + "\n  ".join(lines))


def read_state(folder: str | Path, stem: str = STEM) -> dict[str, Tensor]:
    """All tensors of ``stem``.safetensors, or of its shards; ValueError names a missing file."""
    folder = Path(folder)
    index = folder / f"{stem}.safetensors.index.json"
    single = folder / f"{stem}.safetensors"
    if not index.is_file():
        return _read_file(single)
    weight_map: dict[str, str] = read_json(index)["weight_map"]
    state: dict[str, Tensor] = {}
    for name in sorted(set(weight_map.values())):
        state |= _read_file(folder / name)
    absent = sorted(set(weight_map) - set(state))
    if absent:
        raise ValueError(f"{index} lists keys that its shards lack: {', '.join(absent)}")
    return state


def write_state(folder: Path, state: dict[str, Tensor], stem: str = STEM) -> None:
    """``stem``.safetensors, in shards with an index above 5 GB."""
    from huggingface_hub import save_torch_state_dict

    save_torch_state_dict(
        {key: value.cpu().contiguous() for key, value in state.items()},
        folder,
        filename_pattern=stem + "{suffix}.safetensors",
        max_shard_size=MAX_SHARD_SIZE,
    )


def read_json(path: Path) -> dict[str, Any]:
    """ValueError for a missing file or one that is not a JSON object."""
    if not path.is_file():
        raise ValueError(f"no file {path}")
    try:
        values = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds a {type(values).__name__}, expected an object")
    return values


def write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n")


def _read_file(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ValueError(f"no file {path}")
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged or not a safetensors file: {error}") from error


def _own_state(module: nn.Module) -> dict[str, Tensor]:
    """The state without a frozen backbone, which is stored beside it."""
    return {k: v for k, v in module.state_dict().items() if not k.startswith("model.")}


def _save_encoder(
    folder: Path,
    encoder: ByteTextEncoder | UMT5TextEncoder | LogMelEncoder | HiddenStateAudioEncoder,
    dtype: torch.dtype,
) -> None:
    folder.mkdir(parents=True)
    # FSDP2 puts a subclass of its own name over every class that it shards
    kind = next(k for k in (*TEXT_ENCODERS, *AUDIO_ENCODERS) if isinstance(encoder, k))
    write_json(folder / "config.json", {"class": kind.__name__, **encoder.config})
    if isinstance(encoder, UMT5TextEncoder | HiddenStateAudioEncoder):
        encoder.save_backbone(folder / BACKBONE)
    state = {key: value.detach().to(dtype) for key, value in _own_state(encoder).items()}
    if state:
        write_state(folder, state)


def _load_text(folder: Path) -> ByteTextEncoder | UMT5TextEncoder:
    kind, values = _read_config(folder, TEXT_ENCODERS)
    if kind is UMT5TextEncoder:
        return UMT5TextEncoder(folder / BACKBONE, **values)
    encoder = ByteTextEncoder(**values)
    _load_own(encoder, folder)
    return encoder


def _load_audio(folder: Path) -> LogMelEncoder | HiddenStateAudioEncoder:
    kind, values = _read_config(folder, AUDIO_ENCODERS)
    if kind is HiddenStateAudioEncoder:
        encoder = HiddenStateAudioEncoder(folder / BACKBONE)
    else:
        encoder = LogMelEncoder(**values)
    _load_own(encoder, folder)
    return encoder


def _read_config(folder: Path, kinds: tuple[type, ...]) -> tuple[type, dict[str, Any]]:
    values = read_json(folder / "config.json")
    name = values.pop("class", None)
    for kind in kinds:
        if kind.__name__ == name:
            return kind, values
    wanted = " or ".join(kind.__name__ for kind in kinds)
    raise ValueError(f"{folder}/config.json describes a {name}, expected {wanted}")


def _load_own(module: nn.Module, folder: Path) -> None:
    own = _own_state(module)
    state = {key: value.float() for key, value in read_state(folder).items()}
    check_state(own, state, where=str(folder))
    module.load_state_dict({**module.state_dict(), **state})
