"""A small rating study on disk for the tests, and raters that answer over HTTP as a page does.

The videos are twelve frames of noise: what a scripted rater thinks of one is looked up by the bytes
that the server sends, since nothing else tells systems apart.
"""

import hashlib
import http.client
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import av
import numpy as np
import uvicorn
import yaml

from avatar_v_eval.human.blind import blinded_copies
from avatar_v_eval.human.items import all_items
from avatar_v_eval.human.server import create_app
from avatar_v_eval.human.store import StudyStore
from avatar_v_eval.human.study import Study
from avatar_v_eval.human.study_file import load_study

SYSTEMS = ("ours", "rival", "weak", "footage")


def write_video(path: Path, seed: int, *, size: int = 16, num_frames: int = 12) -> None:
    """Noise of a seed, so that no two files are alike; signed as generators sign their files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)
    with av.open(str(path), "w") as container:
        container.metadata["title"] = f"made by {path.parent.name}"
        stream = container.add_stream("libx264", rate=25)
        stream.width = stream.height = size
        stream.pix_fmt = "yuv420p"
        for _ in range(num_frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(noise)))
        container.mux(stream.encode(None))


def study_yaml(num_cases: int = 4, *, mos: int = 12, pairs: int = 12, turing: int = 4) -> dict:
    """The content of a study.yaml with all three kinds, golds and traps."""
    compared = [["ours", "rival"], ["ours", "weak"], ["rival", "weak"]]
    pair = {"kind": "pair", "videos": ["checks/intact.mp4", "checks/melted.mp4"]}
    pair |= {"expected": "first", "reference": "ref.mp4"}
    score = {"kind": "mos", "videos": ["checks/melted.mp4"], "reference": "ref.mp4"}
    score |= {"expected": "1-2"}
    return {
        "name": "test",
        "title": "Talking people",
        "seed": 3,
        "systems": {name: f"videos/{name}" for name in SYSTEMS},
        "cases": [
            {"name": f"c{i:02d}", "condition": "same" if i % 2 else "cross", "reference": "ref.mp4"}
            for i in range(num_cases)
        ],
        "tasks": [
            {"kind": "mos", "systems": ["ours", "rival", "weak"], "raters_per_item": 2}
            | {"items_per_rater": mos},
            {"kind": "pair", "pairs": compared, "raters_per_item": 3, "items_per_rater": pairs},
            {"kind": "turing", "pairs": [["ours", "footage"]], "raters_per_item": 3}
            | {"items_per_rater": turing},
        ],
        "checks": [
            {"name": "q1", "role": "qualification", "why": "B melts.", **pair},
            {"name": "q2", "role": "qualification", "why": "It melts.", **score},
            {"name": "g1", "role": "gold", **pair},
            {"name": "t1", "role": "trap", **pair},
            {"name": "t2", "role": "trap", **score},
        ],
        "rules": {
            "min_seconds": 3.0,
            "max_wrong_qualification": 0,
            "max_wrong_golds": 0,
            "max_wrong_traps": 0,
        },
    }


def annotation_yaml(num_cases: int = 4, **audits: object) -> dict:
    """A study.yaml with all five kinds, whose answers reviewers audit; all of them, unless told."""
    raw = study_yaml(num_cases, mos=2, pairs=2, turing=2)
    numbers = {"raters_per_item": 2, "items_per_rater": num_cases, "pay": 0.1}
    raw["tasks"] += [{"kind": kind, "systems": ["ours"], **numbers} for kind in LINES]
    for name, role in (("q", "qualification"), ("k", "calibration"), ("l", "calibration")):
        known = {"ranges": "teeth:0.10-0.40 iou>=0.6", "attributes": "gaze=left emotion=sad"}
        raw["checks"] += [
            {"name": f"{name}_{kind}", "kind": kind, "role": role, "expected": known[kind]}
            | {"videos": ["checks/melted.mp4"], "why": "Look again."}
            | ({"reference": "ref.mp4"} if kind == "ranges" else {})
            for kind in LINES
        ]
    some = {"share": 1.0, "min_audited": 3, "calibration_items": 2, "bonus": 0.5}
    return raw | {"audits": some | audits}


LINES = ("ranges", "attributes")


def make_study(folder: Path, raw: dict | None = None) -> Study:
    """Writes ``study.yaml`` and every video it names, each with its own bytes."""
    raw = raw or study_yaml()
    seed = 0
    for system in raw["systems"].values():
        for case in raw["cases"]:
            write_video(folder / system / f"{case['name']}.mp4", seed := seed + 1)
    for name in ("checks/intact.mp4", "checks/melted.mp4", "ref.mp4"):
        write_video(folder / name, seed := seed + 1)
    (folder / "study.yaml").write_text(yaml.safe_dump(raw))
    return load_study(folder)


@dataclass
class Clock:
    """Time that passes only when told, so that no test waits."""

    now_s: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Site:
    """A rating page that is being served."""

    study: Study
    store: StudyStore
    copies: dict[Path, Path]
    clock: Clock
    port: int

    def request(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """(status, headers in lower case, body). Follows nothing, normalises no path."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            data = None if body is None else json.dumps(body)
            connection.putrequest(method, path, skip_accept_encoding=True)
            sent = {"Content-Type": "application/json"} if data is not None else {}
            sent |= {"Content-Length": str(len(data or "")), **(headers or {})}
            for name, value in sent.items():
                connection.putheader(name, value)
            connection.endheaders((data or "").encode())
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return response.status, names, response.read()
        finally:
            connection.close()


