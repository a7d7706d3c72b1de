"""`avatar-v-eval run` from cases to Parquet: good and bad videos, cache, shards, sensitivity."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from avatar_v.media import read_audio, read_video
from avatar_v_eval import cli
from avatar_v_eval.bench.manifest import Manifest
from avatar_v_eval.records import read_result
from bench_cases import make_manifest, write_video

ROOT = Path(__file__).resolve().parents[2]
FEW_METRICS = ("sync_world", "face_world", "mouth", "sharpness")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return make_manifest(tmp_path_factory.mktemp("bench") / "w")


@pytest.fixture(scope="module")
def rival(made: Manifest, tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def bench(*words: object) -> int:
    return cli.main([str(word) for word in words])


def rows(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(folder / "cases.parquet")


def values(folder: Path, output: str) -> dict[str, list[float]]:
    """System → values in the order of cases."""
    one = rows(folder).filter(pl.col("output") == output).sort("case")
    return {name: one.filter(pl.col("system") == name)["value"].to_list() for name in
            one["system"].unique()}  # fmt: skip


@pytest.fixture(scope="module")
def done(made: Manifest, rival: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the truth, a copy of it, and the rival, by two processes."""
    out = tmp_path_factory.mktemp("run") / "out"
    copy = made.root / "truth"
    words = ("run", made.root, "--system", f"copy={copy}", "--system", f"rival={rival}")
    assert bench(*words, "--out", out, "--workers", 2) == 0
    return out


def test_every_system_case_and_output_has_its_row(made: Manifest, done: Path):
    table = rows(done)
    info = json.loads((done / "run.json").read_text())
    assert table.height == 3 * len(made.cases) * len(info["outputs"])
    assert not table.select(pl.struct("system", "case", "output").is_duplicated().any()).item()
    assert table["value"].is_not_null().all(), table.filter(pl.col("value").is_null())
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
    made: Manifest, rival: Path, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def never(*_, **__):
        raise AssertionError("nothing is decoded where all is cached")

    monkeypatch.setattr("avatar_v_eval.bench.footage.read_video", never)
    words = ("run", made.root, "--system", f"elsewhere={rival}", "--out", tmp_path)
    assert bench(*words, "--cache", done / "cache") == 0
    again = rows(tmp_path)
    assert again["cached"].all()
    assert values(tmp_path, "face_world")["elsewhere"] == values(done, "face_world")["rival"]


def test_shards_merge_to_the_same_rows(made: Manifest, rival: Path, done: Path, tmp_path: Path):
    words = ("run", made.root, "--system", f"rival={rival}", "--cache", done / "cache")
    for i in (1, 2):
        assert bench(*words, "--shard", f"{i}/2", "--out", tmp_path / str(i)) == 0
    assert bench("merge", tmp_path / "1", "--out", tmp_path / "half") == 2
    assert bench("merge", tmp_path / "1", tmp_path / "2", "--out", tmp_path / "all") == 0
    keys = ["system", "case", "output"]
    columns = [*keys, "value", "reason", "video", "weights"]
    whole = rows(done).filter(pl.col("system") != "copy")
    assert (
        rows(tmp_path / "all").select(columns).sort(keys).equals(whole.select(columns).sort(keys))
    )


def spoil(folder: Path, made: Manifest, fault: str) -> None:
    """The first case's true video, with something wrong."""
    case = made.cases[0]
    path = folder / f"{case.id}.mp4"
    frames, audio = read_video(made.path(case, "truth")), read_audio(made.path(case, "audio"))
    other = read_audio(made.path(made.cases[1], "audio"))
    match fault:
        case "short":
            write_video(path, frames[:20], audio[: 20 * 640])
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


def test_bad_videos_are_rows_with_reasons(made: Manifest, done: Path, tmp_path: Path):
    words = ["run", made.root, "--metrics", *FEW_METRICS, "--out", tmp_path / "out"]
    words += ["--cache", done / "cache"]
    for index, fault in enumerate(FAULTS):
        folder = tmp_path / f"s{index}"
        folder.mkdir()
        spoil(folder, made, fault)
        words += ["--system", f"s{index}={folder}"]
    assert bench(*words) == 0
    table = rows(tmp_path / "out")
    for index, (fault, reason) in enumerate(FAULTS.items()):
        own = table.filter((pl.col("system") == f"s{index}") & (pl.col("case") == "w_00"))
        assert own["value"].is_null().all(), fault
        assert own.height == 7
        assert all(reason in text for text in own["reason"]), (fault, own["reason"][0])
        rest = table.filter((pl.col("system") == f"s{index}") & (pl.col("case") != "w_00"))
        assert all("missing" in text for text in rest["reason"])
    truth = table.filter(pl.col("system") == "truth")
    assert truth["value"].is_not_null().all()


