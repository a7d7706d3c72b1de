"""Raters at once on the rating page: time of a request, and whether a confirmed vote is ever lost.

Each rater is a thread that does as a browser does: page, media, answer, page. Questions are of all
five kinds. The servers are real processes; in the second half of the time some are killed (SIGKILL)
and started again, while raters send again what got no answer. Give a place of votes for each run:
`--places sqlite postgresql:///DB`.
"""

import argparse
import http.client
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from avatar_v.media.writer import Mp4Writer
from avatar_v_eval.human.questions import ATTRIBUTES, SIX_DIMENSIONS
from avatar_v_eval.human.store import store_of
from avatar_v_eval.human.study import Study
from avatar_v_eval.human.study_file import load_study
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number

NUM_CASES = 20
WATCHING_S = 20.0
"""The mean of a rater's time at a question: that of a choice between two; others take longer."""
RETRY_S = 0.2
KINDS = ("page", "answer", "media", "consent")
"""Of requests; with consent, the 100 questions of a rater are drawn."""
NAMES = {"median": "median", "p95": "95 of 100", "kills_p95": "95 of 100 with the kills"}
PATIENCE_S = 120.0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(name="annotation_load")
    add = parser.add_argument
    add("--places", nargs="+", default=["sqlite"], help="sqlite, or addresses of empty databases")
    add("--raters", type=int, default=100)
    add("--seconds", type=float, default=120.0, help="of each run")
    add("--kills", type=int, default=4)
    add("--seed", type=int, default=0)


def measure(options: argparse.Namespace) -> Findings:
    numbers: dict[str, Number] = {}
    for place in options.places:
        with tempfile.TemporaryDirectory() as folder:
            numbers |= run_numbers(Path(folder), place, options)
    return Findings(
        "Raters at once",
        numbers,
        notes=[
            f"{options.raters} raters at once, each {WATCHING_S:g} s at a question on average",
            "SQLite with one server, PostgreSQL with two; raters and servers share this machine, "
            f"whose load at the end was {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
        ],
    )


def run_numbers(folder: Path, place: str, options: argparse.Namespace) -> dict[str, Number]:
    """One run at a place of votes."""
    study = make_study(folder)
    is_file = place == "sqlite"
    words = ["--votes", str(folder / "votes.sqlite") if is_file else place]
    words += ["--raters", str(options.raters)]
    seen = Seen()
    with servers(study.root, words, 1 if is_file else 2) as running:
        with closing(store_of(study, words[1])) as store:
            tokens = [rater.token for rater in store.raters()]
        raters = [
            threading.Thread(target=rate, args=(token, running, seen, options.seed + i))
            for i, token in enumerate(tokens)
        ]
        for rater in raters:
            rater.start()
        draw, end = random.Random(options.seed), time.monotonic() + options.seconds
        for number in range(options.kills):
            due = end - options.seconds * (0.5 - number / options.kills / 2)
            time.sleep(max(0.0, due - time.monotonic()))
            seen.first_kill = min(seen.first_kill, time.monotonic())
            running.kill_and_start(draw.randrange(len(running.processes)))
        seen.over.wait(max(0.0, end - time.monotonic()))
        seen.over.set()
        for rater in raters:
            rater.join(PATIENCE_S)
    if seen.faults:
        raise ValueError(f"{len(seen.faults)} raters failed: {seen.faults[0]}")
    with closing(store_of(study, words[1])) as store:
        lost = num_lost(store, seen.confirmed)
    return described("SQLite" if is_file else "PostgreSQL", seen, lost, options)


