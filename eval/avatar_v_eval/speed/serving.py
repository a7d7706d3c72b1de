"""Many clients at once at `avatar-v serve`: times of a call and of a video, and what deaths cost.

Clients are threads that ask for short videos of tiny random weights and wait for them. In the
second half a worker and the server itself are killed (SIGKILL) in turn; clients send again what got
no answer. Give a queue for each run: `--queues sqlite postgresql:///DB`. Then conversations are
asked for all at once (sessions.py).
"""

import argparse
import http.client
import json
import os
import random
import secrets
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from avatar_v.base import checks
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.speed.served import OWNERS, Site
from avatar_v_eval.speed.sessions import HELD_S, hold

PATIENCE_S = 600.0
RETRY_S = 0.3


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(name="serving_load")
    add = parser.add_argument
    add("--queues", nargs="+", default=["sqlite"], help="sqlite, or addresses of empty databases")
    add("--requests", type=int, default=1000, help="of all clients together; 0: none")
    add("--clients", type=int, default=16, help="that ask at the same time")
    add("--workers", type=int, default=2)
    add("--kills", type=int, default=4, help="of workers and of the server, in turn")
    add("--sessions", type=int, default=200, help="conversations asked for at once; 0: none")
    add("--places", type=int, help="conversations that the server holds (default: as it measures)")
    add("--session-seconds", type=float, default=60.0, help="that each asks again for its place")
    add("--seed", type=int, default=0)


def measure(options: argparse.Namespace) -> Findings:
    for name, least in (("requests", 0), ("sessions", 0), ("kills", 0), ("clients", 1)):
        checks.count(f"--{name}", getattr(options, name), least=least)
    if not options.requests and not options.sessions:
        raise ValueError("--requests and --sessions are both 0: there is nothing to measure")
    numbers: dict[str, Number] = {}
    for queue in options.queues if options.requests else []:
        with tempfile.TemporaryDirectory() as folder:
            numbers |= _run(Path(folder), queue, options)
    if options.sessions:
        with tempfile.TemporaryDirectory() as folder:
            numbers |= _talk(Path(folder), options)
    return Findings(
        "Many clients at a server of videos",
        numbers,
        notes=[
            f"{options.requests} requests of {options.clients} clients of {len(OWNERS)} owners, "
            f"{options.workers} workers; videos of 9 frames of tiny random weights; "
            f"{options.sessions} sessions, each held for {HELD_S:g} s; all on one machine, "
            f"whose load at the end was {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
        ],
    )


@dataclass
class Seen:
    """What the clients have measured."""

    call_s: list[float] = field(default_factory=list)
    video_s: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in OWNERS})
    ends: dict[str, str] = field(default_factory=dict)  # id → state
    num_cut: int = 0
    faults: list[str] = field(default_factory=list)


def _run(folder: Path, queue: str, options: argparse.Namespace) -> dict[str, Number]:
    """All requests with one queue."""
    words = ["--workers", str(options.workers)]
    words += [] if queue == "sqlite" else ["--queue", queue]
    server, seen = Site(folder, *words), Seen()
    try:
        shares = shares_of(options.requests, options.clients)
        clients = [
            threading.Thread(target=_client, args=(server, OWNERS[i % 4], share, folder, seen))
            for i, share in enumerate(shares)
        ]
        begin = time.monotonic()
        for client in clients:
            client.start()
        draw, kills = random.Random(options.seed), options.kills
        for number in range(kills):
            due = options.requests * (0.5 + 0.4 * number / max(1, kills))
            while len(seen.ends) < due and any(client.is_alive() for client in clients):
                time.sleep(draw.uniform(0.2, 0.6))
            server.kill(worker=number % 2 == 0)
        for client in clients:
            client.join()
        took_s = time.monotonic() - begin
    finally:
        server.process.terminate()
        server.process.wait()
    if seen.faults:
        raise ValueError(f"{len(seen.faults)} clients failed: {seen.faults[0]}")
    return _numbers("SQLite" if queue == "sqlite" else "PostgreSQL", seen, took_s, kills)


