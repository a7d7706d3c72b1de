"""The data engine's store of results: which are made, kept, made anew, and by which worker."""

import dataclasses
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

import pytest

from avatar_v_data.curation import store as stores
from avatar_v_data.curation.plan import CurationPlan
from avatar_v_data.curation.reconcile import desired, reconcile
from avatar_v_data.curation.stages import FootageRecording, Result
from avatar_v_data.curation.store import FAILED, MOST_DEATHS, CurationStore, DamagedError
from avatar_v_data.curation.table import collect


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
