"""Weights on disk: pipeline folders, their parts, and errors that name what does not fit.

A pipeline is ``DIR/{vae,dit,text,audio}/{config.json,model.safetensors}`` and ``DIR/card.json``,
which says which preset, schema, recipe and commit made it. Frozen encoders keep their network in
``backbone/`` in transformers' layout. Large states are sharded, with an index, as on the Hub.
"""

import dataclasses
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from avatar_v.base.device import without_memory
from avatar_v.base.outside import read_json
from avatar_v.base.paths import inside, whole_folder
from avatar_v.base.states import check_numbers, check_state, read_tensors
from avatar_v.base.stored import accepted_fields, built, checked
from avatar_v.models.audio import HiddenStateAudioEncoder, LogMelEncoder
from avatar_v.models.base import CARD, check_base, part_folder
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.identity import FaceVectors
from avatar_v.models.lora import merged
from avatar_v.models.motion_net import MotionNet, MotionNetConfig
from avatar_v.models.restored import restored
from avatar_v.models.text import ByteTextEncoder, StoredText, UMT5TextEncoder, check_bytes
from avatar_v.models.vae import VideoVAE
from avatar_v.motion.stats import MotionStats, read_stats, stats_path, write_stats
from avatar_v.weights.card import ASSETS, Capabilities, Card, read_card, weights_folder

PARTS = ("vae", "dit", "text", "audio")
TEXT_ENCODERS = (ByteTextEncoder, UMT5TextEncoder)
AUDIO_ENCODERS = (LogMelEncoder, HiddenStateAudioEncoder)
STEM = "model"
BACKBONE = "backbone"
MOTION = "motion"
"""Folder of the motion network, in pipelines that have one."""
MAX_SHARD_SIZE = "5GB"
RETIRED = ("motion_head.",)
"""Parts of a DiT that the motion network replaced. The weights that ship hold them, unread, until
they are trained anew: another 36 MB in the history would change 34 kB of them."""
_Module = TypeVar("_Module", bound=nn.Module)


def find_stats(name_or_path: str | Path) -> MotionStats:
    """The motion statistics of weights that ship under a name, or in a folder or file."""
    named = ASSETS / name_or_path
    return read_stats(named if named.is_dir() else name_or_path)


def save_pipeline(
    folder: str | Path,
    dit: AvatarDiT,
    conditioner: Conditioner,
    card: Card,
    *,
    dtype: torch.dtype = torch.float32,
    overwrite: bool = False,
) -> None:
    """Write all parts as ``dtype``, what LoRA learned in the matrices. The folder appears whole or
    not at all.

    ValueError if it exists (unless ``overwrite``), if the encoders do not fit the DiT, and for
    weights that are not finite as ``dtype``.
    """
    folder = Path(folder)
    conditioner.check_fits(dit.config)
    if folder.exists() and not overwrite:
        raise ValueError(f"{folder} exists")
    with whole_folder(folder) as new:
        conditioner.vae.save_pretrained(new / "vae", dtype)
        save_dit(new / "dit", merged(dit), dtype=dtype)
        text = conditioner.text_encoder
        _save_encoder(new / "text", text.reload() if isinstance(text, StoredText) else text, dtype)
        _save_encoder(new / "audio", conditioner.audio_encoder, dtype)
        if conditioner.motion_net is not None:
            save_motion_net(new / MOTION, merged(conditioner.motion_net), dtype=dtype)
        if conditioner.motion_stats is not None:
            write_stats(new, conditioner.motion_stats)
        elif card.can.motion:
            raise ValueError("weights that know motion are written with its statistics")
        write_json(new / CARD, dataclasses.asdict(dataclasses.replace(card, base=None, whole=None)))


def load_pipeline(
    folder: str | Path, *, preset: str | None = None, vae: str | Path | None = None
) -> tuple[AvatarDiT, Conditioner]:
    """Read a pipeline, in fp32 and evaluation mode; ``vae`` is a folder that replaces its own.

    ValueError, before any network is built, for a missing file (of motion statistics where the
    weights know motion), weights of another schema version,
    or of another preset than ``preset``; after that for every key that does not fit, by name.
    """
    folder = Path(folder)
    card = read_card(folder, preset=preset)
    check_parts(folder)
    has_stats = card.can.motion or stats_path(folder).is_file()
    motion_stats = read_stats(folder) if has_stats else None
    conditioner = Conditioner(
        VideoVAE.from_pretrained(folder / "vae" if vae is None else vae),
        _load_text(folder / "text"),
        _load_audio(folder / "audio"),
        motion_stats,
        load_motion_net(folder / MOTION) if has_motion_net(folder) else None,
    )
    dit = load_dit(folder / "dit")
    dit.motion_stats = motion_stats
    conditioner.face_vectors = face_vectors(card.can, folder)
    conditioner.check_fits(dit.config)
    if card.can.video is not None:
        conditioner.at_rate(card.can.video.frame_rate_hz)
    return dit.eval(), conditioner.eval()


