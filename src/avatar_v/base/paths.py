"""Names that a file gives of other files: they stay in the folder they are meant for. Also files
and folders that are there whole or not at all, and the error of a disk that takes no more.

An index, a manifest or a study is often another person's. A name in it that is absolute, climbs by
``..`` or is a link elsewhere would have any file of this machine read. It holds no file formats.
"""

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

from safetensors import SafetensorError

from avatar_v.base.outside import check_pulled, parse_json
from avatar_v.base.stored import shown

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Of a disk that takes no more."""
NAME = re.compile(r"[^\W_][\w .+=@-]{0,119}")


def inside(folder: str | Path, name: object, *, where: str | Path, links_out: bool = False) -> Path:
    """``folder / name`` for the plain name of a file in ``folder``, which need not exist.

    ValueError, beginning with ``where`` (the file that gives the name), for all that is not text or
    is a path, and for a link that leads out of the folder unless ``links_out``. Folders of weights
    allow links: those of the Hub's cache lead to its blobs.
    """
    path = below(folder, name, where=where, links_out=links_out)
    if path.parent != Path(folder):
        raise ValueError(f"{where}: expected the name of a file in {folder}, got {name!r}")
    return path


def below(folder: str | Path, name: object, *, where: str | Path, links_out: bool = False) -> Path:
    """``folder / name`` for a relative path that stays below ``folder``; errors as in `inside`."""
    if not is_relative(name):
        raise ValueError(f"{where}: expected a path below {folder}, got {name!r}")
    path = Path(folder) / str(name)
    if not links_out and not _real(path).is_relative_to(_real(folder)):
        raise ValueError(f"{where}: {name!r} leads to {_real(path)}, out of {folder}")
    return path


def check_name(name: object, *, where: str | Path) -> str:
    """A name that becomes that of a file or folder: it begins with a letter or digit, and has only
    such and . _ + = @ - and blanks. ValueError, which begins with ``where``, for another."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"{where}: expected a name of letters, digits, . _ and -, which begins "
                         f"with a letter or digit, got {shown(name)}")  # fmt: skip
    return name


def is_relative(name: object) -> bool:
    """Whether a name, wherever it is joined, leads no higher: relative, without ``..``."""
    if not isinstance(name, (str, os.PathLike)):
        return False
    text = os.fspath(name)
    if not isinstance(text, str) or "\0" in text or not PurePosixPath(text).parts:
        return False
    # A backslash separates on Windows, where C:name is a path as well.
    kinds = (PurePosixPath(text), PureWindowsPath(text))
    return not any(kind.anchor or ".." in kind.parts for kind in kinds)


def indexed_weights(folder: str | Path) -> list[Path]:
    """The files of weights that the ``*.index.json`` of a folder of the Hub's layout name.

    transformers joins these names to the folder as they are. ValueError for one that is no plain
    name, for an index that has no ``weight_map``, and for files that Git LFS has not fetched.
    """
    check_pulled(folder)
    found = {}
    for index in sorted(Path(folder).glob("*.index.json")):
        try:
            names = parse_json(index.read_bytes(), where=index)["weight_map"].values()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{index}: not an index with a weight_map ({error!r})") from error
        found |= {inside(folder, name, where=index, links_out=True): None for name in names}
    return list(found)


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder beside ``folder`` to be filled, which takes its name and place behind the block; one
    that an error ends leaves nothing. Errors of a full disk are those of `disk_named`."""
    partial = folder.with_name(folder.name + ".partial")
    new = [parent for parent in partial.parents if not parent.exists()]
    try:
        with disk_named(folder):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            yield partial
            if folder.exists():
                shutil.rmtree(folder)
            partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        for parent in new:  # the innermost first
            with contextlib.suppress(OSError):  # another process has filled it
                parent.rmdir()
        raise


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """The name of a file beside ``path`` to be written, which takes its name and place behind the
    block, on the disk before it has them, so that a machine that goes dark leaves no empty file;
    one that an error ends is removed, and what was at ``path`` stays. Errors of a full disk are
    those of `disk_named`."""
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with disk_named(path):
            yield partial
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def disk_named(path: str | Path) -> Iterator[None]:
    """Around what writes ``path``: a disk that takes no more is one OSError that names path and
    disk, from Python and from safetensors, whose other errors of the system become OSErrors."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        full, number = full_disk(error, path), _number(error)
        if full is not None:
            raise full from error
        if number is not None and isinstance(error, SafetensorError):
            raise OSError(number, os.strerror(number), str(path)) from error
        raise


def full_disk(error: Exception, path: str | Path) -> OSError | None:
    """The error that names ``path`` and its disk, where ``error`` says that it takes no more."""
    number = _number(error)
    if number not in FULL:
        return None
    place = next(p for p in Path(os.path.abspath(path)).parents if p.exists())
    disk = next(p for p in (place, *place.parents) if p.is_mount())
    free, why = shutil.disk_usage(place).free / 2**20, os.strerror(number).lower()
    named = OSError(f"{path}: {why} on the disk at {disk} ({free:,.1f} MiB free without it)")
    named.errno = number
    return named


def _number(error: Exception) -> int | None:
    """The number of an error of the system, if it is one; safetensors' has it in its words."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found and isinstance(error, SafetensorError) else None


def _real(path: str | Path) -> Path:
    """Without links; where they go in a circle, realpath gives the path as it stands."""
    return Path(os.path.realpath(path))
