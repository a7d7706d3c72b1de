"""`avatar-v-eval run` from cases to Parquet: systems, cache, shards, sets, timings."""

import json
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from avatar_v.media.reading import read_audio, read_video
from avatar_v.models.base import hash_folder
from avatar_v_eval.bench.generated import add_generated, parse_scenes
from avatar_v_eval.bench.manifest import BenchManifest, file_fault, load_manifest, write_manifest
from avatar_v_eval.bench.rows import read_run
from avatar_v_eval.bench.summary import set_numbers
from bench_cases import bench, make_manifest, rows, values, write_video


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> BenchManifest:
    return make_manifest(tmp_path_factory.mktemp("bench") / "w")


@pytest.fixture(scope="module")
def rival(made: BenchManifest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A system that shows everybody's first frame for as long as the sound lasts."""
    folder = tmp_path_factory.mktemp("rival")
    for case in made.cases:
        image = read_video(made.path(case, "image"))
        write_video(
            folder / f"{case.id}.mp4",
            image.repeat(50, 1, 1, 1),
            read_audio(made.path(case, "audio")),
        )
    return folder


def set_values(folder: Path, metric: str) -> dict[str, float]:
    """System → value of a whole set."""
    run = read_run(folder)
    found = set_numbers(run, metric, list(run.info.systems))
    return {name: number.value for name, number in found.items()}


@pytest.fixture(scope="module")
def done(made: BenchManifest, rival: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the truth, a copy of it, and the rival, by two processes."""
    out = tmp_path_factory.mktemp("run") / "out"
    copy = made.root / "truth"
    words = ("run", made.root, "--system", f"copy={copy}", "--system", f"rival={rival}")
    assert bench(*words, "--out", out, "--workers", 2) == 0
    return out


def test_every_system_case_and_output_has_its_row(made: BenchManifest, done: Path):
    table = rows(done)
    info = json.loads((done / "run.json").read_text())
    assert table.height == 3 * len(made.cases) * len(info["outputs"])
    assert not table.select(pl.struct("system", "case", "output").is_duplicated().any()).item()
    timed = pl.col("metric").is_in(["fps", "ttff"])
    assert table.filter(~timed)["value"].is_not_null().all()
    assert set(table.filter(timed)["reason"]) == {"the system reports no timing"}
    assert set(info["systems"]) == {"truth", "copy", "rival"}
    assert "qalign" in info["left_out"]
    frames = pl.read_parquet(done / "frames.parquet")
    shown = frames.filter((pl.col("output") == "face_world") & (pl.col("system") == "truth"))
    assert shown["frame"].unique().sort().to_list() == [0, 12, 25, 37]


def test_a_copy_scores_as_the_truth_and_a_still_picture_below(done: Path):
    for output in json.loads((done / "run.json").read_text())["outputs"]:
        scores = values(done, output["key"])
        assert scores["copy"] == scores["truth"], output["key"]
    assert values(done, "mouth_r")["truth"] == pytest.approx([1.0] * 3)
    assert max(map(abs, values(done, "sync_world_offset")["truth"])) <= 1
    assert max(map(abs, values(done, "mouth_r")["rival"])) < 0.6
    sync = values(done, "sync_world_c")
    assert sum(sync["truth"]) > sum(sync["rival"]) + 0.3 * 3


def test_a_second_run_measures_nothing_and_decodes_nothing(
    made: BenchManifest, rival: Path, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def never(*_, **__):
        raise AssertionError("nothing is decoded where all is cached")

    for module in ("avatar_v.media.reading", "avatar_v_eval.bench.footage"):
        monkeypatch.setattr(f"{module}.iter_video", never)
    words = ("run", made.root, "--system", f"elsewhere={rival}", "--out", tmp_path)
    assert bench(*words, "--cache", done / "cache") == 0
    again = rows(tmp_path)
    assert again["cached"].all()
    assert pl.read_parquet(tmp_path / "features.parquet")["metric"].n_unique() == 2
    assert values(tmp_path, "face_world")["elsewhere"] == values(done, "face_world")["rival"]


def test_a_rival_is_scored_over_all_conditions(
    made: BenchManifest, rival: Path, done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """By its folder and by its command; of generated scenes there is no true video. One case counts
    as of the scene of its reference."""
    filmed, whole, folder = (tmp_path / name for name in ("filmed", "cases", "folder"))
    shutil.copytree(made.root, filmed)
    first = replace(made.cases[0], condition="same")
    write_manifest(replace(made, root=filmed, cases=(first, *made.cases[1:])))
    words = ("cases", "generated", filmed, "--out", whole, "--scenes", rival)
    assert bench(*words) == 0
    assert "w_generated, 6 cases (2 cross, 3 generated, 1 same)" in capsys.readouterr().out
    shutil.copytree(rival, folder)
    for case in made.cases:
        shutil.copy(rival / f"{case.id}.mp4", folder / f"{case.id}-generated.mp4")
    script = f"n=$(basename $0 .png); cp {folder}/$n.mp4 $1"
    command = f"command:sh -c '{script}' {{image}} {{out}}"
    out = ("--out", tmp_path / "out", "--cache", done / "cache", "--metrics", "sharpness")
    assert bench("run", whole, "--system", f"a={folder}", "--system", f"b={command}", *out) == 0
    table = rows(tmp_path / "out")
    of_conditions = {
        name: table.filter(pl.col("condition") == name).drop_nulls("value")["system"].value_counts()
        for name in ("same", "cross", "generated")
    }
    assert dict(of_conditions["same"].rows()) == {"truth": 1, "a": 1, "b": 1}
    assert dict(of_conditions["cross"].rows()) == {"truth": 2, "a": 2, "b": 2}
    assert dict(of_conditions["generated"].rows()) == {"a": 3, "b": 3}
    absent = table.filter(pl.col("value").is_null())
    assert set(absent["reason"]) == {"the manifest has no truth of this case"}
    assert bench("report", tmp_path / "out", "--out", tmp_path / "report") == 0
    said = (tmp_path / "report" / "report.md").read_text().partition("By scene condition")[2]
    assert all(f"{name} scene" in said for name in of_conditions)


def test_scenes_are_made_of_words_and_the_person(made: BenchManifest, tmp_path: Path):
    one = replace(made, cases=made.cases[:1])
    own = parse_scenes("pipeline:small_student", tmp_path / "own", 60.0, num_candidates=1)
    out = add_generated(one, tmp_path / "cases", own, [])
    case = out.cases[1]
    assert (case.id, case.condition, case.truth) == ("w_00-generated", "generated", None)
    assert (case.prompt, case.person) == (made.cases[0].prompt, made.cases[0].person)
    assert not any(file_fault(load_manifest(out.root), one) for one in out.cases)
    made_up, given = (read_video(out.path(each, "image"))[0].float() for each in out.cases)
    assert made_up.shape == given.shape
    assert made_up.std() > 5
    assert (made_up - given).abs().mean() > 2  # not the picture of the case itself


def test_shards_merge_to_the_same_rows(
    made: BenchManifest, rival: Path, done: Path, tmp_path: Path
):
    words = ("run", made.root, "--system", f"rival={rival}", "--cache", done / "cache")
    for i in (1, 2):
        assert bench(*words, "--shard", f"{i}/2", "--out", tmp_path / str(i)) == 0
    assert bench("merge", tmp_path / "1", "--out", tmp_path / "half") == 2
    both = ("merge", tmp_path / "1", tmp_path / "2", "--out", tmp_path / "all")
    assert bench(*both) == 0
    assert bench(*both) == 2, "a run is there already"
    assert bench(*both, "--overwrite") == 0
    keys = ["system", "case", "output"]
    columns = [*keys, "value", "reason", "video", "weights"]
    whole = rows(done).filter(pl.col("system") != "copy")
    for output in ("fid_world", "fvd_world"):
        joined, expected = (set_values(folder, output) for folder in (tmp_path / "all", done))
        assert joined["rival"] == pytest.approx(expected["rival"], rel=1e-9)
    assert (
        rows(tmp_path / "all").select(columns).sort(keys).equals(whole.select(columns).sort(keys))
    )


def test_sets_have_one_number_a_system_and_a_copy_has_0(made: BenchManifest, done: Path):
    for output in ("fid_world", "fvd_world"):
        found = set_values(done, output)
        assert max(found["truth"], found["copy"]) < 1e-6 < 1e-3 < found["rival"]
    rival = set_numbers(read_run(done), "fid_world", ["rival"])["rival"]
    assert rival.low <= rival.value < rival.high
    assert rival.n == len(made.cases)


def test_timings_that_systems_report(made: BenchManifest, tmp_path: Path):
    """A folder with timings, a broken one, and a command: timed by us, or by itself."""
    folder = tmp_path / "videos"
    folder.mkdir()
    reports = (
        '{"total_s": 4, "ttff_s": 1.2, "hardware": "5 x H800"}',
        '{"total_s": 0, "hardware": "x"}',
        '{"seconds": 3}',
    )
    for case, report in zip(made.cases, reports, strict=True):
        (folder / f"{case.id}.mp4").write_bytes(made.path(case, "truth").read_bytes())
        (folder / f"{case.id}.timing.json").write_text(report)
    script = tmp_path / "copy.py"
    script.write_text(
        "import pathlib, shutil, sys\n"
        "audio, out = map(pathlib.Path, sys.argv[1:3])\n"
        "shutil.copy(audio.parents[1] / 'truth' / (audio.stem + '.mp4'), out)\n"
        f"len(sys.argv) > 3 and pathlib.Path(sys.argv[3]).write_text({reports[0]!r})\n"
    )
    run_it = shlex.join([sys.executable, str(script)])
    words = ["run", made.root, "--metrics", "fps", "ttff", "--out", tmp_path / "out"]
    words += ["--system", f"told={folder}", "--system", f"timed=command:{run_it} {{audio}} {{out}}"]
    words += ["--system", f"own=command:{run_it} {{audio}} {{out}} {{timing}}"]
    for _ in range(2):  # the second time from what was kept beside the videos
        assert bench(*words) == 0
        table = rows(tmp_path / "out").sort("case")
        shown = table.filter(pl.col("system") == "told")
        assert values(tmp_path / "out", "fps")["told"] == [50 / 4, None, None]
        assert values(tmp_path / "out", "ttff")["told"] == [1.2, None, None]
        assert shown["notes"][0] == "5 x H800"
        reasons = shown.filter(pl.col("output") == "fps")["reason"].to_list()
        assert "total_s is a finite number from 1e-09" in reasons[1]
        assert "unknown keys ['seconds'], missing keys ['hardware', 'total_s']" in reasons[2]
        timed = table.filter(pl.col("system") == "timed")
        assert timed.filter(pl.col("output") == "fps")["value"].min() > 0
        assert "whole command" in timed["notes"][0]
        assert set(timed.filter(pl.col("output") == "ttff")["reason"]) == {
            "the system reports no time to first frame"
        }
        assert values(tmp_path / "out", "fps")["own"] == [50 / 4] * 3


def test_a_benchmark_without_true_videos(made: BenchManifest, rival: Path, tmp_path: Path):
    """All of its conditions may be such that nobody was filmed; the truth is then no system that
    fails."""
    shutil.copytree(made.root, tmp_path / "w", ignore=shutil.ignore_patterns("truth"))
    cases = [
        replace(case, truth=None, sha256={k: v for k, v in case.sha256.items() if k != "truth"})
        for case in made.cases
    ]
    write_manifest(replace(made, root=tmp_path / "w", cases=tuple(cases)))
    words = ("run", tmp_path / "w", "--metrics", "sharpness", "--out", tmp_path / "out")
    assert bench(*words, "--system", f"rival={rival}") == 0
    assert None not in values(tmp_path / "out", "sharpness")["rival"]
    (tmp_path / "empty").mkdir()
    assert bench(*words, "--system", f"rival={tmp_path / 'empty'}") == 2


def test_our_pipeline_is_a_system_and_other_weights_are_another(
    made: BenchManifest, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = ["run", made.root, "--metrics", "sharpness", "fps", "ttff", "--shard", "1/3"]
    assert bench(*words, "--out", tmp_path, "--system", f"ours=pipeline:{weights}") == 0
    own = rows(tmp_path).filter(pl.col("system") == "ours")
    assert own.height == 3
    timing = json.loads(next((tmp_path / "videos").rglob("w_00.timing.json")).read_text())
    assert values(tmp_path, "fps")["ours"] == pytest.approx([50 / timing["total_s"]])
    assert values(tmp_path, "ttff")["ours"] == [timing["ttff_s"]]
    assert timing["hardware"] in own.filter(pl.col("output") == "fps")["notes"][0]
    assert own["value"].is_not_null().all(), own["reason"][0]
    (video,) = (tmp_path / "videos").rglob("w_00.mp4")
    assert len(read_video(video)) == 50

    other, before = tmp_path / "other", rows(tmp_path)
    shutil.copytree(weights, other)
    card = other / "dit" / "config.json"
    card.write_text(card.read_text() + " ")  # another hash
    again = [*words, "--out", tmp_path, "--system", f"ours=pipeline:{other}"]
    capsys.readouterr()
    assert bench(*again) == 2
    line = capsys.readouterr().err
    assert f"a system ours that is pipeline:{weights}:{hash_folder(weights)}" in line
    assert f"{hash_folder(other)} here: give it another name, or pass --overwrite" in line
    assert bench(*words, "--out", tmp_path, "--system", f"x=pipeline:{weights}") == 2
    assert "holds results of ours, which this run leaves out" in capsys.readouterr().err
    assert rows(tmp_path).equals(before)
    assert bench(*again, "--overwrite") == 0


def test_the_list_of_metrics(capsys: pytest.CaptureFixture[str]):
    assert bench("metrics") == 0
    text = capsys.readouterr().out
    assert "sync_world_c" in text
    assert "needs --weights syncnet=PATH: syncnet_v2.model" in text
