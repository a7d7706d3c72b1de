"""Attacks on the page by plain HTTP: `avatar-v app` as a user starts it must let none through.

Also its life: nothing private is left behind `kill -9` and a new start, one request never holds up
another, and SIGTERM and SIGINT end it whatever it is busy with. Tiny random weights, loopback.
"""

import contextlib
import http.client
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import wave
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from avatar_v.app.form import FRAMED

pytest.importorskip("fastapi", reason="the app's extra is not installed")
pytest.importorskip("uvicorn", reason="the app's extra is not installed")

SRC = Path(__file__).resolve().parents[2] / "src"
COMMAND = [sys.executable, "-c", "from avatar_v.cli import main; raise SystemExit(main())"]
STUCK = """
import os, pathlib, time
from avatar_v.app.jobs import AvatarPipeline
from avatar_v.cli import main

def clips(*args, **kwargs):
    pathlib.Path(os.environ["TMPDIR"], "is_stuck").touch()
    time.sleep(600)
    yield

AvatarPipeline.clips = clips
raise SystemExit(main())
"""
"""The same page with a step of sampling that does not end."""
OPTIONS = ["--port", "0", "--device", "cpu", "--precision", "fp32"]
LIMITS = ["--max-upload", "2", "--max-total", "8"]
PATIENCE_S = 120  # beside other work; alone each wait is a second or two
ENDS_S = 10  # the server gives itself four
SECRET = b"the-private-words-of-the-server"
EVIL = "http://evil.example"
ACTIVE = ("html", "svg", "xml", "script", "pdf", "css")  # content that a browser would run or draw

Attack = tuple[str, bool]
"""Its name, and whether it came through."""


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


FORM = {
    "reference": None,
    "speech": None,
    "consent": True,
    "prompt": "",
    "new_scene": False,
    "picture": FRAMED,
    "num_steps": 1,
    "guidance_audio": 1,
    "reference_s": 1,
    "seed": 0,
}


@contextlib.contextmanager
def running(place: Path, weights: Path, program: str = COMMAND[-1]) -> Iterator[Site]:
    """The page on a free port, with its temporary files in ``place``."""
    before = set(place.glob("avatar_v_app_*"))
    process = subprocess.Popen(
        [*COMMAND[:-1], program, "app", "--weights", str(weights), *OPTIONS, *LIMITS],
        env=os.environ | {"TMPDIR": str(place), "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"},
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


@pytest.fixture(scope="module")
def site(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    place = tmp_path_factory.mktemp("page")
    write_sound(place / "secret.wav", 1.0)
    (place / "secret.wav").open("ab").write(SECRET)
    write_sound(place / "long.wav", 30.0)
    with av.open(str(place / "secret.mp4"), "w") as file:  # of a kind that playlists may name
        stream = file.add_stream("aac", rate=16_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 16_000), np.int16), "s16", "mono")
        frame.sample_rate = 16_000
        file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    Image.new("RGB", (64, 64), "green").save(place / "me.png")
    with running(place, weights) as site:
        yield site


def write_sound(path: Path, seconds: float) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(bytes(2 * round(16_000 * seconds)))
    return path


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


def test_no_attack_passes(site: Site) -> None:
    """Each group gives its attacks; the page is whole and quick behind all of them."""
    tried: list[Attack] = []
    for group in (paths, sessions, foreign_routes, sites, names, bodies, media, served, jobs):
        tried += group(site)
    through = [name for name, passed in tried if passed]
    print(f"{len(tried)} attacks tried, {len(through)} through")
    assert not through, through
    assert len(tried) > 150
    assert site.ask("GET", "/").status == 200


