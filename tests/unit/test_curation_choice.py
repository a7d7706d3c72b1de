"""From a run's results to shards: what a tier takes, moves and drops, with stages that are told."""

import json
import re
import shutil
from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path
from typing import Any

import polars
import pytest
import torch

from avatar_v.shards.loader import read_clip, read_folder
from avatar_v.shards.schema import to_int16
from avatar_v.types import SAMPLES_PER_FRAME
from avatar_v_data.curation import run
from avatar_v_data.curation.curated import Curated
from avatar_v_data.curation.plan import CurationPlan, Limit
from avatar_v_data.curation.reconcile import desired
from avatar_v_data.curation.run import choose, perform_all
from avatar_v_data.curation.samples import SampleStage
from avatar_v_data.curation.select import split_tiers, write_clips
from avatar_v_data.curation.stages import FootageRecording, Reader, Seen, Stage
from avatar_v_data.curation.table import CurationResults
from avatar_v_data.import_plan import groups_of, read_manifest
from clip_files import clip_file

LENGTH = 5
"""Frames of a clip."""
OFFSETS = (-1, 0, -2)
"""Of the three clips; of the last nobody is sure."""
LOOKS = {"sharpness": 1.0, "background": [None], "thumbnail": [0, 0, 0]}


@dataclass(frozen=True)
class Told(Stage):
    """Says of every recording what it is made with."""

    says: Any = None

    def begin(self, seen: Seen) -> Reader:
        return Reader(self.says)


def told(name: str, **says: Any) -> Stage:
    own = {"name": name, "version": 1, "reads": "file"}
    return make_dataclass(name, [], bases=(Told,), namespace=own, frozen=True)(says)


def spans() -> list[dict[str, Any]]:
    """The last one shows another person."""
    faces = ([1.0, 0.0], [1.0, 0.0], [0.0, 1.0])
    return [
        {"start": LENGTH * n, "stop": LENGTH * (n + 1), **LOOKS, "face": face}
        for n, face in enumerate(faces)
    ]


SYNC = [
    {"sync_offset": offset, "sync_confidence": sure}
    for offset, sure in zip(OFFSETS, (5.0, 4.0, 1.0), strict=True)
]
WORDS = [
    {"words": [["before", 0.0, 0.02, 0.5], ["well", 0.1, 0.19, 0.9], ["then", 0.21, 0.25]]},
    {"words": []},
    {"words": [["and", 0.38, 0.44, 0.9], ["on", 0.5, 0.69, 0.9], ["after", 0.6, 0.7, 0.9]]},
]
"""The sound of the first clip is late by a frame, of 40 ms."""
SAMPLES = SampleStage(LENGTH, 16, face_crop=False, sure=3.0)
PLAN = CurationPlan(
    (
        told("probe"), told("shots", num_frames=15, shots=[[0, 15]]),
        told("speech", loudness=[0.0] * 15), told("clips", clips=spans()),
        told("sync", clips=SYNC), told("words", clips=WORDS), SAMPLES,
    ),
    limits={"a2v": {"sync_confidence": Limit(min=3.0)}, "t2v": {"sharpness": Limit(min=0.0)}},
)  # fmt: skip


@pytest.fixture
def curated(tmp_path: Path) -> Curated:
    """One recording, whose name is not its path, and whose second clip is silent."""
    draw = torch.Generator().manual_seed(0)
    video = torch.randint(0, 255, (15, 3, 16, 16), generator=draw, dtype=torch.uint8)
    sound = torch.rand(15 * SAMPLES_PER_FRAME, generator=draw)
    sound[LENGTH * SAMPLES_PER_FRAME : 2 * LENGTH * SAMPLES_PER_FRAME] = 0
    (tmp_path / "in").mkdir()
    path = clip_file(tmp_path / "in" / "a\tb.mkv", video, sound)
    tasks = desired(PLAN, [FootageRecording.of(Path(path), "a b.mkv")])
    whole = Curated(tmp_path / "run", tmp_path / "in", PLAN, tuple(tasks))
    perform_all(PLAN, tasks, whole.store, 1, None, lambda done, num: None)
    return whole


