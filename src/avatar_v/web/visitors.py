"""Who asks a local web server for something, and everybody's share of what it has few of.

A visitor is a browser, told by its cookie, at an address. A new cookie costs nothing, so an address
has a share, too: half of all places, since many people may be behind one.
"""

import ipaddress
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

_T = TypeVar("_T")
_NETWORK = 64  # bits of an IPv6 address that one customer has for all his machines


@dataclass(frozen=True)
class Visitor:
    """A browser at an address."""

    address: str
    browser: str

    @classmethod
    def of(cls, client: Sequence | None, browser: str) -> "Visitor":
        """``client`` is that of an ASGI scope: host and port, None where the server knows none."""
        host = "" if client is None else str(client[0])
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return cls(host, browser)
        if address.version == 6:
            return cls(str(ipaddress.ip_network((int(address), _NETWORK), strict=False)), browser)
        return cls(host, browser)


class BusyError(ValueError):
    """No place is free; ``is_own`` where the visitor, or its address, has taken its share."""

    def __init__(self, sentence: str, *, is_own: bool) -> None:
        super().__init__(sentence)
        self.is_own = is_own


def check_share(
    new: Visitor, taken: Iterable[Visitor], *, most: int, most_own: int, what: str, when: str
) -> None:
    """BusyError unless ``new`` may have one place more of ``most``, of which a browser has
    ``most_own``. ``what`` and ``when`` are words of its sentence: "files", "arrive already"."""
    taken = list(taken)
    num_own = taken.count(new)
    num_there = sum(visitor.address == new.address for visitor in taken)
    if num_own >= most_own:
        raise BusyError(f"{num_own} {what} of yours {when}", is_own=True)
    if len(taken) >= most:
        raise BusyError(f"{len(taken)} {what} {when}", is_own=False)
    if num_there >= max(most_own, (most + 1) // 2):
        raise BusyError(f"{num_there} {what} from your address {when}", is_own=True)


def by_turns(entries: Iterable[_T], owner: Callable[[_T], Hashable]) -> list[_T]:
    """Everybody's first in the order given, then everybody's second, …"""
    seen: Counter[Hashable] = Counter()
    ranked: list[tuple[int, _T]] = []
    for entry in entries:
        ranked.append((seen[owner(entry)], entry))
        seen[owner(entry)] += 1
    return [entry for _, entry in sorted(ranked, key=lambda pair: pair[0])]
