"""`avatar-v serve` as a user starts it, and its API by plain HTTP: tiny weights, loopback."""

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from page_site import PATHS, PATIENCE_S

SERVE = [sys.executable, "-m", "avatar_v.cli", "serve", "--port", "0", "--device", "cpu"]


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Service:
    """A running server and one of its clients."""

    process: subprocess.Popen
    port: int
    root: Path
    token: str = ""

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """A body that is no bytes is JSON; ``some_header`` becomes Some-Header."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token:
            sent.setdefault("Authorization", f"Bearer {self.token}")
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        with contextlib.closing(line):
            line.request(method, path, data, sent)
            answer = line.getresponse()
            pairs = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, pairs, answer.read())

    def send(self, path: Path, name: str = "") -> str:
        answer = self.ask("POST", f"/v1/files?name={name or path.name}", path.read_bytes())
        assert answer.status == 201, answer.body
        return answer.json["id"]

    def whole(self, id_: str) -> dict[str, Any]:
        """A video when it is over."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            found = self.ask("GET", f"/v1/videos/{id_}?wait=20").json
            if found["state"] in ("done", "failed", "cancelled"):
                return found
        raise AssertionError(f"not over: {found}")


@contextlib.contextmanager
def serving(root: Path, weights: Path, *options: str, token: str = "") -> Iterator[Service]:
    """The server on a free port."""
    words = ["--weights", str(weights), "--precision", "fp32", "--files", str(root), *options]
    process = subprocess.Popen(
        [*SERVE, *words],
        env=os.environ | {"PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert found, "the server ended at once"
        yield Service(process, int(found[1]), root, token)
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()
            process.wait()