def face_vectors(can: Capabilities, folder: Path) -> FaceVectors | None:
    """The recogniser that weights were trained with; None where they read no face vectors."""
    if can.identity is None:
        return None
    try:
        vectors = FaceVectors(can.identity)
    except ValueError as error:
        raise ValueError(f"{folder} reads vectors of faces: {error}") from error
    if vectors.hash() != can.identity_hash:
        raise ValueError(
            f"{folder} was trained with the recogniser {can.identity_hash}, and {can.identity} is "
            f"{vectors.hash()}"
        )
    return vectors


def check_parts(folder: Path, *, prompt: str = "") -> None:
    """ValueError for a part that a pipeline lacks, for a base that is not there, and for a prompt
    that its text encoder cannot take as far as config.json tells: before anything is loaded."""
    check_base(folder)
    missing = [p for p in PARTS if not (part_folder(folder / p) / "config.json").is_file()]
    if missing:
        raise ValueError(f"{folder} lacks {', '.join(f'{part}/config.json' for part in missing)}")
    if read_card(folder).can.motion:
        read_stats(folder)
    kind, values = _read_config(part_folder(folder / "text"), TEXT_ENCODERS)
    if kind is ByteTextEncoder:
        where = part_folder(folder / "text") / "config.json"
        limit = checked(values, accepted_fields(ByteTextEncoder), where=where).get("num_bytes", 0)
        check_bytes(prompt.encode(), limit)


def has_motion_net(folder: str | Path) -> bool:
    """Whether a pipeline, or its base, has a motion network."""
    return part_folder(Path(folder) / MOTION).is_dir()


def save_dit(
    folder: str | Path, dit: AvatarDiT, *, dtype: torch.dtype | None = torch.float32
) -> None:
    """config.json and model.safetensors of one DiT, stored as ``dtype``; None: as they are.
    ValueError for a config that could not be read back."""
    folder = Path(folder)
    dit.config.checked(where=f"{folder}/config.json")
    write_state(folder, {k: v.detach().to(dtype or v.dtype) for k, v in dit.state_dict().items()})
    write_json(folder / "config.json", dataclasses.asdict(dit.config))


def dit_config(folder: str | Path) -> DiTConfig:
    """The config of the DiT in ``folder``."""
    folder = part_folder(folder)
    return DiTConfig.from_dict(read_json(folder / "config.json"), where=f"{folder}/config.json")


def load_dit(folder: str | Path, *, dtype: torch.dtype = torch.float32) -> AvatarDiT:
    """The DiT in ``folder``, as ``dtype``; ValueError names every key that does not fit."""
    folder = part_folder(folder)
    config = dit_config(folder)
    with without_memory():
        dit = AvatarDiT(config)
    state = {key: value.to(dtype) for key, value in read_dit_state(folder).items()}
    check_state(dit.state_dict(), state, where=str(folder))
    dit.load_state_dict(state, assign=True)
    return dit.requires_grad_(True)


def read_dit_state(folder: str | Path) -> dict[str, Tensor]:
    """All tensors of a stored DiT, without its `RETIRED` parts."""
    state = read_state(folder)
    return {key: value for key, value in state.items() if not key.startswith(RETIRED)}


