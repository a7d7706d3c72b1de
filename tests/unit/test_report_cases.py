"""`avatar-v-eval report`: single cases: the worst, how many count, and what is told of files."""

import dataclasses
from pathlib import Path

import polars as pl
import pytest

from avatar_v_eval import records
from avatar_v_eval.files import file_hash
from avatar_v_eval.report.document import ReportOptions, make_report
from avatar_v_eval.report.files import as_frame, as_markdown
from avatar_v_eval.report.page import page
from avatar_v_eval.report.previews import preview
from avatar_v_eval.report.worst import worst_cases
from bench_runs import OUTPUTS, make_run, save
from human_study import write_video


def rows_of(frame: pl.DataFrame, kind: str) -> dict[str, list[str]]:
    """Row → its printed cells, of the table of a kind."""
    rows: dict[str, list[str]] = {}
    for name, text in frame.filter(pl.col("kind") == kind).select("row", "printed").rows():
        rows.setdefault(name, []).append(text)
    return rows


def test_one_system_is_not_called_best(tmp_path: Path) -> None:
    values = {name: {"syncnet_d": [5.0, 6.0]} for name in ("truth", "a", "b")}
    for systems, says in (("truth", "a"), False), (("truth", "a", "b"), True):
        run = make_run({name: values[name] for name in systems})
        report = make_report(ReportOptions(runs=(save(tmp_path / str(len(systems)), run),)))
        text = page(report)
        assert ("Best in <b>bold</b>" in text) == says
        assert ("stands apart and is not ranked" in text) == says
        assert "Brackets are 95 % intervals." in text


def test_worst_cases_are_the_worst(tmp_path: Path):
    run = make_run({
        "truth": {"syncnet_d": [1.0, 1.0, 1.0, 1.0]},
        "a": {"syncnet_d": [5.0, None, 9.0, 7.0]},
    })  # fmt: skip
    report = make_report(ReportOptions(runs=(save(tmp_path / "r", run),), num_worst=2))
    (section,) = (one for one in report.sections if one.worst)
    assert section.worst is not None
    assert section.worst.output.key == "syncnet_d"  # Sync-C comes first, but has no number
    assert [one.case for one in section.worst.cases] == ["c02", "c03"]
    frame = as_frame(
        make_report(ReportOptions((tmp_path / "r",), num_worst=2, worst_by="syncnet_d"))
    )
    worst = frame.filter((pl.col("kind") == "worst") & (pl.col("column") == "Case"))
    assert worst["printed"].to_list() == ["c02", "c03"]


def test_worst_cases_are_matched_ones():
    """A case that another system refused stands in no mean, so it is no example of one."""
    values = {
        "truth": {"syncnet_d": [1.0, 1.0, 1.0]},
        "a": {"syncnet_d": [9.0, 5.0, 7.0]},
        "b": {"syncnet_d": [None, 2.0, 3.0]},
        "c": {"syncnet_d": [None, None, None]},  # without any number: no case less for the others
    }
    worst = worst_cases(make_run(values, OUTPUTS[1:2]), 5)
    assert worst is not None
    assert [(one.system, one.case) for one in worst.cases] == [
        ("a", "c02"),
        ("a", "c01"),
        ("b", "c02"),
        ("b", "c01"),
    ]
    assert worst.table.title == "Worst matched cases by Sync-D"
    values["b"] = {"syncnet_d": [1.0, None, None]}
    values["a"] = {"syncnet_d": [None, 5.0, 7.0]}
    nothing = worst_cases(make_run(values, OUTPUTS[1:2]), 5)
    assert nothing is not None
    assert nothing.cases == ()


