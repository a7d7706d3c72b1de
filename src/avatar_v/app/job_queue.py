"""The queue in front of the one place where videos are made: first come, first served."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Ticket:
    """A place in a queue, from first to last."""

    def __init__(self, queue: "JobQueue") -> None:
        self._queue = queue

    def ahead(self) -> int:
        """How many are before this one: 0 when it is its turn."""
        with self._queue.changed:
            return self._queue.tickets.index(self)

    def wait(self, most_s: float) -> None:
        """Until the queue moves, or for ``most_s``."""
        with self._queue.changed:
            self._queue.changed.wait(most_s)


class JobQueue:
    """One is served while at most ``most_waiting`` others stand behind."""

    def __init__(self, most_waiting: int) -> None:
        self.most_waiting = most_waiting
        self.tickets: list[Ticket] = []
        self.changed = threading.Condition()

    @contextmanager
    def ticket(self) -> Iterator[Ticket]:
        """Wait in the queue for as long as the context lasts. ValueError if it is full."""
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
