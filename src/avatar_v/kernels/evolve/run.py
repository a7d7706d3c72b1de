"""`avatar-v kernels evolve`: a search from its specification to the winner's last measurement."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from avatar_v.base.paths import whole_file
from avatar_v.kernels.evolve.archive import Archive, Record
from avatar_v.kernels.evolve.endpoint import Endpoint
from avatar_v.kernels.evolve.fitness import Bench, Verdict
from avatar_v.kernels.evolve.islands import best, search
from avatar_v.kernels.evolve.sandbox import isolation
from avatar_v.kernels.evolve.spec import Spec


@dataclass(frozen=True)
class Outcome:
    """All candidates, the winner and what it did when measured again."""

    records: list[Record]
    winner: Record | None
    again: Verdict | None


def evolve(
    spec: Spec, folder: Path, ask: Endpoint | None = None, *, unsafe: bool = False
) -> Outcome:
    """Search, or continue the search in ``folder``; best.py and best.json are of the winner.

    ValueError where an endpoint is to be asked on a machine without namespaces, unless ``unsafe``,
    and where the baseline itself fails.
    """
    lacks = isolation()
    if lacks is not None and ask is not None and not unsafe:
        raise ValueError(
            f"code of an endpoint needs namespaces to run in, and here is no {lacks}; "
            "--unsafe runs it with limits on time and memory alone, with your files and network"
        )
    if lacks is not None:
        print(f"no sandbox ({lacks}): candidates run with limits on time and memory alone")
    archive = Archive(folder, spec)
    bench = Bench(spec, isolated=lacks is None)
    try:
        winner = search(spec, archive, bench.judge, ask, tell)
        again = None
        while winner is not None:
            again = bench.judge_again(winner.code)
            if again.status == "ok":
                break
            print(f"{winner.index}: fails when measured again: {again.reason}")
            out = winner.index
            others = [r for r in archive.records if r.fitness <= winner.fitness and r.index != out]
            winner, again = best(others), None
    finally:
        bench.close()
    if winner is not None and again is not None:
        with whole_file(folder / "best.py") as partial:
            partial.write_text(winner.code, encoding="utf-8")
        told = {"index": winner.index, "genome": winner.genome} | dataclasses.asdict(again)
        with whole_file(folder / "best.json") as partial:
            partial.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return Outcome(archive.records, winner, again)


def tell(record: Record) -> None:
    """One line of the log."""
    place = f"{record.index}: generation {record.generation}, island {record.island}"
    said = f"{record.status}, {record.reason.splitlines()[-1][:120] if record.reason else ''}"
    if record.status == "ok":
        said = f"{record.speedup:.3f} x ({record.low:.3f} to {record.high:.3f})"
    print(f"{place}, {record.source}: {said}", flush=True)