def paths(site: Site) -> Iterator[Attack]:
    """Files of the server where the id of an upload is asked for."""
    me = site.session()
    mine = site.send(me, site.secret.with_name("me.png"))
    with listening() as (port, asked):
        wrong = [
            str(site.secret),
            f"../../../{site.secret.name}",
            os.path.relpath(site.secret),
            f"{site.root}/uploads/../../{site.secret.name}",
            f"{mine}/../../../../{site.secret.name}",
            "/dev/zero",
            "/dev/stdin",
            "/proc/self/environ",
            "/proc/self/fd/0",
            "/etc/passwd",
            f"file://{site.secret}",
            f"concat:{site.secret}",
            f"subfile,,start,0,end,99,,:{site.secret}",
            f"cache:{site.secret}",
            f"http://127.0.0.1:{port}/seen",
            f"//127.0.0.1:{port}/seen",
            "data:audio/wav;base64,UklGRg==",
            "pipe:0",
            mine.upper(),
            f"{mine}\0",
            f" {mine}",
            "0" * 32,
            "..",
            "x" * 4000,
        ]
        objects = [{"path": path, "meta": {"_type": "gradio.FileData"}} for path in wrong[:10]]
        objects += [{"url": f"http://127.0.0.1:{port}/seen"}, [str(site.secret)], 7, True]
        for value in [*wrong, *objects]:
            for place in ("reference", "speech"):
                other = "speech" if place == "reference" else "reference"
                answer = site.make(me, **{place: value, other: mine})
                yield f"{place}: {value!r:.60}", not is_refused(answer)
        extra = {"path": str(site.secret), "out": "/tmp/x", "device": "meta"}
        for name, value in extra.items():
            yield f"a field {name}", site.make(me, **{name: value}).status != 422
        yield "the page fetches a URL", bool(asked)
    yield from links(site, me, mine)


def links(site: Site, me: str, mine: str) -> Iterator[Attack]:
    """Not even one in the folder of an upload is followed, and no pipe is waited for."""
    (folder,) = site.root.glob(f"uploads/*-{mine}")
    (own,) = folder.iterdir()
    own.unlink()
    makers = {
        "a link to a file": lambda: own.symlink_to(site.secret),
        "a link to a device": lambda: own.symlink_to("/dev/zero"),
        "a pipe": lambda: os.mkfifo(own),
    }
    for name, make in makers.items():
        make()
        answer = site.make(me, reference=mine, speech=mine)
        shown = site.ask("GET", f"/files/{mine}", session=me)
        yield name, not is_refused(answer) or shown.status != 404
        own.unlink()


def is_refused(answer: Answer) -> bool:
    """By its status, or by one state that is a fault; no word of a file is in it."""
    if SECRET in answer.body or b"root:" in answer.body or b"PATH=" in answer.body:
        return False
    if answer.status != 200:
        return 400 <= answer.status < 500
    states = [json.loads(line) for line in answer.text.splitlines()]
    return len(states) == 1 and states[0]["over"] and "av-failed" in states[0]["status"]


def sessions(site: Site) -> Iterator[Attack]:
    """One browser's files asked for by another."""
    alice, mallory = site.session(), site.session()
    hers = site.send(alice, site.secret, "talk.wav")
    assert site.ask("GET", f"/files/{hers}", session=alice).body.endswith(SECRET)
    (folder,) = site.root.glob(f"uploads/*-{hers}")
    for name, session in {
        "another session": mallory,
        "no session": "",
        "her folder as session": folder.name[:32],
        "a session that is none": "../" + alice[:29],
        "two sessions": f"{mallory}; avatar_v=x",
    }.items():
        answer = site.ask("GET", f"/files/{hers}", session=session)
        yield f"{name}: read", answer.status < 400 or SECRET in answer.body
        yield f"{name}: used", not is_refused(site.make(session, reference=hers, speech=hers))
    for name in (folder.name, f"..%2f{folder.name}", f"{hers}%2f..%2f{hers}", f"{hers}.wav"):
        yield f"/files/{name:.20}", site.ask("GET", f"/files/{name}", session=alice).status != 404
    stored = [path for path in site.files if path.stat().st_mode & 0o077]
    readable = site.root.stat().st_mode & 0o077
    yield "another user of the machine reads", bool(readable and stored)


