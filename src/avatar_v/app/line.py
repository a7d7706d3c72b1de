"""The line in front of the one place where videos are made: who came first is served first."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Ticket:
    """A place in a line, from first to last."""

    def __init__(self, line: "Line") -> None:
        self._line = line

    def ahead(self) -> int:
        """How many are before this one: 0 when it is its turn."""
        with self._line.changed:
            return self._line.tickets.index(self)

    def wait(self, most_s: float) -> None:
        """Until the line moves, or for ``most_s``."""
        with self._line.changed:
            self._line.changed.wait(most_s)


class Line:
    """One is served while at most ``most_waiting`` others stand behind."""

    def __init__(self, most_waiting: int) -> None:
        self.most_waiting = most_waiting
        self.tickets: list[Ticket] = []
        self.changed = threading.Condition()

    @contextmanager
    def ticket(self) -> Iterator[Ticket]:
        """Stand in the line for as long as the context lasts. ValueError if it is full."""
        ticket = Ticket(self)
        with self.changed:
            if len(self.tickets) > self.most_waiting:
                raise ValueError(
                    f"{self.most_waiting} videos are waiting already; try again in a few minutes"
                )
            self.tickets.append(ticket)
        try:
            yield ticket
        finally:
            with self.changed:
                self.tickets.remove(ticket)
                self.changed.notify_all()
