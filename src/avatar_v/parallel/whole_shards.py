"""The folder of a sharded checkpoint, which is there whole or not at all."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.distributed.checkpoint.api import CheckpointException

from avatar_v.base.paths import disk_named


@contextmanager
def whole_shards(path: Path, *, is_first: bool, barrier: Callable[[str], object]) -> Iterator[Path]:
    """The folder beside ``path`` that all ranks write; the first one puts it in its place. OSError
    for a disk that is full."""
    partial = path.with_name(f".{path.name}.tmp")
    if is_first:
        shutil.rmtree(partial, ignore_errors=True)
    barrier("checkpoint begins")
    try:
        with disk_named(path):
            try:
                yield partial
            except CheckpointException as error:
                reasons = [reason for reason, _ in error.failures.values()]
                raise next((r for r in reasons if isinstance(r, OSError)), error) from error
    except BaseException:
        if is_first:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    barrier("checkpoint written")
    if is_first:
        is_link = path.is_symlink()  # save_last: link
        shutil.rmtree(path) if path.is_dir() and not is_link else path.unlink(missing_ok=True)
        partial.rename(path)
    barrier("checkpoint in its place")
