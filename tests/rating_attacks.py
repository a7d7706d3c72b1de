"""A stranger's attempts at the rating server. An attack gives those that got through, by name."""

import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

from human_study import write_video
from rating_site import MOS, Site, vote

SCRIPT = "<script>alert(1)</script>"
SQL = ("' OR '1'='1", "'; DROP TABLE votes; --", '" OR ""="', "%", "_" * 22,
       "x' UNION SELECT token FROM raters --")  # fmt: skip
WIDER = 0o077


Attack = Callable[[Site], dict[str, bool]]
ATTACKS: list[Attack] = []


def attack(function: Attack) -> Attack:
    """Adds a function that makes attempts: name → whether it got through."""
    ATTACKS.append(function)
    return function


@attack
def guessed_tokens(site: Site) -> dict[str, bool]:
    guesses = ["", "r001", "0" * 22, site.me[:-1], site.me + "x", site.me.swapcase(), "*", "null"]
    guesses += [site.me + end for end in ("%00", "%20", "%0a", ";x", "%2f", "/.", "%c0%af")]
    return {
        f"{method} {guess!r}": not site.target.ask(method, path).refused
        for guess in guesses
        for method, path in (("GET", f"/r/{guess}"), ("POST", f"/r/{guess}/withdraw"))
    }


@attack
def paths_out_of_the_site(site: Site) -> dict[str, bool]:
    ups = ("../", "..%2f", "%2e%2e/", "%2e%2e%2f", "..%5c", "..\\", "%252e%252e%252f", "..;/")
    files = ("study.yaml", "votes.sqlite", "etc/passwd", "%00study.yaml", "study.yaml%00.mp4")
    places = ("/static/", f"/r/{site.me}/m/", "/")
    paths = [f"{place}{up * 3}{file}" for place in places for up in ups for file in files]
    paths += [f"/r/{site.me}/m/%2fetc%2fpasswd", "/static//etc/passwd", "file:///etc/passwd"]
    paths += [f"/r/{site.me}/m/{quote(str(site.folder / 'study.yaml'), safe='')}"]
    return {path: not site.target.ask("GET", path).refused for path in paths}


@attack
def pages_that_nobody_may_see(site: Site) -> dict[str, bool]:
    names = "votes votes.csv votes.sqlite votes.sqlite-wal export admin study.yaml docs redoc r "
    names += "openapi.json .blinded/ .blinded static metrics server-status raters api debug r/r001"
    paths = [f"/{name}" for name in names.split()] + [f"/r/{site.me}/votes", f"/r/{site.me}/export"]
    return {path: not site.target.ask("GET", path).refused for path in paths}


@attack
def sql_in_every_field(site: Site) -> dict[str, bool]:
    item, public, answer = site.question(site.me)
    base, passed = f"/r/{site.me}", {}
    for text in SQL:
        word = quote(text, safe="")
        for path in (f"/r/{word}", f"{base}/m/{word}", f"/r/{word}/m/{public}"):
            passed[f"GET {path}"] = not site.target.ask("GET", path).refused
        bodies = [{"item": text, "answer": answer}, {"item": item, "answer": {text: text}}]
        bodies += [{"item": item, "answer": dict.fromkeys(answer, text)}]
        for number, body in enumerate(bodies):
            got = site.target.ask("POST", f"{base}/answer", body)
            passed[f"answer {number} {text}"] = not got.refused
        passed[f"read {text}"] = not site.target.ask("POST", f"{base}/read/{word}").refused
    return passed


@attack
def bodies_too_large_as_declared(site: Site) -> dict[str, bool]:
    paths = {"unknown": "/r/unknown/answer", "known": f"/r/{site.me}/answer", "get": "/"}
    sizes = {"400 MiB": 400 * 2**20, "1 MiB": 2**20, "64 KiB and 1": 2**16 + 1, "huge": 10**30}
    sent = {
        f"{name}, {size}": f"{'GET' if name == 'get' else 'POST'} {path} HTTP/1.1\r\n"
        f"Host: {site.target.host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n{' ' * 2**14}"
        for name, path in paths.items()
        for size, length in sizes.items()
    }
    with ThreadPoolExecutor(len(sent)) as pool:  # each is waited for a second
        answers = pool.map(lambda text: site.target.send(text.encode()), sent.values())
        return {name: not got.refused for name, got in zip(sent, answers, strict=True)}


