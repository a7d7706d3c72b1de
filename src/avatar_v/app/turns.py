"""What the page itself does is done one at a time: visitors take turns, whatever each asks for."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from avatar_v.web.visitors import Visitor, check_share

_T = TypeVar("_T")
_Served = dict[str | Visitor, int]


class Turns:
    """``most`` may wait or be served, ``most_own`` of one browser and half of one address. The next
    is of the address that was served longest ago, and there of the browser."""

    def __init__(self, most: int, most_own: int, what: str) -> None:
        self._most, self._most_own, self._what = most, most_own, what
        self._places: list[tuple[Visitor, asyncio.Event]] = []  # by when they came
        self._served, self._num_served = _Served(), 0
        self._thread = ThreadPoolExecutor(1, what)

    @asynccontextmanager
    async def turn(self, visitor: Visitor) -> AsyncIterator[None]:
        """Begins when it is this visitor's turn. BusyError if there is no place."""
        check_share(
            visitor,
            (other for other, _ in self._places),
            most=self._most,
            most_own=self._most_own,
            what=self._what,
            when="are being made or wait already; try again in a few minutes",
        )
        place = (visitor, asyncio.Event())
        self._places.append(place)
        if len(self._places) == 1:
            self._serve(place)
        try:
            await place[1].wait()
            yield
        finally:
            self._places.remove(place)
            if place[1].is_set() and self._places:
                self._serve(min(self._places, key=lambda place: self._since(place[0])))

    async def done(self, work: Callable[[], _T]) -> _T:
        """What ``work`` gives, done in this one's turn. Work of whoever has gone is done before."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _serve(self, place: tuple[Visitor, asyncio.Event]) -> None:
        if len(self._places) == 1:
            self._served.clear()  # nobody waits whose turn it might be
        self._num_served += 1
        self._served |= {place[0].address: self._num_served, place[0]: self._num_served}
        place[1].set()

    def _since(self, visitor: Visitor) -> tuple[int, int]:
        return self._served.get(visitor.address, 0), self._served.get(visitor, 0)