def test_shards_and_manifest_move_the_same_sound_and_what_is_dropped_is_told(
    curated: Curated, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="choose a folder beside"):
        choose(curated, curated.footage / "out")
    _, (a2v, t2v) = choose(curated, tmp_path / "out")
    assert (a2v.num_samples, t2v.num_samples) == (1, 2)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    row = {"file": "a b.mkv", "frames": "5-9", "reason": "the audio is silent"}
    assert report["dropped"] == {"a2v": [row], "t2v": [row]}
    assert (tmp_path / "out" / "t2v" / "t2v-000000.tar").is_file()
    rows = [json.loads(line) for line in (tmp_path / "out" / "t2v.jsonl").open()]
    assert [row["sound_late"] for row in rows] == [1, 0, 0], "as far as samples were sure"
    manifest, copy = tmp_path / "out" / "t2v.jsonl", tmp_path / "a b.mkv"
    shutil.copyfile(curated.tasks[0].recording.path, copy)
    assert len(read_manifest(manifest, tmp_path)["a b.mkv"]) == 3
    with pytest.raises(ValueError, match="at 25 a second, and the import makes 30: import with"):
        read_manifest(manifest, tmp_path, 30)
    with copy.open("ab") as file:
        file.write(b"1")
    with pytest.raises(ValueError, match=r"t2v\.jsonl, line 1: .*a b\.mkv has .* another file"):
        read_manifest(manifest, tmp_path)
    first, last = (read_clip(clip).audio for clip in read_folder(tmp_path / "out" / "t2v"))
    said = [read_clip(clip).meta.transcript for clip in read_folder(tmp_path / "out" / "t2v")]
    assert said == ["well then", "and on"]
    sound = Seen(curated.tasks[0].recording).audio
    (start, stop), samples = (1, LENGTH + 1), SAMPLES_PER_FRAME
    assert torch.equal(first, to_int16(sound[start * samples : stop * samples]))
    assert torch.equal(last, to_int16(sound[2 * LENGTH * samples :]))
    assert len(list((tmp_path / "out" / "watch").glob("*.mp4"))) == 3, "by its path"
    page = (tmp_path / "out" / "report.html").read_text()
    dropped = page[page.index("Dropped by sync_confidence &gt;= 3") :]
    assert re.search(r"person-\w+: sync_confidence 1, .*sync_offset -2, .*num_scenes 0", dropped)
    assert ": 2 clips, 1 scene, face at most 0.000 apart" in page
    files = re.findall(r"img src='([^']+)'", page)
    assert len(files) == 4, "the two clips of a person, in each tier"
    assert all((tmp_path / "out" / file).is_file() for file in files)
    without = replace(PLAN, stages=PLAN.stages[:-1])
    assert (without.sure("a2v"), without.sure("t2v")) == (3.0, None)


