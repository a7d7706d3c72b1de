"""Many conversations asked for at once at `avatar-v serve --live`: who is taken in, who is refused.

Every session asks at the same moment as all others. One that is refused asks again a few seconds
later, until it was held once or ``--session-seconds`` are over; one that is taken in speaks in its
time for ``HELD_S`` and leaves. What has no answer within ``HANG_S`` hangs.
"""

import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from avatar_v_eval.records import Number
from avatar_v_eval.speed.served import Site

HELD_S, AGAIN_S, HANG_S = 8.0, 3.0, 60.0
PACKET_S = 0.04
PACKET = (1000 * np.sin(np.arange(640) * 0.2)).astype("<i2").tobytes()


@dataclass
class Held:
    """What all sessions have measured together."""

    owners: Counter[str] = field(default_factory=Counter)  # sessions that were held
    refused: Counter[int] = field(default_factory=Counter)  # answers by status
    refused_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)  # of sessions
    faults: list[str] = field(default_factory=list)


def hold(site: Site, body: dict[str, bytes], num: int, most_s: float) -> dict[str, Number]:
    """Ask for ``num`` sessions at once, by turns of the owners, each with its own ``body``."""
    held, begin = Held(), threading.Barrier(num)
    end_s = time.monotonic() + most_s
    owners = sorted(body)

    def session(owner: str) -> None:
        begin.wait()
        try:
            held.ends[_session(site, owner, body[owner], end_s, held)] += 1
        except (OSError, WebSocketException, ValueError) as error:
            held.faults.append(f"{type(error).__name__}: {error}")

    names = [owners[i % len(owners)] for i in range(num)]
    threads = [threading.Thread(target=session, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end_s + HELD_S + 2 * HANG_S - time.monotonic()))
    hung = sum(thread.is_alive() for thread in threads) + len(held.faults)
    return _numbers(held, owners, num, hung, site.num_places())


def _session(site: Site, owner: str, body: bytes, end_s: float, held: Held) -> str:
    """One session; how it ended."""
    while time.monotonic() < end_s:
        begin = time.monotonic()
        status, found = site.ask(owner, "POST", "/v1/live", body, patience_s=HANG_S)
        if status == 201:
            break
        if status not in (429, 503) or not found["error"]:
            raise ValueError(f"{status}: {found}")
        held.refused[status] += 1
        held.refused_s.append(time.monotonic() - begin)
        time.sleep(AGAIN_S)
    else:
        return "refused to the end"
    address = f"ws://127.0.0.1:{site.port}{found['socket']}"
    token = {"Authorization": f"Bearer {site.tokens[owner]}"}
    begin, num, is_first = time.monotonic(), 0, True
    with connect(address, additional_headers=token, compression=None, max_size=None,
                 open_timeout=HANG_S, close_timeout=HANG_S) as socket:  # fmt: skip
        held.owners[owner] += 1
        while is_first or time.monotonic() < begin + HELD_S:
            if time.monotonic() > begin + HANG_S:
                raise ValueError("no video comes")
            while num * PACKET_S < time.monotonic() - begin:
                socket.send(PACKET)
                num += 1
            try:
                piece = socket.recv(timeout=PACKET_S)
            except TimeoutError:
                continue
            if isinstance(piece, str):
                raise ValueError(piece)
            if is_first:
                held.first_s.append(time.monotonic() - begin)
            is_first = False
    return "held"


def _numbers(held: Held, owners: list[str], num: int, hung: int, places: int) -> dict[str, Number]:
    counts = np.array([held.owners[name] for name in owners], float)
    fair = float(counts.sum() ** 2 / (len(counts) * (counts**2).sum())) if counts.any() else 0.0
    found = {
        "hung": Number(hung, num).described("sessions without an answer or an end", target="≤ 0"),
        "held": Number(sum(held.owners.values()), num).described("sessions held"),
        "waiting": Number(held.ends["refused to the end"], num).described(
            "sessions refused as often as they asked"
        ),
        "refusals": Number(sum(held.refused.values()), num).described(
            "answers that refuse a session, with a reason and a time"
        ),
        "capacity": Number(places, 1).described("sessions that the server has room for"),
        "fair": Number(fair, len(counts)).described(
            "fairness of sessions held over owners (Jain; 1 is equal)"
        ),
    }
    for what, took, words in (
        ("refusal", held.refused_s, "a refusal"),
        ("first", held.first_s, "first piece of a session's video"),
    ):
        for name, quantile in (("p50", 0.5), ("p99", 0.99)):
            if took:
                value = 1000 * float(np.quantile(took, quantile))
                told = f"{words}, {round(100 * quantile)} of 100"
                found[f"{what}_{name}"] = Number(value, len(took)).described(told, unit="ms")
    return {f"session_{name}": number for name, number in found.items()}
