"""A PostgreSQL for the tests, started as a user who is not root, gone at the end."""

import getpass
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
"""Debian's, the newest last; none where it is not installed."""


@contextmanager
def postgresql(*, fsync: str = "off") -> Iterator[str]:
    """The address of an empty database, reached by a socket in a folder of its own."""
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
    subprocess.run([*control, "-l", folder / "log", "-o", words, "start"], check=True, **quiet)
    try:
        yield f"postgresql:///postgres?host={folder}&user=rating"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], check=False, **quiet)
        shutil.rmtree(folder, ignore_errors=True)
