"""The cases in which each system does worst, by one number, with its video beside the real one."""

import base64
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from avatar_v.scoring.values import ScoreOutput
from avatar_v_eval.bench.rows import BenchRun
from avatar_v_eval.bench.summary import summarise
from avatar_v_eval.bench.systems import TRUTH
from avatar_v_eval.report.objective import HEADLINE, system_label
from avatar_v_eval.report.previews import preview
from avatar_v_eval.table_view import Column, Table, TableRow, printed


@dataclass(frozen=True)
class Player:
    """One video in the page, or in ``reason`` why it is not there."""

    label: str
    mp4: str  # base64; "" where there is none
    reason: str = ""
    muted: bool = False  # two that play together speak the same words


@dataclass(frozen=True)
class WorstCase:
    """One case of one system. ``value`` and ``real`` are as printed."""

    system: str
    case: str
    condition: str
    person: str
    value: str
    real: str
    players: tuple[Player, ...]


@dataclass(frozen=True)
class Worst:
    """All of a page, systems in order, worst first."""

    output: ScoreOutput
    cases: tuple[WorstCase, ...]

    @property
    def table(self) -> Table:
        columns = ("Case", "Condition", "Person", self.output.label, "Ground Truth")
        rows = tuple(
            TableRow(one.system, (one.case, one.condition, one.person, one.value, one.real))
            for one in self.cases
        )
        heads = tuple(Column(title) for title in columns)
        return Table(
            f"Worst matched cases by {self.output.label}", "Method", heads, rows, kind="worst"
        )


def worst_cases(run: BenchRun, num: int, key: str = "") -> Worst | None:
    """The ``num`` worst cases of each system by output ``key`` ("": the first there is).

    Of matched cases, as the means are: others are listed as not measured. None for ``num`` 0
    and where no number has a better direction. ValueError for a key that cannot be.
    """
    output = _output(run, key)
    if num < 0:
        raise ValueError(f"--worst is 0 or more, got {num}")
    if output is None or num == 0:
        return None
    (matched,) = (line.cases for line in summarise(run) if line.output == output)
    rows = run.cases.filter(pl.col("output") == output.key, pl.col("case").is_in(matched))
    real = {row["case"]: row for row in rows.iter_rows(named=True) if row["system"] == TRUTH}
    found = []
    for system in (name for name in run.info.systems if name != TRUTH):
        own = rows.filter(pl.col("system") == system).drop_nulls("value")
        bad = {"higher": -pl.col("value"), "lower": pl.col("value"), "zero": pl.col("value").abs()}
        worst = own.sort(bad[output.better], descending=True, maintain_order=True).head(num)
        found += [_case(row, real.get(row["case"])) for row in worst.iter_rows(named=True)]
    return Worst(output, tuple(found))


def _output(run: BenchRun, key: str) -> ScoreOutput | None:
    able = {output.key: output for output in run.info.outputs if output.better}
    if key:
        if key not in able:
            raise ValueError(f"--worst-by {key}: expected one of {', '.join(able)}")
        return able[key]
    measured = set(run.cases.drop_nulls("value")["output"])
    known = [name for name in (*HEADLINE, *able) if name in able and name in measured]
    return able[known[0]] if known else None


def _case(row: dict, real: dict | None) -> WorstCase:
    column = Column("", digits=3)
    shown = [_player(real, REAL_NAME)] if real else [Player(REAL_NAME, "", "it was not scored")]
    shown.append(_player(row, system_label(row["system"])))
    return WorstCase(
        system=system_label(row["system"]),
        case=row["case"],
        condition=row["condition"],
        person=row["person"],
        value=printed(row["value"], column),
        real="—" if real is None or real["value"] is None else printed(real["value"], column),
        players=_one_voice(shown),
    )


REAL_NAME = system_label(TRUTH)


def _player(row: dict, label: str) -> Player:
    try:
        return Player(label, _mp4(row["file"], row["video"]))
    except ValueError as error:
        return Player(label, "", " ".join(str(error).split()))


@functools.cache
def _mp4(file: str, sha256: str) -> str:
    return base64.b64encode(preview(file, sha256)).decode()


def _one_voice(players: Sequence[Player]) -> tuple[Player, ...]:
    """The last that can be heard keeps its sound."""
    heard = [player for player in players if player.mp4][-1:]
    return tuple(
        Player(player.label, player.mp4, player.reason, muted=player not in heard)
        for player in players
    )
