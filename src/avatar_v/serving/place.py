"""What a server, its copies and its workers share: the queue, and a folder of files."""

import re
import shutil
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from avatar_v.serving.job_store import JobStore
from avatar_v.serving.uploads import Space, is_plain_file, is_token

LIVE = "live.m3u8"
VIDEO = "avatar.mp4"
RECORD = "avatar.json"
_LIVE = re.compile(r"live(\.m3u8|_init\.mp4|_\d{5,}\.m4s)")


@dataclass(frozen=True)
class Place:
    """The queue, and the folder ``root``."""

    store: JobStore
    root: Path

    @property
    def uploads(self) -> Path:
        """The files of clients."""
        return self.root / "uploads"

    @property
    def jobs(self) -> Path:
        """A folder for each video."""
        return self.root / "jobs"

    def make(self) -> None:
        """The folders, for their owner alone."""
        for folder in (self.root, self.uploads, self.jobs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def space(self, max_mib: float) -> Space:
        """The room for all files; the queue is none of them."""
        return Space((self.uploads, self.jobs), max_mib)

    def sweep(self, keep_s: float) -> None:
        """Remove videos that have been over for so long, and files that nobody used and no video
        waits for."""
        for id_ in self.store.remove_old(keep_s):
            shutil.rmtree(self.jobs / id_, ignore_errors=True)
        requests = self.store.open_requests()
        for folder in self.uploads.iterdir():
            is_old = time.time() - folder.stat().st_mtime > keep_s
            if is_old and not any(folder.name in request for request in requests):
                shutil.rmtree(folder, ignore_errors=True)


def job_path(jobs: Path, id_: str, name: str) -> Path | None:
    """The file of a job that a request may have; None for any other name, or if it is not there."""
    named = name in (VIDEO, RECORD) or _LIVE.fullmatch(name)
    if not named or not is_token(id_):
        return None
    path = jobs / id_ / name
    return path if is_plain_file(path) else None


def worker_name(pid: int) -> str:
    """Of a worker on this machine."""
    return f"{socket.gethostname()}-{pid}"
