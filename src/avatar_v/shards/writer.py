"""Shards on disk: a WebDataset tar and, beside it, the index that makes it a finished shard.

`webdataset.TarWriter` writes the tar with a fixed time stamp, so equal clips give equal bytes and
any WebDataset reader can read it. Beside `NAME.tar` lies `NAME.index.json`: each clip's ids, sizes,
and the offset, length and CRC-32 of its members, and a row for each item that failed. Both are
written under a temporary name and then moved, the index last: a tar without one is unfinished. Of a
tar that took the place of another the index may lie under its temporary name still, where the
process was killed between the two: it is found there.
"""

import contextlib
import dataclasses
import json
import tarfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import NamedTuple

from webdataset.writer import TarWriter

from avatar_v.base.outside import check_pulled, parse_json, read_bytes, regular_file
from avatar_v.base.paths import inside, whole_file
from avatar_v.base.stored import shown
from avatar_v.shards.schema import (
    LATENTS,
    META,
    RAW_VIDEO,
    SCHEMA_VERSION,
    VIDEO,
    Sample,
    decode_meta,
    encode_sample,
)
from avatar_v.types import FRAME_RATE_HZ

INDEX_SUFFIX = ".index.json"
MAX_WORD = 4096
"""Characters of a key, a person or a scene."""
MAX_SIDE = 1 << 20
"""Frames of a clip, or pixels of a side."""
_NO_JSON = (json.JSONDecodeError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True)
class Failure:
    """An item that gave no clip: a row in the index, never a silent gap."""

    key: str
    reason: str


@dataclass(frozen=True)
class RawClip:
    """A clip as its members' bytes: what is copied from another shard is not encoded again."""

    key: str
    members: dict[str, bytes]


class Member(NamedTuple):
    """Where a member's bytes lie in the tar. A tuple: an index of a million clips makes many."""

    offset: int
    size: int
    crc32: int


@dataclass(frozen=True)
class ClipEntry:
    """One clip of an index: enough to bucket, pair and read it without opening the tar."""

    shard: str  # path of the tar
    key: str
    person: str
    scene: str
    num_frames: int
    height: int
    width: int
    vae_hash: str | None
    members: dict[str, Member]
    frame_rate_hz: int = FRAME_RATE_HZ
    text_hash: str | None = None

    @property
    def has_video(self) -> bool:
        return VIDEO in self.members or RAW_VIDEO in self.members

    @property
    def has_latents(self) -> bool:
        return LATENTS in self.members


@dataclass(frozen=True)
class ShardIndex:
    """What `NAME.index.json` says."""

    shard: str
    num_bytes: int
    clips: tuple[ClipEntry, ...]
    failures: tuple[Failure, ...]


