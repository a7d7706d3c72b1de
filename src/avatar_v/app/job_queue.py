"""The queue in front of what is made one at a time: visitors take turns, whatever each asks for."""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TypeVar

from avatar_v.web.visitors import Visitor, by_turns, check_share

MOST_OWN = 3
"""Places of one browser, of all its windows."""
LOOK_S = 0.5
"""How often what waits is given a chance to leave the queue."""
_T = TypeVar("_T")


class Ticket:
    """A place in a queue."""

    def __init__(self, queue: "JobQueue", visitor: Visitor) -> None:
        self.visitor, self._queue = visitor, queue

    def ahead(self) -> int:
        """How many are before this one as things are: 0 when it is its turn."""
        with self._queue.changed:
            return self._queue.in_turn().index(self)

    def wait(self, most_s: float) -> None:
        """Until the queue moves, or for ``most_s``."""
        with self._queue.changed:
            self._queue.changed.wait(most_s)


class JobQueue:
    """One is served while at most ``most_waiting`` others stand behind, by turns: one of each
    address, and at an address one of each browser."""

    def __init__(self, most_waiting: int, what: str = "videos") -> None:
        self.most, self.what = most_waiting + 1, what
        self.tickets: list[
            Ticket
        ] = []  # the one that is served, then others by when they came, or had their turn
        self.changed = threading.Condition()

    @contextmanager
    def ticket(self, visitor: Visitor) -> Iterator[Ticket]:
        """Wait in the queue for as long as the context lasts. BusyError if it has no place."""
        ticket = Ticket(self, visitor)
        with self.changed:
            check_share(
                visitor,
                (other.visitor for other in self.tickets),
                most=self.most,
                most_own=MOST_OWN,
                what=self.what,
                when="are being made or wait already; try again in a few minutes",
            )
            self.tickets.append(ticket)
        try:
            yield ticket
        finally:
            with self.changed:
                was_served = ticket is self.tickets[0]
                self.tickets.remove(ticket)
                if was_served and self.tickets:
                    self._next(ticket.visitor)
                self.changed.notify_all()

    def in_turn(self) -> list[Ticket]:
        """All, the one that is served first."""
        own = by_turns(self.tickets, lambda ticket: ticket.visitor)
        return by_turns(own, lambda ticket: ticket.visitor.address)

    def _next(self, last: Visitor) -> None:
        """What is served behind ``last``, whose address goes to the end of the round."""

        def nearness(ticket: Ticket) -> int:
            return (ticket.visitor.address == last.address) + (ticket.visitor == last)

        self.tickets.sort(key=nearness)
        first = self.in_turn()[0]
        self.tickets.remove(first)
        self.tickets.insert(0, first)


def in_turn(
    queue: JobQueue, visitor: Visitor, work: Callable[[], _T]
) -> Generator[_T | None, None, None]:
    """None while others are first, so that whoever goes can be let go of; then what ``work``
    gives."""
    with queue.ticket(visitor) as ticket:
        while ticket.ahead():
            yield None
            ticket.wait(LOOK_S)
        yield work()
