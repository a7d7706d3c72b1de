"""A search for kernels (`avatar-v kernels evolve`): what it tried, and what its winner gives.

An archive that is there is continued; one whose budget is spent is not searched again, and its
winner alone is timed, on fresh inputs and with fresh processes. The log is NAME_log.csv.
"""

import argparse
import csv
from collections import Counter
from pathlib import Path

from avatar_v.base.paths import whole_file
from avatar_v.kernels.evolve.archive import Record
from avatar_v.kernels.evolve.run import Outcome, evolve
from avatar_v.kernels.evolve.spec import Spec, read_spec
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number

COLUMNS = (
    "index", "generation", "island", "parent", "source", "genome", "status", "speedup", "low",
    "high", "pairs", "error", "ended_s",
)  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--spec", required=True, help="of the search, a file of YAML")
    add("--archive", required=True, type=Path, help="its folder, new or begun")


def measure(options: argparse.Namespace) -> Findings:
    spec = read_spec(options.spec)
    found = evolve(spec, options.archive)
    if found.winner is None or found.again is None:
        raise ValueError(f"none of {len(found.records)} candidates is right")
    again, over = found.again, f"time of {spec.baseline} / time of the"
    first = Number(found.winner.speedup, found.winner.pairs, found.winner.low, found.winner.high)
    numbers = {
        "winner": Number(again.speedup, again.starts, again.low, again.high).described(
            f"{over} winner, measured again with fresh inputs and processes (n: their starts)"
        ),
        "searched": first.described(
            f"{over} winner, as it was chosen (interval within one start; n: pairs)"
        ),
        "error": Number(again.error, again.pairs).described(
            "largest difference of the winner's results from the specification's"
        ),
    }
    for generation in sorted({record.generation for record in found.records}):
        rows = [r for r in found.records if r.generation == generation and r.status == "ok"]
        if rows:
            best = max(row.speedup for row in rows)
            label = f"{over} best of generation {generation} (n: candidates that are right)"
            numbers[f"generation_{generation}"] = Number(best, len(rows)).described(label)
    write_log(found.records, options.out / f"{options.name}_log.csv")
    return Findings(f"Kernels found by search: {spec.scope}", numbers, notes=notes(spec, found))


def notes(spec: Spec, found: Outcome) -> list[str]:
    assert found.winner is not None
    assert found.again is not None
    counts = Counter(record.status for record in found.records)
    said = ", ".join(f"{number} {status}" for status, number in sorted(counts.items()))
    genome = ", ".join(f"{name} {value}" for name, value in found.winner.genome.items() if value)
    return [
        f"{len(found.records)} candidates: {said}",
        f"winner {found.winner.index}: {genome}",
        f"clock: {spec.clock}, {spec.calls} calls in a measurement",
        f"winner: geometric mean of the medians of {found.again.starts} starts, t interval",
    ]


def write_log(records: list[Record], path: Path) -> None:
    """All but the code and the reasons."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for r in records:
            genome = " ".join(f"{name}={value}" for name, value in r.genome.items())
            numbers = [f"{x:.4g}" for x in (r.speedup, r.low, r.high)]
            writer.writerow([r.index, r.generation, r.island, r.parent, r.source, genome, r.status,
                             *numbers, r.pairs, f"{r.error:.3g}", f"{r.ended_s:.0f}"])  # fmt: skip
