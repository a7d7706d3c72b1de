"""`avatar-v-eval report`: tables 1 to 4 of the Avatar V report, escapes, charts, errors."""

import html
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from avatar_v_eval import cli
from avatar_v_eval.bench.rows import BenchRun
from avatar_v_eval.human.counts import (
    judgments_as_votes,
    pairs_as_votes,
    read_means,
    scores_as_votes,
)
from avatar_v_eval.human.exchange import write_votes
from avatar_v_eval.human.questions import AXES
from avatar_v_eval.human.store import StudyStore
from avatar_v_eval.human.study import Study
from avatar_v_eval.human.votes import Vote
from avatar_v_eval.report.charts import charts_for
from avatar_v_eval.report.document import ReportOptions, make_report
from avatar_v_eval.report.files import as_latex, as_markdown
from avatar_v_eval.report.page import page
from avatar_v_eval.table_view import Column, Table, TableRow, latex
from bench_runs import OUTPUTS, make_run, save
from human_study import make_study, study_yaml
from published_tables import TABLE_1, TABLE_2, TABLE_3, TABLE_4

COUNTS = Path(__file__).resolve().parents[2] / "eval" / "benchmarks" / "avatar_v_report"
KEYS = tuple(output.key for output in OUTPUTS)

# As printed in the report; * best, _ second.


def expected(text: str) -> list[list[str]]:
    """The rows, each with the marks that the readers of the outputs leave: * best, _ second."""
    rows = [line.split("|") for line in text.strip().splitlines()]
    return [[_plain(cell.strip()) for cell in row] for row in rows]


def of_frame(frame: pl.DataFrame, kind: str) -> list[list[str]]:
    """The first table of a kind as it was printed, marks before the numbers."""
    marks = {0: "", 1: "*", 2: "_"}
    rows: dict[str, list[str]] = {}
    one = frame.filter((pl.col("kind") == kind) & (pl.col("condition") == ""))
    for cell in one.filter(pl.col("table") == one["table"].min()).iter_rows(named=True):
        rows.setdefault(cell["row"], []).append(marks[cell["place"]] + cell["printed"])
    return [[name, *cells] for name, cells in rows.items()]


def of_markdown(text: str) -> list[list[list[str]]]:
    """Every table's rows without intervals, marks before the numbers."""
    tables: list[list[list[str]]] = []
    for line in text.splitlines():
        if line.startswith("**Table"):
            tables.append([])
        elif line.startswith("| ") and not line.startswith("| ---"):
            cells = re.split(r"(?<!\\) \| ", line[2:-2])
            tables[-1].append([_plain(re.sub(r"\\(.)", r"\1", cell)) for cell in cells])
    return [rows[1:] for rows in tables]


def of_page(text: str) -> list[list[list[str]]]:
    """The same of the HTML."""
    tables = []
    for body in re.findall(r"<tbody>(.*?)</tbody>", text, re.DOTALL):
        rows = re.findall(r"<tr.*?</tr>", body, re.DOTALL)
        cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
        tables.append([[_plain(cell) for cell in row] for row in cells])
    return tables


def _plain(cell: str) -> str:
    cell = re.sub(r" <small>.*?</small>| \[-?[\d.]+, -?[\d.]+\]$", "", cell)
    cell = re.sub(r"\*\*(.+?)\*\*|<b>(.+?)</b>", lambda m: f"*{m[1] or m[2]}", cell)
    return html.unescape(re.sub(r"<u>(.+?)</u>", r"_\1", cell))


