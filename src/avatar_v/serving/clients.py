"""Who may use a server: a YAML file of clients, each known by the hash of a token.

    acme: {token: 5f70bf18…, priority: 5, seconds_a_day: 3600, at_once: 8}

The file holds no token, so whoever reads it cannot use one. `new_client` makes both.
"""

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from avatar_v.base.outside import read_yaml
from avatar_v.base.stored import Within, built
from avatar_v.serving.job_store import MOST_PRIORITY

LOCAL = "local"
"""The one client of a server without a file of clients, which this machine alone reaches."""
_HASH = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


@dataclass(frozen=True)
class Client:
    """A client's name and share."""

    name: str
    token: str  # sha256 of its token, in hexadecimal
    priority: Annotated[int, Within(0, MOST_PRIORITY)] = 0  # the highest that it may ask for
    seconds_a_day: Annotated[float, Within(0, 1e9)] = 3600.0  # of video
    at_once: Annotated[int, Within(1, 10_000)] = 16  # videos that wait or are being made

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError("a client's name is of a-z, 0-9, _ and -, at most 40")
        if not _HASH.fullmatch(self.token):
            raise ValueError("token is the sha256 of a token in hexadecimal, never the token")


def read_clients(path: str | Path) -> dict[str, Client]:
    """The clients of a file by their hashes. ValueError for a file that names none, or two with one
    token."""
    values = read_yaml(path, "clients")
    if not isinstance(values, Mapping) or not values:
        raise ValueError(f"{path}: names no client; `avatar-v serve --new-client NAME` makes one")
    clients: dict[str, Client] = {}
    for name, entry in values.items():
        client = built(Client, _entry(entry, path), where=f"{path}: {name}", sparse=True, name=name)
        if client.token in clients:
            raise ValueError(f"{path}: {name} and {clients[client.token].name} have one token")
        clients[client.token] = client
    return clients


def new_client(name: str) -> tuple[str, str]:
    """A new token, and the line of the file for it."""
    token = secrets.token_urlsafe(32)
    client = Client(name, digest(token))
    shares = f"priority: 0, seconds_a_day: {client.seconds_a_day:g}, at_once: {client.at_once}"
    return token, f"{name}: {{token: {client.token}, {shares}}}"


def digest(token: str) -> str:
    """What a file of clients holds of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def _entry(entry: Any, path: str | Path) -> Any:
    if isinstance(entry, Mapping) and "name" in entry:
        raise ValueError(f"{path}: a client's name stands before its entry alone")
    return entry