def described(
    label: str, seen: "Seen", lost: int, options: argparse.Namespace
) -> dict[str, Number]:
    key, numbers = label.lower(), {}
    for what in KINDS:
        calm = [took_s for at, took_s in seen.took_s[what] if at + took_s < seen.first_kill]
        every = [took_s for _, took_s in seen.took_s[what]]
        measures = {
            "median": (calm, 0.5, ""),
            "p95": (calm, 0.95, "< 200"),
            "kills_p95": (every, 0.95, ""),
        }
        for name, (took_s, quantile, target) in measures.items():
            value = 1000 * float(np.quantile(took_s, quantile))
            words = f"{what}, {NAMES[name]}: {label}"
            numbers[f"{key}_{what}_{name}"] = Number(value, len(took_s)).described(
                words, unit="ms", target=target
            )
    rate = len(seen.confirmed) / options.seconds
    numbers[f"{key}_votes"] = Number(rate, len(seen.confirmed)).described(
        f"answers: {label}", unit="1/s"
    )
    numbers[f"{key}_lost"] = Number(lost, len(seen.confirmed)).described(
        f"confirmed answers lost in {options.kills} kills: {label}", target="≤ 0"
    )
    numbers[f"{key}_cut"] = Number(seen.num_cut, options.kills).described(
        f"requests cut off or refused, and sent again: {label}"
    )
    return numbers


@dataclass
class Seen:
    """What the raters have measured."""

    took_s: dict[str, list[tuple[float, float]]] = field(
        default_factory=lambda: {what: [] for what in KINDS}
    )  # when it began, and how long it took
    first_kill: float = math.inf
    confirmed: dict[str, dict[str, Any]] = field(default_factory=dict)  # item's id → answer
    num_cut: int = 0
    faults: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)


@dataclass
class Servers:
    """Processes of `avatar-v-eval rate` on ports of their own."""

    words: Sequence[str]
    ports: list[int]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, port: int) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "avatar_v_eval.cli", "rate", *self.words]
        return subprocess.Popen([*words, "--port", str(port)], stdout=subprocess.DEVNULL)

    def kill_and_start(self, number: int) -> None:
        self.processes[number].send_signal(signal.SIGKILL)
        self.processes[number].wait()
        self.processes[number] = self.start(self.ports[number])

    def ask(
        self, first: int, method: str, path: str, body: object = None
    ) -> tuple[int, bytes, float]:
        """(status, body, seconds) from the server ``first``, or another where it is gone."""
        port = self.ports[first % len(self.ports)]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        with closing(connection):
            begin = time.monotonic()
            data = None if body is None else json.dumps(body)
            headers = {"Content-Type": "application/json"} if data else {}
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            text = response.read()
            return response.status, text, time.monotonic() - begin


@contextmanager
def servers(study: Path, words: Sequence[str], num: int) -> Iterator[Servers]:
    """So many servers that answer, ended at the end."""
    ports = [_free_port() for _ in range(num)]
    running = Servers([str(study), *words], ports)
    try:
        for port in ports:
            running.processes.append(running.start(port))
            _await(running, len(running.processes) - 1)
        yield running
    finally:
        for process in running.processes:
            process.send_signal(signal.SIGKILL)
            process.wait()


def rate(token: str, running: Servers, seen: Seen, seed: int) -> None:
    """A rater's session until it ends or the time is over."""
    draw, base, number = random.Random(seed), f"/r/{token}", seed
    deadline = time.monotonic()

    def ask(what: str, method: str, path: str, body: object = None) -> tuple[int, str]:
        """As a browser whose user tries again: a lost answer is sent again, to another server."""
        nonlocal number, deadline
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                status, text, took_s = running.ask(number, method, path, body)
            except (OSError, http.client.HTTPException):
                seen.num_cut += 1
                number += 1
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_S)
                continue
            seen.took_s[what].append((time.monotonic() - took_s, took_s))
            return status, text.decode("utf-8", "replace")

    try:
        seen.over.wait(draw.uniform(0, WATCHING_S))  # they do not come in step
        while not seen.over.is_set():
            status, page = ask("page", "GET", base)
            if status != 200:
                raise ValueError(f"the page answers {status}")
            if found := re.search(r'action="([^"]*/(?:consent|read/\w+))"', page):
                ask("consent", "POST", found[1])
                continue
            if 'id="rate"' not in page:
                return
            for media in re.findall(r'<video src="([^"]+)"', page):
                ask("media", "GET", media)
            seen.over.wait(draw.uniform(0.5, 1.5) * WATCHING_S)
            asked = re.search(r'data-item="([^"]+)" data-kind="(\w+)"', page)
            assert asked
            sent = {"item": asked[1], "answer": drawn_answer(asked[2], draw)}
            status, text = ask("answer", "POST", f"{base}/answer", sent)
            if status != 200:
                raise ValueError(f"an answer is refused with {status}: {text}")
            seen.confirmed[asked[1]] = sent["answer"]
    except Exception as error:  # a thread's fault is the run's
        seen.faults.append(f"{type(error).__name__}: {error}")