def table_1_run() -> BenchRun:
    """70 cases, 36 of which every system has, with the report's means over these."""
    means, num = read_means(COUNTS / "table1_means.csv")
    spread = np.random.default_rng(0).normal(0, 0.01, num)
    spread -= spread.mean()
    values = {}
    for index, (system, given) in enumerate(means.items()):
        name = "truth" if system == "Ground Truth" else system
        others: list[float | None] = [99.0] * 34  # not matched: must not count
        if index:
            others[index::5] = [None] * len(others[index::5])
        else:
            others = [None if i % 5 == 0 else 99.0 for i in range(34)]
        values[name] = {
            key: [*(mean + spread), *others] for key, mean in zip(KEYS, given, strict=True)
        }
    return make_run(values)


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run with table 1's means and of vote files with the other tables' counts."""
    folder = tmp_path_factory.mktemp("rebuilt")
    words = ["report", str(save(folder / "run", table_1_run()))]
    for name, votes in (
        ("scores", scores_as_votes(COUNTS / "table2_scores.csv")),
        ("pairs", pairs_as_votes(COUNTS / "table3_pairs.csv")),
        ("judgments", judgments_as_votes(COUNTS / "table4_judgments.csv")),
    ):
        write_votes(votes, folder / f"{name}.csv")
        words += ["--votes", str(folder / f"{name}.csv")]
    out = folder / "out"
    assert cli.main([*words, "--baseline", "Veo 3.1 (2025)", "--out", str(out)]) == 0
    return out


@pytest.mark.parametrize(
    ("kind", "text"),
    [("objective", TABLE_1), ("mos", TABLE_2), ("win", TABLE_3), ("turing", TABLE_4)],
)
def test_the_reports_tables_to_the_digit(rebuilt: Path, kind: str, text: str):
    frame = pl.read_parquet(rebuilt / "report.parquet")
    assert of_frame(frame, kind) == expected(text)
    assert expected(text) in of_markdown((rebuilt / "report.md").read_text())
    assert expected(text) in of_page((rebuilt / "index.html").read_text())


def test_the_same_from_published_counts_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["report", "--votes", str(COUNTS), "--out", str(tmp_path)]
    assert cli.main(words) == 0
    told = f"{tmp_path / 'index.html'}\n"
    assert capsys.readouterr() == (told, "")
    assert cli.main(words) == 0
    assert capsys.readouterr() == (told, f"the report that was in {tmp_path} is replaced\n")
    tables = of_page((tmp_path / "index.html").read_text())
    assert tables[:4] == [expected(text) for text in (TABLE_1, TABLE_2, TABLE_3, TABLE_4)]


def test_page_and_markdown_say_the_same(rebuilt: Path):
    tables = of_markdown((rebuilt / "report.md").read_text())
    assert of_page((rebuilt / "index.html").read_text()) == tables
    assert len(tables) > 10
    frame = pl.read_parquet(rebuilt / "report.parquet")
    assert frame["table"].max() == len(tables)


def test_matched_cases_are_counted_and_the_truth_is_apart(rebuilt: Path):
    text = (rebuilt / "report.md").read_text()
    assert "**Table 1. Objective metrics on the 36 matched test cases**" in text
    assert "36 of 70 cases" in text
    source = (rebuilt / "index.html").read_text()
    assert '<tr class="real"><th>Ground Truth</th>' in source
    assert "refused: a public figure" in source
    for condition in ("same", "cross", "generated"):
        assert f"matched test cases, {condition} scene" in text


def test_the_page_needs_nothing_beside_it(rebuilt: Path):
    source = (rebuilt / "index.html").read_text()
    links = re.findall(r"""(?:src|href|action|poster)\s*=\s*["']?([^"'\s>]+)""", source)
    assert links
    assert all(link.startswith("data:") for link in links)
    assert not re.search(r"https?://|@import|url\(", source)
    assert "default-src 'none'" in html.unescape(source)
    assert source.count("<img") == 3  # means, radar, bars


HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)> $a_b$ \\input{x} | [y](z) _*"


