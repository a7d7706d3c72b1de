"""The fleet and its work, drawn from a seed: no trace of a company stands behind them.

15 cells of 5,000 GPUs in all are Avatar V's (§6.1), and so are the three kinds of work. Each number
below says whether it is published; what is chosen is stated on the page of the result, since other
choices give other gains.
"""

from dataclasses import dataclass, field

import numpy as np

HOUR_S, DAY_S = 3600.0, 86_400.0
NODE = 8  # GPUs
NODES = (96, 80, 64, 56, 48, 48, 40, 40, 32, 32, 24, 24, 16, 13, 12)  # of the cells; chosen
KINDS = ("h100",) * 9 + ("a100",) * 4 + ("l40s",) * 2  # of the cells' GPUs; chosen
SPOT = (4, 9, 12)  # cells whose nodes may be taken at any time; chosen
PRICE_USD = {"h100": 2.0, "a100": 1.2, "l40s": 0.8}  # of a GPU and hour; chosen
SPOT_PRICE = 0.6
TEAMS = 60
CLASSES = ("inference", "training", "data")  # from the highest priority on
SHARES = (0.3, 0.5, 0.2)  # of the GPU hours that are asked for; chosen
GANGS = (8, 16, 32, 64, 128, 256)  # GPUs of a training
GANG_SHARES = (0.5, 0.22, 0.14, 0.08, 0.04, 0.02)  # of their number; few are large, as in Hu et al.
FAILS_S = 264 * DAY_S
"""Between faults of a node: 419 unexpected interruptions of 2,048 nodes in 54 days (Llama 3)."""
REPAIR_S = 24 * HOUR_S  # chosen
TAKEN_S, BACK_S = 2 * DAY_S, 2 * HOUR_S  # of a spot node: until it is taken, until there is another


@dataclass(eq=False)
class Work:
    """A job; times in seconds."""

    number: int
    kind: str
    team: int
    gpus: int
    arrives_s: float
    need_s: float  # of work, on all its GPUs
    done_s: float = 0.0
    starts: int = 0
    begun_s: float = -1.0  # its first start
    nodes: list[int] = field(default_factory=list)
    cell: int = -1
    rank: int = 0  # the place of its kind in `CLASSES`

    def __post_init__(self) -> None:
        self.rank = CLASSES.index(self.kind)


@dataclass(frozen=True)
class Trace:
    """Work in the order of arrival, and each team's cell, where its data lie."""

    work: list[Work]
    home: list[int]


def draw(seed: int, load: float, days: float) -> Trace:
    """Work of ``load`` times the GPUs of the fleet, over so many days.

    Arrivals are Poisson; those of inference follow the day (a sine between 0.4 and 1.6 of the
    mean). Lengths are lognormal. Teams are of unequal size (a power law) and have a cell each, so
    that cells are asked for in proportion to their size.
    """
    rng = np.random.default_rng(seed)
    weight = np.arange(1, TEAMS + 1) ** -0.7
    weight /= weight.sum()
    home, given = [], np.zeros(len(NODES))
    for share in weight:
        cell = int(np.argmin((given + share) / np.array(NODES)))
        given[cell] += share
        home.append(cell)
    asked = load * sum(NODES) * NODE * days * DAY_S
    work: list[Work] = []
    for kind, share in zip(CLASSES, SHARES, strict=True):
        filled = 0.0
        while filled < share * asked:
            gpus, need_s = _size(kind, rng)
            at_s = _arrival(kind, days, rng)
            team = int(rng.choice(TEAMS, p=weight))
            work.append(Work(0, kind, team, gpus, at_s, need_s))
            filled += gpus * need_s
    work.sort(key=lambda one: one.arrives_s)
    for number, one in enumerate(work):
        one.number = number
    return Trace(work, home)


def _size(kind: str, rng: np.random.Generator) -> tuple[int, float]:
    """GPUs and seconds: a lognormal of median m and sigma s, cut at a longest time."""
    if kind == "inference":
        gpus, median_h, sigma, most_h = int(rng.choice([1, 2, 4, 8])), 6.0, 0.6, 24.0
    elif kind == "training":
        gpus, median_h, sigma, most_h = int(rng.choice(GANGS, p=GANG_SHARES)), 6.0, 1.2, 72.0
    else:
        gpus, median_h, sigma, most_h = int(rng.choice([1, 2, 4, 8])), 1.5, 0.8, 12.0
    return gpus, min(median_h * float(np.exp(sigma * rng.standard_normal())), most_h) * HOUR_S


def _arrival(kind: str, days: float, rng: np.random.Generator) -> float:
    while True:
        at_s = float(rng.uniform(0, days * DAY_S))
        height = 1 + 0.6 * np.sin(2 * np.pi * at_s / DAY_S) if kind == "inference" else 1.6
        if rng.uniform(0, 1.6) < height:
            return at_s
