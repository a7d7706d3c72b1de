"""What a server, its copies and its workers share: the queue, and a folder of files."""

import shutil
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from avatar_v.serving.job_store import JobStore


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

    def sweep(self, keep_s: float) -> None:
        """Remove videos that have been over for so long, and files that nobody used."""
        for id_ in self.store.remove_old(keep_s):
            shutil.rmtree(self.jobs / id_, ignore_errors=True)
        for folder in self.uploads.iterdir():
            if time.time() - folder.stat().st_mtime > keep_s:
                shutil.rmtree(folder, ignore_errors=True)


def worker_name(pid: int) -> str:
    """Of a worker on this machine."""
    return f"{socket.gethostname()}-{pid}"
