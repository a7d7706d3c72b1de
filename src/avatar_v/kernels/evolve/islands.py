"""The search: islands that breed apart, each some candidates a generation, and that now and then
send their best one to the next island (Avatar V, "From Model to Production": 2-3 islands x 4).

What is proposed follows from the seed and from the archive alone, so that a search that was killed
goes on as if it had not been. Times are measured and answers of an endpoint are its own: these
are kept in the archive, never made again.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from avatar_v.kernels.evolve import grammar
from avatar_v.kernels.evolve.archive import Archive, Place, Record, Source
from avatar_v.kernels.evolve.fitness import Verdict
from avatar_v.kernels.evolve.spec import Spec

ELITE = 3
"""The best of an island, of which parents are."""
REDRAWS = 50
"""Draws of a candidate that the archive does not have yet."""


@dataclass(frozen=True)
class Proposal:
    """A candidate to be tried; ``refused`` says why it is none."""

    code: str
    source: Source
    parent: int = -1
    genome: grammar.Genome = field(default_factory=dict)
    refused: str = ""


Asked = Callable[[Record | None, Sequence[Record]], Proposal]
"""An endpoint: the parent, or None at the beginning, and what failed last → a proposal."""


def search(
    spec: Spec,
    archive: Archive,
    judge: Callable[[str], Verdict],
    ask: Asked | None = None,
    tell: Callable[[Record], None] = lambda record: None,
) -> Record | None:
    """Try candidates until the budget is spent; the best one, None where none is right."""
    begin = time.monotonic() - (archive.records[-1].ended_s if archive.records else 0.0)
    while len(archive.records) < spec.budget.candidates:
        if time.monotonic() - begin > 60 * spec.budget.minutes:
            break
        place = place_of(spec, len(archive.records))
        proposal = proposed(spec, archive.records, place, ask)
        if proposal is None:
            break
        verdict = Verdict("refused", proposal.refused)
        if not proposal.refused:
            verdict = judge(proposal.code)
        record = Record(
            len(archive.records), place.generation, place.island, place.slot, proposal.parent,
            proposal.source, proposal.genome, proposal.code, verdict.status, verdict.reason[:4000],
            verdict.speedup, verdict.low, verdict.high, verdict.pairs, verdict.error,
            time.monotonic() - begin,
        )  # fmt: skip
        archive.add(record)
        tell(record)
    return best(archive.records)


def best(records: Sequence[Record]) -> Record | None:
    """The one of the highest fitness, the first of equals."""
    right = [record for record in records if record.fitness > 0]
    return max(right, key=lambda record: record.fitness, default=None)


def place_of(spec: Spec, index: int) -> Place:
    """Island after island within a generation."""
    generation, rest = divmod(index, spec.islands * spec.per_generation)
    return Place(generation, *divmod(rest, spec.per_generation))


def population(spec: Spec, records: Sequence[Record], place: Place) -> list[Record]:
    """What an island has at the start of a generation: its own of earlier ones, and the best of
    the island before it as of the last migrations; the best first."""
    members = {r.index: r for r in records if r.generation < place.generation
               and r.island == place.island and r.fitness > 0}  # fmt: skip
    other = (place.island - 1) % spec.islands
    for last in range(spec.migrate_every, place.generation + 1, spec.migrate_every):
        sent = best([r for r in records if r.island == other and r.generation < last])
        if sent is not None:
            members[sent.index] = sent
    return sorted(members.values(), key=lambda record: (-record.fitness, record.index))


def proposed(
    spec: Spec, records: Sequence[Record], place: Place, ask: Asked | None
) -> Proposal | None:
    """With an endpoint every other candidate is asked for. None where the grammar has no more."""
    rng = random.Random(f"{spec.seed}/{place.generation}/{place.island}/{place.slot}")
    elite = population(spec, records, place)[:ELITE]
    if ask is not None and place.slot % 2:
        failed = [r for r in records if r.island == place.island and r.status != "ok"]
        return ask(rng.choice(elite) if elite else None, failed[-2:])
    known = {record.code for record in records}
    bred_from = [record for record in elite if record.genome]
    for _ in range(REDRAWS):
        parent, genome = -1, grammar.drawn(spec, rng)
        if bred_from and rng.random() < 0.8:
            first, second = rng.choice(bred_from), rng.choice(bred_from)
            parent, genome = first.index, grammar.bred(spec, rng, first.genome, second.genome)
        code = grammar.code(spec, genome)
        if code not in known:
            return Proposal(code, genome["family"], parent, genome)
    return None
