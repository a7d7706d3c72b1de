"""A process of `avatar-v serve` with tiny random weights and four clients, for speed/serving.py."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from avatar_v.base.video_format import VideoFormat
from avatar_v.media.writer import Mp4Writer, write_wav
from avatar_v.serving.clients import new_client
from avatar_v.weights.card import DRAWN_PEOPLE, Capabilities, Card
from avatar_v.weights.presets import build
from avatar_v.weights.weights import save_pipeline

OWNERS = ("a", "b", "c", "d")


class Site:
    """A process of `avatar-v serve`, which may be killed and started again."""

    def __init__(self, folder: Path, *words: str, at_once: int = 1000) -> None:
        self.tokens, lines = dict[str, str](), []
        for name in OWNERS:
            self.tokens[name], line = new_client(name)
            line = line.replace("3600", "1000000")
            lines.append(line.replace("at_once: 16", f"at_once: {at_once}"))
        (folder / "clients.yaml").write_text("\n".join(lines))
        words = (*words, "--weights", str(_weights(folder)), "--device", "cpu")
        words = (*words, "--files", str(folder / "served"), "--max-jobs", "5000")
        words = (*words, "--clients", str(folder / "clients.yaml"))
        self.words = [sys.executable, "-m", "avatar_v.cli", "serve", *words]
        self.port = 0
        self.start()

    def start(self) -> None:
        words = [*self.words, "--port", str(self.port)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = re.search(r"127\.0\.0\.1:(\d+)", self.process.stdout.readline())
        if found is None:
            raise ValueError("the server did not start")
        self.port = int(found[1])

    def kill(self, *, worker: bool) -> None:
        """Without a warning; a worker is started again by the server."""
        if not worker:
            self.process.kill()
            self.process.wait()
            self.start()
            return
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        children = [int(child) for task in tasks for child in task.read_text().split()]
        if children:
            os.kill(children[0], signal.SIGKILL)

    def num_places(self) -> int:
        """Conversations that it holds at the same time."""
        return int(self.ask(OWNERS[0], "GET", "/health/ready")[1]["most"] or 0)

    def ask(
        self,
        owner: str,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        key: str = "",
        patience_s: float = 90.0,
    ) -> tuple[int, Any]:
        """The status of an answer, and its JSON."""
        again = {"Idempotency-Key": key} if key else {}
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patience_s)
        with closing(line):
            token = {"Authorization": f"Bearer {self.tokens[owner]}"}
            line.request(method, path, body, token | again)
            answer = line.getresponse()
            return answer.status, json.loads(answer.read())


def _weights(folder: Path) -> Path:
    """Tiny random ones, with a clip and a speech beside them."""
    draw = torch.Generator().manual_seed(0)
    dit, conditioner = build("tiny", seed=1)
    can = Capabilities(people=DRAWN_PEOPLE, video=VideoFormat(32, 32), window_latents=5, shift=1.0)
    save_pipeline(folder / "weights", dit, conditioner, Card(preset="tiny", recipe="none", can=can))
    sound = 0.1 * torch.randn(9 * 640, generator=draw)
    with Mp4Writer(folder / "me.mp4", sound) as writer:
        writer.write(torch.randint(0, 256, (9, 3, 64, 64), generator=draw).byte())
    write_wav(folder / "say.wav", sound)
    return folder / "weights"
