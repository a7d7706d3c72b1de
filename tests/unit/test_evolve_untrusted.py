"""The search for kernels, where others write the code: what an endpoint is asked, and the room in
which its answers run."""

import http.server
import json
import os
import random
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from avatar_v.kernels.evolve import grammar
from avatar_v.kernels.evolve.archive import Archive
from avatar_v.kernels.evolve.endpoint import Endpoint
from avatar_v.kernels.evolve.fitness import Bench
from avatar_v.kernels.evolve.islands import search
from avatar_v.kernels.evolve.run import evolve
from avatar_v.kernels.evolve.sandbox import Box, Fault, isolation
from avatar_v.kernels.evolve.spec import Budget, Limits, Shape
from evolve_attacks import ATTACKS, HEAD
from kernel_search import judged, make_spec

PARTS = 4
"""Of the attacks of an endpoint."""


@pytest.fixture(scope="module")
def room() -> None:
    """Machines that do not let a user make namespaces have no room to test."""
    if (lacks := isolation()) is not None:
        pytest.skip(f"needs {lacks}")


Reply = tuple[int, dict[str, str], bytes]


class Served:
    """An endpoint on this machine that gives the answers of a list."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.asked: list[tuple[dict[str, str], dict[str, Any]]] = []
        served = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                served.asked.append((dict(self.headers), json.loads(body)))
                status, headers, data = served.replies.pop(0)
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                del format, args

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def say(self, content: Any) -> None:
        data = json.dumps({"choices": [{"message": {"content": content}}]}).encode()
        self.replies.append((200, {}, data))


@pytest.fixture
def served() -> Iterator[Served]:
    found = Served()
    threading.Thread(target=found.server.serve_forever, daemon=True).start()
    yield found
    found.server.shutdown()
    found.server.server_close()


def test_an_endpoint_is_asked_with_the_parent_and_its_answer_is_read(
    served: Served, tmp_path: Path
) -> None:
    spec = make_spec(islands=1, budget=Budget(4, 60.0))
    code = "def build(scope):\n    return scope\n"
    served.say(f"Here:\n```python\n{code}```\nand\n```python\nanother\n```")
    served.say("I would rather not.")
    archive = Archive(tmp_path / "a", spec)
    search(spec, archive, lambda code: judged("right"), Endpoint(served.url, "m", "key", spec))
    sources = [(r.source, r.status) for r in archive.records]
    assert sources == [("cpp", "ok"), ("endpoint", "ok"), ("cpp", "ok"), ("endpoint", "refused")]
    assert archive.records[1].code == code
    (headers, first), (_, second) = served.asked
    assert headers["Authorization"] == "Bearer key"
    assert first["model"] == "m"
    assert "def gated_add_norm" in first["messages"][0]["content"]
    parent = archive.records[archive.records[3].parent]
    assert parent.code in second["messages"][0]["content"]


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"null", b"[" * 100_000, b'{"choices": []}', b'{"choices": {"0": 1}}', b"\xff\xfe",
        b'{"choices": [{"message": {"content": 7}}]}', b"x" * ((1 << 20) + 1),
        b'{"choices": [{"message": {"content": "```python\\nimport os\\n```"}}]}',
        b'{"choices": [{"message": {"content": "```python\\ndef build(x): \\"\\ud800\\"\\n```"}}]}',
    ],
)  # fmt: skip
def test_an_answer_that_holds_no_code_is_refused(served: Served, answer: bytes) -> None:
    served.replies.append((200, {}, answer))
    proposal = Endpoint(served.url, "m", "", make_spec())(None, [])
    assert proposal.refused
    assert not proposal.code


def test_a_key_goes_to_its_endpoint_alone(served: Served) -> None:
    served.replies += [(307, {"Location": f"{served.url}/chat/completions"}, b""), (500, {}, b"")]
    endpoint = Endpoint(served.url, "m", "key", make_spec())
    for status in ("307", "500"):
        with pytest.raises(OSError, match=status):
            endpoint(None, [])
    assert len(served.asked) == 2
    for url in ("http://example.org/v1", "file:///etc/passwd", "ftp://127.0.0.1"):
        with pytest.raises(ValueError, match="--endpoint"):
            Endpoint(url, "m", "key", make_spec())


def test_code_of_an_endpoint_does_not_run_without_a_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("avatar_v.kernels.evolve.run.isolation", lambda: "way")
    spec = make_spec()
    endpoint = Endpoint("http://127.0.0.1:1/v1", "m", "", spec)
    with pytest.raises(ValueError, match="--unsafe"):
        evolve(spec, tmp_path / "a", endpoint)


def boxed(folder: Path, words: str, limits: Limits, seconds: float = 20.0) -> bytes | Fault:
    """The byte that a plain Python process answers in a room, or its fault."""
    folder.mkdir(mode=0o755)
    reader, writer = os.pipe()
    head = f"import os, socket, sys, time\nanswers = {writer}\n"
    box = Box([sys.executable, "-c", head + words], folder, limits, kept=[writer])
    os.close(writer)
    try:
        return box.wait(reader, seconds)
    except Fault as fault:
        return fault
    finally:
        box.close()
        os.close(reader)


ESCAPES: dict[str, Callable[[Path, int], str]] = {
    "network": lambda secret, port: f"socket.create_connection(('127.0.0.1', {port}), 5)",
    "a file": lambda secret, port: f"open({str(secret)!r}).read()",
    "the password file": lambda secret, port: "open('/etc/shadow').read()",
    "Python itself": lambda secret, port: "open(os.path.join(sys.base_prefix, 'x'), 'w')",
    "its own folder": lambda secret, port: "open('/box/x', 'w')",
    "the system": lambda secret, port: "open('/usr/x', 'w')",
    "a full disk": lambda secret, port: (
        "[open(f'/tmp/{i}', 'wb').write(b'x' * (1 << 22)) for i in range(99)]"
    ),
    "one long file": lambda secret, port: (
        "[os.write(os.open('/tmp/x', 66 | os.O_APPEND), b'x' * (1 << 22)) for i in range(99)]"
    ),
    "memory": lambda secret, port: "kept = [b'x' * (1 << 26) for i in range(99)]",
    "shared memory that is not held": lambda secret, port: (
        "import ctypes\nassert ctypes.CDLL(None).shmget(0, 1 << 20, 0o1600) >= 0"
    ),
    "many files": lambda secret, port: "kept = [os.dup(1) for i in range(200)]",
    "another's processes": lambda secret, port: "os.kill(2, 0)",
    "a new root": lambda secret, port: "os.chroot('/tmp')",
    "root": lambda secret, port: "os.setgroups([0]); os.setuid(0)",
    "many processes": lambda secret, port: "[os.fork() or time.sleep(9) for i in range(999)]",
}


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize("name", ESCAPES)
def test_nothing_leads_out_of_the_room(name: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    limits = Limits(memory_mb=512, files_mb=16, processes=16, cpu_s=20)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        words = ESCAPES[name](secret, listening.getsockname()[1])
        outcome = boxed(tmp_path / "box", f"{words}\nos.write(answers, b'y')", limits)
    assert isinstance(outcome, Fault), "came through"
    assert outcome.kind == "crash"
    assert "Error" in outcome.reason


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize("apart", [False, True])
def test_memory_in_files_without_a_name_counts(tmp_path: Path, apart: bool) -> None:
    """Never mapped, so neither resident nor in the limit on addresses; also of a thread alone."""
    words = f"""
