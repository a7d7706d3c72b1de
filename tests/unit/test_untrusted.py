"""Files of other people are data: no reader runs what they hold.

Each payload makes a folder when it is unpickled or built; the folder may not be there afterwards.
"""

import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from shard_clips import make_sample

from avatar_v.critics.syncnet import WEIGHTS_FILE, SyncNet
from avatar_v.recipe.cli import merge_recipes
from avatar_v.scoring.values import Values
from avatar_v.shards.arrays import encode_array, encode_arrays
from avatar_v.shards.schema import (
    FACE,
    MOTION,
    decode_pictures,
    decode_sample,
    encode_sample,
)
from avatar_v_eval.bench.cache import Cache, measurement_key
from avatar_v_eval.human.study_file import load_study


class Payload:
    """Makes the folder ``mark`` for whoever unpickles it."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.mark),)


def _array(mark: Path) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([Payload(mark)], dtype=object), allow_pickle=True)
    return file.getvalue()


def _arrays(mark: Path, name: str) -> bytes:
    """An npz that holds it under ``name``, beside others that readers ask for first."""
    file = io.BytesIO()
    objects = np.array([Payload(mark)], dtype=object)
    np.savez(file, frames=np.zeros(1, np.int64), **{name: objects})
    return file.getvalue()


def _syncnet(folder: Path, mark: Path) -> None:
    torch.save({"weight": Payload(mark)}, folder / WEIGHTS_FILE)
    SyncNet.load(folder / WEIGHTS_FILE)


def _array_of_a_shard(folder: Path, mark: Path) -> None:
    decode_pictures(_array(mark), "shard, clip a.faces.npz")


def _arrays_of_a_shard(folder: Path, mark: Path) -> None:
    decode_pictures(_arrays(mark, "pictures"), "shard, clip a.faces.npz")


def _member_of_a_clip(member: str) -> Callable[[Path, Path], None]:
    def read(folder: Path, mark: Path) -> None:
        array = _array(mark) if member.endswith("npy") else _arrays(mark, "valid")
        decode_sample("a", {**encode_sample(make_sample(0)), member: array}, where="shard")

    read.__name__ = f"_{member}"
    return read


def _array_of_a_cache(folder: Path, mark: Path) -> None:
    key = measurement_key("a", "b", "c", 1, "d")
    entry = {"values": {}, "frames": {}, "notes": [], "reason": "", "seconds": 0, "has_rows": True}
    (folder / key[:2]).mkdir()
    (folder / key[:2] / f"{key}.json").write_text(json.dumps(entry))
    (folder / key[:2] / f"{key}.npy").write_bytes(_array(mark))
    if "anew" in Cache(folder).entry(key, lambda: Values({"anew": 1.0})).values:
        raise ValueError("not taken, and measured anew")


def _study(folder: Path, mark: Path) -> None:
    (folder / "study.yaml").write_text(f"name: !!python/object/apply:os.mkdir ['{mark}']")
    load_study(folder)


def _recipe(folder: Path, mark: Path) -> None:
    (folder / "a.yaml").write_text(f"model: !!python/object/apply:os.mkdir ['{mark}']")
    merge_recipes([str(folder / "a.yaml")])


READERS = [
    _syncnet, _array_of_a_shard, _arrays_of_a_shard, _member_of_a_clip(MOTION),
    _member_of_a_clip(FACE), _array_of_a_cache, _study, _recipe,
]  # fmt: skip


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_nothing_in_a_file_is_run(read: Callable[[Path, Path], None], tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with pytest.raises(ValueError, match=r"\S"):
        read(tmp_path, mark)
    assert not mark.exists(), "the file made a folder"


def test_shards_are_written_without_objects(tmp_path: Path) -> None:
    """What nobody may read is not written either: numbers alone are."""
    objects = np.array([Payload(tmp_path / "mark")], dtype=object)
    with pytest.raises(ValueError, match="allow_pickle"):
        encode_arrays({"pictures": objects})
    with pytest.raises(ValueError, match="allow_pickle"):
        encode_array(objects)
    assert np.load(io.BytesIO(encode_arrays({"a": np.ones(2)}))).files == ["a"]
