"""A stranger's way to a server: bytes on a socket, and one that a command of ours starts.

Libraries refuse to send most of what an attacker sends, so requests are written by hand here.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

PATIENCE_S = 20.0


@dataclass(frozen=True)
class Answer:
    """Of a server. ``status`` 0: it closed the connection without one."""

    status: int
    head: str = ""
    body: bytes = b""

    @property
    def refused(self) -> bool:
        """The request was turned away, and no fault of the server did it."""
        return self.status == 0 or 400 <= self.status < 500

    def header(self, name: str) -> str:
        """All values of a header in one line; "" where it is not there."""
        lines = (line.partition(":") for line in self.head.split("\r\n")[1:])
        return ", ".join(value.strip() for key, _, value in lines if key.lower() == name.lower())


@dataclass(frozen=True)
class Target:
    """A server of this machine."""

    port: int
    process: subprocess.Popen[str]

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | object = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One plain request; ``headers`` replace those of a client that means well."""
        is_json = not isinstance(body, bytes)
        data = json.dumps(body).encode() if is_json else body
        sent = {"Host": self.host, "Connection": "close"}
        sent |= {"Content-Type": "application/json"} if is_json else {}
        sent |= {"Content-Length": str(len(data))} if method != "GET" or data else {}
        lines = [f"{key}: {value}" for key, value in {**sent, **(headers or {})}.items()]
        head = "\r\n".join([f"{method} {path} HTTP/1.1", *lines])
        return self.send(head.encode("utf-8", "surrogateescape") + b"\r\n\r\n" + data)

    def send(self, data: bytes) -> Answer:
        """The answer to bytes as they are. The server may close before it has taken them all."""
        with self.connect() as connection:
            with suppress(OSError):  # what it said before it closed is still to be read
                connection.sendall(data)
            return read(connection)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def memory_mib(self) -> float:
        """What the process holds now."""
        with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def read(connection: socket.socket) -> Answer:
    """The answer that comes until the server closes; TimeoutError where it does neither."""
    data = b""
    with suppress(ConnectionError):
        while part := connection.recv(2**16):
            data += part
    head, _, body = data.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    return Answer(status, head.decode("latin-1"), body)


@contextmanager
def started(module: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A command of ours in a process of its own, killed at the end; its output can be read."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
