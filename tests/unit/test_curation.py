"""The data engine's own decisions: which spans, which results, who is who, what is kept."""

import dataclasses
import itertools
import json
import math
import os
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from avatar_v.faces.syncnet_crop import CropPlan
from avatar_v.safety.moderation import picture_scores, read_labels
from avatar_v_data.curation import store as stores
from avatar_v_data.curation.captions import CaptionStage
from avatar_v_data.curation.clips import longest_cover, same_face_runs
from avatar_v_data.curation.content import ContentStage
from avatar_v_data.curation.copies import copies
from avatar_v_data.curation.heads import boxes_between
from avatar_v_data.curation.people import group_backgrounds, group_faces
from avatar_v_data.curation.plan import PLANS, CurationPlan, Limit, parse_plan, read_plan
from avatar_v_data.curation.reconcile import desired, reconcile
from avatar_v_data.curation.select import select
from avatar_v_data.curation.shots import ShotStage
from avatar_v_data.curation.stages import FootageRecording, Result
from avatar_v_data.curation.store import FAILED, MOST_DEATHS, CurationStore, DamagedError
from avatar_v_data.curation.sync import SyncStage
from avatar_v_data.curation.table import CurationResults, collect
from classifiers import captioner, picture_classifier


@dataclass(frozen=True)
class Count:
    """A stage that counts the letters of the file's name."""

    add: int = 0

    name: ClassVar[str] = "count"
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ()

    def weights(self) -> str:
        return ""

    def run(self, recording: FootageRecording, results: Mapping[str, Result]) -> Result:
        if recording.name == "bad":
            raise ValueError(f"{recording.path}: holds no frames")
        if recording.name == "odd":
            return {"letters": math.nan}
        return {"letters": len(recording.name) + self.add}


@dataclass(frozen=True)
class Double:
    """One that needs it."""

    name: ClassVar[str] = "double"
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("count",)

    def weights(self) -> str:
        return ""

    def run(self, recording: FootageRecording, results: Mapping[str, Result]) -> Result:
        return {"twice": 2 * results["count"]["letters"]}


PLAN = CurationPlan((Count(), Double()), {})


def recordings(*names: str) -> list[FootageRecording]:
    return [FootageRecording(f"/{name}", name, "1") for name in names]


# Which spans


def test_the_cover_is_the_longest_of_all() -> None:
    draw = random.Random(0)
    for _ in range(60):
        num = draw.randint(1, 9)
        one = np.array([draw.choice([0.0, 1.0, 1.0]) for _ in range(num)])
        spoken = np.array([draw.random() for _ in range(num)])
        limits = (draw.choice([0.6, 1.0]), draw.choice([0.0, 0.5]))

        def good(a: int, b: int, one=one, spoken=spoken, limits=limits) -> bool:
            means = (one[a:b].mean(), spoken[a:b].mean())
            return all(m >= limit - 1e-9 for m, limit in zip(means, limits, strict=True))

        spans = [
            (a, b) for a in range(num) for b in range(a + 2, min(a + 4, num) + 1) if good(a, b)
        ]
        apart = [
            some
            for size in range(len(spans) + 1)
            for some in itertools.combinations(spans, min(size, 4))
            if all(a[1] <= b[0] for a, b in itertools.pairwise(some))
        ]
        best = max((sum(b - a for a, b in some), -len(some)) for some in apart)
        found = longest_cover(one, spoken, limits, 2, 4)
        assert all(good(a, b) and 2 <= b - a <= 4 for a, b in found)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(found))
        assert (sum(b - a for a, b in found), -len(found)) == best


def test_a_face_that_jumps_ends_a_run() -> None:
    here, there = [0.1, 0.1, 0.3, 0.3], [0.6, 0.1, 0.8, 0.3]
    near = [0.12, 0.1, 0.32, 0.3]
    assert same_face_runs([here, None, near, there, there], 0, 5) == [(0, 3), (3, 5)]


def test_boxes_move_on_straight_lines_between_looks() -> None:
    boxes, seen = boxes_between([None, [0.0, 0.0, 0.2, 0.2], None, [0.4, 0.0, 0.6, 0.2]], 3, 18)
    assert seen == [2, 12]
    left = [0.0] * 3 + [0.04 * n for n in range(1, 11)] + [0.4] * 2
    assert boxes[:, 0].tolist() == pytest.approx(left)
    with pytest.raises(ValueError, match="no face between frames 0 and 5"):
        boxes_between([None, None], 0, 5)


