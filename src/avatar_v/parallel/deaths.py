"""How the end of a rank before its time is told, in generation and in training."""

import signal
from collections.abc import Mapping

PATIENCE_S = 5.0
"""After the death of a rank, until the others end in whatever they are."""


def death_among(codes: Mapping[int, int], size: int) -> str:
    """What became of one of ``size`` ranks, of those that ended with ``codes``, negative for
    signals; "" where none has. One that was killed is named rather than those that ended for its
    sake."""
    if not codes:
        return ""
    rank = min(codes, key=lambda rank: codes[rank] >= 0)
    code = codes[rank]
    how = f"was killed by signal {_named(-code)}" if code < 0 else f"ended with status {code}"
    return f"rank {rank} of {size} {how}"


def _named(number: int) -> str:
    if number == signal.SIGKILL:
        return f"{number} (SIGKILL, as the system does where memory runs out)"
    known = {int(one): one.name for one in signal.Signals}
    return f"{number} ({known[number]})" if number in known else str(number)