def test_each_system_has_its_counts(tmp_path: Path):
    """b refused one case; a delivered all, and nothing was found in one of its videos."""
    run = make_run({
        "truth": {"syncnet_c": [1.0] * 4, "face_arcface": [1.0] * 4},
        "a": {"syncnet_c": [1.0, 1.0, 1.0, None], "face_arcface": [1.0, 1.0, None, None]},
        "b": {"syncnet_c": [None, 1.0, 1.0, 1.0], "face_arcface": [None, 1.0, 1.0, 1.0]},
    })  # fmt: skip
    refused = (pl.col("system") == "b") & (pl.col("case") == "c00")
    cases = run.cases.with_columns(video=pl.when(refused).then(pl.lit("")).otherwise("video"))
    folder = save(tmp_path / "r", dataclasses.replace(run, cases=cases))
    frame = as_frame(make_report(ReportOptions(runs=(folder,))))
    assert rows_of(frame, "counts") == {
        "Ground Truth": ["4 of 4", "4", "1 to 2"],
        "a": ["4 of 4", "3", "1 to 2"],
        "b": ["3 of 4", "3", "1 to 2"],
    }


NOBODY = {name: {"syncnet_c": [None, None]} for name in "yz"}


def test_no_folder_of_this_machine_is_told(tmp_path: Path):
    run = make_run(
        {"truth": {"syncnet_c": [1.0, 2.0]}, "x": {"syncnet_c": [3.0, None]}} | NOBODY,
        systems={
            "truth": "the manifest",
            "x": "/secret/my place/videos",
            "y": "command:/secret/bin/x.sh --at=/secret/place/gpu {reference} {out}",
            "z": "pipeline:runs/3/weights?num_steps=8",
        },
        command="avatar-v-eval run /secret/world70 --system x=/secret/place/videos",
        left_out={"dino": "needs /secret/place/dino"},
    )
    reason = pl.when(pl.col("reason") == "").then(pl.lit("")).otherwise(
        pl.lit("/secret/place/videos/c01.mp4: no audio stream")
    )  # fmt: skip
    run = dataclasses.replace(run, cases=run.cases.with_columns(reason=reason))
    report = make_report(ReportOptions(runs=(save(tmp_path / "r", run),)))
    for text in (page(report), as_markdown(report)):
        assert "secret" not in text
        assert str(tmp_path) not in text
    sources = rows_of(as_frame(report), "systems")
    assert [cells[1] for cells in sources.values()] == [
        "the manifest",
        "videos",
        "command:x.sh --at=gpu {reference} {out}",
        "pipeline:runs/3/weights?num_steps=8",
    ]
    assert all(len(cells[0]) == 12 for cells in sources.values())
    assert "c01.mp4: no audio stream" in as_markdown(report)


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("runs/a and ./b", "runs/a and ./b"),
        ("/a/b/c.mp4: x", "c.mp4: x"),
        ("--x=/a/b", "--x=b"),
        ("'/a/b c'", "'b c'"),
        ("3/4 of 1 / 2", "3/4 of 1 / 2"),
        ("{out}/x.mp4 https://a.org/b/c", "{out}/x.mp4 https://a.org/b/c"),
    ],
)
def test_absolute_paths_alone_are_shortened(text: str, short: str):
    assert records.without_folders(text) == short


def test_missing_videos_are_said_in_their_place(tmp_path: Path):
    values = {"truth": {"syncnet_c": [1.0, 2.0]}, "x": {"syncnet_c": [3.0, 4.0]}}
    source = page(make_report(ReportOptions(runs=(save(tmp_path / "r", make_run(values)),))))
    assert "truth/c00.mp4 is not on this machine" in source
    assert "nowhere" not in source
    assert "<video" not in source


def test_a_page_shows_no_file_but_the_one_that_was_scored(tmp_path: Path):
    """A run names its videos by path; the file there may be another by now, or a private one."""
    file = tmp_path / "private" / "c.mp4"
    file.parent.mkdir()
    write_video(file, 1)
    assert preview(str(file), file_hash(file))
    for name, text, told in (
        (str(file), "0" * 64, r"^private/c\.mp4 has changed since it was scored$"),
        (str(tmp_path / "a" / "d.mp4"), "", r"^a/d\.mp4 is not on this machine$"),
        ("", "", "no video was delivered"),
    ):
        with pytest.raises(ValueError, match=told):
            preview(name, text)
