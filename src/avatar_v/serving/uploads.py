"""What clients send: each file in a folder of its own, found again by its owner alone.

A request never names a path. It names the id of an upload, and the folder of an upload has the id
and its owner (a client, or a browser's session) in its name. All that a server keeps shares one
`Space`.
"""

import hashlib
import os
import re
import secrets
import shutil
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

MIN_FILE_BYTES = 2**16  # counted for each file, so that many small ones are bounded too
_ID = re.compile(r"[0-9a-f]{32}")
_ODD = re.compile(r"[^\w .()+-]")
_MAX_NAME = 60  # characters


class FullError(ValueError):
    """Uploads and jobs take all the room they may have."""


class Space:
    """``max_mib`` for all that is in ``folders`` or about to arrive there."""

    def __init__(self, folders: Sequence[Path], max_mib: float) -> None:
        self.folders, self.max_mib = folders, max_mib
        self._arriving = 0
        self._lock = threading.Lock()

    def check(self, more: int = 0) -> None:
        """FullError if ``more`` bytes do not fit."""
        if self._used() + self._arriving + more > self.max_mib * 2**20:
            raise FullError(
                f"The room for files on this server ({self.max_mib:g} MiB) is taken; "
                "files that nobody uses go after a while, so try again later"
            )

    def reserve(self, num_bytes: int) -> None:
        """Keep room for ``num_bytes`` that are about to arrive; FullError if there is none."""
        with self._lock:
            self.check(num_bytes)
            self._arriving += num_bytes

    def release(self, num_bytes: int) -> None:
        """They have arrived, or never will."""
        with self._lock:
            self._arriving -= num_bytes

    def _used(self) -> int:
        """What goes while this looks counts as nothing."""
        walks = (os.walk(folder) for folder in self.folders)
        found = (
            _lstat(Path(folder, name))
            for walk in walks
            for folder, _, names in walk
            for name in names
        )
        return sum(max(entry.st_size, MIN_FILE_BYTES) for entry in found if entry is not None)


class Uploads:
    """The files of all browsers in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def new(self, session: str) -> Iterator[tuple[str, Path]]:
        """The id and the empty folder of an upload; a fault inside leaves nothing."""
        id_ = secrets.token_hex(16)
        folder = self._folder(session, id_)
        folder.mkdir(mode=0o700)
        try:
            yield id_, folder
        except BaseException:
            self.remove(session, id_)
            raise

    @contextmanager
    def arriving(self, session: str, name: str) -> Iterator[tuple[str, BinaryIO]]:
        """The id of an upload and the file to write it to; a fault inside leaves nothing."""
        with self.new(session) as (id_, folder):
            part = folder / ".part"
            with part.open("xb") as file:
                yield id_, file
            part.rename(folder / plain_name(name))

    def remove(self, session: str, id_: str) -> None:
        """Its browser has gone."""
        shutil.rmtree(self._folder(session, id_), ignore_errors=True)

    def find(self, session: str, id_: str) -> Path | None:
        """The file of an upload if ``session`` sent it and it is still here, a file and no link."""
        if not is_token(id_):
            return None
        folder = self._folder(session, id_)
        try:
            (path,) = (path for path in folder.iterdir() if not path.name.startswith("."))
        except (OSError, ValueError):
            return None
        if not is_plain_file(path) or path.resolve().parent.parent != self.folder.resolve():
            return None
        folder.touch()  # its last use
        return path

    def _folder(self, session: str, id_: str) -> Path:
        owner = hashlib.sha256(session.encode()).hexdigest()[:32]
        return self.folder / f"{owner}-{id_}"


def is_token(text: str) -> bool:
    """Whether a text is 128 bits in hexadecimal, as ids and sessions are."""
    return _ID.fullmatch(text) is not None


def is_plain_file(path: Path) -> bool:
    """Whether there is a file that may be opened: no link, device, pipe, socket or folder."""
    found = _lstat(path)
    return found is not None and stat.S_ISREG(found.st_mode)


def plain_name(name: str) -> str:
    """The last part of a file's name, without anything that a shell, a header or HTML reads."""
    name = _ODD.sub("_", name.replace("\\", "/").rsplit("/", 1)[-1])
    stem, dot, suffix = name.strip(" .").rpartition(".")
    if not dot:
        stem, suffix = suffix, ""
    suffix = suffix[:10]
    return (stem[: _MAX_NAME - len(suffix)].strip(" .") + dot + suffix) or "file"


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None
