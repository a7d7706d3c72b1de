"""The folder of one server: private to its user, locked while the server lives, removed after it.

A server that is killed cannot remove its folder. The next one that starts does: a folder whose lock
can be taken belongs to nobody. If none ever starts, the folder stays in the system's temporary
folder, readable by this user alone, until that is emptied.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "avatar_v_app_"
_NEW = "avatar_v_new_"  # a folder has this name until it is locked
_LOCK = "lock"


@contextmanager
def private_folder() -> Iterator[Path]:
    """A new folder with mode 0700 for as long as the context lasts. Those of dead servers go."""
    parent = Path(tempfile.gettempdir())
    remove_dead(parent)
    made = Path(tempfile.mkdtemp(prefix=_NEW, dir=parent))
    lock = os.open(made / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    folder = made.with_name(PREFIX + made.name.removeprefix(_NEW))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        made.rename(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_dead(parent: Path) -> list[str]:
    """Remove this user's server folders in ``parent`` that no process has locked; their names."""
    removed = []
    for folder in sorted(parent.glob(f"{PREFIX}*")):
        if not _is_own(folder):
            continue
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue  # no server of this kind made it
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue  # its server lives
        else:
            _remove(folder)
            removed.append(folder.name)
        finally:
            os.close(lock)
    return removed


def _is_own(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _remove(folder: Path) -> None:
    """The lock goes last, so that whatever interrupts this is made good by the next start."""
    for path in folder.iterdir():
        if path.name != _LOCK:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    shutil.rmtree(folder)
