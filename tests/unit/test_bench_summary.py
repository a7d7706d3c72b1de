"""What a report says of the numbers of runs: differences, their intervals, and what is missing."""

from dataclasses import replace

import numpy as np
import pytest

from avatar_v.scoring.values import ScoreOutput
from avatar_v_eval.bench.merge import merge_runs
from avatar_v_eval.bench.rows import FeatureRow, table
from avatar_v_eval.bench.summary import mean_over, set_numbers, summarise
from avatar_v_eval.report.objective import difference_tables, objective_tables
from bench_runs import OUTPUTS, make_run


def test_paired_differences_of_known_differences():
    """Noise that both share cancels: the interval is that of the difference alone."""
    generator = np.random.default_rng(1)
    shared, own = generator.normal(0, 10, 40), generator.normal(0.5, 0.1, 40)
    values = {"truth": shared, "base": shared, "good": shared + own, "same": shared}
    output = ScoreOutput("m", "the measure", "higher")
    run = make_run({name: {"m": list(v)} for name, v in values.items()}, [output])
    (line,) = summarise(run)
    number = line.differences("base")["good"]
    assert number.value == pytest.approx(own.mean())
    half = 1.96 * own.std(ddof=0) / np.sqrt(40)
    assert number.low == pytest.approx(own.mean() - half, abs=0.25 * half)
    assert number.high == pytest.approx(own.mean() + half, abs=0.25 * half)
    (table,) = difference_tables(run, "base")
    cells = {row.label: cells[0].text for row, cells in table.cells()}
    assert cells == {"Ground Truth": "0.000", "good": f"{own.mean():+.3f}*", "same": "0.000"}


def test_numbers_of_whole_sets_have_no_differences():
    """And one case is not cases."""
    output, distance = ScoreOutput("m", "the measure", "higher"), ScoreOutput("fid", "FID", "lower")
    values = {"a": {"m": [1.0]}, "b": {"m": [2.0]}}
    run = make_run(values, [output], distances=(distance,))
    (table,) = difference_tables(run, "a")
    assert [column.title for column in table.columns] == ["The measure"]
    assert table.title == "Differences from a on the 1 matched test case"


def test_a_system_without_rows_costs_no_other_its_distance():
    names = ("truth", "ours", "rival")
    run = make_run({name: {"m": [1.0] * 4} for name in names}, [ScoreOutput("m", "m", "higher")])
    draw = np.random.default_rng(0).normal
    features = [
        FeatureRow(name, f"c{i:02d}", "fid", row, draw(size=2).astype("f4"))
        for name in names[:2]
        for i in range(4)
        for row in range(3)
    ]
    run = replace(run, features=table(FeatureRow, features))
    found = set_numbers(run, "fid", ["ours", "rival"])
    assert {name: number.n for name, number in found.items()} == {"ours": 4}
    assert found == set_numbers(run, "fid", ["ours"])
    assert found["ours"].low is not None


def test_where_zero_is_best_the_distance_from_it_is_compared():
    output = ScoreOutput("offset", "offset", "zero")
    values = {"a": [-2.0, 2.0, -2.0], "b": [1.0, -1.0, 1.0]}
    run = make_run({name: {"offset": v} for name, v in values.items()}, [output])
    (line,) = summarise(run)
    assert line.differences("a")["b"].value == -1
    (table,) = objective_tables(run)
    assert [cells[0].place for _, cells in table.cells()] == [2, 1]


def test_cases_of_a_person_stay_together():
    """Ten cases of one person tell as much as one: the interval is wider than of ten persons."""
    values = np.repeat([0.0, 1.0, 2.0, 3.0], 10)
    together = mean_over(values, [f"p{i // 10}" for i in range(40)])
    apart = mean_over(values, [f"p{i}" for i in range(40)])
    assert together.value == apart.value == 1.5
    assert together.high - together.low > 2 * (apart.high - apart.low)
    assert mean_over(values, ["p"] * 40).low is None


def test_a_system_without_a_number_has_a_dash_and_costs_nobody_a_case():
    values = {"a": [1.0, 2.0, None], "b": [2.0, 3.0, 4.0], "c": [None] * 3}
    output = ScoreOutput("m", "the measure", "higher")
    (table,) = objective_tables(make_run({k: {"m": v} for k, v in values.items()}, [output]))
    assert [cells[0].text for _, cells in table.cells()] == ["1.50", "2.50", "—"]
    assert any("c has no number for the measure" in note for note in table.notes)


def test_runs_of_other_metrics_share_a_table():
    first = make_run({"truth": {"syncnet_c": [1.0, 2.0]}}, OUTPUTS[:1])
    second = make_run({"x": {"qalign_iqa": [3.0, 4.0]}}, OUTPUTS[3:])
    (table,) = objective_tables(merge_runs([first, second]))
    assert [[cell.text for cell in cells] for _, cells in table.cells()] == [
        ["1.500", "—"],
        ["—", "3.50"],
    ]