class Dissolving(FootageRecording):
    """Two rooms, 40 frames each, from one to the other in ten frames and then at once."""

    def frames(self):
        generator = torch.Generator().manual_seed(0)
        rooms = [255 * torch.rand(3, 4, 6, generator=generator) for _ in range(3)]
        first, second, third = (
            room.repeat_interleave(16, 1).repeat_interleave(16, 2) for room in rooms
        )
        shares = [0.0] * 40 + [n / 11 for n in range(1, 11)] + [1.0] * 40
        for share in shares:
            yield ((1 - share) * first + share * second).byte()
        for _ in range(40):
            yield third.byte()


def test_a_dissolve_is_a_cut_too() -> None:
    found = ShotStage().run(Dissolving("", "", ""), {})
    (start, slow), (_, fast), (_, stop) = found["shots"]
    assert (start, stop, found["num_frames"]) == (0, 130, 130)
    assert fast == 90
    assert 40 <= slow <= 50


def test_syncnet_sees_the_faces_that_its_own_pipeline_cuts() -> None:
    frames = torch.randint(0, 255, (20, 3, 60, 80), generator=torch.Generator().manual_seed(0))
    faces = {"boxes": [None, [0.2, 0.1, 0.6, 0.7], [0.3, 0.1, 0.7, 0.7], None]}
    frames = frames.byte()
    seen = SyncStage(critic="syncnet_v2.model")._faces(frames, 0, {"faces": faces})
    boxes, _ = boxes_between(faces["boxes"], 0, 20)
    assert torch.equal(seen, CropPlan(boxes, 60, 80)(frames, 0))
    assert seen.shape == (20, 3, 224, 224)