def _talk(folder: Path, options: argparse.Namespace) -> dict[str, Number]:
    """All sessions with one server, whose places are shared out to its clients."""
    places = [] if options.places is None else [str(options.places)]
    share = max(1, (options.places or 0) // len(OWNERS))
    server = Site(folder, "--only", "api", "--live", *places, at_once=share)
    try:
        body: dict[str, bytes] = {}
        for owner in OWNERS:
            file = (folder / "me.mp4").read_bytes()
            _, sent = server.ask(owner, "POST", "/v1/files?name=me.mp4", file)
            form = {"reference": sent["id"], "consent": True, "face_crop": False}
            body[owner] = json.dumps(form).encode()
        return hold(server, body, options.sessions, options.session_seconds)
    finally:
        server.process.terminate()
        server.process.wait()


def shares_of(requests: int, clients: int) -> list[int]:
    """All requests over the clients: the first ones have one more where they do not come out
    even."""
    least, more = divmod(requests, clients)
    return [least + (i < more) for i in range(clients)]


def _client(server: Site, owner: str, num: int, folder: Path, seen: Seen) -> None:
    """Asks for its videos one after another, and tries again whatever got no answer."""

    def ask(method: str, path: str, body: bytes | None = None, key: str = "") -> Any:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            begin = time.monotonic()
            try:
                status, found = server.ask(owner, method, path, body, key=key)
            except (OSError, http.client.HTTPException, ValueError):
                seen.num_cut += 1
                time.sleep(RETRY_S)
                continue
            if status not in (429, 503):
                if "wait=" not in path:
                    seen.call_s.append(time.monotonic() - begin)
                return found
            time.sleep(RETRY_S)
        raise ValueError(f"no answer to {method} {path}")

    try:
        files = {"reference": "me.mp4", "audio": "say.wav"}
        ids = {
            field: ask("POST", f"/v1/files?name={name}", (folder / name).read_bytes())["id"]
            for field, name in files.items()
        }
        body = json.dumps({**ids, "consent": True, "num_steps": 1, "face_crop": False}).encode()
        for _ in range(num):
            begin = time.monotonic()
            id_ = ask("POST", "/v1/videos", body, secrets.token_hex(8))["id"]
            while (found := ask("GET", f"/v1/videos/{id_}?wait=30"))["state"] in (
                "waiting",
                "running",
            ):
                pass
            seen.video_s[owner].append(time.monotonic() - begin)
            seen.ends[id_] = found["state"]
    except Exception as error:  # a thread's fault is the run's
        seen.faults.append(f"{type(error).__name__}: {error}")


def _numbers(label: str, seen: Seen, took_s: float, kills: int) -> dict[str, Number]:
    key = label.lower()
    all_s = [took for each in seen.video_s.values() for took in each]
    lost = sum(state != "done" for state in seen.ends.values())
    means = np.array([np.mean(each) for each in seen.video_s.values() if each])
    fair = float(means.sum() ** 2 / (len(means) * (means**2).sum()))
    found = {
        "rate": Number(len(all_s) / took_s, len(all_s)).described(f"videos: {label}", unit="1/s"),
        "lost": Number(lost, len(all_s)).described(
            f"accepted videos lost in {kills} kills: {label}", target="≤ 0"
        ),
        "cut": Number(seen.num_cut, kills).described(f"calls cut off, and sent again: {label}"),
        "fair": Number(fair, len(means)).described(
            f"fairness of waiting over owners (Jain; 1 is equal): {label}"
        ),
    }
    for what, took in (("call", seen.call_s), ("video", all_s)):
        for name, quantile in (("p50", 0.5), ("p99", 0.99)):
            value = 1000 * float(np.quantile(took, quantile))
            words = f"a {what}, {round(100 * quantile)} of 100: {label}"
            found[f"{what}_{name}"] = Number(value, len(took)).described(words, unit="ms")
    return {f"{key}_{name}": number for name, number in found.items()}