def foreign_routes(site: Site) -> Iterator[Attack]:
    """What form servers of other kinds have: reading by path, fetching by URL, inspecting."""
    secret, me = str(site.secret), site.session()
    file = {"path": secret, "url": f"file://{secret}", "meta": {"_type": "gradio.FileData"}}
    join = json.dumps({"data": [file, file], "fn_index": 1, "session_hash": "x"}).encode()
    api = "/gradio_api"
    gets = [f"{api}/file={secret}", f"{api}/file/{secret}", f"/file={secret}", f"/file{secret}"]
    gets += [f"{api}/proxy=http://127.0.0.1:{site.port}/", "/proxy?url=http://127.0.0.1/"]
    gets += [f"{api}/stream/x/0/1/playlist.m3u8", f"{api}/queue/data?session_hash=x"]
    gets += [f"{api}/info", f"{api}/openapi.json", f"{api}/startup-events", f"{api}/heartbeat/x"]
    gets += ["/config", "/monitoring", "/monitoring/summary", "/theme.css", "/openapi.json"]
    gets += ["/docs", "/redoc", "/metrics", "/login", "/.env", "/.git/config", "//etc/passwd"]
    gets += ["/static/..%2fpage.py", "/static/page.html", "/static//etc/passwd", "/assets/x.js"]
    gets += [
        "/static/%2e%2e/cli.py",
        "/../../../etc/passwd",
        "/files",
        "/files/",
        "/jobs",
        "/jobs/",
    ]
    for path in gets:
        answer = site.ask("GET", path, session=me)
        yield f"GET {path:.60}", answer.status not in (404, 405)
    posts = ["upload", "queue/join", "run/predict", "api/predict", "call/predict", "cancel"]
    posts += ["component_server", "stream/x", "process_recording", "vibe-code", "reset", "login"]
    for path in posts:
        answer = site.ask("POST", f"{api}/{path}", join, me, Content_Type="application/json")
        yield f"POST {api}/{path}", answer.status != 404
    for method in ("PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "OPTIONS"):
        for path in ("/", "/jobs", "/files"):
            answer = site.ask(method, path, b"", me)
            allows = "access-control-allow-origin" in answer.headers
            yield f"{method} {path}", answer.status < 400 or allows


def sites(site: Site) -> Iterator[Attack]:
    """Another site in the same browser that sends to the page, embeds or frames it."""
    me, before = site.session(), len(site.files)
    boundary = {"Content_Type": "multipart/form-data; boundary=b"}
    part = (
        b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.wav"\r\n\r\nx\r\n--b--'
    )
    foreign: list[dict[str, str]] = [
        {"Origin": EVIL},
        {"Origin": "null"},
        {"Origin": f"http://127.0.0.1:{site.port + 1}"},
        {"Origin": f"http://localhost:{site.port}"},
        {"Origin": f"http://127.0.0.1:{site.port}.evil.example"},
        {"Origin": f"{EVIL}:{site.port}", "Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "navigate"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"},
    ]
    for headers in foreign:
        for path, body, kind in (
            ("/files", part, boundary),
            ("/jobs", json.dumps(FORM).encode(), {"Content_Type": "text/plain"}),
            ("/drawn", b"", {}),
        ):
            answer = site.ask("POST", path, body, me, **headers, **kind)
            yield f"POST {path} {headers}", answer.status != 403
    yield "something of it was kept", len(site.files) != before
    embeds = [("no-cors", "image"), ("no-cors", "script"), ("cors", "empty")]
    for mode, kind in [*embeds, ("navigate", "iframe"), ("navigate", "object")]:
        headers = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": mode, "Sec_Fetch_Dest": kind}
        yield f"embedded as {kind}", site.ask("GET", "/", **headers).status != 403
    whole = site.ask("GET", "/")
    policy = whole.headers["content-security-policy"]
    for name, holds in {
        "framing by policy": "frame-ancestors 'none'" in policy,
        "framing": whole.headers["x-frame-options"] == "DENY",
        "inline script": "unsafe" not in policy and "<script>" not in whole.text,
        "scripts from elsewhere": "http" not in policy and "*" not in policy,
        "guessing of types": whole.headers["x-content-type-options"] == "nosniff",
        "reading from another origin": "access-control-allow-origin" not in whole.headers,
        "embedding": whole.headers["cross-origin-resource-policy"] == "same-origin",
        "the address goes elsewhere": whole.headers["referrer-policy"] == "same-origin",
        "the session is read by scripts": "HttpOnly" in whole.headers["set-cookie"],
        "the session goes cross-site": "SameSite=strict" in whole.headers["set-cookie"],
        "the server says which it is": "server" not in whole.headers,
    }.items():
        yield name, not holds


def names(site: Site) -> Iterator[Attack]:
    """Hosts that lead here by another name, and names of files that lead elsewhere."""
    hosts = ["evil.example", f"evil.example:{site.port}", "127.0.0.1.evil.example", "0.0.0.0"]
    hosts += ["evil@127.0.0.1", "127.0.0.1@evil", "[::1]evil", "[::2]", "", "localhost.", "127.1"]
    for host in hosts:
        yield f"Host {host}", site.ask("GET", "/", Host=host).status != 400
    for head in (
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: e\r\n\r\n",
    ):
        yield repr(head), site.raw(head).status != 400
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    upgrade += b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    answer = site.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + upgrade)
    yield "a WebSocket", answer.status == 101
    me = site.session()
    odd = ["../../../evil", "..%2f..%2fevil", "/tmp/evil.wav", "C:%5Cevil.wav", "a%00b.wav", ".."]
    odd += ["x%0d%0aSet-Cookie:%20avatar_v=1.wav", "x%22;%20filename=%22evil.html", ".part", "lock"]
    odd += ["", "%ff%fe.wav", "x" * 3000, "%E2%80%AEvaw.exe", "%3Cscript%3E.wav", "a;b`c$(d).wav"]
    for name in odd:
        before = set(site.root.rglob("*"))
        answer = site.ask("POST", f"/files?name={name}", b"x", me)
        new = {path for path in set(site.root.rglob("*")) - before if path.is_file()}
        (path,) = new
        is_inside = path.parent.parent == site.root / "uploads"
        shown = site.ask("GET", f"/files/{json.loads(answer.body)['id']}", session=me)
        is_plain = re.fullmatch(r"[\w .()+-]+", path.name) is not None
        is_quiet = "set-cookie" not in shown.headers and "html" not in shown.headers["content-type"]
        yield f"a file called {name:.40}", not (is_inside and is_plain and is_quiet)


