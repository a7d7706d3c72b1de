"""Runs in memory for the tests of reports: any values by system, output and case; no video."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from avatar_v.scoring.values import ScoreOutput
from avatar_v_eval.bench.rows import BenchRun, CaseRow, FrameRow, RunInfo, table, write_run

OUTPUTS = (
    ScoreOutput("syncnet_c", "Sync-C", "higher"),
    ScoreOutput("syncnet_d", "Sync-D", "lower"),
    ScoreOutput("face_arcface", "Face Sim", "higher"),
    ScoreOutput("qalign_iqa", "Q-Align", "higher"),
)
CONDITIONS = ("same", "cross", "generated")
Values = Mapping[str, Mapping[str, Sequence[float | None]]]
"""System → output → value per case; None: refused."""


def make_run(values: Values, outputs: Sequence[ScoreOutput] = OUTPUTS, **changes) -> BenchRun:
    """One metric per output; case ``c07`` is person ``p07``'s, conditions take turns."""
    rows = [
        _row(system, output.key, index, value)
        for system, given in values.items()
        for output in outputs
        for index, value in enumerate(given.get(output.key, ()))
    ]
    info = RunInfo(
        manifest="made",
        manifest_hash="0123456789abcdef",
        content="",
        num_cases=max(len(one) for given in values.values() for one in given.values()),
        shard="1/1",
        convert=False,
        systems={name: f"videos/{name}" for name in values},
        metrics={output.key: "1 w" for output in outputs},
        outputs=tuple(outputs),
        left_out={},
        command="avatar-v-eval run made",
        commit="c" * 40,
        date="2026-01-02T03:04:05+00:00",
    )
    info = dataclasses.replace(info, **changes)
    return BenchRun(info, table(CaseRow, rows), table(FrameRow, []))


def save(folder: Path, run: BenchRun) -> Path:
    write_run(run, folder)
    return folder


def _row(system: str, key: str, index: int, value: float | None) -> CaseRow:
    return CaseRow(
        system=system,
        case=f"c{index:02d}",
        condition=CONDITIONS[index % 3],
        person=f"p{index:02d}",
        language="en",
        metric=key,
        output=key,
        value=value,
        reason="" if value is not None else "refused: a public figure",
        notes="",
        version=1,
        judge=f"judge of {key}",
        weights="w",
        video="v" * 64,
        seconds=0.1,
        cached=False,
        file=f"/nowhere/{system}/c{index:02d}.mp4",
    )
