"""Stages in threads, so that the next chunk is sampled while this one is decoded and encoded.

A stage turns an iterator into an iterator. Between neighbours ``places`` items wait at most, so a
slow consumer holds everything back and memory is that of a few items. What comes out, and in which
order, is what the same stages give one inside the other (``chained``). The streaming framework's
"one item in flight per stage"; which stages there are is not known here (generator.py).
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

Stage = Callable[[Iterator[Any]], Iterator[Any]]
"""It may wait, keep state between items, give more or fewer items than it takes, or end early."""


def chained(source: Iterable[Any], *stages: Stage) -> Generator[Any, None, None]:
    """The stages one inside the other, in the caller's thread: each item on demand."""
    items = iter(source)
    for stage in stages:
        items = stage(items)
    yield from items


def pipelined(
    source: Iterable[Any],
    *stages: Stage,
    interrupt: Callable[[], None] = lambda: None,
    places: int = 1,
) -> Generator[Any, None, None]:
    """The items of ``chained``, with the source and each stage in a thread of its own.

    Threads start with the first ``next`` and have ended, with their generators closed, when the
    iterator is exhausted, raises, is closed or is dropped. What a stage raises comes out behind the
    items made before it. ``interrupt`` is called at the end and wakes a source that waits for
    something outside; without it, the end waits for the source's next item.
    """
    links = [_Link(places) for _ in range(len(stages) + 1)]
    runs = [lambda: iter(source)]
    runs += [lambda s=stage, i=i: s(links[i].items()) for i, stage in enumerate(stages)]
    threads = []
    for i, run in enumerate(runs):
        before = links[i - 1] if i else None
        work = (run, before, links[i])
        threads.append(threading.Thread(target=_work, args=work, name=f"stage-{i}", daemon=True))
    try:
        for thread in threads:
            thread.start()
        yield from links[-1].items()
    finally:
        interrupt()
        for link in links:
            link.cancel()
        for thread in threads:
            if thread.ident is not None:  # started
                thread.join()


class _Cancelled(BaseException):
    """The other side of a link is gone. No stage's ``except Exception`` may swallow it."""


class _Link:
    """The places between two stages."""

    def __init__(self, places: int) -> None:
        self._changed = threading.Condition()
        self._num_places = places
        self._waiting: deque[Any] = deque()
        self._ended = self._cancelled = False
        self._error: BaseException | None = None

    def put(self, item: Any) -> None:
        """Waits for a place to be free; _Cancelled if nobody will take it any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._cancelled or len(self._waiting) < self._num_places)
            if self._cancelled:
                raise _Cancelled
            self._waiting.append(item)
            self._changed.notify_all()

    def end(self, error: BaseException | None) -> None:
        """No more items; ``error`` is raised behind the last."""
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def cancel(self) -> None:
        with self._changed:
            self._cancelled = True
            self._waiting.clear()
            self._changed.notify_all()

    def items(self) -> Iterator[Any]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._cancelled or self._ended or self._waiting)
                if self._cancelled:
                    raise _Cancelled
                if not self._waiting:
                    break
                item = self._waiting.popleft()
                self._changed.notify_all()
            yield item
            del item  # while it waits for the next one, this one's memory is free
        if self._error is not None:
            raise self._error


def _work(run: Callable[[], Iterator[Any]], before: _Link | None, after: _Link) -> None:
    """A stage's thread: move its items on; at its end, however it comes, stop who feeds it."""
    error = None
    try:
        items = run()
        try:
            for item in items:
                after.put(item)
                del item
        finally:
            if isinstance(items, Generator):
                items.close()
    except _Cancelled:
        pass
    except BaseException as caught:
        error = caught
    after.end(error)
    if before is not None:
        before.cancel()
