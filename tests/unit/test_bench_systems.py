"""bench/systems.py, cache.py, rows.py, summary.py: who delivers, what is kept, what is compared."""

import dataclasses
import math
import os
import shlex
import sys
from pathlib import Path

import pytest
import torch

from avatar_v.scoring.values import ScoreOutput, Values
from avatar_v_eval.bench.cache import Cache, measurement_key
from avatar_v_eval.bench.manifest import BenchManifest
from avatar_v_eval.bench.merge import merge_runs
from avatar_v_eval.bench.rows import (
    BenchRun,
    CaseRow,
    FrameRow,
    RunInfo,
    read_run,
    table,
    write_run,
)
from avatar_v_eval.bench.run import parse_shard, select_shard
from avatar_v_eval.bench.summary import summarise, unmeasured
from avatar_v_eval.bench.systems import TRUTH, Truth, parse_system, parse_systems
from avatar_v_eval.bench.world70 import DrawnSet
from avatar_v_eval.scoring.timing import NO_TIMING
from bench_cases import make_manifest

COPY = "import shutil, sys; shutil.copy(sys.argv[1], sys.argv[2])"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> BenchManifest:
    plan = DrawnSet(name="w", num_cases=2, num_frames=6, first=11, size=32)
    return make_manifest(tmp_path_factory.mktemp("made") / "w", plan)


def python(code: str, *words: str) -> str:
    return "command:" + shlex.join([sys.executable, "-c", code, *words])


def test_a_folder_delivers_refuses_or_lacks(made: BenchManifest, tmp_path: Path):
    system = parse_system(f"rival={tmp_path}", tmp_path, 9)
    first, second = made.cases
    assert system.deliver(made, first).reason == "missing: no w_00.mp4"
    (tmp_path / "w_00.mp4").write_text("x")
    assert system.deliver(made, first).path == (tmp_path / "w_00.mp4").resolve()
    (tmp_path / "w_00.webm").write_text("x")
    assert system.deliver(made, first).reason == "two videos: w_00.mp4, w_00.webm"
    (tmp_path / "w_01.txt").write_text("celebrity\n")
    assert system.deliver(made, second).reason == "refused: celebrity"
    (tmp_path / "w_01.txt").write_bytes("célébrité".encode("latin-1"))
    assert system.deliver(made, second).reason == "refused: c\ufffdl\ufffdbrit\ufffd"


def test_the_truth_is_a_system(made: BenchManifest):
    case = made.cases[0]
    assert Truth().deliver(made, case).path == made.path(case, "truth")
    without = dataclasses.replace(case, truth=None)
    assert Truth().deliver(made, without).reason == "the manifest has no truth of this case"


def test_a_command_makes_a_video_once(made: BenchManifest, tmp_path: Path):
    system = parse_system(f"x={python(COPY, '{reference}', '{out}')}", tmp_path / "v", 60)
    first = system.deliver(made, made.cases[0])
    assert first.path is not None
    assert first.path.read_bytes() == made.path(made.cases[0], "reference").read_bytes()
    first.path.write_bytes(b"kept")
    assert system.deliver(made, made.cases[0]).path == first.path
    assert first.path.read_bytes() == b"kept"
    other = dataclasses.replace(made.cases[0], prompt="a red hat")
    assert system.deliver(made, other).path != first.path  # asked for something else


def test_a_value_is_one_word_and_never_a_place(made: BenchManifest, tmp_path: Path):
    code = "import sys; open(sys.argv[2], 'w').write(sys.argv[1])"
    system = parse_system(f"x={python(code, '{prompt}', '{out}')}", tmp_path / "v", 60)
    prompt = "a 'red' hat; rm -rf / {out} $HOME"
    delivery = system.deliver(made, dataclasses.replace(made.cases[0], prompt=prompt))
    assert delivery.path is not None
    assert delivery.path.read_text() == prompt


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import sys; print('no'); sys.exit('celebrity')", "the command failed (1): celebrity"),
        ("import sys; sys.exit(3)", "the command failed (3): it said nothing"),
        (
            r"import sys; sys.stderr.buffer.write(b'caf\xe9'); sys.exit(1)",
            "the command failed (1): caf\ufffd",
        ),
        ("pass", "the command ended well and wrote no {out}"),
        ("import time; time.sleep(60)", "the command took more than 3 s"),
    ],
)
def test_a_command_that_fails_is_a_reason(
    made: BenchManifest, tmp_path: Path, code: str, reason: str
):
    timeout_s = 3 if "sleep" in code else 60
    system = parse_system(f"x={python(code, '{out}')}", tmp_path / "v", timeout_s)
    delivery = system.deliver(made, made.cases[0])
    assert (delivery.path, delivery.reason) == (None, reason)
    assert not list((tmp_path / "v").rglob("*.mp4"))


def test_a_program_that_cannot_be_run_is_a_reason(made: BenchManifest, tmp_path: Path):
    program = tmp_path / "no_first_line"
    program.write_text("echo hello\n")
    program.chmod(0o755)
    system = parse_system(f"x=command:{program} {{out}}", tmp_path / "v", 60)
    reason = system.deliver(made, made.cases[0]).reason
    assert reason == "the command could not be run: Exec format error"