def test_hostile_names_and_reasons_are_text(tmp_path: Path):
    run = make_run({"truth": {"syncnet_c": [1.0, 2.0]}, HOSTILE: {"syncnet_c": [3.0, 4.0]}})
    cases = run.cases.with_columns(
        pl.when(pl.col("case") == "c01").then(None).otherwise(pl.col("value")).alias("value"),
        pl.lit(HOSTILE).alias("reason"),
        pl.concat_str(pl.col("case"), pl.lit(HOSTILE)).alias("case"),
    )
    folder = save(tmp_path / "run", replace(run, cases=cases))
    report = make_report(ReportOptions(runs=(folder,), title=HOSTILE))
    source = page(report)
    assert html.escape(HOSTILE, quote=False).split("\"'")[0] in source
    assert source.count("<script") == 1
    assert "<img src=x" not in source
    text = as_markdown(report)
    assert not re.search(r"(?<!\\)<script", text)
    assert len({len(row) for row in of_markdown(text)[0]}) == 1  # its | is no column
    assert not re.search(r"(?<!\\)\[y\]", text)
    tex = as_latex(report)
    assert r"\input" not in tex
    assert r"\$a\_b\$ \textbackslash{}input\{x\} \textbar{}" in tex


def test_latex_escapes():
    columns = (Column("50 % & more", "high"), Column("why", text=True))
    rows = (TableRow("[a]", (1.0, "~^\\#")), TableRow("*b", (None, "x_y → ≥ 1")))
    tex = latex(Table("A & B", "Who", columns, rows))
    assert r"\caption{A \& B}" in tex
    assert r"50 \% \& more$\uparrow$" in tex
    assert r"{}[a] & 1.00 & \textasciitilde{}\textasciicircum{}\textbackslash{}\# \\" in tex
    assert r"{}*b & --- & x\_y $\rightarrow$ $\geq$ 1 \\" in tex  # no option of the line break
    assert tex.count("{") == tex.count("}")


@pytest.mark.parametrize("name", [HOSTILE, "_hidden", "$", "$x$", "a" * 90, "日本"])
def test_charts_take_any_name(name: str):
    columns = tuple(Column(f"d{i}") for i in range(3))
    rows = (TableRow(name, (4.0, None, 3.0)), TableRow("b", (1.0, 2.0, 3.0)))
    scores = Table("t", "m", columns, rows, kind="mos")
    (chart,) = charts_for(scores)
    ET.fromstring(chart.svg)


