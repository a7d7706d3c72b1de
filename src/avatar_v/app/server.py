"""The life of the page's server: its folder, its address, its worker, and its end within seconds.

uvicorn runs the page (page.py), and a thread the worker that makes its videos unless those of an
`avatar-v serve` do, until Ctrl-C or SIGTERM, which lets conversations end first. Then the worker
ends at its next chunk; a step that lasts longer is cut with the process, and what it was writing
goes with the folder.
"""

import dataclasses
import math
import os
import shutil
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from avatar_v.app.place import private_folder
from avatar_v.engines.voices import DRAWN
from avatar_v.generate.weight_sets import WeightSets
from avatar_v.request.request import Weights
from avatar_v.serving.admission import Admission
from avatar_v.serving.job_store import JobStore
from avatar_v.serving.limits import Limits
from avatar_v.serving.place import Place
from avatar_v.serving.server import check_packages, listening, swept
from avatar_v.web.guard import is_loopback

if TYPE_CHECKING:
    from avatar_v.app.desk import Desk
    from avatar_v.serving.live import Rooms

LAST_WORDS_S = 1  # for open connections and the worker, when the app ends
END_S = 4.0  # after which the process is over


def serve(
    *,
    host: str,
    port: int,
    names: Collection[str] = (),
    weights: Mapping[str, str | Path],
    refiner: str | Path | None = None,
    device: str,
    precision: str,
    limits: Limits,
    consent: str | None = None,
    policy: str | None = None,
    voice: str = DRAWN,
    live: int | None = None,
    drain_s: float = 30.0,
    files: str | Path | None = None,
    queue: str | None = None,
) -> None:
    """Run until interrupted. ValueError for missing weights or packages, OSError for a taken port.

    ``weights`` are sets by name, the first of which holds conversations: ``live`` of them at the
    same time, or as many as are measured. On SIGTERM those that are held have ``drain_s`` to end,
    while nobody else is taken in.

    All files lie in one temporary folder, which is removed at the end. Or they lie in ``files`` of
    an `avatar-v serve`, whose workers then make the videos of its ``queue`` (queue.db there).
    """
    check_packages()
    if live is not None and live < 0:
        raise ValueError(f"--live is a number of conversations from 0 on, got {live}")
    if not 0 <= drain_s < math.inf:
        raise ValueError(f"--drain is a number of seconds from 0 on, got {drain_s:g}")
    from avatar_v.app.desk import Desk
    from avatar_v.app.page import create_app
    from avatar_v.serving.live import Rooms
    from avatar_v.web.connections import DrainingServer, server_config

    with listening(host, port) as listener, private_folder() as root:
        print("loading the weights …", file=sys.stderr)
        how = {"device": device, "precision": precision, "refiner": refiner}
        sets = WeightSets({name: Weights(where, **how) for name, where in weights.items()})
        own = root if files is None else Path(files).resolve()
        place = Place(JobStore(queue or own / "queue.db"), own)
        place.make()
        if files is not None:
            limits = dataclasses.replace(limits, num_waiting=Admission().most - 1)
        desk = Desk(place, sets, limits, consent=consent, policy=policy, voice=voice)
        rooms = Rooms(desk.pipeline, live, talk_s=limits.talk_s, words=desk.words)
        app = create_app(desk, rooms, host=host, names=names, is_own=files is None)
        config = server_config(app, last_words_s=LAST_WORDS_S, sockets=True)
        bound_port = listener.getsockname()[1]
        print(f"avatar-v app: http://{_shown(host)}:{bound_port}  (Ctrl-C ends it)", flush=True)
        if not is_loopback(host):
            print("note: whoever reaches this address can use it; no password", file=sys.stderr)

        def end() -> None:
            desk.is_ending.set()
            _end_soon(root)

        server = DrainingServer(config, rooms, drain_s, on_end=end)
        try:
            with _working(desk, rooms) if files is None else nullcontext():
                server.run(sockets=[listener])
        finally:
            rooms.end()


@contextmanager
def _working(desk: "Desk", rooms: "Rooms") -> Iterator[None]:
    """With a worker and a broom. Videos and conversations do not share the device."""
    worker = desk.worker(may_begin=lambda: rooms.num == 0)
    desk.is_talking = lambda: rooms.num > 0
    rooms.is_busy = lambda: desk.is_busy or worker.is_making
    thread = threading.Thread(target=worker.work, name="worker")
    thread.start()
    try:
        with swept(partial(desk.place.sweep, desk.limits.keep_s)):
            yield
    finally:
        desk.is_ending.set()
        thread.join(LAST_WORDS_S)


def _end_soon(root: Path) -> None:
    """End the process in a few seconds, whatever a thread of it is still busy with."""

    def end() -> None:
        shutil.rmtree(root, ignore_errors=True)
        os._exit(130)  # as after any interrupt

    last = threading.Timer(END_S, end)
    last.daemon = True
    last.start()


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
