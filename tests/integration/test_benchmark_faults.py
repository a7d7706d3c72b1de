"""Faults in a run of `avatar-v-eval`, of metrics, videos, files and users: each is told."""

import shutil
import sys
from pathlib import Path

import polars as pl
import pytest

from avatar_v.media.reading import read_audio, read_video
from avatar_v_eval.bench.manifest import BenchManifest, load_manifest
from bench_cases import bench, make_manifest, rows, values, write_video

FEW_METRICS = ("sync_world", "face_world", "mouth", "sharpness")
BROKEN = """
from avatar_v.scoring.scorer import ANY, Scorer
from avatar_v.scoring.values import ScoreOutput, Values

class Broken(Scorer):
    name, version, judge, faces = "broken", 1, "formula", ANY
    outputs = (ScoreOutput("broken", "broken", ""),)

    def score(self, clip):
        return SAYS

SCORERS = (Broken,)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> BenchManifest:
    return make_manifest(tmp_path_factory.mktemp("bench") / "w")


def test_a_metric_with_a_mistake_is_rows_with_a_reason_until_it_is_mended(
    made: BenchManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    words = ("run", made.root, "--out", tmp_path / "out", "--metrics")
    for says, reason in (
        ('Values({"brokn": 1.0})', "broken gave ['brokn'], and its outputs are ['broken']"),
        ('Values({"broken": clip.nothing})', r"broken failed: AttributeError: 'ScoredClip' object"),
        ("None", "broken failed: AttributeError: 'NoneType' object"),
    ):
        (tmp_path / "broken_metric").mkdir(exist_ok=True)
        (tmp_path / "broken_metric/one.py").write_text(BROKEN.replace("SAYS", says))
        sys.modules.pop("broken_metric.one", None)
        assert bench(*words, "broken_metric.one") == 2
        assert "no metric gave a number" in capsys.readouterr().err
        assert all(one.startswith(reason) for one in rows(tmp_path / "out")["reason"])
        assert bench(*words, "broken_metric.one", "sharpness") == 0, "others are measured"
        assert reason in capsys.readouterr().out
        assert values(tmp_path / "out", "sharpness")["truth"][0] > 0
    (tmp_path / "broken_metric/one.py").write_text(
        BROKEN.replace("SAYS", 'Values({"broken": 1.0})')
    )
    sys.modules.pop("broken_metric.one")
    assert bench(*words, "broken_metric.one") == 0, "what failed was not kept"
    del sys.modules["broken_metric.one"]


def spoil(folder: Path, made: BenchManifest, fault: str) -> None:
    """The first case's true video, with something wrong."""
    case = made.cases[0]
    path = folder / f"{case.id}.mp4"
    frames, audio = read_video(made.path(case, "truth")), read_audio(made.path(case, "audio"))
    other = read_audio(made.path(made.cases[1], "audio"))
    match fault:
        case "short":
            write_video(path, frames[:20], audio[: 20 * 640])
        case "long":
            write_video(path, frames.repeat(2, 1, 1, 1), audio.repeat(2))
        case "rate":
            write_video(path, frames, audio, rate=30)
        case "silent":
            write_video(path, frames, None)
        case "shape":
            write_video(path, frames[:, :, :40], audio)
        case "tiny":
            write_video(path, frames[:, :, ::4, ::4], audio)
        case "other sound":
            write_video(path, frames, other)
        case "corrupt":
            path.write_bytes(made.path(case, "truth").read_bytes()[:700])
        case "no video":
            path.write_text("not a video")
        case "refused":
            path.with_suffix(".txt").write_text("public figure")


FAULTS = {
    "long": "the picture lasts 4.00 s, the driving sound 2.00 s",
    "short": "the picture lasts 0.80 s, the driving sound 2.00 s",
    "rate": "30 frames a second, expected 25",
    "silent": "no sound in it",
    "shape": "the picture is 64 x 40, the scene image 64 x 64",
    "tiny": "the picture is 16 x 16, expected 32 or more",
    "other sound": "its sound is not the driving sound",
    "corrupt": "w_00.mp4",
    "no video": "not a readable media file",
    "refused": "refused: public figure",
    "missing": "missing: no w_00.mp4",
}


def test_bad_videos_are_rows_with_reasons(made: BenchManifest, tmp_path: Path):
    words = ["run", made.root, "--metrics", *FEW_METRICS, "--out", tmp_path / "out"]
    for index, fault in enumerate(FAULTS):
        folder = tmp_path / f"s{index}"
        folder.mkdir()
        spoil(folder, made, fault)
        words += ["--system", f"s{index}={folder}"]
    assert bench(*words) == 2  # two of them delivered nothing
    table = rows(tmp_path / "out")
    for index, (fault, reason) in enumerate(FAULTS.items()):
        own = table.filter((pl.col("system") == f"s{index}") & (pl.col("case") == "w_00"))
        assert own["value"].is_null().all(), fault
        assert own.height == 8
        assert all(reason in text for text in own["reason"]), (fault, own["reason"][0])
        rest = table.filter((pl.col("system") == f"s{index}") & (pl.col("case") != "w_00"))
        assert all("missing" in text for text in rest["reason"])
    truth = table.filter(pl.col("system") == "truth")
    assert truth["value"].is_not_null().all()


def test_another_frame_rate_can_be_taken(made: BenchManifest, tmp_path: Path):
    spoil(tmp_path, made, "rate")
    words = ["run", made.root, "--metrics", "sharpness", "--out", tmp_path / "out", "--convert"]
    assert bench(*words, "--system", f"s={tmp_path}") == 0
    table = rows(tmp_path / "out").filter((pl.col("system") == "s") & (pl.col("case") == "w_00"))
    # 50 frames at 30 a second are 1.67 s of 2: within what chunks and codecs may round
    assert table["value"].is_not_null().all(), table["reason"].to_list()


def test_a_changed_file_costs_its_case_alone(
    made: BenchManifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    shutil.copytree(made.root, tmp_path / "w")
    made = load_manifest(tmp_path / "w")
    made.path(made.cases[1], "image").write_bytes(b"other")
    assert bench("cases", "check", made.root) == 1
    assert "w_01: image image/w_01.png has changed" in capsys.readouterr().out
    words = ("run", made.root, "--metrics", "sharpness", "--out", tmp_path / "out")
    assert bench(*words) == 0
    shown = rows(tmp_path / "out").sort("case")
    assert [value is None for value in shown["value"]] == [False, True, False]
    assert "has changed" in shown["reason"][1]
    assert "has changed" in capsys.readouterr().out


def test_user_errors_are_one_line(
    made: BenchManifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for words, text in (
        (("run", tmp_path, "--out", tmp_path), "no manifest at"),
        (("run", made.root, "--out", tmp_path, "--system", "x"), "expected name=FOLDER"),
        (("run", made.root, "--out", tmp_path, "--metrics", "nothing"), "no metric 'nothing'"),
        (("merge", tmp_path, "--out", tmp_path), "holds no run"),
    ):
        assert bench(*words) == 2
        error = capsys.readouterr().err
        assert text in error
        assert error.strip().splitlines()[-1].startswith("avatar-v-eval: error")
