"""Shards appear whole or not at all, carry an index, and damage is found and named."""

import dataclasses
import json
import math
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import webdataset
from shard_clips import make_sample, write_clips

from avatar_v.shards.loader import read_clip, read_folder
from avatar_v.shards.schema import Sample
from avatar_v.shards.writer import (
    Failure,
    index_path,
    read_index,
    scan_shard,
    write_index,
    write_shard,
)


def test_equal_clips_give_equal_bytes(tmp_path: Path) -> None:
    first = write_clips(tmp_path / "a", 2)
    second = write_clips(tmp_path / "b", 2)
    for name in ("000.tar", "000.index.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_webdataset_reads_the_shard(tmp_path: Path) -> None:
    path = write_clips(tmp_path, 3) / "000.tar"
    rows = list(webdataset.WebDataset(str(path), shardshuffle=False))
    assert [row["__key__"] for row in rows] == ["clip000", "clip001", "clip002"]
    assert {"video.mp4", "audio.flac", "motion.npy", "face.npz", "json"} <= rows[0].keys()


def test_a_failed_item_is_a_row_and_not_a_gap(tmp_path: Path) -> None:
    wrong = dataclasses.replace(make_sample(1), motion=torch.zeros(5, 15))
    items = [make_sample(0), Failure("clip 7", "no sound"), wrong, make_sample(2)]
    write_shard(tmp_path / "a.tar", items)
    index = read_index(tmp_path / "a.index.json")
    assert [clip.key for clip in index.clips] == ["clip000", "clip002"]
    assert index.failures[0] == Failure("clip 7", "no sound")
    assert "motion has shape" in index.failures[1].reason


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    def items() -> Iterator[Sample]:
        yield make_sample(0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_shard(tmp_path / "a.tar", items())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("lost", [".tar", ".json"])
def test_a_shard_has_an_index_only_when_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """The disk fails as one of the two files is moved to its place, the index last."""

    move, order = os.replace, []

    def replace(source: Path, target: Path) -> None:
        order.append(Path(target).suffix)
        if Path(target).suffix == lost:
            raise OSError("the disk is gone")
        move(source, target)

    monkeypatch.setattr("os.replace", replace)
    with pytest.raises(OSError, match="disk is gone"):
        write_shard(tmp_path / "a.tar", [make_sample(0)])
    assert order == [".tar", ".json"][: 1 + (lost == ".json")]
    assert list(tmp_path.iterdir()) == []


def test_a_shard_that_replaces_another_is_never_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where the disk is full behind the tar, nor where the process is killed between the two
    files: the new index is found under its temporary name."""
    before, file = write_shard(tmp_path / "a.tar", map(make_sample, range(2))), tmp_path / "a.tar"

    def full(*_: object) -> str:
        raise OSError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr("avatar_v.shards.writer._index_text", full)
        with pytest.raises(OSError, match="full"):
            write_shard(file, [make_sample(0)])
    assert read_index(index_path(file)) == before
    assert len(list(tmp_path.iterdir())) == 2
    old = index_path(file).read_bytes()
    after = write_shard(file, [make_sample(0)])
    index_path(file).rename(tmp_path / ".a.index.json.7.tmp")
    index_path(file).write_bytes(old)
    assert read_index(index_path(file)) == after
    (tmp_path / ".a.index.json.7.tmp").unlink()
    assert read_index(index_path(file)) == after


def test_two_clips_of_one_key_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two clips have the key clip000"):
        write_shard(tmp_path / "a.tar", [make_sample(0), make_sample(0)])
    write_clips(tmp_path / "one", 1)
    write_clips(tmp_path / "two", 1)
    with pytest.raises(ValueError, match=r"clip000 is in .*one.* and in .*two"):
        read_folder(tmp_path)


def test_the_index_of_a_foreign_tar_is_the_same(tmp_path: Path) -> None:
    path = write_clips(tmp_path, 2) / "000.tar"
    written = index_path(path).read_bytes()
    assert scan_shard(path).clips == read_index(index_path(path)).clips
    index_path(path).unlink()
    write_index(path)
    assert index_path(path).read_bytes() == written


def test_a_tar_without_index_is_left_out_and_said(tmp_path: Path) -> None:
    write_clips(tmp_path, 7)
    (tmp_path / "006.index.json").unlink()
    with pytest.warns(UserWarning, match=r"006"):
        assert len(read_folder(tmp_path)) == 6
    (tmp_path / "000.index.json").unlink()
    with pytest.raises(ValueError, match="no finished shards"):
        read_folder(tmp_path)


def test_a_truncated_shard_names_file_and_clip(tmp_path: Path) -> None:
    path = write_clips(tmp_path, 3) / "000.tar"
    data = path.read_bytes()
    second = read_folder(tmp_path)[1]
    path.write_bytes(data[: second.members["json"].offset + 10])
    with pytest.raises(ValueError, match=r"000\.tar: \d+ bytes, .* first clip cut off is clip001"):
        read_folder(tmp_path)
    with pytest.raises(ValueError, match=r"000\.tar.*clip001"):
        scan_shard(path)
    with pytest.raises(ValueError, match=r"000\.tar, clip clip001: .* is cut"):
        read_clip(second)


def test_a_changed_byte_names_file_clip_and_member(tmp_path: Path) -> None:
    path = write_clips(tmp_path, 2) / "000.tar"
    clip = read_folder(tmp_path)[1]
    data = bytearray(path.read_bytes())
    data[clip.members["motion.npy"].offset + 100] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"000\.tar, clip clip001: motion\.npy is corrupt"):
        read_clip(clip)


def test_damaged_and_foreign_indexes_are_refused(tmp_path: Path) -> None:
    file = index_path(write_clips(tmp_path, 1) / "000.tar")
    fields = json.loads(file.read_text())
    file.write_text(json.dumps({**fields, "schema_version": 99}))
    with pytest.raises(ValueError, match=r"000\.index\.json: schema version 99"):
        read_index(file)
    file.write_text(file.read_text()[:40])
    with pytest.raises(ValueError, match="not a readable shard index"):
        read_index(file)
    file.write_text(json.dumps(fields))
    (tmp_path / "000.tar").unlink()
    with pytest.raises(ValueError, match=r"000\.tar is missing"):
        read_index(file)


@pytest.mark.parametrize("name", ["../secret.tar", "sub/000.tar", "", "..", None, 3, ["000.tar"]])
def test_an_index_names_a_file_beside_it(tmp_path: Path, name: object) -> None:
    write_clips(tmp_path, 1).joinpath("000.tar").rename(tmp_path / "secret.tar")
    file = write_clips(tmp_path / "set", 1) / "000.index.json"
    names = [name, str(tmp_path / "secret.tar")]
    for one in names:
        file.write_text(json.dumps({**json.loads(file.read_text()), "shard": one}))
        with pytest.raises(ValueError, match=r"set/000\.index\.json: expected (a path|the name)"):
            read_folder(tmp_path / "set")


def test_a_shard_that_is_a_link_elsewhere_is_refused(tmp_path: Path) -> None:
    folder = write_clips(tmp_path / "set", 1)
    (folder / "000.tar").rename(tmp_path / "secret.tar")
    (folder / "000.tar").symlink_to(tmp_path / "secret.tar")
    with pytest.raises(ValueError, match=r"000\.index\.json: '000\.tar' leads to .*secret"):
        read_folder(folder)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"clips": [3]}, ""),
        ({"clips": 3}, ""),
        ({"failures": [{"why": "x"}]}, "argument"),
        ({"failures": 3}, ""),
        ({"num_bytes": math.inf}, "num_bytes is a whole number, got inf"),
        ({"num_bytes": "1"}, "num_bytes is a whole number, got '1'"),
    ],
)
def test_an_index_of_wrong_types_is_one_error(tmp_path: Path, change: dict, why: str) -> None:
    file = index_path(write_clips(tmp_path, 1) / "000.tar")
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ValueError, match=rf"000\.index\.json: not a readable .*{why}"):
        read_index(file)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ([-1, 2, 3], "json lies at"),
        ([1, -1, 3], "json lies at"),
        ([1, 2, -3], "json lies at"),
        ([1, 2, 1 << 32], "json lies at"),
        (["1", 2, 3], "json lies at"),
        ([1.0, 2, 3], "json lies at"),
        ([True, 2, 3], "json lies at"),
        ([1, 2], "missing 1 required"),
        ([1 << 40, 2, 3], "json ends behind the"),
        ([1, 1 << 40, 3], "json ends behind the"),
    ],
)
def test_an_index_points_into_its_shard(tmp_path: Path, changed: list, why: str) -> None:
    file = index_path(write_clips(tmp_path, 1) / "000.tar")
    fields = json.loads(file.read_text())
    fields["clips"][0]["members"]["json"] = changed
    file.write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=rf"000\.index\.json: not a readable .*{why}"):
        read_index(file)


def test_the_last_member_may_end_with_its_shard(tmp_path: Path) -> None:
    file = index_path(write_clips(tmp_path, 1) / "000.tar")
    fields = json.loads(file.read_text())
    fields["clips"][0]["members"]["json"] = [fields["num_bytes"] - 2, 2, 3]
    file.write_text(json.dumps(fields))
    assert read_index(file).clips[0].members["json"].size == 2


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE])
def test_a_tar_with_anything_but_plain_files_is_refused(tmp_path: Path, kind: bytes) -> None:
    path = write_clips(tmp_path, 1) / "000.tar"
    entry = tarfile.TarInfo("clip001.json")
    entry.type, entry.linkname = kind, "clip000.json"
    with tarfile.open(path, "a:") as tar:
        tar.addfile(entry)
    with pytest.raises(ValueError, match=r"000\.tar: clip001\.json is no plain file"):
        write_index(path)


def test_a_folder_of_shards_may_be_moved(tmp_path: Path) -> None:
    write_clips(tmp_path / "a", 1).rename(tmp_path / "b")
    assert read_clip(read_folder(tmp_path / "b")[0]).key == "clip000"