def test_a_captioner_says_the_same_of_the_same_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network of random weights, with the processor that is stored beside it."""
    with pytest.raises(ValueError, match=r"no config.json .* it takes a model of transformers"):
        CaptionStage(model=str(tmp_path)).weights()
    captioner(tmp_path)
    frames = torch.zeros(30, 3, 40, 50, dtype=torch.uint8)
    frames[20:, 0] = 255
    monkeypatch.setattr(FootageRecording, "frames", lambda self: iter(frames))
    clips = [{"start": 0, "stop": 20}, {"start": 20, "stop": 30}, {"start": 5, "stop": 15}]
    stage = CaptionStage(model=str(tmp_path), prompt="a person", max_tokens=6)
    found = stage.run(FootageRecording("x", "x", ""), {"clips": {"clips": clips}})["clips"]
    first, second, third = (row["caption"] for row in found)
    assert "a person" in first
    assert first == third != second
    weights = stage.weights()
    (tmp_path / "generation_config.json").write_text("{}")
    assert stage.weights() != weights


def test_content_is_told_by_the_labels_of_a_classifier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"content: .* lacks config.*Falconsai"):
        ContentStage(model=str(tmp_path)).weights()
    folder = str(picture_classifier(tmp_path / "model", "plain", "odd"))
    frames = torch.zeros(20, 3, 40, 50, dtype=torch.uint8)
    frames[15:] = 255
    monkeypatch.setattr(FootageRecording, "frames", lambda self: iter(frames))
    clips = [{"start": 0, "stop": 10}, {"start": 10, "stop": 20}]
    stage = ContentStage(model=folder)
    rows = stage.run(FootageRecording("x", "x", ""), {"clips": {"clips": clips}})["clips"]
    assert list(rows[0]) == [f"content_{label}" for label in read_labels(folder, is_text=False)]
    dark, bright = (picture_scores(frames[i : i + 1], folder)[0] for i in (0, 19))
    assert list(rows[0].values()) == pytest.approx(dark.tolist(), abs=1e-4)
    assert list(rows[1].values()) == pytest.approx(dark.maximum(bright).tolist(), abs=1e-4)
    assert len(stage.weights()) > 8


# Which results


def test_a_setting_names_its_own_results_and_those_behind_it_anew() -> None:
    names = recordings("a", "b")
    before = {(t.stage.name, t.recording.name): t.key for t in desired(PLAN, names)}
    other = {
        (t.stage.name, t.recording.name): t.key
        for t in desired(CurationPlan((Count(add=1), Double()), {}), names)
    }
    assert not set(before.values()) & set(other.values())
    changed = [names[0], dataclasses.replace(names[1], state="2")]
    later = {(t.stage.name, t.recording.name): t.key for t in desired(PLAN, changed)}
    assert {k for k in before if before[k] == later[k]} == {("count", "a"), ("double", "a")}
    assert len(set(before.values())) == 4


def test_workers_that_are_killed_at_any_time_come_to_the_same_results(tmp_path: Path) -> None:
    tasks = desired(PLAN, recordings("a", "bb", "ccc", "bad"))
    whole = CurationStore(tmp_path / "whole")
    assert reconcile(tasks, whole) == 8

    class Killed(BaseException):
        pass

    draw, store = random.Random(1), CurationStore(tmp_path / "broken")

    def stops() -> bool:
        if draw.random() < 0.3:
            raise Killed
        return False

    made = 0
    for _ in range(100):
        finished = store.finished()
        done = [task for task in tasks if task.key in finished]
        assert all(task.is_ready(finished) for task in done), "nothing before what it needs"
        if len(done) == len(tasks):
            break
        try:
            made += reconcile(tasks, store, is_stopping=stops)
        except Killed:
            continue
    assert store.finished() == whole.finished() == {task.key for task in tasks}
    for task in tasks:
        name, key = task.stage.name, task.key
        assert store.result(name, key) == whole.result(name, key)
    assert not list((store.folder / "claims").iterdir())


def test_a_recording_that_fails_is_a_result_and_so_is_what_depends_on_it(tmp_path: Path) -> None:
    tasks, store = desired(PLAN, recordings("bad")), CurationStore(tmp_path)
    reconcile(tasks, store)
    for task in tasks:
        assert store.result(task.stage.name, task.key) == {FAILED: "count: holds no frames"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_never_kept(tmp_path: Path, value: float) -> None:
    store = CurationStore(tmp_path)
    with pytest.raises(ValueError, match="JSON compliant"):
        store.commit("count", "k", {"clips": [{"sync": value}]})
    assert store.finished() == set()


def test_a_result_that_is_no_number_is_a_failure_and_the_rest_is_made(tmp_path: Path) -> None:
    tasks, store = desired(PLAN, recordings("odd", "a")), CurationStore(tmp_path)
    assert reconcile(tasks, store) == 4
    results = [store.result(task.stage.name, task.key) for task in tasks]
    why = "count: its result cannot be kept: Out of range float values"
    assert all(result[FAILED].startswith(why) for result in results[:2])
    assert results[2:] == [{"letters": 1}, {"twice": 2}]


def test_a_claim_is_taken_from_the_dead_and_from_no_one_else(tmp_path: Path, monkeypatch) -> None:
    store = CurationStore(tmp_path, patience_s=5.0)
    with store.claim("k") as mine, store.claim("k") as other:
        assert (mine, other) == (True, False)
    claim = tmp_path / "claims" / "k"
    claim.write_text(json.dumps(["elsewhere", 1]))
    with store.claim("k") as mine:
        assert not mine, "touched just now by another machine"
    os.utime(claim, (time.time() - 60,) * 2)
    with store.claim("k") as mine:
        assert mine
    assert not claim.exists()
    claim.write_text(json.dumps([stores._machine(), 1 << 22]))  # a process that is none
    with store.claim("k") as mine:
        assert mine
    assert store.deaths("k") == 0, "a machine that is taken away says nothing of a task"
    claim.write_text(json.dumps([stores._machine(), 1 << 22]))
    store.died(1 << 22)
    assert (store.deaths("k"), claim.exists()) == (1, False)


def test_what_kills_its_workers_is_given_up_and_the_rest_is_made(tmp_path: Path) -> None:
    tasks, store = desired(PLAN, recordings("a", "bb")), CurationStore(tmp_path)
    for number in range(MOST_DEATHS):
        (tmp_path / "claims" / f"{tasks[0].key}.died.{number}").touch()
    reconcile(tasks, store)
    results = [store.result(task.stage.name, task.key) for task in tasks]
    assert results[0] == results[1] == {FAILED: "count: its worker died 3 times (memory?)"}
    assert results[2:] == [{"letters": 2}, {"twice": 4}]
    store.forget_damaged(failures=True)
    assert reconcile(tasks, store) == 2
    assert store.result(tasks[1].stage.name, tasks[1].key) == {"twice": 2}


@pytest.mark.parametrize(
    "text", ["", "[]", '{"letters": ["a"]}', '{"letters": 1, "crc32": 0}', "\0"]
)
def test_a_damaged_result_is_named_and_made_again(tmp_path: Path, text: str) -> None:
    """As a machine that went dark, a disk or a hand leaves it."""
    tasks, store = desired(PLAN, recordings("a", "bb")), CurationStore(tmp_path)
    reconcile(tasks, store)
    path = tmp_path / "results" / "count" / f"{tasks[0].key}.json"
    path.write_text(text)
    with pytest.raises(DamagedError, match=re.escape(str(path))):
        store.result("count", tasks[0].key)
    with pytest.warns(UserWarning, match=re.escape(f"1 result made again, since {path}")):
        store.forget_damaged()
    assert reconcile(tasks, store) == 1
    path.write_text(text)  # behind the first look, when a result that needs it is not there
    (tmp_path / "results" / "double" / f"{tasks[1].key}.json").unlink()
    with pytest.warns(UserWarning, match="made again"):
        assert reconcile(tasks, store) == 2
    assert store.result("double", tasks[1].key) == {"twice": 2}
    path.write_text(text)
    assert collect(tasks[:1], store).unfinished == ["a"]


def test_a_result_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch) -> None:
    done: list[str] = []
    for name in ("fsync", "replace"):
        true = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, _n=name, _t=true: (done.append(_n), _t(*a))[1])
    CurationStore(tmp_path).commit("count", "k", {"letters": 1})
    assert done == ["fsync", "replace"]


def test_a_claim_that_holds_nothing_is_nobodys(tmp_path: Path) -> None:
    store = CurationStore(tmp_path)
    for text in ("", "5", "[]", '["x", null]'):
        (tmp_path / "claims" / "k").write_text(text)
        os.utime(tmp_path / "claims" / "k", (time.time() - 60,) * 2)
        with store.claim("k") as mine:
            assert mine


# Who is who


def unit(degrees: float) -> np.ndarray:
    return np.array([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))])


def test_a_chain_of_look_alikes_is_not_one_person() -> None:
    faces = np.stack([unit(angle) for angle in (0, 90, 5, 20, 40, 95)])
    same = 2 * np.sin(np.radians(30) / 2)  # 30 degrees
    groups = group_faces(faces, same)
    assert groups == [0, 1, 0, 0, 2, 1]
    assert group_faces(faces[:1], same) == [0]
    assert group_faces(faces[:0], same) == []


def test_backgrounds_are_compared_where_both_are_seen() -> None:
    plain = [[100.0, 100.0, 100.0], None, [50.0, 50.0, 50.0]]
    behind = [[104.0, 100.0, 100.0], [0.0, 0.0, 0.0], None]
    other = [[200.0, 100.0, 0.0], None, [50.0, 50.0, 50.0]]
    assert group_backgrounds([plain, other, behind], same=5.0) == [0, 1, 0]


def test_the_better_copy_stays() -> None:
    generator = torch.Generator().manual_seed(0)
    sound = torch.randn(200, generator=generator).numpy()
    other = torch.randn(200, generator=generator).numpy()
    pictures = np.full((4, 12), 80.0)
    pictures[2] += 40
    sounds = [sound[37:], sound + 0.1, sound, other]
    found = copies(pictures, sounds, [2.0, 3.0, 4.0, 5.0], same_picture=6.0, same_sound=0.8)
    assert found == {0: 1}, "another picture, and another sound, are no copies"


# What is kept


def clip(person: str, scene: str, sharp: float, copy_of: str = "") -> dict:
    return {
        "file": "a.mp4",
        "seconds": 2.0,
        "sharpness": sharp,
        "person": person,
        "scene": scene,
        "copy_of": copy_of,
    }


def test_scenes_are_counted_when_all_other_limits_have_passed() -> None:
    clips = [
        clip("x", "x1", 9),
        clip("x", "x2", 9),
        clip("y", "y1", 9),
        clip("y", "y2", 1),
        clip("z", "z1", 9),
        clip("z", "z2", 9, copy_of="a.mp4:0-5"),
    ]
    limits = {"num_scenes": Limit(min=2.0), "sharpness": Limit(min=5.0)}
    selection = select(CurationResults(clips, footage_s=60.0), "sft", limits)
    assert [c["scene"] for c in selection.clips] == ["x1", "x2"]
    assert [step.clips for step in selection.steps] == [0, 6, 5, 4, 2]
    assert not selection.moves_sound
    with pytest.raises(ValueError, match="no column 'sharp'; expected one of seconds"):
        select(CurationResults(clips), "sft", {"sharp": Limit(min=1.0)})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "plan.yaml is an object"),
        ({"stages": {"shot": {}}}, "unknown stage 'shot'; expected one of probe, shots"),
        ({"stages": {"clips": {}}}, "stage clips needs faces, shots, speech"),
        ({"stages": {"probe": {}, "shots": {"threshold": "high"}}}, "threshold is a finite number"),
        ({"stages": {"probe": {}}, "limits": {"sft": {"x": {"low": 1}}}}, "unknown keys"),
        ({"stages": {}, "tiers": {}}, "unknown key 'tiers'"),
    ],
)
def test_a_wrong_plan_is_one_error(values: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_plan(values, where="plan.yaml")


def test_plans_that_ship_can_be_read() -> None:
    for path in PLANS.glob("*.yaml"):
        assert len(read_plan(path.stem).stages) == 8
    for name in ("nothing", "../plans/world"):
        with pytest.raises(ValueError, match=r"no plan .*people, world"):
            read_plan(name)
