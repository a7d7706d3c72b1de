"""The indexes of a folder of shards, on a disk or in an object store (store.py)."""

import warnings
from collections.abc import Iterator
from pathlib import Path

from avatar_v.base.paths import is_relative
from avatar_v.shards.store import is_url, list_files, read_kept
from avatar_v.shards.writer import (
    INDEX_SUFFIX,
    ShardIndex,
    parse_index,
    read_index,
    require_whole,
)


def read_indexes(folder: str | Path) -> Iterator[ShardIndex]:
    """The index of every finished shard in and below ``folder``, in the order of their paths.

    ValueError if there is none or a shard is damaged; tars without an index are a warning.
    """
    if is_url(folder):
        yield from _read_stored(str(folder).rstrip("/"))
        return
    paths = sorted(Path(folder).rglob(f"*{INDEX_SUFFIX}"))
    _require_some(folder, [str(path) for path in paths], map(str, Path(folder).rglob("*.tar")))
    yield from map(read_index, paths)


def name_below(folder: str | Path, shard: str) -> str:
    """The path of a shard in its folder."""
    above = str(folder).rstrip("/") if is_url(folder) else str(Path(folder))
    assert shard.startswith(f"{above}/") or above == "."
    return shard.removeprefix(f"{above}/")


def _read_stored(url: str) -> Iterator[ShardIndex]:
    files = list_files(url)
    indexes = [name for name in files if name.endswith(INDEX_SUFFIX)]
    _require_some(url, indexes, (name for name in files if name.endswith(".tar")))
    contents = read_kept(url, [files[name] for name in indexes])
    for name, data in zip(indexes, contents, strict=True):
        where, above = f"{url}/{name}", name.rpartition("/")[0]

        def beside(shard: object, where: str = where, above: str = above) -> str:
            if not is_relative(shard) or "/" in str(shard):
                raise ValueError(f"{where}: expected the name of a file beside it, got {shard!r}")
            found = f"{above}/{shard}" if above else str(shard)
            if found not in files:
                raise ValueError(f"{where}: its shard {shard} is missing")
            return files[found].url

        index = parse_index(data, where, beside)
        require_whole(index, files[index.shard.removeprefix(f"{url}/")].num_bytes)
        yield index


def _require_some(folder: str | Path, indexes: list[str], tars: Iterator[str]) -> None:
    if not indexes:
        raise ValueError(f"{folder}: no finished shards (NAME.tar with NAME{INDEX_SUFFIX}) in it")
    finished = {name.removesuffix(INDEX_SUFFIX) for name in indexes}
    unfinished = sorted(tar for tar in tars if tar.removesuffix(".tar") not in finished)
    if unfinished:
        warnings.warn(f"{folder}: tars without an index are left out: {unfinished}", stacklevel=3)
