"""Shards in an object store, `s3://bucket/prefix`: their indexes, and ranges of their tars.

fsspec reads, with the package of the store. Credentials and end points are those of the store's
usual settings (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ~/.aws …), never a recipe's. An index is read
once a machine and kept on its disk under all that the store lists of it (etag, size, time); the
clips of a batch are read as ranges of their tars. An answer that does not come is asked for again
a few times; then one error names the file. What a store says is as foreign as an archive: sizes
are bounded, names stay below the prefix, and none of them becomes a local path.

`pipe:` is refused: it would run a shell command that a recipe names, and recipes are shared.
"""

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from avatar_v.base.paths import is_relative
from avatar_v.base.progress import track

PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs"}
"""Scheme → what fsspec reads it with."""
MAX_INDEX_BYTES = 1 << 28
"""Of an index: some 400,000 clips in one shard."""
WAITS_S = (1.0, 4.0)
"""Before the second and the third try."""
MAX_GAP_BYTES = 1 << 16
"""Members of a clip this near to each other are one range."""
FILES_AT_ONCE = 64
_T = TypeVar("_T")


@dataclass(frozen=True)
class StoredFile:
    """A file of a store as it lists it."""

    url: str
    num_bytes: int
    mark: str  # of all that is listed of it


def is_url(place: str | Path) -> bool:
    """Whether shards lie elsewhere than in a local folder."""
    return "://" in str(place) or str(place).startswith("pipe:")


def list_files(url: str) -> dict[str, StoredFile]:
    """Name below ``url`` → file, of all that lies there, in the order of a local folder's.

    ValueError for a scheme that is not read, a package that is missing, a bucket that is not there
    or refuses, and a name that is no path below the prefix.
    """
    store = _store(url)
    root = url.partition("://")[2].rstrip("/")
    found = _tried(url, lambda: store.find(root, detail=True))
    files = {}
    for path, info in found.items():
        name = path.removeprefix(f"{root}/")
        if name.endswith("/") or not name:  # what a web console makes of a folder
            continue
        if name == path or not is_relative(name) or "//" in name:
            raise ValueError(f"{url}: the store lists {path!r}, which is no path below it")
        mark = hashlib.sha256(repr(sorted(info.items(), key=str)).encode()).hexdigest()
        files[name] = StoredFile(f"{url.rstrip('/')}/{name}", int(info["size"]), mark)
    return {name: files[name] for name in sorted(files, key=lambda name: name.split("/"))}


def read_kept(url: str, files: Sequence[StoredFile]) -> Iterator[bytes]:
    """The contents of indexes below ``url`` in turn, from this machine's copies; those that are not
    there are fetched first, by one process, with a progress bar. ValueError as `list_files`."""
    folder = _kept_folder(url)
    for file in files:
        if file.num_bytes > MAX_INDEX_BYTES:
            most = f"an index has at most {MAX_INDEX_BYTES:,}"
            raise ValueError(f"{file.url}: {file.num_bytes:,} bytes, {most}")
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the other ranks of the machine wait for the copies
        missing = [file for file in files if not (folder / file.mark).is_file()]
        groups = [missing[i : i + FILES_AT_ONCE] for i in range(0, len(missing), FILES_AT_ONCE)]
        for group in track(groups, f"indexes of {url}") if groups else ():
            ranges = [(file.url, 0, file.num_bytes) for file in group]
            for file, data in zip(group, _fetch(url, ranges), strict=True):
                _write(folder / file.mark, data)
    for file in files:
        yield (folder / file.mark).read_bytes()


def read_ranges(url: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Bytes (offset, size) of one file, those that are neighbours in one request. Ranges beyond the
    end of the file are cut. ValueError, naming the file, if it is gone or does not answer."""
    merged: list[list[int]] = []
    for start, end in sorted((offset, offset + size) for offset, size in ranges if size):
        if merged and start <= merged[-1][1] + MAX_GAP_BYTES:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    parts = _fetch(url, [(url, start, end) for start, end in merged])
    found = []
    for offset, size in ranges:
        whole = b""
        for (start, end), data in zip(merged, parts, strict=True):
            if size and start <= offset < end:
                whole = data[offset - start : offset - start + size]
        found.append(whole)
    return found


def _fetch(where: str, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
    paths = [url.partition("://")[2] for url, _, _ in ranges]
    starts, ends = [start for _, start, _ in ranges], [end for _, _, end in ranges]

    def ask() -> list[bytes]:
        return _store(where).cat_ranges(paths, starts, ends, on_error="raise")

    return _tried(where, ask) if ranges else []


def _store(url: str) -> Any:
    """The file system of a URL. fsspec keeps one a process and makes another behind a fork."""
    scheme, separator, path = url.partition("://")
    if scheme not in PACKAGES or not separator:
        known = ", ".join(f"{name}://" for name in PACKAGES)
        shell = ": it would run a command that the recipe names" if url.startswith("pipe:") else ""
        raise ValueError(f"{url}: shards are read from a folder or {known}, not from this{shell}")
    if not is_relative(path) or "::" in url:
        raise ValueError(f"{url}: expected {scheme}://BUCKET/PREFIX")
    try:
        import fsspec

        return fsspec.filesystem(scheme, use_listings_cache=False)
    except ImportError as error:
        package = PACKAGES[scheme]
        how = f"pip install {package}, or avatar_v[cloud] with s3fs and gcsfs"
        raise ValueError(f"{url}: {scheme}:// is read by the package {package}: {how}") from error


def _tried(where: str, ask: Callable[[], _T]) -> _T:
    """What a store answers. Each package has errors of its own, so any but the clear ones is taken
    for a failure of the network."""
    for wait_s in (*WAITS_S, None):
        try:
            return ask()
        except FileNotFoundError as error:
            raise ValueError(f"{where}: not found ({error})") from error
        except PermissionError as error:
            raise ValueError(f"{where}: access denied, see the store's credentials") from error
        except Exception as error:
            if wait_s is None:
                tries = f"no answer in {len(WAITS_S) + 1} tries"
                raise ValueError(f"{where}: {tries}, the last: {error!r}") from error
        time.sleep(wait_s)
    raise AssertionError


def _kept_folder(url: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "avatar_v" / "indexes" / hashlib.sha256(url.encode()).hexdigest()[:32]
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write(path: Path, data: bytes) -> None:
    """The file is there whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