def test_what_a_command_has_started_ends_with_its_time(made: BenchManifest, tmp_path: Path):
    """Else it goes on beside the next case, and takes its memory and processors."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    words = ["sh", "-c", f"(sleep 4; echo late) > {pipe}; exit 1", "{out}"]
    system = parse_system(f"x=command:{shlex.join(words)}", tmp_path / "v", 0.5)
    assert system.deliver(made, made.cases[0]).reason == "the command took more than 0.5 s"
    os.set_blocking(reader, True)
    with open(reader) as file:
        assert file.read() == "", "nothing is left that could write"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rival", "expected name=FOLDER"),
        ("a/b=/tmp", "expected name=FOLDER"),
        ("truth=/tmp", "is the real footage"),
        ("x=/no/such/folder", "no folder /no/such/folder"),
        ("x=command:no-such-program {out}", "there is no program 'no-such-program'"),
        ("x=command:", "there is no program"),
        (f"x={python('pass')}", "names no {out}"),
        (f"x={python('pass', '{out}', '{sound}')}", r"unknown \['sound'\]"),
        ("x=pipeline:nothing", "no weights 'nothing'"),
    ],
)
def test_systems_that_cannot_be(tmp_path: Path, text: str, words: str):
    with pytest.raises(ValueError, match=words):
        parse_system(text, tmp_path, 9)


def test_names_are_given_once(tmp_path: Path):
    with pytest.raises(ValueError, match="twice: x"):
        parse_systems([f"x={tmp_path}", f"x={tmp_path}"], tmp_path, 9)


def test_the_cache_measures_once_and_keeps_reasons(tmp_path: Path):
    calls = []

    def measure() -> Values:
        calls.append(1)
        return Values({"a": 0.1}, {"a": [(0, 0.1), (12, 0.5)]}, ("odd",))

    def fail() -> Values:
        calls.append(1)
        raise ValueError("no face\nin it")

    key = measurement_key("c", "v", "m", 1, "w")
    first = Cache(tmp_path).entry(key, measure)
    again = Cache(tmp_path).entry(key, measure)
    assert len(calls) == 1
    assert (first.cached, again.cached) == (False, True)
    assert dataclasses.replace(again, cached=False) == first
    assert first.values == {"a": 0.1}
    other = measurement_key("c", "v", "m", 2, "w")
    for _ in range(2):
        assert Cache(tmp_path).entry(other, fail).reason == "no face in it"
    assert len(calls) == 2
    (tmp_path / key[:2] / f"{key}.json").write_text("{")  # a power cut
    assert Cache(tmp_path).entry(key, measure).values == {"a": 0.1}
    keys = {measurement_key("c", "v", "m", 1, w, o) for w in "ab" for o in ("", "x")} | {key, other}
    assert len(keys) == 6


@pytest.mark.parametrize(
    ("ending", "content"), [("npy", b""), ("npy", b"\x93NUMPY\x01"), ("json", b"\xff\xfe")]
)
def test_a_damaged_entry_is_measured_anew(tmp_path: Path, ending: str, content: bytes):
    cache, key = Cache(tmp_path), measurement_key("c", "v", "m", 1, "w")
    cache.entry(key, lambda: Values({"a": 1.0}, rows=torch.ones(2, 3)))
    (tmp_path / key[:2] / f"{key}.{ending}").write_bytes(content)
    for _ in range(2):
        entry = cache.entry(key, lambda: Values({"a": 2.0}, rows=torch.zeros(2, 3)))
        assert (entry.values, entry.rows is not None) == ({"a": 2.0}, True)
    assert entry.cached


def test_a_number_that_is_none_is_a_reason_and_a_bug_ends_the_run(tmp_path: Path):
    entry = Cache(tmp_path).entry("k1", lambda: Values({"a": math.nan}))
    assert entry.reason == "a is nan, not a finite number"

    def bug() -> Values:
        raise KeyError("x")

    with pytest.raises(KeyError):
        Cache(tmp_path).entry("k2", bug)


def row(system: str, case: str, value: float | None, reason: str = "") -> CaseRow:
    return CaseRow(
        system=system,
        case=case,
        condition="cross",
        person="p",
        language="en",
        metric="m",
        output="m",
        value=value,
        reason=reason,
        notes="",
        version=1,
        judge="j",
        weights="w",
        video="v",
        seconds=0.1,
        cached=False,
    )


def run_of(rows: list[CaseRow], shard: str = "1/1", **changes) -> BenchRun:
    info = RunInfo(
        manifest="w",
        manifest_hash="h",
        content="",
        num_cases=3,
        shard=shard,
        convert=False,
        systems=dict.fromkeys(dict.fromkeys(r.system for r in rows), "s"),
        metrics={"m": "1 w"},
        outputs=(ScoreOutput("m", "the measure", "higher"),),
        left_out={},
        command="c",
        commit="c",
        date="d",
    )
    frames = [FrameRow(r.system, r.case, "m", "m", 0, r.value) for r in rows if r.value is not None]
    return BenchRun(
        dataclasses.replace(info, **changes), table(CaseRow, rows), table(FrameRow, frames)
    )


def test_only_matched_cases_are_compared():
    rows = [row("a", c, v) for c, v in (("c0", 1.0), ("c1", 2.0), ("c2", 9.0))]
    rows += [row("b", "c0", 3.0), row("b", "c1", 5.0), row("b", "c2", None, "refused: no")]
    rows += [row("c", c, None, "missing") for c in ("c0", "c1", "c2")]
    run = run_of(rows)
    (line,) = summarise(run, ["a", "b"])
    assert (line.num_matched, line.num_cases) == (2, 3)
    assert (line.means["a"].value, line.means["b"].value) == (1.5, 4.0)
    (line,) = summarise(run)
    assert (line.num_matched, list(line.means)) == (2, ["a", "b"])  # c has no number at all
    (line,) = summarise(run, ["c"])
    assert (line.num_matched, line.means) == (0, {})
    assert unmeasured(run) == [("c", "missing", "c0", 3), ("b", "refused: no", "c2", 1)]
    with pytest.raises(ValueError, match=r"no systems \['z'\]"):
        summarise(run, ["z"])


def test_only_what_makes_videos_is_asked_for_its_times():
    systems = {TRUTH: "the manifest", "frozen": "runs/controls/still", "rival": "videos/rival"}
    run = run_of([row(name, "c0", None, NO_TIMING) for name in systems], systems=systems)
    assert unmeasured(run) == [("rival", NO_TIMING, "c0", 1)]
    other = run_of([row(TRUTH, "c0", None, "no face")], systems=systems)
    assert unmeasured(other) == [(TRUTH, "no face", "c0", 1)]


def test_shards_merge_to_the_whole(tmp_path: Path):
    whole = [row(s, f"c{i}", float(i)) for i in range(3) for s in "ab"]
    parts = [
        run_of([r for r in whole if r.case in cases], f"{i}/2")
        for i, cases in ((1, ("c0", "c2")), (2, ("c1",)))
    ]
    for index, part in enumerate(parts):
        write_run(part, tmp_path / str(index))
    read = [read_run(tmp_path / str(index)) for index in range(2)]
    assert read[0].info == parts[0].info
    merged = merge_runs(read)
    keys = ["system", "case"]
    assert merged.cases.sort(keys).equals(run_of(whole).cases.sort(keys))
    assert merged.frames.height == 6
    assert merged.info.shard == "1/1"
    assert merge_runs([merged, *read]).cases.height == 6  # the same rows again
    command = {"a": "command:sh -c 'one; two' {out}", "b": "/here/b"}
    moved = [dataclasses.replace(part.info, systems=command) for part in parts]
    moved[1] = dataclasses.replace(moved[1], systems={**command, "b": "/there/b"})
    runs = [dataclasses.replace(part, info=info) for part, info in zip(parts, moved, strict=True)]
    assert merge_runs(runs).info.systems == {**command, "b": "/here/b; /there/b"}


def test_runs_that_do_not_fit_are_not_merged(tmp_path: Path):
    rows = [row("a", f"c{i}", 1.0) for i in range(3)]
    with pytest.raises(ValueError, match=r"a has 2 of 3 cases: a shard is missing"):
        merge_runs([run_of(rows[:2], "1/2")])
    with pytest.raises(ValueError, match="differ in metrics"):
        merge_runs([run_of(rows), run_of(rows, metrics={"m": "2 w"})])
    with pytest.raises(ValueError, match="differ in manifest_hash"):
        merge_runs([run_of(rows), run_of(rows, manifest_hash="other")])
    with pytest.raises(ValueError, match="two runs disagree on m of a, c1"):
        merge_runs([run_of(rows), run_of([rows[0], row("a", "c1", 2.0), rows[2]])])
    for one, other in (("pipeline:x:1", "pipeline:x:2"), ("command:x {out}", "videos/a")):
        shards = [(rows[:2], "1/2", one), (rows[2:], "2/2", other)]
        with pytest.raises(ValueError, match=f"differ in system a: {one} and {other}"):
            merge_runs([run_of(own, shard, systems={"a": of}) for own, shard, of in shards])
    again = [dataclasses.replace(r, metric="n", output="n", video="other") for r in rows]
    with pytest.raises(ValueError, match="differ in the video of a, c0: it was made anew"):
        merge_runs([run_of(rows), run_of(again, metrics={"n": "1 w"})])
    with pytest.raises(ValueError, match="holds no run"):
        read_run(tmp_path)


def test_shards_are_counted_from_one(made: BenchManifest):
    assert parse_shard("2/4") == (2, 4)
    for text in ("0/2", "3/2", "1", "a/b"):
        with pytest.raises(ValueError, match="expected i/n"):
            parse_shard(text)
    assert [case.id for case in select_shard(made.cases, (2, 2))] == ["w_01"]
    with pytest.raises(ValueError, match="3/3 of 2 cases is empty"):
        select_shard(made.cases, (3, 3))
