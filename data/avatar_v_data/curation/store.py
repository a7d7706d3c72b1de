"""The results of a run, and who works at which: files in one folder, of any number of machines.

A result is `results/STAGE/KEY.json`, whole or not at all, with a checksum: one that a disk or a
hand has changed is made again. Who works at one holds a claim,
`claims/KEY`, and touches it every few seconds. A claim that nobody has touched for a while, or
whose process is gone from this machine, is taken over. Nothing else coordinates: a worker that is
killed, paused or started twice costs time and never a result.

A machine that is taken away says nothing of a task. But where workers die under a run that goes on
(workers.py), what they had in hand is given up after some deaths, a failure like any other.
"""

import json
import os
import socket
import threading
import uuid
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from avatar_v.base.outside import parse_json
from avatar_v.base.stored import shown
from avatar_v.base.words import counted
from avatar_v.shards.writer import write_text_atomically

HEARTBEAT_S = 5.0
PATIENCE_S = 30.0
"""After the last touch of a claim, before another worker takes it."""
MOST_DEATHS = 3
"""Of workers at one task under runs that went on, before it is given up."""
FAILED = "failed"
CHECKSUM = "crc32"


class DamagedError(ValueError):
    """The file of a result holds none."""


class CurationStore:
    """Results and claims below ``folder``, which is made."""

    def __init__(self, folder: str | Path, *, patience_s: float = PATIENCE_S) -> None:
        self.folder, self.patience_s = Path(folder), patience_s
        self._results, self._claims = self.folder / "results", self.folder / "claims"
        self._claims.mkdir(parents=True, exist_ok=True)
        self._results.mkdir(exist_ok=True)

    def finished(self) -> set[str]:
        """The keys of all results, of failures too."""
        return {path.stem for path in self._results.glob("*/*.json")}

    def result(self, stage: str, key: str) -> dict[str, Any]:
        """A finished result. One that a stage refused to give has the reason under `FAILED`.
        DamagedError, with the file's name, for what is no result."""
        return _read(self._path(stage, key))

    def commit(self, stage: str, key: str, result: dict[str, Any]) -> None:
        """Keep a result. Twice the same is no harm."""
        path = self._path(stage, key)
        path.parent.mkdir(exist_ok=True)
        whole = {**result, CHECKSUM: zlib.crc32(_text(result).encode())}
        write_text_atomically(path, _text(whole))

    def is_finished(self, stage: str, key: str) -> bool:
        return self._path(stage, key).exists()

    @contextmanager
    def claim(self, key: str) -> Iterator[bool]:
        """Whether the task is this worker's, inside; it is free again behind."""
        path = self._claims / key
        if not self._take(path):
            yield False
            return
        ended = threading.Event()
        heart = threading.Thread(target=_beat, args=(path, ended), name="heartbeat", daemon=True)
        heart.start()
        try:
            yield True
        finally:
            ended.set()
            heart.join()
            path.unlink(missing_ok=True)

    def died(self, process: int) -> None:
        """Note that a worker of this machine is dead, and free what it had in hand."""
        for path in self._claims.glob("*"):
            if "." not in path.name and _holder(path) == (_machine(), process):
                os.rename(path, path.with_name(f"{path.name}.died.{uuid.uuid4().hex}"))

    def deaths(self, key: str) -> int:
        """Workers that died with this task in hand."""
        return len(list(self._claims.glob(f"{key}.died.*")))

    def forget_damaged(self, *, failures: bool = False) -> None:
        """Let what holds no result be made again, with a warning; with ``failures`` what failed,
        too, and what depends on it."""
        damaged: list[str] = []
        for path in self._results.glob("*/*.json"):
            try:
                is_kept = FAILED not in _read(path) or not failures
            except DamagedError as error:
                damaged.append(str(error))
                is_kept = False
            if not is_kept:
                path.unlink(missing_ok=True)
        for path in self._claims.glob("*.died.*") if failures else ():
            path.unlink()
        if damaged:
            words = f"{counted(len(damaged), 'result')} made again, since {damaged[0]}"
            warnings.warn(words, stacklevel=2)

    def _path(self, stage: str, key: str) -> Path:
        return self._results / stage / f"{key}.json"

    def _take(self, path: Path) -> bool:
        if path.exists() and not self._is_lost(path):
            return False
        if path.exists():
            lost = path.with_name(f"{path.name}.lost.{uuid.uuid4().hex}")
            try:  # of several that see it, one renames it
                os.rename(path, lost)
            except OSError:
                return False
            lost.unlink()
        try:
            with path.open("x") as file:
                file.write(json.dumps([_machine(), os.getpid()]))
        except FileExistsError:
            return False
        return True

    def _is_lost(self, path: Path) -> bool:
        machine, process = _holder(path)
        if machine == _machine():
            return not _is_running(process)
        try:
            return self._now() - path.stat().st_mtime > self.patience_s
        except FileNotFoundError:
            return False

    def _now(self) -> float:
        """By the clock that sets the times of files there."""
        probe = self._claims / f".clock.{uuid.uuid4().hex}"
        probe.touch()
        try:
            return probe.stat().st_mtime
        finally:
            probe.unlink()


def _text(result: dict[str, Any]) -> str:
    return json.dumps(result, sort_keys=True, allow_nan=False)


def _read(path: Path) -> dict[str, Any]:
    try:
        result = parse_json(path.read_bytes(), where=path)
        if not isinstance(result, dict):
            raise ValueError(f"{path} is no result: {shown(result)}")
        if result.pop(CHECKSUM, None) != zlib.crc32(_text(result).encode()):
            raise ValueError(f"{path} is not as it was written (checksum)")
    except ValueError as error:
        raise DamagedError(str(error)) from error
    return result


def _holder(path: Path) -> tuple[str, int]:
    """Machine and process; nobody where a claim is being written, damaged or gone: its age
    decides."""
    try:
        machine, process = json.loads(path.read_text())
        return str(machine), int(process)
    except (ValueError, TypeError, OSError):
        return "", 0


def _beat(path: Path, ended: threading.Event) -> None:
    while not ended.wait(HEARTBEAT_S):
        with suppress(OSError):
            os.utime(path)


def _machine() -> str:
    """This machine since it was started: process numbers mean nothing elsewhere."""
    with suppress(OSError):
        return (
            f"{socket.gethostname()}:{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
        )
    return socket.gethostname()


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