def test_user_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    values = {"truth": {"syncnet_c": [1.0, 2.0]}, "x": {"syncnet_c": [1.0, 2.0]}}
    good = save(tmp_path / "good", make_run(values))
    other = save(tmp_path / "other", make_run(values, manifest="b", manifest_hash="f" * 16))
    newer = save(tmp_path / "newer", make_run(values, metrics={"syncnet_c": "2 w"}))
    empty = make_run(values)
    none = save(tmp_path / "none", replace(empty, cases=empty.cases.clear()))
    (tmp_path / "folder").mkdir()
    for words, texts in (
        ((), ["nothing to report"]),
        ((tmp_path,), ["holds no run"]),
        ((none,), ["holds no rows"]),
        ((good, "--baseline", "y"), ["no baseline 'y'; the systems are truth, x"]),
        ((good, other), ["different cases", f"{good} of made", f"{other} of b (ffffffffffffffff)"]),
        ((good, newer), ["different protocols", str(good), str(newer), "'1 w', and '2 w'"]),
        ((good, "--worst-by", "z"), ["--worst-by z: expected one of syncnet_c"]),
        ((good, "--worst", "-1"), ["--worst is 0 or more"]),
        (("--votes", tmp_path / "folder"), ["no source of votes"]),
        (("--votes", COUNTS, "--baseline", "x"), ["need a run"]),
    ):
        out = tmp_path / "out"
        assert cli.main(["report", *map(str, words), "--out", str(out)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert all(text in error for text in texts), error
        assert not out.exists()


def test_mlflow_has_the_numbers_and_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    before, uri = mlflow.get_tracking_uri(), f"sqlite:///{tmp_path}/log.db"
    values = {"truth": {"syncnet_c": [1.0, 2.0]}, "x (2026)/$": {"syncnet_c": [3.0, 5.0]}}
    folder = save(tmp_path / "run", make_run(values, OUTPUTS[:1]))
    words = ["report", str(folder), "--out", str(tmp_path / "out"), "--mlflow", uri]
    try:
        assert cli.main(words) == 0
        (run,) = mlflow.search_runs(experiment_names=["avatar_v_eval"], output_format="list")
        assert run.data.metrics["objective/x _2026/Sync-C"] == 4.0
        low = run.data.metrics["objective/Ground Truth/Sync-C low"]
        assert low == pytest.approx(1.5 - 12.706 / 2, abs=1e-3)  # Student's t of two values
        assert run.data.params["Cases"] == "2"
        kept = mlflow.MlflowClient().list_artifacts(run.info.run_id, "report")
        names = {Path(one.path).name for one in kept}
        assert names == {"index.html", "report.md", "report.tex", "report.parquet"}
    finally:
        mlflow.set_tracking_uri(before)


def test_a_study_with_its_raters(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    raw = study_yaml(4)
    raw["tasks"].append({"kind": "score", "systems": ["ours", "rival"], **dict.fromkeys(
        ("raters_per_item", "items_per_rater"), 3)})  # fmt: skip
    study = make_study(tmp_path / "study", raw)
    words = ["report", "--votes", str(study.root), "--out", str(tmp_path / "out")]
    assert cli.main(words) == 2
    assert "nobody has voted yet" in capsys.readouterr().err
    store = StudyStore(study.root / "votes.sqlite", study.fingerprint)
    store.add_votes([vote for rater in ("r1", "r2", "r3") for vote in _votes(study, rater)])
    store.close()
    assert cli.main(words) == 0
    frame = pl.read_parquet(tmp_path / "out" / "report.parquet")
    kinds = set(frame["kind"])
    assert {"mos", "score", "win", "turing", "preference", "agreement", "sources"} <= kinds
    axes = frame.filter((pl.col("kind") == "score") & (pl.col("condition") == "cross"))
    assert dict(axes.filter(pl.col("column") == "Consistency").select("row", "printed").rows()) == {
        "ours": "83.7", "rival": "74.0",
    }  # fmt: skip
    near = frame.filter((pl.col("row") == "consistency") & (pl.col("column") == "Near"))
    assert near["value"].to_list() == pytest.approx([4 / 6])  # 86 and 90, and the equal ones
    assert set(frame.filter(pl.col("kind") == "mos")["condition"]) == {"", "same", "cross"}
    mos = frame.filter((pl.col("kind") == "mos") & (pl.col("condition") == ""))
    assert dict(mos.filter(pl.col("column") == "Identity").select("row", "printed").rows()) == {
        "ours": "5.00", "rival": "4.00", "weak": "2.00",
    }  # fmt: skip
    assert study.fingerprint in frame["printed"].to_list()


def _votes(study: Study, rater: str) -> list[Vote]:
    """Everybody finds ours best, and takes the real one for real."""
    common = {"rater": rater, "role": "study", "duration_s": 20.0}
    votes = []
    for case in study.cases:
        here = {**common, "case": case.name, "condition": case.condition}
        for system, score in (("ours", "5"), ("rival", "4"), ("weak", "2")):
            votes += [
                Vote(kind="mos", first=system, second="", dimension=d.key, answer=score, **here)
                for d in study.dimensions
            ]
        for system, score in (("ours", {"r1": "75", "r2": "86"}.get(rater, "90")), ("rival", "74")):
            votes += [
                Vote(kind="score", first=system, second="", dimension=d.key, answer=score, **here)
                for d in AXES
            ]
        for first, second in (("ours", "rival"), ("ours", "weak"), ("rival", "weak")):
            pair = {"first": first, "second": second, "dimension": "", "answer": "first"}
            votes.append(Vote(kind="pair", **pair, **here))
        real = {"first": "ours", "second": "footage", "dimension": "", "answer": "second"}
        votes.append(Vote(kind="turing", **real, **here))
    return votes
