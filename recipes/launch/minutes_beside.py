"""The processes beside minutes.py: one draws the world, with workers of its own, one keeps what is
there. They end with it, however it ends."""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from minutes_parts import PARTS, drawn_sets

SCRIPT = str(Path(__file__).with_name("minutes.py"))


def drawing(options: argparse.Namespace, turn: int) -> subprocess.Popen:
    needed = [name for part in options.parts for name in PARTS[part].sets]
    values = {"size": options.size, "workers": options.workers, "turn": turn}
    words = json.dumps({**values, "sets": list(dict.fromkeys(needed))})
    return beside_this("draw", words)


def beside_this(kind: str, words: str) -> subprocess.Popen:
    """A process of minutes.py that ends behind this one, however that ends."""
    return subprocess.Popen([sys.executable, SCRIPT, kind, words], start_new_session=True)


def draw(words: str) -> None:
    """Draw the sets, until the run that asked for it ends."""
    end_behind_parent()
    from avatar_v_data.world_set import write_worlds

    asked = json.loads(words)
    sets = drawn_sets(asked["size"], asked["turn"])
    wanted = [each for name in asked["sets"] for each in sets[name]]

    write_worlds(wanted, num_workers=asked["workers"])


def end_behind_parent() -> None:
    """A thread that ends this process, and those that it has started, when its parent is gone."""
    parent = os.getppid()

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=look, daemon=True).start()


def end(beside: list[subprocess.Popen]) -> None:
    """End the processes beside this one, with those that draw for them."""
    for process in beside:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