def write_shard(
    path: str | Path, items: Iterable[Sample | RawClip | Failure], *, raw: bool = False
) -> ShardIndex:
    """Write ``items`` in order to the tar ``path`` and its index; both appear whole or not at all.
    ``raw``: samples with their sound and video uncompressed.

    A Failure, or a Sample that contradicts itself, becomes a row of the index. Two clips of one
    key are a ValueError: the second would hide the first from WebDataset readers.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    failures, keys = [], set()
    was_there = path.exists()
    try:
        with contextlib.ExitStack() as behind, whole_file(path) as temporary:
            with open(temporary, "wb") as file, TarWriter(file, mtime=0) as tar:
                for item in items:
                    if isinstance(item, Failure):
                        failures.append(item)
                        continue
                    if item.key in keys:
                        raise ValueError(f"{path}: two clips have the key {item.key}")
                    keys.add(item.key)
                    try:
                        members = (
                            item.members
                            if isinstance(item, RawClip)
                            else encode_sample(item, raw=raw)
                        )
                    except ValueError as error:
                        failures.append(Failure(item.key, str(error)))
                        continue
                    tar.write({"__key__": item.key, **members})
            index = scan_shard(temporary, name=str(path), failures=tuple(failures))
            beside = behind.enter_context(whole_file(index_path(path)))  # moved behind the tar
            beside.write_text(_index_text(index, path))
    except BaseException:
        if not was_there:
            path.unlink(missing_ok=True)
        raise
    return index


def index_path(shard: str | Path) -> Path:
    """`NAME.index.json` for `NAME.tar`."""
    return Path(shard).with_suffix(INDEX_SUFFIX)


def read_index(path: str | Path) -> ShardIndex:
    """The index at ``path``; ValueError if it is damaged, of another version, its tar is cut, or
    is not a file beside it."""
    path = Path(path)
    try:
        data = read_bytes(path, what="shard index")
    except ValueError as error:
        raise ValueError(f"{path}: not a readable shard index ({error})") from error
    index = parse_index(data, path, lambda name: str(inside(path.parent, name, where=path)))
    if not Path(index.shard).is_file():
        raise ValueError(f"{path}: its shard {index.shard} is missing")
    num_bytes = Path(index.shard).stat().st_size
    if num_bytes != index.num_bytes:
        index = _left_beside(path, num_bytes) or index
    require_whole(index, num_bytes)
    return index


def _left_beside(path: Path, num_bytes: int) -> ShardIndex | None:
    """The index of a shard of this size that was not moved to ``path`` any more; now it is there,
    too."""
    for beside in sorted(path.parent.glob(f".{escape(path.name)}.*.tmp")):
        with contextlib.suppress(ValueError, OSError):
            data = read_bytes(beside, what="shard index")
            index = parse_index(data, path, lambda name: str(inside(path.parent, name, where=path)))
            if index.num_bytes == num_bytes:
                with contextlib.suppress(OSError):  # of a folder that is only read
                    write_text_atomically(path, data.decode())
                return index
    return None


def parse_index(data: bytes, where: str | Path, shard_at: Callable[[object], str]) -> ShardIndex:
    """The index of a shard whose place ``shard_at`` tells by its name; ValueError as `read_index`.
    Whether the shard is there and whole is not looked at."""
    try:
        fields = parse_json(data, where=where)
    except ValueError as error:
        raise ValueError(f"{where}: not a readable shard index ({error})") from error
    try:
        version = fields["schema_version"]
        if version != SCHEMA_VERSION:
            raise ValueError(f"{where}: schema version {version}, this code reads {SCHEMA_VERSION}")
        shard = shard_at(fields["shard"])
        num_bytes = fields["num_bytes"]
        if type(num_bytes) is not int:
            raise TypeError(f"num_bytes is a whole number, got {shown(num_bytes)}")
        clips = tuple(_entry(shard, num_bytes, clip) for clip in fields["clips"])
        failures = tuple(Failure(**row) for row in fields["failures"])
    except (*_NO_JSON, OSError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{where}: not a readable shard index ({error!r})") from error
    return ShardIndex(shard, num_bytes, clips, failures)


def require_whole(index: ShardIndex, found: int) -> None:
    """ValueError, naming the first clip that is cut, unless the shard has ``found`` bytes."""
    if found != index.num_bytes:
        ends = {c.key: max(m.offset + m.size for m in c.members.values()) for c in index.clips}
        check_pulled(index.shard)
        cut = [key for key, end in ends.items() if end > found]
        first = f"; the first clip cut off is {cut[0]}" if cut else ""
        raise ValueError(f"{index.shard}: {found} bytes, its index says {index.num_bytes}{first}")


def scan_shard(
    path: str | Path, *, name: str | None = None, failures: tuple[Failure, ...] = ()
) -> ShardIndex:
    """Index any WebDataset tar of this schema by reading it once; errors call it ``name``."""
    name = name or str(path)
    check_pulled(path)
    members: dict[str, dict[str, Member]] = {}
    metas = {}
    try:
        with (
            open(regular_file(path, expected="expected a shard"), "rb") as stream,
            tarfile.open(fileobj=stream, mode="r:") as tar,
        ):
            for info in tar:
                key, _, extension = info.name.partition(".")
                is_plain = info.isreg() and not info.issparse()  # holes have no bytes in the file
                file = tar.extractfile(info) if is_plain else None
                if file is None:  # also links: they would give a member of another name
                    raise ValueError(f"{name}: {info.name} is no plain file")
                data = file.read()
                if len(data) != info.size:
                    raise ValueError(f"{name}: truncated within clip {key}, member {extension}")
                member = Member(info.offset_data, info.size, zlib.crc32(data))
                members.setdefault(key, {})[extension] = member
                if extension == META:
                    metas[key] = decode_meta(data, f"{name}, clip {key}")
    except tarfile.TarError as error:
        last = f" after clip {list(members)[-1]}" if members else ""
        raise ValueError(f"{name}: not a whole tar file{last} ({error})") from error
    without = [key for key in members if key not in metas]
    if without:
        raise ValueError(f"{name}: clip {without[0]} has no {META} member")
    clips = tuple(
        ClipEntry(
            name,
            key,
            meta.person,
            meta.scene,
            meta.num_frames,
            meta.height,
            meta.width,
            meta.vae_hash,
            members[key],
            meta.frame_rate_hz,
            meta.text_hash,
        )
        for key, meta in metas.items()
    )
    return ShardIndex(name, Path(path).stat().st_size, clips, failures)


def write_index(shard: str | Path) -> ShardIndex:
    """Scan a tar that came without an index (another tool's) and write the index beside it."""
    index = scan_shard(shard)
    write_text_atomically(index_path(shard), _index_text(index, Path(shard)))
    return index


def _index_text(index: ShardIndex, shard: Path) -> str:
    fields = {
        "schema_version": SCHEMA_VERSION,
        "shard": shard.name,
        "num_bytes": index.num_bytes,
        "clips": [_row(clip) for clip in index.clips],
        "failures": [dataclasses.asdict(failure) for failure in index.failures],
    }
    return json.dumps(fields, sort_keys=True)


def write_text_atomically(path: Path, text: str) -> None:
    """The file is there whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_text(text)


def _row(clip: ClipEntry) -> dict:
    row = dataclasses.asdict(clip)
    del row["shard"]  # named once, so that a folder of shards may be moved
    row["members"] = {k: [m.offset, m.size, m.crc32] for k, m in clip.members.items()}
    return row


def _entry(shard: str, num_bytes: int, row: dict) -> ClipEntry:
    """TypeError for a row of other types, or with members that are not in the shard."""
    members = {name: Member(*numbers) for name, numbers in row["members"].items()}
    entry = ClipEntry(**{**row, "shard": shard, "members": members})
    words = (entry.key, entry.person, entry.scene, entry.vae_hash or "", entry.text_hash or "")
    sizes = (entry.num_frames, entry.height, entry.width, entry.frame_rate_hz)
    if not all(isinstance(word, str) and len(word) <= MAX_WORD for word in words):
        raise TypeError(f"clip {shown(entry.key)}: its words are {shown(words)}")
    if not all(isinstance(size, int) and 0 <= size <= MAX_SIDE for size in sizes):
        raise TypeError(f"clip {entry.key}: frames, height, width and rate are {shown(sizes)}")
    if not members:
        raise TypeError(f"clip {entry.key}: it has no members")
    for name, m in members.items():
        offset, size, crc32 = m
        if not type(offset) is type(size) is type(crc32) is int or min(m) < 0 or crc32 >> 32:
            raise TypeError(f"clip {entry.key}: {name} lies at {shown(m)}")
        if offset + size > num_bytes:
            raise TypeError(f"clip {entry.key}: {name} ends behind the {num_bytes} bytes")
    return entry