@contextmanager
def serve(study: Study, votes: Path | str) -> Iterator[Site]:
    """The real server on a free port of this machine."""
    items = all_items(study).values()
    files = [file for item in items for file in item.files]
    copies = blinded_copies(files, study.root / ".blinded")
    store, clock = StudyStore(votes, study.fingerprint), Clock()
    app = create_app(study, store, copies, hosts=("127.0.0.1",), clock_s=clock)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", access_log=False))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server ended at once"
        thread.join(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Site(study, store, copies, clock, port)
    finally:
        server.should_exit = True
        thread.join(10)
        store.close()


@dataclass
class Shown:
    """What a rater sees of an item: its kind, and which file plays where."""

    public: str
    kind: str
    files: dict[str, Path]  # side → original file
    html: str


@dataclass
class ScriptedRater:
    """Opens the link and does as the page says. ``judge`` gives the answer to what is shown."""

    site: Site
    token: str
    judge: Callable[[Shown], dict]
    seconds: float = 12.0
    pages: list[str] = field(default_factory=list)

    def run(self, max_items: int = 10_000, *, decide: bool = False, until: str = "\0") -> str:
        """Goes on to the end, to a page with the text ``until``, or for ``max_items`` answers;
        returns the last page. ``decide``: as a reviewer who is shown that others differ."""
        by_bytes = {_digest(copy.read_bytes()): file for file, copy in self.site.copies.items()}
        base = f"/r/{self.token}"
        while True:
            status, _, body = self.site.request("GET", base)
            html = body.decode()
            self.pages.append(html)
            if status != 200 or until in html:
                return html
            if found := re.search(r'action="([^"]*/(?:consent|read/\w+))"', html):
                assert self.site.request("POST", found[1])[0] == 303
            elif 'id="rate"' in html:
                if not max_items:
                    return html
                max_items -= 1
                shown = self._shown(html, by_bytes)
                self.site.clock.now_s += self.seconds
                sent = {"item": shown.public, "answer": self.judge(shown), "decision": decide}
                assert self.site.request("POST", f"{base}/answer", sent)[0] == 200
            else:
                return html

    def _shown(self, html: str, by_bytes: dict[str, Path]) -> Shown:
        rate = re.search(r'data-item="([^"]+)" data-kind="(\w+)"', html)
        assert rate
        files = {}
        for source, side in re.findall(r'<video src="([^"]+)" data-side="(\w+)"', html):
            status, _, data = self.site.request("GET", source)
            assert status == 200
            files[side] = by_bytes[_digest(data)]
        return Shown(rate[1], rate[2], files, html)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
