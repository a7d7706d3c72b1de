"""Checkpoints that are there whole or not at all.

Lightning writes a file in the folder of temporary files first and copies it to its place, so a disk
that fills up leaves a part of one under the name of the last checkpoint. Here a checkpoint is
written beside its place and renamed; what was there before stays until then.
"""

import io
import os
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from avatar_v.base.paths import whole_file


class WholeCheckpoints(TorchCheckpointIO):
    """Writes files of checkpoints; reads them as Lightning does."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """OSError for a disk that is full; it names the file and the disk."""
        if "://" in str(path):  # an object store has a file when it is whole
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as partial, _Watched(partial) as file:
            try:
                torch.save(checkpoint, file)
            except RuntimeError as error:  # torch's own for a write that failed
                raise (file.error or error) from error


class _Watched(io.FileIO):
    """A file that remembers the system's error, which torch turns into one without its number, and
    lies on the disk once it is closed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w")
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """All of ``data``: the system may take a part of it where a disk fills up."""
        rest = memoryview(data).cast("B")
        num = len(rest)
        try:
            while len(rest):
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.error = error
            raise
        return num

    def close(self) -> None:
        if not self.closed:
            os.fsync(self.fileno())
        super().close()