@attack
def bodies_too_large_in_chunks(site: Site) -> dict[str, bool]:
    """64 MiB for nobody and for a rater: they may not lie in memory, nor be waited for."""
    passed = {}
    for name in ("unknown", site.me):
        head = f"POST /r/{name}/answer HTTP/1.1\r\nHost: {site.target.host}\r\n"
        head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        before = site.target.memory_mib()
        got = site.target.send(head.encode() + (b"10000\r\n" + b" " * 2**16 + b"\r\n") * 1024)
        passed[f"to {name[:7]}"] = not got.refused
        passed[f"to {name[:7]}, held"] = site.target.memory_mib() - before > 8
    return passed


@attack
def two_lengths_of_one_body(site: Site) -> dict[str, bool]:
    """Request smuggling: a proxy and the server must not differ in where a body ends."""
    ends = ("Content-Length: 4\r\nContent-Length: 5", "Content-Length: 4, 5", "Content-Length: -1")
    ends += ("Content-Length: 4\r\nTransfer-Encoding: chunked", "Content-Length: +4")
    ends += ("Transfer-Encoding: identity, chunked", "Transfer-Encoding: x", "Content-Length: 0x4")
    head = f"POST /r/{site.me}/withdraw HTTP/1.1\r\nHost: {site.target.host}\r\n"
    body = f"\r\n\r\n0\r\n\r\nPOST /r/{site.tokens[1]}/withdraw HTTP/1.1\r\nHost: x\r\n\r\n"
    return {end: not site.target.send((head + end + body).encode()).refused for end in ends}


@attack
def other_sites_send(site: Site) -> dict[str, bool]:
    item, _, answer = site.question(site.me)
    own = {"Origin": f"http://{site.target.host}"}
    froms = [{"Origin": o} for o in ("https://evil.example", "null", "http://127.0.0.1:1", "")]
    froms += [{"Origin": f"http://{site.target.host}.evil.example"}]
    froms += [{"Sec-Fetch-Site": w, **own} for w in ("cross-site", "same-site", "x")]
    kinds = ("application/json", "text/plain", "multipart/form-data; boundary=x")
    passed = {}
    for sent in froms:
        for action in ("consent", "withdraw", "read/mos", "read/ready", "more"):
            got = site.target.ask("POST", f"/r/{site.me}/{action}", headers=sent)
            passed[f"{action} {sent}"] = got.status != 403
        for kind in kinds:
            body, headers = {"item": item, "answer": answer}, {**sent, "Content-Type": kind}
            got = site.target.ask("POST", f"/r/{site.me}/answer", body, headers)
            passed[f"{kind} {sent}"] = got.status != 403
    return passed


@attack
def other_sites_embed(site: Site) -> dict[str, bool]:
    """Nothing can be framed, played or read by another site, not even an error."""
    _, public, _ = site.question(site.me)
    media, passed = f"/r/{site.me}/m/{public}", {}
    for kind, mode in (("iframe", "navigate"), ("video", "no-cors"), ("empty", "cors")):
        sent = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": kind}
        for path in (f"/r/{site.me}", media, "/static/rate.js"):
            passed[f"{path} as {kind}"] = site.target.ask("GET", path, headers=sent).status != 403
    asked = [("GET", path) for path in (f"/r/{site.me}", media, "/r/x", "/")]
    for method, path in [*asked, ("PUT", "/r/x")]:
        got = site.target.ask(method, path, headers={"Origin": f"http://{site.target.host}"})
        policy = got.header("Content-Security-Policy")
        passed[f"{path} framed"] = "frame-ancestors 'none'" not in policy
        passed[f"{path} in old frames"] = got.header("X-Frame-Options") != "DENY"
        passed[f"{path} with scripts"] = "default-src 'self'" not in policy or "unsafe" in policy
        passed[f"{path} guessed"] = got.header("X-Content-Type-Options") != "nosniff"
        passed[f"{path} shared"] = "Access-Control-Allow-Origin" in got.head
        passed[f"{path} kept"] = got.status != 403 and got.header("Cache-Control") != "no-store"
        passed[f"{path} named"] = "uvicorn" in got.head
    return passed