def save_motion_net(
    folder: str | Path, net: MotionNet, *, dtype: torch.dtype = torch.float32
) -> None:
    """config.json and model.safetensors of a motion network, stored as ``dtype``."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", dataclasses.asdict(net.config))
    write_state(folder, {k: v.detach().to(dtype) for k, v in net.state_dict().items()})


def load_motion_net(folder: str | Path) -> MotionNet:
    """The motion network in ``folder``, in fp32; ValueError names every key that does not fit."""
    folder = part_folder(folder)
    where = f"{folder}/config.json"
    config = MotionNetConfig.from_dict(read_json(folder / "config.json"), where=where)
    with without_memory():
        net = MotionNet(config)
    state = {key: value.float() for key, value in read_state(folder).items()}
    check_state(net.state_dict(), state, where=str(folder))
    net.load_state_dict(state, assign=True)
    return net.requires_grad_(True)


def read_state(folder: str | Path, stem: str = STEM, *, check: bool = True) -> dict[str, Tensor]:
    """All tensors of ``stem``.safetensors, or of its shards, or of the base with what the folder
    changes. ValueError names a missing file, one that lies elsewhere and, with ``check``, numbers
    that no network can use (states.check_numbers)."""
    return restored(part_folder(folder), partial(_read_files, stem=stem, check=check))


def _read_files(folder: Path, stem: str, check: bool = True) -> dict[str, Tensor]:
    read = _sound if check else read_tensors
    index = folder / f"{stem}.safetensors.index.json"
    single = folder / f"{stem}.safetensors"
    if not index.is_file():
        return read(single)
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ValueError(f"{index} has no weight_map of keys to files")
    # a link may lead out of the folder: those of the Hub's cache do
    files = {inside(folder, name, where=index, links_out=True) for name in weight_map.values()}
    state: dict[str, Tensor] = {}
    for file in sorted(files):
        state |= read(file)
    absent = sorted(set(weight_map) - set(state))
    if absent:
        raise ValueError(f"{index} lists keys that its shards lack: {', '.join(absent)}")
    return state


def write_state(folder: Path, state: dict[str, Tensor], stem: str = STEM) -> None:
    """``stem``.safetensors, in shards with an index above 5 GB. ValueError, before the folder is
    made, for weights that are not finite: a type of less range makes such of large ones."""
    check_numbers(state, where=folder)
    folder.mkdir(parents=True, exist_ok=True)
    from huggingface_hub import save_torch_state_dict

    save_torch_state_dict(
        {key: value.cpu().contiguous() for key, value in state.items()},
        folder,
        filename_pattern=stem + "{suffix}.safetensors",
        max_shard_size=MAX_SHARD_SIZE,
    )


def write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n")


def _sound(path: Path) -> dict[str, Tensor]:
    state = read_tensors(path)
    check_numbers(state, where=path)
    return state


def own_state(module: nn.Module) -> dict[str, Tensor]:
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
    state = {key: value.detach().to(dtype) for key, value in own_state(encoder).items()}
    if state:
        write_state(folder, state)


def load_text(source: str | Path) -> ByteTextEncoder | UMT5TextEncoder:
    """The text encoder of a pipeline, by name or folder, or UMT5 in a folder of its own."""
    if (Path(source) / "config.json").is_file() or (Path(source) / "text_encoder").is_dir():
        return UMT5TextEncoder(source)
    return _load_text(weights_folder(source) / "text").eval()


def _load_text(folder: Path) -> ByteTextEncoder | UMT5TextEncoder:
    folder = part_folder(folder)
    kind, values = _read_config(folder, TEXT_ENCODERS)
    where = folder / "config.json"
    if kind is UMT5TextEncoder:
        encoder = built(UMT5TextEncoder, values, where=where, folder=folder / BACKBONE)
        check_numbers(encoder.state_dict(), where=folder)
        return encoder
    return _loaded(ByteTextEncoder, values, folder)


def _load_audio(folder: Path) -> LogMelEncoder | HiddenStateAudioEncoder:
    folder = part_folder(folder)
    kind, values = _read_config(folder, AUDIO_ENCODERS)
    if kind is LogMelEncoder:
        return _loaded(LogMelEncoder, {"look_ahead": 0, **values}, folder)  # none was stored once
    encoder = built(
        HiddenStateAudioEncoder, values, where=folder / "config.json", sparse=True,
        folder=folder / BACKBONE,
    )  # fmt: skip
    check_numbers(encoder.state_dict(), where=folder)
    own = _own_file(own_state(encoder), folder)
    encoder.load_state_dict({**encoder.state_dict(), **own})
    return encoder


def _read_config(folder: Path, kinds: tuple[type, ...]) -> tuple[type, dict[str, Any]]:
    values = read_json(folder / "config.json")
    name = values.pop("class", None)
    for kind in kinds:
        if kind.__name__ == name:
            return kind, values
    wanted = " or ".join(kind.__name__ for kind in kinds)
    raise ValueError(f"{folder}/config.json describes a {name}, expected {wanted}")


def _loaded(kind: type[_Module], values: dict[str, Any], folder: Path) -> _Module:
    """An encoder with its weights. It is built without memory first: a config.json that promises
    another size than the weights have is found before that size is taken."""
    with without_memory():
        expected = own_state(built(kind, values, where=folder / "config.json"))
    state = _own_file(expected, folder)
    encoder = kind(**values)
    encoder.load_state_dict({**encoder.state_dict(), **state})
    return encoder


def _own_file(expected: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor]:
    state = {key: value.float() for key, value in read_state(folder).items()}
    check_state(expected, state, where=str(folder))
    return state