def test_another_frame_rate_can_be_taken(made: Manifest, tmp_path: Path):
    spoil(tmp_path, made, "rate")
    words = ["run", made.root, "--metrics", "sharpness", "--out", tmp_path / "out", "--convert"]
    assert bench(*words, "--system", f"s={tmp_path}") == 0
    table = rows(tmp_path / "out").filter((pl.col("system") == "s") & (pl.col("case") == "w_00"))
    # 50 frames at 30 a second are 1.67 s of 2: within what chunks and codecs may round
    assert table["value"].is_not_null().all(), table["reason"].to_list()


def test_a_changed_file_costs_its_case_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    made = make_manifest(tmp_path / "w")
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
    made: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for words, text in (
        (("run", tmp_path, "--out", tmp_path), "no manifest at"),
        (("run", made.root, "--out", tmp_path, "--system", "x"), "expected name=FOLDER"),
        (("run", made.root, "--out", tmp_path, "--metrics", "nothing"), "no metric 'nothing'"),
        (("run", made.root, "--out", tmp_path, "--workers", "0"), "--workers is 1 or more"),
        (("merge", tmp_path, "--out", tmp_path), "holds no run"),
    ):
        assert bench(*words) == 2
        error = capsys.readouterr().err
        assert text in error
        assert error.strip().splitlines()[-1].startswith("avatar-v-eval: error")


def test_our_pipeline_is_a_system(made: Manifest, weights: Path, tmp_path: Path):
    words = ["run", made.root, "--metrics", "sharpness", "--out", tmp_path, "--shard", "1/3"]
    assert bench(*words, "--system", f"ours=pipeline:{weights}") == 0
    own = rows(tmp_path).filter(pl.col("system") == "ours")
    assert own.height == 1
    assert own["value"].is_not_null().all(), own["reason"][0]
    (video,) = (tmp_path / "videos").rglob("w_00.mp4")
    assert len(read_video(video)) == 50


def test_sensitivity_is_a_result_file(made: Manifest, tmp_path: Path):
    words = ["sensitivity", made.root, "--metrics", *FEW_METRICS, "--out", tmp_path]
    assert bench(*words) == 0
    result = read_result(tmp_path / "sensitivity_w.json")
    moved = {key: number.value for key, number in result.numbers.items()}
    assert len(moved) == 7 * 4
    assert moved["sync_world_offset_late"] == pytest.approx(1.0, abs=0.4)  # of three cases
    assert moved["mouth_r_crf18"] < moved["mouth_r_late"]
    assert moved["face_world_crf18"] < moved["face_world_crf28"]
    assert all(number.n == 3 for number in result.numbers.values())


def test_the_list_of_metrics(capsys: pytest.CaptureFixture[str]):
    assert bench("metrics") == 0
    text = capsys.readouterr().out
    assert "sync_world_c" in text
    assert "needs --weights syncnet=PATH: syncnet_v2.model" in text


@pytest.mark.parametrize("command", ["cases", "run", "merge", "metrics", "sensitivity"])
def test_help_imports_nothing_heavy(command: str):
    program = (
        "import sys\nfrom avatar_v_eval.cli import main\n"
        f"try:\n    main([{command!r}, '--help'])\nexcept SystemExit as end:\n"
        "    assert not end.code\n"
        "heavy = {'torch', 'numpy', 'polars', 'av', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"usage: avatar-v-eval {command}" in done.stdout


@pytest.mark.parametrize("document", ["README.md", "eval/README.md"])
def test_documented_commands_parse(document: str):
    text = (ROOT / document).read_text(encoding="utf-8")
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines = [line.split("  #")[0] for line in lines if line.startswith("avatar-v-eval ")]
    assert len(lines) >= 2
    for line in lines:
        cli.build_parser().parse_args(shlex.split(line)[1:])