@attack
def other_names_of_the_server(site: Site) -> dict[str, bool]:
    names = ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "127.0.0.2", "")
    names += (f"evil.example:{site.target.port}", "127.0.0.1@evil.example", "127.0.0.1:x", "[::2]")
    names += ("127.0.0.1, evil.example", "127.0.0.1/evil", "127.0.0.1\tevil")
    names += ("0", "0.0.0.0", "[::1")
    path = f"/r/{site.me}"
    passed = {n: not site.target.ask("GET", path, headers={"Host": n}).refused for n in names}
    for lines in ("", f"Host: {site.target.host}\r\nHost: evil.example\r\n"):
        got = site.target.send(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
        passed[f"lines {lines!r}"] = not got.refused
    sent = {"Host": "evil.example", "X-Forwarded-Host": site.target.host}
    passed["forwarded"] = not site.target.ask("GET", path, headers=sent).refused
    return passed


@attack
def html_that_comes_back(site: Site) -> dict[str, bool]:
    item, _, answer = site.question(site.me)
    base, word = f"/r/{site.me}", quote(SCRIPT, safe="")
    asked = [f"/r/{token}" for token in site.tokens[4:6]]  # ranges and attributes
    gets = (base, *asked, f"/r/{word}", f"{base}/m/{word}", f"/static/{word}", f"/{word}")
    bodies = ({"item": SCRIPT, "answer": answer}, {"item": item, "answer": {SCRIPT: SCRIPT}})
    answers = {path: site.target.ask("GET", path) for path in gets}
    answers |= {str(b): site.target.ask("POST", f"{base}/answer", b) for b in bodies}
    is_html = {k: "html" in got.header("Content-Type") for k, got in answers.items()}
    passed = {k: is_html[k] and SCRIPT.encode() in got.body for k, got in answers.items()}
    crlf = "%0d%0aSet-Cookie:%20a=b"
    for path in (f"/r/x{crlf}/consent", f"{base}{crlf}/consent", f"{base}/read/mos{crlf}"):
        passed[path] = bool(site.target.ask("POST", path).header("Set-Cookie"))
    return passed


@attack
def votes_that_were_not_asked_for(site: Site) -> dict[str, bool]:
    """Items of others, by internal names, ahead of time, and of who has not agreed yet."""
    item, _, answer = site.question(site.me)
    others, _, _ = site.question(site.tokens[1])
    mine, unasked = f"/r/{site.me}/answer", f"/r/{site.tokens[2]}/answer"
    later = "SELECT public FROM screens WHERE rater = 'r001' AND shown_s IS NULL"
    items = ["mos/c00/ours", "check/g1", "1", "", others, *(row[0] for row in site.rows(later))]
    passed = {f"item {one}": not vote(site, mine, one, answer).refused for one in items}
    passed["not begun"] = not vote(site, unasked, item, answer).refused
    _, media, _ = site.question(site.tokens[1])
    passed["media of another"] = not site.target.ask("GET", f"/r/{site.me}/m/{media}").refused
    return passed


@attack
def votes_of_another_kind(site: Site) -> dict[str, bool]:
    """Whatever JSON can say, and what only looks like it: an error, never a fault or a vote."""
    item, _, _ = site.question(site.me)
    path, passed = f"/r/{site.me}/answer", {}
    odd = [None, [], "left", 1, {}, {"choice": None}, {"choice": ["left"]}, {"choice": "up"}]
    odd += [{"choice": True}, {"choice": 10**400}, {"choice": "left", "extra": "x"}, {"": "left"}]
    odd += [{"choice": "\ud800"}, {"choice": "left\0"}, {"Choice": "left"}, {"choice": "first"}]
    for answer in odd:
        passed[f"{answer!r:.60}"] = not vote(site, path, item, answer).refused
    deep, plain = b"[" * 30000, f'{{"item": "{item}", "answer": '.encode()
    raw = [plain + end for end in (deep, b'{"choice": NaN}}', b'{"choice": "left"}', b"9" * 6000)]
    raw += [deep, b"\xff\xfe", b"", b"item=1&answer=left"]
    raw += [plain.decode().encode("utf-16") + b"{}"]
    for body in raw:
        sent = {"Content-Type": "application/json"}
        passed[f"{body[:40]!r}"] = not site.target.ask("POST", path, body, sent).refused
    return passed


@attack
def ranges_and_attributes_that_are_none(site: Site) -> dict[str, bool]:
    """Of the two kinds of pages with more to say, and decisions of who is no reviewer."""
    good = {"fault": "teeth", "start": 0.1, "stop": 0.3}
    times = (-1, 0.3, 1e9, 10**400, "0.1", None, True, [], {}, "1e400")
    ranges = [[{**good, key: value}] for key in ("start", "stop") for value in times]
    ranges += [[{**good, "fault": x}] for x in ("", "eyes", SCRIPT, 1, None, ["teeth"], SQL[1])]
    ranges += [[good] * 51, [[good]], [None], "teeth", {"0": good}, 7, None, [{}]]
    ranges += [[{**good, "start": 0.4}], [{**good, "more": 1}], [{"fault": "teeth", "start": 0.1}]]
    passed = {}
    for number, one in enumerate(ranges):
        if one == [good]:
            continue
        item, _, _ = site.question(site.tokens[4])
        got = vote(site, f"/r/{site.tokens[4]}/answer", item, {"ranges": one})
        passed[f"ranges {number} {one!r:.60}"] = not got.refused
    raw = f'{{"item": "{item}", "answer": {{"ranges": [{{"fault": "teeth", "start": NaN, '
    raw += '"stop": Infinity}]}}'
    sent = {"Content-Type": "application/json"}
    got = site.target.ask("POST", f"/r/{site.tokens[4]}/answer", raw.encode(), sent)
    passed["no numbers"] = not got.refused
    known = {"gaze": "left", "emotion": "sad", "gesture": "none", "style": "reading"}
    item, _, _ = site.question(site.tokens[5])
    odd = [{**known, "gaze": x} for x in ("inward", "", 1, None, True, ["left"], SCRIPT, "\0")]
    odd += [{**known, "more": "x"}, {"gaze": "left"}, {"ranges": []}, {**known, "ranges": []}]
    for number, one in enumerate(odd):
        got = vote(site, f"/r/{site.tokens[5]}/answer", item, one)
        passed[f"attributes {number}"] = not got.refused
    for what in (True, 1, "true", None, []):
        body = {"item": item, "answer": known, "decision": what}
        got = site.target.ask("POST", f"/r/{site.tokens[5]}/answer", body)
        passed[f"decision {what}"] = not got.refused
    page = site.target.ask("GET", f"/r/{site.tokens[6]}").body
    passed["audits before consent"] = b"data-item" in page
    return passed


@attack
def votes_twice(site: Site) -> dict[str, bool]:
    """Another answer, the same one forty times at once, and after leaving."""
    item, _, answer = site.question(site.tokens[1])
    path, before = f"/r/{site.tokens[1]}/answer", site.votes
    other = {key: 2 if key in MOS else "right" for key in answer}
    passed = {"another answer": not vote(site, path, item, other).refused}
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda _: vote(site, path, item, answer).status, range(40)))
    passed |= {"a fault": set(done) != {200}, "counted again": site.votes != before}
    item, media, answer = site.question(site.tokens[3])
    base = f"/r/{site.tokens[3]}"
    assert site.target.ask("POST", f"{base}/withdraw").status == 303
    passed["after leaving"] = not vote(site, f"{base}/answer", item, answer).refused
    passed["media after leaving"] = not site.target.ask("GET", f"{base}/m/{media}").refused
    site.target.ask("POST", f"{base}/consent")
    passed["back in"] = site.target.ask("GET", base).status != 410
    return passed


