"""Ways to schedule: one queue, Kueue as it is installed, a cell's queues of infra/cell, and those
behind a choice of the cell (HELIOS, Avatar V §6.1).

`round` is called every five minutes and starts what may start.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from avatar_v_eval.cells.fleet import COPY_S, Cell, Fleet
from avatar_v_eval.cells.traces import HOUR_S, NODE, Work


@dataclass
class OneQueue:
    """First come, first served over all cells, the first cell that has room; no priorities.
    ``skips``: work that does not fit lets what is behind it pass."""

    skips: bool

    def round(self, fleet: Fleet) -> None:
        full: set[tuple[str, int]] = set()
        for work in sorted(fleet.queue, key=lambda one: one.arrives_s):
            if (work.kind, work.gpus) in full:
                continue
            for cell in fleet.cells:
                nodes = room(cell, work, packed=False) if cell.takes(work) else None
                if nodes is not None:
                    admit(fleet, work, cell, nodes)
                    break
            else:
                if not self.skips:
                    return
                full.add((work.kind, work.gpus))


@dataclass
class PlainKueue:
    """Each team submits to its own cell. Kueue with its defaults admits by the number of free GPUs
    (queues of a cohort borrow from each other, nothing is preempted), without regard to nodes; the
    scheduler of Kubernetes spreads pods; a gang that is admitted holds its nodes until the last."""

    gangs: dict[int, list[Work]] = field(default_factory=dict)

    def round(self, fleet: Fleet) -> None:
        for cell in fleet.cells:
            self._fill(fleet, cell)
        full: set[tuple[int, str, int]] = set()
        for work in sorted(fleet.queue, key=lambda one: one.arrives_s):
            cell = at_home(fleet, work)
            key = (cell.number, work.kind, work.gpus)
            if key in full:
                continue
            there = int(cell.up.sum()) * NODE
            if cell.admitted + work.gpus > there:
                full.add(key)
                continue
            nodes = room(cell, work, packed=False)
            if nodes is not None:
                admit(fleet, work, cell, nodes)
            elif work.gpus >= NODE:
                fleet.queue.remove(work)
                cell.admitted += work.gpus
                work.cell = cell.number
                self.gangs.setdefault(cell.number, []).append(work)
                fleet.segment(work, "waiting")
                self._fill(fleet, cell)

    def _fill(self, fleet: Fleet, cell: Cell) -> None:
        """Nodes that have become free for gangs that wait for them."""
        for work in list(self.gangs.get(cell.number, [])):
            lacking = work.gpus // NODE - len(work.nodes)
            found = np.flatnonzero(cell.open == NODE)[:lacking]
            fleet.segment(work, "waiting")
            fleet.hold(work, cell, found)
            if len(found) == lacking:
                self.gangs[cell.number].remove(work)
                fleet.begin(work, cell)


@dataclass
class Cells:
    """A cell's queues: by class, nodes filled before others are begun, lower classes preempted,
    gangs whole or not at all. ``chooses``: the cell by fit, price and data, else the team's own."""

    chooses: bool

    def round(self, fleet: Fleet) -> None:
        full: set[tuple[int, str, int]] = set()
        for work in sorted(fleet.queue, key=lambda one: (one.rank, one.arrives_s)):
            key = (-1 if self.chooses else at_home(fleet, work).number, work.kind, work.gpus)
            if key in full:
                continue
            if not self._placed(fleet, work):
                full.add(key)

    def _placed(self, fleet: Fleet, work: Work) -> bool:
        cells = self._cells(fleet, work)
        for cell in cells:
            nodes = room(cell, work, packed=True)
            if nodes is not None:
                admit(fleet, work, cell, nodes)
                return True
        if work.kind == "data":
            return False
        takings = [(taken, cell) for cell in cells if (taken := taking(cell, work)) is not None]
        if not takings:
            return False
        (_, nodes), cell = min(takings, key=lambda one: one[0][0])
        for node in nodes:
            lower = [one for one in cell.on[node] if one.rank > work.rank]
            for victim in sorted(lower, key=lambda one: one.number):
                fleet.stop(victim, "preempted")
        admit(fleet, work, cell, nodes)
        return True

    def _cells(self, fleet: Fleet, work: Work) -> Iterable[Cell]:
        """Those that may take it, the cheapest first: price of the work and of copying its data,
        and then those in which the fewest GPUs are left over."""
        if not self.chooses:
            return [at_home(fleet, work)]

        def price(cell: Cell) -> tuple[float, int]:
            copied_s = 0.0 if work.team in cell.data else COPY_S[work.kind]
            hours = (work.need_s - work.done_s + copied_s) / HOUR_S
            return hours * cell.price, int(cell.open.sum())

        return sorted((cell for cell in fleet.cells if cell.takes(work)), key=price)


def at_home(fleet: Fleet, work: Work) -> Cell:
    """The team's cell; where that is none for the work, the next one that is."""
    key = (work.team, work.kind, work.gpus)
    if key not in fleet.places:
        first = fleet.trace.home[work.team]
        order = [*fleet.cells[first:], *fleet.cells[:first]]
        fleet.places[key] = next(cell for cell in order if cell.takes(work))
    return fleet.places[key]


def room(cell: Cell, work: Work, *, packed: bool) -> list[int] | None:
    """Nodes with so many free GPUs: whole ones for a gang; else one, the fullest where ``packed``
    and otherwise the emptiest. None where there are not."""
    free = cell.open
    if work.gpus >= NODE:
        whole = np.flatnonzero(free == NODE)
        return list(whole[: work.gpus // NODE]) if len(whole) * NODE >= work.gpus else None
    fits = np.flatnonzero(free >= work.gpus)
    if not len(fits):
        return None
    return [fits[np.argmin(free[fits]) if packed else np.argmax(free[fits])]]


def taking(cell: Cell, work: Work) -> tuple[int, list[int]] | None:
    """Nodes that lower classes would have to leave, and how many GPUs that ends, whole gangs; the
    fewest. None where that is not enough."""
    lower = cell.held[work.rank + 1 :].sum(0)
    fits = np.flatnonzero(cell.up & (cell.free + lower >= min(work.gpus, NODE)))
    num = max(1, work.gpus // NODE)
    if len(fits) < num:
        return None
    costs = cell.ends[work.rank + 1 :].sum(0)[fits]
    best = np.argsort(costs, kind="stable")[:num]
    return int(costs[best].sum()), [int(node) for node in fits[best]]


def admit(fleet: Fleet, work: Work, cell: Cell, nodes: list[int]) -> None:
    cell.admitted += work.gpus
    fleet.start(work, cell, nodes)