def test_validation_is_of_whole_persons(
    curated: Curated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="needs two or more who share no recording; got 1"):
        choose(curated, tmp_path / "out", ["t2v"], validation=0.5)  # of two in one recording
    monkeypatch.setattr(run, "groups_of", lambda shown: {one: one for _, one in shown})
    choose(curated, tmp_path / "out", ["t2v"], validation=0.5, consent="signed")
    rows = [json.loads(line) for line in (tmp_path / "out" / "t2v.jsonl").open()]
    assert {(row["consent"], row.get("licence")) for row in rows} == {("signed", None)}
    split_of = {row["person"]: row["split"] for row in rows}
    for split in ("train", "validation"):
        (sample,) = read_folder(tmp_path / "out" / "t2v" / split)
        assert split_of[sample.person] == split
    letters = "abcdefghijklmnopqrst"
    tiers = {"t2v": letters, "a2v": letters[:10], "sft": letters[:4], "none": ""}
    alone = {letter: letter for letter in letters}
    splits = split_tiers(tiers, 0.25, 3, alone)
    count = {tier: sum(splits[p] == "validation" for p in own) for tier, own in tiers.items()}
    assert count == {"t2v": 5, "a2v": 2, "sft": 1, "none": 0}
    both = {"t2v": "ab", "a2v": "cd"}
    trained = [
        person for person, split in split_tiers(both, 0.5, 0, alone).items() if split == "train"
    ]
    with pytest.raises(ValueError, match="all 2 persons of tier sft are drawn for train"):
        split_tiers(both | {"sft": trained}, 0.5, 0, alone)
    shown = [("1.mp4", "a"), ("1.mp4", "b"), ("2.mp4", "b"), ("2.mp4", "c"), ("3.mp4", "d")]
    assert groups_of(shown) == {"a": "a", "b": "a", "c": "a", "d": "d"}
    splits = split_tiers({"t2v": "abd"}, 0.5, 0, groups_of(shown))
    assert splits["a"] == splits["b"] == splits["c"] != splits["d"], "c without a sample, too"


def test_a_column_may_be_empty_in_many_clips(tmp_path: Path) -> None:
    clips = [{"file": "a", "start": n, "stop": n + 1, "lag": None} for n in range(150)]
    found = CurationResults([*clips, {**clips[0], "lag": 0.5}])
    write_clips(tmp_path / "clips.parquet", found, [])
    assert polars.read_parquet(tmp_path / "clips.parquet")["lag"].to_list()[-1] == 0.5


def test_without_sync_one_warning_says_that_late_sound_stays(
    curated: Curated, tmp_path: Path
) -> None:
    stages = tuple(stage for stage in PLAN.stages if stage.name != "sync")
    plan = replace(PLAN, stages=stages, limits={"t2v": {}})
    with pytest.warns(UserWarning, match="late sound stays late in t2v"):
        choose(replace(curated, plan=plan), tmp_path / "out")


@pytest.mark.parametrize("sure", [None, 4.0])
def test_a_tier_that_takes_what_samples_leave_late_is_refused(sure: float | None) -> None:
    with pytest.raises(
        ValueError, match=r"a2v: sync_confidence >= 3 takes .* lower sure .* or raise the limit"
    ):
        replace(PLAN, stages=(*PLAN.stages[:-1], replace(SAMPLES, sure=sure)))


def test_an_interrupt_leaves_no_shards_and_the_same_call_does_it_all(
    curated: Curated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = run.write_shards

    def stopped(out: Path, name: str, *rest: Any, **words: Any) -> None:
        true(out, name, *rest, **words)
        if name == "t2v":
            raise KeyboardInterrupt

    monkeypatch.setattr(run, "write_shards", stopped)
    with pytest.raises(KeyboardInterrupt):
        choose(curated, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*2v*/"))
    monkeypatch.undo()
    choose(curated, tmp_path / "out", ["t2v"])
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    with pytest.raises(ValueError, match="holds a selection already"):
        choose(curated, tmp_path / "out", ["a2v"])
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before
    choose(curated, tmp_path / "both")
    assert len(list((tmp_path / "both").glob("*2v/*.tar"))) == 2


@pytest.mark.parametrize("ending", [".tar", ".index.json"])
def test_samples_whose_file_is_lost_are_made_again(
    curated: Curated, tmp_path: Path, ending: str
) -> None:
    (path,) = curated.store.files.glob(f"*{ending}")
    before = path.read_bytes()
    path.unlink()
    with pytest.raises(ValueError, match=r"1 recording not finished, a b\.mkv first"):
        choose(curated, tmp_path / "out")
    perform_all(PLAN, curated.tasks, curated.store, 1, None, lambda done, num: None)
    assert path.read_bytes() == before