@attack
def other_methods(site: Site) -> dict[str, bool]:
    methods = ("HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "PATCH", "CONNECT", "PROPFIND", "get")
    paths = (f"/r/{site.me}", f"/r/{site.me}/answer", "/static/rate.css", "*")
    sent = {"X-Secret": "echo", "Access-Control-Request-Method": "POST"}
    passed = {}
    for method in methods:
        for path in paths:
            got = site.target.ask(method, path, headers=sent)
            passed[f"{method} {path}"] = not got.refused or b"echo" in got.body
            passed[f"{method} {path} allowed"] = "Access-Control" in got.head
    upgrade = {"Connection": "Upgrade, close", "Upgrade": "websocket"}
    upgrade |= {"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    passed["websocket"] = site.target.ask("GET", "/r/x", headers=upgrade).status == 101
    return passed


@attack
def heads_too_large(site: Site) -> dict[str, bool]:
    before = site.target.memory_mib()
    large = {"X-Long": "x" * 2**20}, {f"X-{i}": "x" * 100 for i in range(10_000)}
    asked = [site.target.ask("GET", "/", headers=head) for head in large]
    passed = {str(i): not got.refused for i, got in enumerate(asked)}
    passed["path"] = not site.target.ask("GET", f"/r/{'x' * 2**20}").refused
    passed["endless"] = not site.target.send(b"GET / HTTP/1.1\r\nX: " + b"x" * 2**24).refused
    passed["no line"] = not site.target.send(b"x" * 2**20).refused
    passed["held"] = site.target.memory_mib() - before > 8
    return passed


@attack
def odd_ranges(site: Site) -> dict[str, bool]:
    """More bytes than the video has, or a fault of the server."""
    _, public, _ = site.question(site.me)
    path = f"/r/{site.me}/m/{public}"
    whole = site.target.ask("GET", path)
    assert whole.status == 200
    many = ",".join(f"{i}-" for i in range(1000))
    texts = ("bytes=-99999999999", f"bytes={many}", "bytes=9-1", "bytes=--1")
    texts += (f"bytes=0-{'9' * 5000}",)
    texts += ("bytes=0-0,0-0", f"bytes={'9' * 5000}-", "lines=0-1", "bytes=\u0661-\u0662")
    passed = {}
    for text in texts:
        got = site.target.ask("GET", path, headers={"Range": text})
        passed[text[:30]] = got.status >= 500 or len(got.body) > len(whole.body)
    return passed


@attack
def slow_requests(site: Site) -> dict[str, bool]:
    """A hundred that never end, by head, by body and by not reading: another is served at once."""
    _, public, _ = site.question(site.me)
    head = f" HTTP/1.1\r\nHost: {site.target.host}\r\n"
    length = "Content-Type: application/json\r\nContent-Length: 60\r\n\r\n{"
    openings = [f"GET /r/x{head}X-Slow: ", f"POST /r/{site.me}/answer{head}{length}"]
    openings += [f"POST /r/{site.tokens[1]}/answer{head}{length}"]
    openings += [f"GET /r/{site.me}/m/{public}{head}\r\n"]
    slow = [site.target.connect() for _ in range(100)]
    try:
        for number, connection in enumerate(slow):
            connection.sendall(openings[number % len(openings)].encode())
        begin = time.monotonic()
        page = site.target.ask("GET", f"/r/{site.me}")
        video = site.target.ask("GET", f"/r/{site.me}/m/{public}")
        retry = site.target.ask("POST", f"/r/{site.tokens[1]}/consent")
        took_s = time.monotonic() - begin
    finally:
        for connection in slow:
            connection.close()
    served = (page.status, video.status, retry.status) == (200, 200, 303)
    return {"another waits": took_s > 1.0, "another is turned away": not served}


@attack
def videos_changed_while_it_runs(site: Site) -> dict[str, bool]:
    """A link to another file in the place of a video is not followed: copies are served."""
    _, public, _ = site.question(site.me)
    path = f"/r/{site.me}/m/{public}"
    before, secret = site.target.ask("GET", path).body, site.folder.parent / "secret.mp4"
    write_video(secret, 999)
    for video in (site.folder / "checks").glob("*.mp4"):
        video.unlink()
        video.symlink_to(secret)
    return {"another video": site.target.ask("GET", path).body != before}


@attack
def rights_of_other_users(site: Site) -> dict[str, bool]:
    names = ("votes.sqlite", "votes.sqlite-wal", "votes.sqlite-shm", ".blinded")
    modes = {name: stat.S_IMODE((site.folder / name).stat().st_mode) for name in names}
    return {name: bool(mode & WIDER) for name, mode in modes.items()}
