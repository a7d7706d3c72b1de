"""A PostgreSQL for the tests, started as a user who is not root, gone at the end."""

import getpass
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
"""Debian's, the newest last; none where it is not installed."""


@contextmanager
def postgresql(*, fsync: str = "off") -> Iterator[str]:
    """The address of an empty database, reached by a socket in a folder of its own."""
    with mortal(fsync=fsync) as (address, _):
        yield address


@contextmanager
def mortal(*, fsync: str = "off") -> Iterator[tuple[str, Callable[[float], None]]]:
    """The same, and what kills it for some seconds."""
    user = "postgres" if os.getuid() == 0 else getpass.getuser()
    other = {"user": user, "group": pwd.getpwnam(user).pw_gid} if os.getuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    if other:
        shutil.chown(folder, user)
    quiet = {"stdout": subprocess.DEVNULL, "cwd": folder, **other}
    binaries, data = BINARIES[-1].parent, folder / "data"
    made = [binaries / "initdb", "-D", data, "-A", "trust", "-U", "rating", "--no-sync"]
    subprocess.run(made, check=True, **quiet)
    words = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync={fsync}"
    control = [binaries / "pg_ctl", "-D", data, "-w", "-s"]
    begin = [*control, "-l", folder / "log", "-o", words, "start"]
    subprocess.run(begin, check=True, **quiet)

    def die_for(seconds: float) -> None:
        """SIGKILL, and begin again."""
        os.kill(int((data / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
        time.sleep(seconds)
        subprocess.run(begin, check=True, **quiet)

    try:
        yield f"postgresql:///postgres?host={folder}&user=rating", die_for
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], check=False, **quiet)
        shutil.rmtree(folder, ignore_errors=True)
