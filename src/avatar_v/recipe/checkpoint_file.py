"""Checkpoints that a run goes on from, read so that none can run code, before anything is built.

A checkpoint is a file of ``torch.save``, or the folder of a sharded run. Tensors and plain values
are all that either may hold. torch itself unpickles the index of a folder and the values beside
its tensors without a limit, so both are read here first.
"""

import io
import pickle
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo

from avatar_v.base.outside import check_pulled

INDEX = ".metadata"
REST = "meta.pt"
EXPECTED = "expected a checkpoint that `avatar-v run` left in its folder checkpoints"
KEYS = ("state_dict", "global_step", "loops")
"""What Lightning's checkpoints hold beside others; a sharded one has no state_dict here."""

CLASSES = {
    ("torch.distributed.checkpoint.filesystem", _StorageInfo.__name__),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    *(
        ("torch.distributed.checkpoint.metadata", name)
        for name in (
            "Metadata", "MetadataIndex", "TensorProperties", "StorageMeta", "_MEM_FORMAT_ENCODING",
            "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata",
        )
    ),
}  # fmt: skip
"""All that the index of a sharded checkpoint is made of, beside torch's types of numbers."""


def check_checkpoint(name: str) -> None:
    """ValueError unless ``name`` is a whole checkpoint of tensors and plain values."""
    path = Path(name)
    if not (path.is_file() or path.is_dir()):  # devices and pipes are neither
        raise ValueError(f"ckpt_path: there is no file or folder {name!r}; {EXPECTED}, or last")
    check_pulled(path)
    try:
        keys = _keys_of_folder(path) if path.is_dir() else _keys_of_file(path)
    except (OSError, RuntimeError, EOFError, KeyError, ValueError, pickle.UnpicklingError) as error:
        why = " ".join(str(error).split("\n")[0].split())[:120]
        raise ValueError(f"ckpt_path: {name} cannot be read ({why}); {EXPECTED}") from error
    missing = [key for key in KEYS if key not in keys]
    if missing:
        raise ValueError(f"ckpt_path: {name} has no {', '.join(missing)}; {EXPECTED}")


def newest_whole(found: Sequence[Path]) -> tuple[Path, list[str]]:
    """The first of ``found`` that is whole, and what is wrong with those before it. ValueError
    where none is."""
    damages: list[str] = []
    for path in found:
        try:
            check_checkpoint(str(path))
        except ValueError as error:
            damages.append(str(error).partition(f"; {EXPECTED}")[0])
            continue
        return path, damages
    raise ValueError(f"{damages[0]}; {EXPECTED}")


def check_layout(path: Path, trainer: L.Trainer) -> None:
    """ValueError for a checkpoint of a sharded run in one that does not shard, or the other way
    round: their optimisers keep their state by other names."""
    shards = isinstance(trainer.strategy, ModelParallelStrategy)
    if path.is_dir() == shards:
        return
    left, goes_on = ("a sharded run", "does not shard") if path.is_dir() else (
        "a run that did not shard", "shards"
    )  # fmt: skip
    raise ValueError(
        f"ckpt_path: {path} is of {left}, and this one {goes_on}: go on with the strategy of that "
        "run, or begin a new run from its weights (init_from)"
    )


def check_left(root: str) -> None:
    """The same of what a job that was requeued left in its run's folder: Lightning reads it
    unasked."""
    for path in Path(root).glob("hpc_ckpt_*"):
        check_checkpoint(str(path))


def _keys_of_file(path: Path) -> set[str]:
    if not zipfile.is_zipfile(path):
        raise ValueError("it is damaged or of another kind")
    with zipfile.ZipFile(path) as file:
        if any(member.compress_type for member in file.infolist()):
            raise ValueError("it is compressed, as no checkpoint is")
        broken = file.testzip()
    if broken is not None:
        raise ValueError(f"it is damaged at {broken}")
    return _list_keys(_loaded(path))


def _keys_of_folder(folder: Path) -> set[str]:
    if not ((folder / INDEX).is_file() and (folder / REST).is_file()):
        raise ValueError(f"the folder lacks {INDEX} or {REST}")
    with open(folder / INDEX, "rb") as file:
        index = _IndexReader(file).load()
    if not isinstance(index, dcp.Metadata):
        raise ValueError(f"{INDEX} is no index of tensors")
    for place, part in (index.storage_data or {}).items():
        file = (folder / part.relative_path).resolve()
        if file.parent != folder.resolve():
            raise ValueError(f"{INDEX} names a file outside the folder")
        if isinstance(index.state_dict_metadata.get(place.fqn), dcp.BytesStorageMetadata):
            with open(file, "rb") as stream:
                stream.seek(part.offset)
                _loaded(io.BytesIO(stream.read(part.length)))
    return _list_keys(_loaded(folder / REST)) | {"state_dict"}


def _list_keys(content: Any) -> set[str]:
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}")
    return set(content)


def _loaded(source: Path | io.BytesIO) -> Any:
    """Tensors and plain values alone; whatever else is pickled there is an error."""
    try:
        mapped = isinstance(source, Path)  # then tensors stay on the disk
        return torch.load(source, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise ValueError("it holds objects that could run code, or is no checkpoint") from error


class _IndexReader(pickle.Unpickler):
    """Reads the index of a sharded checkpoint and nothing else."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        if (module_name, global_name) in CLASSES:
            return super().find_class(module_name, global_name)
        value = vars(torch).get(global_name) if module_name == "torch" else None
        if isinstance(value, torch.dtype):
            return value
        raise ValueError(f"{INDEX} holds {module_name}.{global_name}, which could run code")
