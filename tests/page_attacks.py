"""Attacks on the page by plain HTTP, in groups: each attempt, and whether it came through."""

import contextlib
import json
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from hostile_media import write_wav
from page_site import FORM, Answer, Site, listening, picture_of, wait_until

SECRET = b"the-private-words-of-the-server"
EVIL = "http://evil.example"
ACTIVE = ("html", "svg", "xml", "script", "pdf", "css")  # content that a browser would run or draw

Attack = tuple[str, bool]
"""Its name, and whether it came through."""


def paths(site: Site) -> Iterator[Attack]:
    """Files of the server where the id of an upload is asked for."""
    me = site.session()
    mine = site.send(me, site.secret.with_name("me.png"))
    with listening() as (port, asked):
        name = site.secret.name
        wrong = [str(site.secret), f"../../../{name}", os.path.relpath(site.secret)]
        wrong += [f"{site.root}/uploads/../../{name}", f"{mine}/../../../../{name}"]
        wrong += ["/dev/zero", "/dev/stdin", "/proc/self/environ", "/proc/self/fd/0", "/etc/passwd"]
        kinds = ("file://", "concat:", "subfile,,start,0,end,99,,:", "cache:")
        wrong += [f"{kind}{site.secret}" for kind in kinds]
        wrong += [f"{kind}127.0.0.1:{port}/seen" for kind in ("http://", "//")]
        wrong += ["data:audio/wav;base64,UklGRg==", "pipe:0", "0" * 32, "..", "x" * 4000]
        wrong += [mine.upper(), f"{mine}\0", f" {mine}"]
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
    """By its status, or by its last state, which is a fault (behind others where a worker had to
    open the file); no word of a file is in it."""
    if SECRET in answer.body or b"root:" in answer.body or b"PATH=" in answer.body:
        return False
    if answer.status != 200:
        return 400 <= answer.status < 500
    last = json.loads(answer.text.splitlines()[-1])
    return last["over"] and "av-failed" in last["status"]


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
    gets += ["/docs", "/redoc", "/login", "/.env", "/.git/config", "//etc/passwd"]
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
    part = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.wav"'
    part += b"\r\n\r\nx\r\n--b--"
    origins = [EVIL, "null", f"http://127.0.0.1:{site.port + 1}", f"http://localhost:{site.port}"]
    foreign: list[dict[str, str]] = [
        *({"Origin": o} for o in (*origins, f"http://127.0.0.1:{site.port}.evil.example")),
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
            line = b"POST /files HTTP/1.1\r\n"
            answer = site.raw(line + host + cookie + head + b"\r\n", b"0\r\n")
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


def media(site: Site) -> Iterator[Attack]:
    """Files that lead to others, or that are small and become large."""
    me, secret, place = site.session(), site.secret.with_suffix(".mp4"), site.secret.parent
    picture = site.send(me, place / "me.png")
    mpd = '<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" profiles="x"><Period>'
    mpd += '<AdaptationSet mimeType="audio/wav"><Representation id="1" bandwidth="1"><BaseURL>'
    mpd += f"file://{secret}</BaseURL><SegmentBase/></Representation></AdaptationSet></Period>"
    mpd += "</MPD>"
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
    speech = site.send(me, write_wav(place / "talk.wav", samples=np.zeros(1600)))
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
    answer = site.make(me, prompt="<script>alert(1)</script>", seed="<script>alert(1)</script>")
    yield "a script in the form", not is_refused(answer) or "<script>" in answer.text


def jobs(site: Site) -> Iterator[Attack]:
    """The files of a job, and all that stands around them."""
    alice, place = site.session(), site.secret.parent
    ids = [site.send(alice, place / name) for name in ("me.png", "talk.wav")]
    states = site.make(alice, reference=ids[0], speech=ids[1]).text.splitlines()
    found = re.search(r"jobs/([0-9a-f]{32})/avatar\.mp4", states[-1])
    assert found, states[-1]
    token = found[1]
    record = site.ask("GET", f"/jobs/{token}/avatar.json", session=alice)
    assert record.status == 200
    for other in ("", site.session(), "0" * 32):
        answer = site.ask("GET", f"/jobs/{token}/avatar.json", session=other)
        yield f"a job of another browser, as {other:.3}", answer.status != 404
    yield "the record names a folder", str(site.root).encode() in record.body
    (site.root / "jobs" / token / ".avatar.mp4.part").write_bytes(SECRET)
    wrong = ["..%2f..%2flock", "%2e%2e/lock", ".avatar.mp4.part", "..%2favatar.mp4", "avatar.mp4/"]
    wrong += ["avatar.mp4%00.json", "AVATAR.MP4", "live_00000.m4s%2f..", "live.m3u8.bak"]
    wrong += ["*", "", "."]
    for name in wrong:
        answer = site.ask("GET", f"/jobs/{token}/{name}", session=alice)
        yield f"/jobs/TOKEN/{name}", answer.status != 404
    others = [token.upper(), token[:31], f"{token}%2f.", "..", "%2e%2e", ".", "*", "0" * 32]
    for other in others:
        for name in ("avatar.mp4", "live.m3u8"):
            answer = site.ask("GET", f"/jobs/{other}/{name}", session=alice)
            yield f"/jobs/{other:.12}/{name}", answer.status != 404
    yield "a job as an upload", site.ask("GET", f"/files/{token}", session=alice).status != 404
    answer = site.make(alice, reference=token, speech=token)
    yield "a job's token as a clip", not is_refused(answer)
    path = site.root / "jobs" / token / "avatar.json"
    path.unlink()
    path.symlink_to(site.secret)
    answer = site.ask("GET", f"/jobs/{token}/avatar.json", session=alice)
    yield "a link among a job's files", answer.status != 404


GROUPS: tuple[Callable[[Site], Iterator[Attack]], ...] = (
    paths, sessions, foreign_routes, sites, names, bodies, media, served, jobs,
)  # fmt: skip
