"""Tables 1 to 4 of the Avatar V report from counts, digit by digit; the three prints of a table."""

from pathlib import Path

import pytest

from avatar_v_eval.human.aggregate import turing
from avatar_v_eval.human.counts import (
    judgments_as_votes,
    pairs_as_votes,
    read_means,
    scores_as_votes,
)
from avatar_v_eval.human.report_tables import mos_table, objective_table, turing_table, win_table
from avatar_v_eval.records import Number
from avatar_v_eval.table_view import (
    Column,
    Table,
    TableRow,
    as_html,
    latex,
    markdown,
    printed,
    render,
)
from published_tables import TABLE_1, TABLE_2, TABLE_3, TABLE_4

COUNTS = Path(__file__).resolve().parents[2] / "eval" / "benchmarks" / "avatar_v_report"

# As printed in the report; ** best, <u> second.


def cells(text: str) -> list[list[str]]:
    rows = [line.strip().strip("|") for line in text.strip().splitlines() if "|" in line]
    return [[cell.strip() for cell in row.split("|")] for row in rows]


def body(table: Table) -> list[list[str]]:
    return cells(markdown(table))[2:]


def test_table_1_to_the_digit() -> None:
    means, num_cases = read_means(COUNTS / "table1_means.csv")
    assert num_cases == 36
    table = objective_table(means, num_cases=num_cases)
    assert body(table) == cells(TABLE_1)
    assert [column.head for column in table.columns] == [
        "Sync-C↑",
        "Sync-D↓",
        "Face Sim↑",
        "Q-Align↑",
    ]


def test_table_2_and_figure_10_to_the_digit() -> None:
    table = mos_table(scores_as_votes(COUNTS / "table2_scores.csv"))
    assert body(table) == cells(TABLE_2)
    assert table.series()["Avatar V (Ours)"] == (4.98, 4.69, 4.48, 4.57, 4.75, 4.78)


def test_table_3_and_figure_11_to_the_digit() -> None:
    table = win_table(pairs_as_votes(COUNTS / "table3_pairs.csv"))
    assert body(table) == cells(TABLE_3)
    assert table.series()["OmniHuman 1.5"] == (85.7, 14.3, 70)


def test_table_4_to_the_digit() -> None:
    votes = judgments_as_votes(COUNTS / "table4_judgments.csv")
    assert body(turing_table(votes)) == cells(TABLE_4)
    (result,) = turing(votes)
    assert (result.num_right, result.num_judgments) == (42, 54)
    assert "more often than chance" in result.warning


@pytest.mark.parametrize(("wins", "n", "text"), [(48, 69, "69.6"), (31, 45, "68.9")])
def test_the_counts_of_table_3_are_the_only_ones(wins: int, n: int, text: str) -> None:
    assert [k for k in range(n + 1) if f"{100 * k / n:.1f}" == text] == [wins]


def test_intervals_stand_beside_the_numbers() -> None:
    table = win_table(pairs_as_votes(COUNTS / "table3_pairs.csv"), intervals=True)
    assert body(table)[3][1] == "85.7% [75.7, 92.1]"


def small_table() -> Table:
    rows = (
        TableRow("A & B", (Number(0.5, 10, 0.4, 0.6), 2.0)),
        TableRow("C|D", (Number(0.75, 10), None)),
        TableRow("real", (1.0, "x<y"), ranked=False),
    )
    columns = (Column("Rate", "high", digits=0, scale=100, unit="%"), Column("Cost", "low"))
    return Table("T_1", "Who", columns, rows, ("100 % sure",), intervals=True)


def test_three_prints_of_one_table() -> None:
    table = small_table()
    assert "| A & B | <u>50%</u> [40, 60] | 2.00 |" in markdown(table)
    assert "| C\\|D | **75%** | — |" in markdown(table)
    tex = latex(table)
    assert r"A \& B & \underline{50\%} {\scriptsize [40, 60]} & 2.00 \\" in tex
    assert r"\caption{T\_1}" in tex
    assert r"Rate$\uparrow$" in tex
    page = as_html(table)
    assert "<td><u>50%</u> <small>[40, 60]</small></td><td>2.00</td>" in page
    assert "<th>A &amp; B</th>" in page
    assert "x&lt;y" in page


def test_equal_prints_share_a_place() -> None:
    values = (4.851, 4.849, 4.95, 4.7)
    table = Table("", "", (Column("q", "high"),), tuple(TableRow(str(v), (v,)) for v in values))
    assert table.places() == [[2], [2], [1], [0]]


@pytest.mark.parametrize(("value", "text"), [(4.625, "4.63"), (2.675, "2.68"), (-0.005, "-0.01")])
def test_halves_go_up(value: float, text: str) -> None:
    assert printed(value, Column("")) == text


def test_bad_tables_and_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has 1 values for 2 columns"):
        Table("", "", (Column("a"), Column("b")), (TableRow("x", (1.0,)),))
    with pytest.raises(ValueError, match=r"\.md, \.tex or \.html"):
        render([], ".pdf")
    file = tmp_path / "x.csv"
    file.write_text("a,b\n")
    with pytest.raises(ValueError, match="has columns"):
        pairs_as_votes(file)
