"""`avatar-v app` as a user starts it, and a stranger's way to it by plain HTTP.

Tiny random weights, loopback. The attacks are in page_attacks.py.
"""

import contextlib
import http.client
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

SRC = Path(__file__).resolve().parents[1] / "src"
PATHS = os.pathsep.join([str(SRC), *filter(None, [os.environ.get("PYTHONPATH")])])
COMMAND = [sys.executable, "-c", "from avatar_v.cli import main; raise SystemExit(main())"]
OPTIONS = ["--port", "0", "--device", "cpu", "--precision", "fp32"]
LIMITS = ["--max-upload", "2", "--max-total", "8"]
PATIENCE_S = 120  # beside other work; alone each wait is a second or two
FORM = {
    "reference": None,
    "speech": None,
    "consent": True,
    "prompt": "",
    "new_scene": False,
    "num_steps": 1,
    "guidance_audio": 1,
    "reference_s": 1,
    "seed": 0,
}


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("latin-1")


@dataclass
class Site:
    """A running page, everything it keeps, and what lies beside it and must not come out."""

    process: subprocess.Popen
    port: int
    root: Path
    secret: Path

    def ask(self, method: str, path: str, body=None, session: str = "", **headers: str) -> Answer:
        """``some_header`` becomes Some-Header; a body that is no bytes is sent in chunks."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if session:
            sent["Cookie"] = f"avatar_v={session}"
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        with contextlib.closing(line):
            line.request(method, path, body, sent, encode_chunked=isinstance(body, Iterator))
            answer = line.getresponse()
            pairs = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, pairs, answer.read())

    def raw(self, head: bytes, body: bytes = b"") -> Answer:
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE_S) as line:
            line.sendall(head + body)
            answer = http.client.HTTPResponse(line)
            answer.begin()
            pairs = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, pairs, answer.read())

    def session(self) -> str:
        (name, _, value) = self.ask("GET", "/").headers["set-cookie"].split(";")[0].partition("=")
        assert name == "avatar_v"
        return value

    def send(self, session: str, path: Path, name: str = "") -> str:
        answer = self.ask("POST", f"/files?name={name or path.name}", path.read_bytes(), session)
        assert answer.status == 200, answer.text
        return json.loads(answer.body)["id"]

    def make(self, session: str, **changes) -> Answer:
        form = FORM | changes
        how = {"Content_Type": "application/json"}
        return self.ask("POST", "/jobs", json.dumps(form).encode(), session, **how)

    @property
    def files(self) -> list[Path]:
        return [path for path in self.root.rglob("*") if path.is_file()]


@contextlib.contextmanager
def running(
    place: Path, weights: Path | str, program: str = COMMAND[-1], *more: str
) -> Iterator[Site]:
    """The page on a free port, with its temporary files in ``place``."""
    before = set(place.glob("avatar_v_app_*"))
    process = subprocess.Popen(
        [*COMMAND[:-1], program, "app", "--weights", str(weights), *OPTIONS, *LIMITS, *more],
        env=os.environ | {"TMPDIR": str(place), "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert found, "the app ended at once"
        (root,) = set(place.glob("avatar_v_app_*")) - before
        yield Site(process, int(found[1]), root, place / "secret.wav")
    finally:
        process.kill()
        process.wait()


def wait_until(holds, told: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, told
        time.sleep(0.02)


def picture_of(width: int, height: int) -> bytes:
    """A PNG that says how large it is and holds nothing of it."""

    def chunk(name: bytes, data: bytes) -> bytes:
        crc = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + crc

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@contextlib.contextmanager
def listening() -> Iterator[tuple[int, list[str]]]:
    """A server that writes down what is asked of it: the page must ask it for nothing."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, format: str, *args) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port, asked
    server.shutdown()
