"""Raw footage → clips → shards: `avatar-v-data footage`, `curate`, `select` and `import`."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from avatar_v.critics.sync import distance_table, embed_clip, sync_score
from avatar_v.critics.world_sync import WorldSyncNet
from avatar_v.media import reading
from avatar_v.shards.loader import read_clip, read_folder
from avatar_v_data.cli import main
from avatar_v_data.curation.curated import opened
from avatar_v_data.curation.select import is_number

SHOTS = {"recording-000.mp4": ["late", "talk"], "recording-001.mp4": ["blurred", "talk"]}

ONCE = """
stages:
  {probe: {}, prints: {beforehand: false}, shots: {}, faces: {}, speech: {},
   clips: {min_s: 2.0, max_s: 9.0, speech: 0.7}, looks: {}, person: {critic: world}}
limits: {all: {sharpness: {min: 0}}}
grouping: {same_person: {face: 0.9}}
"""


def run(*words: str) -> int:
    return main(words)


@pytest.mark.faces
def test_footage_becomes_shards_of_people_who_speak(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    footage, work, out = tmp_path / "footage", tmp_path / "work", tmp_path / "selected"
    words = ["footage", "--out", str(footage), "--recordings", "2", "--seconds", "9"]
    words += ["--persons", "2", "--split", "test", "--first", "9800", "--seed", "82"]
    assert run(*words) == 0
    truth = [json.loads(line) for line in (footage / "truth.jsonl").open()]
    assert {row["file"]: [shot["kind"] for shot in row["shots"]] for row in truth} == SHOTS
    (footage / "broken.mp4").write_bytes(b"no video" * 99)
    (footage / "cover.jpg").write_bytes(b"a picture beside the recordings is none")
    (footage / "shared.mp4").write_bytes((footage / "recording-001.mp4").read_bytes())

    decoded: Counter[str] = Counter()
    true = reading.decoded

    def counted(container: object, stream: Any, path: Path) -> Iterator[object]:
        for frame in true(container, stream, path):
            decoded[f"{Path(path).name} {stream.type}"] += 1
            yield frame

    monkeypatch.setattr(reading, "decoded", counted)
    curate = ["curate", str(footage), "--out", str(work), "--plan", "world"]
    assert run("select", str(tmp_path), "--out", str(out)) == 2
    assert "no file" in capsys.readouterr().err
    assert run(*curate, "--stages", "probe", "shots") == 0
    assert run("select", str(work), "--out", str(out)) == 2
    assert "4 recordings not finished" in capsys.readouterr().err
    assert not out.exists()
    assert run(*curate) == 0
    told = capsys.readouterr().out
    assert "left out: broken.mp4: probe: not a readable media file" in told
    assert "left out: shared.mp4: prints: shows what recording-001.mp4 shows" in told
    frames = {name: shots[-1]["stop"] for name, shots in ((r["file"], r["shots"]) for r in truth)}
    for name, num in frames.items():
        assert 2 * num <= decoded[f"{name} video"] <= 3 * num + 6, "shots alone, prints, the rest"
    assert decoded["shared.mp4 audio"] == 0, "a copy is heard by none"
    run_of = opened(work)
    for stage in run_of.plan.stages:
        keys = (task.key for task in run_of.tasks if task.stage == stage)
        rows = [r for k in keys for r in run_of.store.result(k).get("clips", ())]
        row = rows[0] if rows else {}
        given = [name for name, value in row.items() if is_number(value)]
        assert set(given) == set(stage.numbers), stage.name
        assert set(stage.vectors) <= set(row)
    results = {path: path.stat().st_mtime_ns for path in work.glob("results/*/*")}
    before = dict(decoded)
    assert run(*curate) == 0
    assert {path: path.stat().st_mtime_ns for path in work.glob("results/*/*")} == results
    assert decoded == before, "nothing is read twice"
    compared = (work / "left_out.json").stat().st_mtime_ns
    assert run("status", str(work)) == 0
    assert (work / "left_out.json").stat().st_mtime_ns == compared, "nothing is compared twice"
    (work / "left_out.json").write_text("[1")
    capsys.readouterr()
    assert run("status", str(work)) == 0
    said = capsys.readouterr().out
    assert "ended, last heard" in said
    assert "3 of 3 passes" in said

    assert run("select", str(work), "--out", str(out), "--tiers", "a2v") == 0
    said = capsys.readouterr().out
    assert f"next: avatar-v shards encode --shards {out}/a2v --out LATENTS" in said
    assert "next: avatar-v run recipes/2_a2v.yaml recipes/small.yaml --model.init_args" in said
    rows = [json.loads(line) for line in (out / "a2v.jsonl").open()]
    (late,) = (row for row in rows if row["sound_late"])
    shot = truth[0]["shots"][0]
    assert late["file"] == "recording-000.mp4"
    assert late["sound_late"] == shot["late"] == 8
    assert late["stop"] <= shot["stop"]
    blurred = truth[1]["shots"][0]
    after = [row["start"] for row in rows if row["file"] == "recording-001.mp4"]
    assert after, "the shot behind is sharp"
    assert min(after) >= blurred["stop"] - 10
    page = (out / "report.html").read_text()
    assert page.count("<video") >= len(rows)
    assert "sync_confidence &gt;= 0.4" in page
    files = re.findall(r"src='([^']+)'", page)
    assert files
    assert all(reading.probe(out / file).has_video for file in files)

    decoded.clear()
    (tmp_path / "once.yaml").write_text(ONCE)
    once = ["--out", str(tmp_path / "once"), "--plan", str(tmp_path / "once.yaml")]
    assert run("curate", str(footage), *once) == 0
    assert "left out: shared.mp4: prints: shows" in capsys.readouterr().out
    for name, num in {**frames, "shared.mp4": frames["recording-001.mp4"]}.items():
        assert num <= decoded[f"{name} video"] <= num + 3, "one decode, the probe's frames"
    assert run("select", str(tmp_path / "once"), "--out", str(tmp_path / "all")) == 0
    left_out = json.loads((tmp_path / "all" / "report.json").read_text())["left_out"]
    assert list(left_out) == ["shared.mp4"]
    chosen = {json.loads(line)["file"] for line in (tmp_path / "all" / "all.jsonl").open()}
    assert chosen == set(SHOTS)

    clips = read_folder(out / "a2v")
    assert {clip.person for clip in clips} == {row["person"] for row in rows}
    shards = tmp_path / "shards"
    words = ["import", str(footage), "--manifest", str(out / "a2v.jsonl"), "--out", str(shards)]
    assert run(*words, "--frames", "49", "--size", "64") == 0
    again = {clip.key: read_clip(clip) for clip in read_folder(shards)}
    assert list(again) == [clip.key for clip in clips]
    for clip in clips:
        sample = read_clip(clip)
        assert torch.equal(sample.audio, again[clip.key].audio)
        assert torch.equal(sample.landmarks, again[clip.key].landmarks)
        assert sample.meta == again[clip.key].meta
    critic = WorldSyncNet.from_pretrained()
    for clip in clips:
        sample = read_clip(clip)
        start = int(clip.key[-6:])
        assert any(row["start"] <= start and start + 49 <= row["stop"] for row in rows)
        audio = sample.audio.float() / 32768
        score = sync_score(distance_table(*embed_clip(critic, sample.video, audio)))
        assert abs(score.offset) <= 1, clip.key

    decoded.clear()
    who = rows[0]["person"]
    gone = {row["file"] for row in rows if row["person"] == who}
    assert run("revoke", str(work), str(out), "--person", who, "--apply") == 1, (
        "recordings are left"
    )
    for name in gone:
        (footage / name).touch()
    with pytest.warns(
        UserWarning, match=r"left out, since a person in them withdrew: .*delete these files"
    ):
        run(*curate)
    assert not [name for name in decoded if name.split()[0] in gone], "nobody comes back"
    assert {task.recording.name for task in opened(work).tasks} == set(SHOTS) - gone | {
        "broken.mp4", "shared.mp4",
    }  # fmt: skip


def test_wrong_words_are_one_error(tmp_path: Path, capsys) -> None:
    footage = tmp_path / "footage"
    footage.mkdir()
    (footage / "a.mp4").write_bytes(b"x")
    (tmp_path / "sound").mkdir()
    (tmp_path / "sound" / "a.WAV").write_bytes(b"x")
    silent = tmp_path / "silent.yaml"
    silent.write_text("stages: {probe: {}, shots: {}, faces: {}}")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    for words, message in (
        ([str(tmp_path / "none"), "--out", "x"], "no such folder"),
        ([str(footage), "--out", str(footage)], "choose a folder beside"),
        ([str(footage), "--out", str(footage / "sub" / "run")], "choose a folder beside"),
        ([str(footage), "--out", str(tmp_path / "other")], "holds something else"),
        ([str(tmp_path / "sound"), "--out", "x", "--plan", "world"], "only pictures and sound"),
        ([str(footage), "--out", "x", "--plan", "reel"], "no plan 'reel'"),
        ([str(footage), "--out", "x", "--plan", "people"], "syncnet_v2.model"),
        ([str(footage), "--out", "x", "--plan", "world", "--stages", "shot"], "no stage 'shot'"),
        ([str(footage), "--out", "x", "--plan", str(silent)], "no stage 'speech'"),
    ):
        assert run("curate", *words) == 2, message
        assert message in capsys.readouterr().err
    for words, message in (
        (["footage", "--recordings", "1", "--first", "999999"], "got start 999999"),
    ):
        assert run(*words, "--out", "x") == 2, message
        assert message in capsys.readouterr().err
    for words in (
        ["footage", "--recordings", "1", "--workers", "0"],
        ["world", "--clips", "2", "--clips-per-person", "2", "--workers", "0"],
    ):
        with pytest.raises(SystemExit, match="2"):
            run(*words, "--out", "x")
        assert "--workers: it is a whole number from 1" in capsys.readouterr().err
    assert not Path("x").exists()
    assert [path.name for path in footage.iterdir()] == ["a.mp4"]