import ctypes, threading
def fill():
    assert not {apart} or ctypes.CDLL(None).unshare(0x400) == 0  # CLONE_FILES
    for number in range(40):
        file = os.memfd_create("x")
        os.write(file, bytes(1 << 24))
    time.sleep(1000)
threading.Thread(target=fill, daemon=True).start()
time.sleep(1000)
"""
    found = boxed(tmp_path / "a", words, Limits(memory_mb=512, files_mb=16, cpu_s=20))
    assert isinstance(found, Fault)
    assert found.kind == "memory", found


@pytest.mark.usefixtures("room")
def test_the_room_has_an_end_and_says_nothing_of_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    limits = Limits(cpu_s=1, memory_mb=512)
    words = "assert not [v for v in os.environ.values() if 'secret' in v], os.environ\n"
    words += "assert len([p for p in os.listdir('/proc') if p.isdigit()]) == 1\n"
    words += "assert len(os.listdir('/proc/self/fd')) <= 5\nos.write(answers, b'y')"
    assert boxed(tmp_path / "a", words, limits) == b"y"
    slept = boxed(tmp_path / "b", "time.sleep(1000)", limits, 0.5)
    assert isinstance(slept, Fault)
    assert slept.kind == "time"
    monkeypatch.setattr("os.geteuid", lambda: 1000)  # a namespace of users instead of root's rights
    assert boxed(tmp_path / "d", words, limits) == b"y"
    looped = boxed(tmp_path / "c", "while True: pass", limits, 60.0)
    assert isinstance(looped, Fault)
    assert looped.kind == "crash"


@pytest.mark.usefixtures("room")
def test_candidates_are_right_before_they_are_fast() -> None:
    spec = make_spec(clock="computing")
    bench = Bench(spec)
    genome = {name: values[0] for name, values in grammar.choices(spec, "cpp").items()}
    try:
        right = bench.judge(grammar.code(spec, {"family": "cpp", **genome}))
        cheat = bench.judge(HEAD + ATTACKS["memoised by the place of its inputs"])
    finally:
        bench.close()
    assert right.status == "ok", right
    assert 0 < right.low <= right.speedup <= right.high
    assert right.pairs == spec.pairs
    assert 0 < right.error < 1e-4
    assert cheat.status == "wrong", cheat


@pytest.mark.usefixtures("room")
@pytest.mark.slow
@pytest.mark.parametrize("scope", ["gated_add", "modulated_norm", "gated_add_norm"])
def test_every_family_is_right_in_every_templated_scope(scope: str) -> None:
    """Triton in its interpreter. 5 tokens: the last tile is not full."""
    spec = make_spec(scope=scope, families=("cpp", "triton", "inductor"), shape=Shape(2, 5, 2, 24),
                     limits=Limits(), calls=1)  # fmt: skip
    bench, rng = Bench(spec), random.Random(0)
    try:
        for family in spec.families:
            for _ in range(1 if family == "inductor" else 3):
                genome = {n: rng.choice(v) for n, v in grammar.choices(spec, family).items()}
                found = bench.judge(grammar.code(spec, {"family": family, **genome}))
                assert found.status == "ok", (genome, found)
    finally:
        bench.close()


@pytest.mark.usefixtures("room")
@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_no_attack_of_an_endpoint_wins_or_escapes(
    served: Served, tmp_path: Path, part: int
) -> None:
    attacks = dict(list(ATTACKS.items())[part::PARTS])
    spec = make_spec(clock="computing")
    secret, out = tmp_path / "secret", tmp_path / "out"
    secret.write_text("the-secret-of-this-test")
    Archive(out, spec)
    endpoint, bench, verdicts = Endpoint(served.url, "m", "", spec), Bench(spec), {}
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.1)
        named = f"\nPORT, SECRET, ARCHIVE = {listening.getsockname()[1]}, {str(secret)!r}, "
        try:
            for name, attack in attacks.items():
                served.say(f"```python\n{HEAD}{named}{str(out)!r}\n{attack}```")
                verdicts[name] = bench.judge(endpoint(None, []).code)
                print(f"{name}: {verdicts[name].status}, {verdicts[name].reason[-80:]}", flush=True)
        finally:
            bench.close()
        with pytest.raises(TimeoutError):
            listening.accept()
    passed = {name: found.speedup for name, found in verdicts.items() if found.status == "ok"}
    assert passed.keys() <= {"another clock"}  # which computes right, and slowly
    assert all(speedup < 0.5 for speedup in passed.values()), passed
    assert not [found for found in verdicts.values() if secret.read_text() in found.reason]
    assert [path.name for path in out.iterdir()] == ["spec.json"]