def drawn_answer(kind: str, draw: random.Random) -> dict[str, Any]:
    """Any answer that the page could send."""
    if kind == "mos":
        return {line.key: draw.randint(1, 5) for line in SIX_DIMENSIONS}
    if kind == "attributes":
        return {line.key: draw.choice(line.values) for line in ATTRIBUTES}
    if kind == "ranges":
        start = draw.uniform(0, 0.2)
        return {"ranges": [{"fault": "teeth", "start": start, "stop": start + 0.2}]}
    return {"choice": draw.choice(["left", "right"])}


def num_lost(store: Any, confirmed: Mapping[str, dict[str, Any]]) -> int:
    """Answers that a server confirmed and that are not stored in full."""
    stored = Counter((vote.rater, vote.case, vote.kind, vote.first) for vote in store.votes())
    screens = {s.public: s for rater in store.raters() for s in store.screens(rater.name)}
    lost = 0
    for public, answer in confirmed.items():
        screen = screens[public]
        kind, case, first = screen.item.split("/")[:3]
        lines = len(answer) if kind in ("mos", "attributes") else 1
        is_stored = stored[screen.rater, case, kind, first] >= lines
        lost += screen.answered_s is None or not is_stored
    return lost


def make_study(folder: Path) -> Study:
    """Twenty cases of two systems, all five kinds, small videos."""
    generator = torch.Generator().manual_seed(0)
    names = [f"c{i:02d}" for i in range(NUM_CASES)]
    for system in ("ours", "rival"):
        (folder / system).mkdir()
        for name in names:
            sound = 0.1 * torch.randn(13 * 640, generator=generator)
            with Mp4Writer(folder / system / f"{name}.mp4", sound) as writer:
                writer.write(torch.randint(0, 256, (13, 3, 64, 64), generator=generator).byte())
    numbers = {"raters_per_item": 100, "items_per_rater": NUM_CASES}
    pairs = [["ours", "rival"]]
    tasks: list[dict[str, Any]] = [{"kind": kind, "pairs": pairs} for kind in ("pair", "turing")]
    tasks += [{"kind": kind, "systems": ["ours"]} for kind in ("ranges", "attributes", "mos")]
    reference = "rival/c00.mp4"
    cases = [{"name": name, "condition": "cross", "reference": reference} for name in names]
    limits = ("max_wrong_qualification", "max_wrong_golds", "max_wrong_traps")
    raw = {
        "name": "load", "title": "Load", "seed": 0, "systems": {"ours": "ours", "rival": "rival"},
        "cases": cases, "tasks": [task | numbers for task in tasks],
        "rules": {"min_seconds": 0} | dict.fromkeys(limits, 0),
    }  # fmt: skip
    (folder / "study.yaml").write_text(yaml.safe_dump(raw))
    return load_study(folder)


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def _await(running: Servers, number: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while True:
        with suppress(OSError):
            running.ask(number, "GET", "/static/rate.css")
            return
        if running.processes[number].poll() is not None or time.monotonic() > end:
            raise ValueError("a server did not start")
        time.sleep(RETRY_S)