def bodies(site: Site) -> Iterator[Attack]:
    """More than is taken: declared, in chunks, in the head, at once, and in all."""
    me, mib, host = site.session(), 2**20, b"Host: localhost\r\n"
    cookie = f"Cookie: avatar_v={me}\r\n".encode()
    for path, size in (("/files", 400 * mib), ("/files", 10**30), ("/jobs", mib), ("/", mib)):
        head = f"POST {path} HTTP/1.1\r\nContent-Length: {size}\r\n".encode()
        answer = site.raw(head + host + cookie + b"\r\n")  # and no byte of it
        yield f"{size} bytes to {path} declared", answer.status not in (400, 413)
    for path, size in (("/files", 3 * mib), ("/jobs", mib)):
        before = len(site.files)
        parts = iter([b"x" * 2**16] * (size // 2**16))
        answer = site.ask("POST", path, parts, me, Transfer_Encoding="chunked")
        yield f"{size} bytes to {path} in chunks", answer.status != 413
        yield f"{path} keeps a part", len(site.files) != before
    for name, head in {
        "two lengths": b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        "a negative length": b"Content-Length: -1\r\n",
        "a length in words": b"Content-Length: one\r\n",
        "a head of 1 MiB": b"X-Long: " + b"x" * mib + b"\r\n",
    }.items():
        with contextlib.suppress(ConnectionError):  # closed before all of it was read
            answer = site.raw(
                b"POST /files HTTP/1.1\r\n" + host + cookie + head + b"\r\n", b"0\r\n"
            )
            yield name, answer.status < 400
    for name, form in {"deep": "[" * 10_000, "NaN": '{"seed": NaN}', "no JSON": "seed=1"}.items():
        answer = site.ask("POST", "/jobs", form.encode(), me, Content_Type="application/json")
        yield f"a form that is {name}", not is_refused(answer)
    yield from many(site, me)


def many(site: Site, me: str) -> Iterator[Attack]:
    """Uploads at the same time, and more than there is room for."""
    head = f"POST /files HTTP/1.1\r\nHost: localhost\r\nCookie: avatar_v={me}\r\n"
    head += "Content-Length: 1000\r\n\r\nx"
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            line = socket.create_connection(("127.0.0.1", site.port))
            stack.enter_context(line).sendall(head.encode())
        wait_until(
            lambda: len(list(site.root.glob("uploads/*/.part"))) == 2, "uploads do not arrive"
        )
        yield "a third upload at once", site.ask("POST", "/files", b"x", me).status != 429
        other = site.ask("POST", "/files", b"x", site.session()).status
        yield "uploads keep another browser out", other != 200
    wait_until(lambda: not list(site.root.glob("uploads/*/.part")), "what is cut off stays")
    statuses = [site.ask("POST", "/files", bytes(2**20), me).status for _ in range(8)]
    yield "more files than there is room for", statuses[-1] != 507
    yield "a drawn person beyond the room", site.ask("POST", "/drawn", b"", me).status != 507
    for path in site.root.glob("uploads/*/file"):
        path.unlink()
    statuses = [site.ask("POST", "/files", b"", me).status for _ in range(8 * 16)]
    yield "very many small files", statuses[-1] != 507
    for path in site.root.glob("uploads/*/file"):
        path.unlink()


def wait_until(holds, told: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, told
        time.sleep(0.02)


def media(site: Site) -> Iterator[Attack]:
    """Files that lead to others, or that are small and become large."""
    me, secret, place = site.session(), site.secret.with_suffix(".mp4"), site.secret.parent
    picture = site.send(me, place / "me.png")
    mpd = '<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" profiles="x"><Period>'
    mpd += '<AdaptationSet mimeType="audio/wav"><Representation id="1" bandwidth="1"><BaseURL>'
    mpd += (
        f"file://{secret}</BaseURL><SegmentBase/></Representation></AdaptationSet></Period></MPD>"
    )
    head, tail = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n", "\n#EXT-X-ENDLIST\n"
    lists = {
        "file.m3u8": f"{head}file://{secret}{tail}",
        "path.m3u8": f"{head}{secret}{tail}",
        "concat.m3u8": f"{head}concat:{secret}|{secret}{tail}",
        "web.m3u8": f"{head}http://127.0.0.1:{site.port}/{tail}",
        "list.wav": f"{head}file://{secret}{tail}",
        "list.mp4": f"{head}{secret}{tail}",
        "list.ffconcat": f"ffconcat version 1.0\nfile 'file://{secret}'\n",
        "list.txt": f"ffconcat version 1.0\nfile '{secret}'\n",
        "list.mpd": mpd,
        "list.sdp": f"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nm=audio {site.port} "
        "RTP/AVP 0\n",
        "list.pls": f"[playlist]\nFile1=file://{secret}\n",
        "list.xspf": f"<playlist><trackList><track><location>file://{secret}</location></track>"
        "</trackList></playlist>",
    }
    for name, text in lists.items():
        (place / name).write_text(text)
        answer = site.make(me, reference=picture, speech=site.send(me, place / name))
        yield f"{name} names another file", not is_refused(answer)
        answer = site.make(me, reference=site.send(me, place / name), speech=picture)
        yield f"{name} as a clip", not is_refused(answer)
    speech = site.send(me, write_sound(place / "talk.wav", 0.1))
    for width, height in ((8192, 8192), (65_535, 65_535), (2**31 - 1, 1), (100_000, 300)):
        (place / "large.png").write_bytes(picture_of(width, height))
        answer = site.make(me, reference=site.send(me, place / "large.png"), speech=speech)
        yield f"{width} x {height} pixels", not is_refused(answer)
    for name, data in {
        "nothing": b"",
        "no media": b"x" * 1000,
        "a picture that is cut": picture_of(64, 64)[:40],
        "a program": Path(sys.executable).read_bytes()[:4096],
    }.items():
        (place / "odd").write_bytes(data)
        odd = site.send(me, place / "odd")
        yield f"{name} as a clip", not is_refused(site.make(me, reference=odd, speech=speech))
        yield f"{name} as speech", not is_refused(site.make(me, reference=picture, speech=odd))
    numbers = {"num_steps": 10**9, "seed": 2**64, "guidance_audio": 1e999, "reference_s": -1}
    for name, value in numbers.items():
        answer = site.make(me, reference=picture, speech=speech, **{name: value})
        yield f"{name} = {value}", not is_refused(answer)


def served(site: Site) -> Iterator[Attack]:
    """Uploads that a browser would run if they came back as what they are."""
    me = site.session()
    script = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
    for name in ("a.svg", "a.html", "a.xhtml", "a.xml", "a.js", "a.pdf", "a.css", "a.mp4", "a.wav"):
        answer = site.ask("POST", f"/files?name={name}", script, me)
        shown = site.ask("GET", f"/files/{json.loads(answer.body)['id']}", session=me)
        kind = shown.headers["content-type"]
        is_told = shown.headers["x-content-type-options"] == "nosniff"
        is_kept = kind.startswith(("video/", "audio/")) or shown.headers[
            "content-disposition"
        ].startswith("attachment")
        is_active = any(word in kind for word in ACTIVE)
        yield f"{name} comes back as {kind}", is_active or not (is_told and is_kept)
    answer = site.make(me, prompt="<script>alert(1)</script>", picture="<script>alert(1)</script>")
    yield "a script in the form", not is_refused(answer) or "<script>" in answer.text


def jobs(site: Site) -> Iterator[Attack]:
    """The files of a job, and all that stands around them."""
    alice, place = site.session(), site.secret.parent
    ids = [site.send(alice, place / name) for name in ("me.png", "talk.wav")]
    states = site.make(alice, reference=ids[0], speech=ids[1]).text.splitlines()
    found = re.search(r"jobs/([0-9a-f]{32})/avatar\.mp4", states[-1])
    assert found, states[-1]
    token = found[1]
    record = site.ask("GET", f"/jobs/{token}/avatar.json")
    assert record.status == 200
    yield "the record names a folder", str(site.root).encode() in record.body
    (site.root / "jobs" / token / ".avatar.mp4.part").write_bytes(SECRET)
    wrong = ["..%2f..%2flock", "%2e%2e/lock", ".avatar.mp4.part", "..%2favatar.mp4", "avatar.mp4/"]
    wrong += [
        "avatar.mp4%00.json",
        "AVATAR.MP4",
        "live_00000.m4s%2f..",
        "*",
        "",
        ".",
        "live.m3u8.bak",
    ]
    for name in wrong:
        yield f"/jobs/TOKEN/{name}", site.ask("GET", f"/jobs/{token}/{name}").status != 404
    others = [token.upper(), token[:31], f"{token}%2f.", "..", "%2e%2e", ".", "*", "0" * 32]
    for other in others:
        for name in ("avatar.mp4", "live.m3u8"):
            answer = site.ask("GET", f"/jobs/{other}/{name}")
            yield f"/jobs/{other:.12}/{name}", answer.status != 404
    yield "a job as an upload", site.ask("GET", f"/files/{token}", session=alice).status != 404
    answer = site.make(alice, reference=token, speech=token)
    yield "a job's token as a clip", not is_refused(answer)
    path = site.root / "jobs" / token / "avatar.json"
    path.unlink()
    path.symlink_to(site.secret)
    yield "a link among a job's files", site.ask("GET", f"/jobs/{token}/avatar.json").status != 404


def test_no_request_holds_up_another(site: Site) -> None:
    """While a job samples, others wait, and uploads stand still, the form comes within a second."""
    me, place = site.session(), site.secret.parent
    with busy(site, me, place):
        waits = []
        for _ in range(10):
            begin = time.monotonic()
            assert site.ask("GET", "/").status == 200
            waits.append(time.monotonic() - begin)
        assert sorted(waits)[-2] < 1.0, waits  # one may meet a busy machine
    wait_until(lambda: no_jobs(site), "a job goes on without anybody to see it")


@contextlib.contextmanager
def busy(site: Site, me: str, place: Path) -> Iterator[None]:
    """Three jobs in line, of which one samples, and an upload that has begun."""
    ids = [site.send(me, place / name) for name in ("me.png", "long.wav")]
    form = json.dumps(FORM | {"reference": ids[0], "speech": ids[1], "num_steps": 64}).encode()
    head = f"Host: localhost\r\nCookie: avatar_v={me}\r\nContent-Type: application/json\r\n"
    job = f"POST /jobs HTTP/1.1\r\n{head}Content-Length: {len(form)}\r\n\r\n".encode() + form
    upload = f"POST /files HTTP/1.1\r\n{head}Content-Length: 1000\r\n\r\nx".encode()
    with contextlib.ExitStack() as stack:
        for request in (job, job, job, upload):
            line = socket.create_connection(("127.0.0.1", site.port))
            stack.enter_context(line).sendall(request)
        begun = ("jobs/*", "uploads/*/.part")
        wait_until(lambda: all(map(list, map(site.root.glob, begun))), "nothing begins")
        yield


def no_jobs(site: Site) -> bool:
    return all((path / "avatar.json").exists() for path in (site.root / "jobs").iterdir())


def test_one_visitor_does_not_keep_another_waiting(site: Site) -> None:
    """Sixty drawn persons for a browser that goes, then three for it while another asks for one."""
    me, other = site.session(), site.session()
    before = num_uploads(site)
    with contextlib.ExitStack() as stack:
        lines = [drawing(site, me, stack) for _ in range(60)]
        answers = [line.recv(12) for line in lines[3:]]
        assert answers == [b"HTTP/1.1 429"] * 57
        num_done = len(select.select(lines[:3], [], [], 0)[0])
    assert site.ask("POST", "/drawn", b"", other).status == 200
    assert num_uploads(site) - before <= 2 * (num_done + 1 + 1)  # his, and one that was just ready
    before = num_uploads(site)
    with contextlib.ExitStack() as stack:
        lines = [drawing(site, me, stack) for _ in range(3)]
        wait_until(lambda: num_uploads(site) > before, "nothing is drawn")
        assert site.ask("POST", "/drawn", b"", other).status == 200
        assert len(select.select(lines, [], [], 0)[0]) < 3, "the other was last"


def num_uploads(site: Site) -> int:
    return len(list(site.root.glob("uploads/*")))


def drawing(site: Site, session: str, stack: contextlib.ExitStack) -> socket.socket:
    """A drawn person that is asked for and not waited for."""
    line = stack.enter_context(socket.create_connection(("127.0.0.1", site.port), PATIENCE_S))
    head = f"POST /drawn HTTP/1.1\r\nHost: localhost\r\nCookie: avatar_v={session}\r\n"
    line.sendall(f"{head}Content-Length: 0\r\n\r\n".encode())
    return line


def test_killed_or_ended_nothing_private_is_left(site: Site, weights: Path) -> None:
    """`kill -9` leaves files until the next start, which spares a server that lives."""
    place = site.secret.parent
    with running(place, weights) as killed:
        killed.send(killed.session(), site.secret)
        killed.process.kill()
        killed.process.wait()
        assert any(SECRET in path.read_bytes() for path in killed.files)
        assert killed.root.stat().st_mode & 0o777 == 0o700
    with running(place, weights, STUCK) as ended:
        assert not killed.root.exists()
        assert site.root.exists()
        me = ended.session()
        with busy(ended, me, place):
            wait_until((place / "is_stuck").exists, "no step begins")
            begin = time.monotonic()
            ended.process.send_signal(signal.SIGTERM)
            ended.process.wait(PATIENCE_S)
            assert time.monotonic() - begin < ENDS_S
        assert not ended.root.exists()
    assert site.ask("GET", "/").status == 200
    me = site.session()
    with busy(site, me, place):
        site.process.send_signal(signal.SIGINT)
        assert site.process.wait(ENDS_S) == 130
    assert not [path for path in place.iterdir() if path.name.startswith("avatar_v_")]
