"""The data engine's leader and store: what is made, kept, made anew, and after which deaths."""

import dataclasses
import json
import math
import random
import re
from collections import deque
from pathlib import Path

import polars
import pytest

from avatar_v_data.curation import engine
from avatar_v_data.curation.clips import ClipStage
from avatar_v_data.curation.engine import MOST_DEATHS, Workers, run_passes
from avatar_v_data.curation.local import Here, Processes
from avatar_v_data.curation.plan import CurationPlan, Resources
from avatar_v_data.curation.probe import ProbeStage
from avatar_v_data.curation.reconcile import CurationTask, desired, missing
from avatar_v_data.curation.run import curate, perform_all
from avatar_v_data.curation.shots import ShotStage
from avatar_v_data.curation.stages import FAILED, FootageRecording, Result
from avatar_v_data.curation.store import CurationStore, Row, unkept
from avatar_v_data.curation.table import collect
from curation_stubs import Count, Double, Last, recordings

PLAN = CurationPlan((Count(), Double()))
NAMES = [stage.name for stage in PLAN.stages]
GPU = Resources(gpus=1.0)


def make(plan: CurationPlan, store: CurationStore, *names: str, workers: int = 1) -> list[Result]:
    """The results of all stages of all recordings, in order."""
    tasks = desired(plan, recordings(*names))
    perform_all(plan, tasks, store, workers, None, lambda done, num: None)
    return [CurationStore(store.folder).result(task.key) for task in tasks]


def test_a_setting_names_its_own_results_and_those_behind_it_anew() -> None:
    names = recordings("a", "b")
    before = {(t.stage.name, t.recording.name): t.key for t in desired(PLAN, names)}
    other = {
        (t.stage.name, t.recording.name): t.key
        for t in desired(CurationPlan((Count(add=1), Double())), names)
    }
    assert not set(before.values()) & set(other.values())
    changed = [names[0], dataclasses.replace(names[1], state="2")]
    later = {(t.stage.name, t.recording.name): t.key for t in desired(PLAN, changed)}
    assert {k for k in before if before[k] == later[k]} == {("count", "a"), ("double", "a")}
    assert len(set(before.values())) == 4


def test_stages_share_a_pass_unless_another_kind_of_worker_comes_between() -> None:
    plan = CurationPlan((Count(), Double(), Last()), resources={"double": GPU})
    tasks = desired(plan, recordings("a"))
    found = list(missing(plan, tasks, set()))
    assert [(list(one.keys), list(one.inputs), one.kind.gpus) for one in found] == [
        (["count"], [], 0),
        (["double"], ["count"], 1),
        (["last"], ["count", "double"], 0),
    ]
    rest = list(missing(plan, tasks, {tasks[1].key}))
    assert [list(one.keys) for one in rest] == [["count", "last"]]
    (one,) = missing(CurationPlan(plan.stages), tasks, set())
    assert list(one.keys) == ["count", "double", "last"]


def test_every_kind_of_worker_gets_its_stages(tmp_path: Path) -> None:
    plan = CurationPlan((Count(), Double(), Last()), resources={"double": GPU})
    with pytest.warns(UserWarning, match="without --ray .* no effect"):
        results = make(plan, CurationStore(tmp_path), "a", "bb")
    assert [result["sum"] for result in results[2::3]] == [3, 6]


class Killed(BaseException):
    """The leader's end."""


def test_a_leader_that_is_killed_at_any_time_comes_to_the_same_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "FLUSH_S", 0.0)
    names = ("a", "bb", "ccc", "bad", "odd")
    whole = make(PLAN, CurationStore(tmp_path / "whole"), *names)
    draw, tasks = random.Random(1), desired(PLAN, recordings(*names))

    class Dying(Here):
        def outcomes(self, timeout_s: float) -> list[engine.Outcome]:
            found = super().outcomes(timeout_s)
            if draw.random() < 0.4:
                raise Killed
            return found

    num_runs, made = 0, 0
    while True:
        store = CurationStore(tmp_path / "broken")
        left = list(missing(PLAN, tasks, store.finished()))
        if not left:
            break
        num_runs += 1
        try:
            made += run_passes(left, store, Dying(PLAN.stages, tmp_path), 1).done
        except Killed:
            continue
    assert num_runs > 2
    assert [store.result(task.key) for task in tasks] == whole


def test_a_recording_that_fails_is_a_result_and_so_is_what_depends_on_it(tmp_path: Path) -> None:
    store = CurationStore(tmp_path)
    results = make(PLAN, store, "bad", "odd", "a")
    assert results[0] == results[1] == {FAILED: "count: holds no frames"}
    why = "count: its result cannot be kept: Out of range float values"
    assert all(result[FAILED].startswith(why) for result in results[2:4])
    assert results[4] == {"letters": 1, "none": None}
    assert results[5] == {"twice": 2, "clips": [{"a": 1}, {"a": 2}]}
    with CurationStore(tmp_path).locked():
        again = CurationStore(tmp_path)
        again.forget_failures()
        assert len(again.finished()) == 2


def test_a_pass_that_kills_its_workers_is_given_up_and_the_rest_is_made(tmp_path: Path) -> None:
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    plan = CurationPlan((Count(deaths=str(deaths)), Double()))
    why = f"its worker died {MOST_DEATHS} times (memory?)"
    killers = ("deadly", "burnt")
    results = make(plan, CurationStore(tmp_path / "run"), "a", *killers, "bb", workers=2)
    assert results[2:4] == results[4:6] == [{FAILED: f"{name}: {why}"} for name in NAMES]
    assert [results[n]["twice"] for n in (1, 7)] == [2, 4]
    assert len(list(deaths.iterdir())) == 2 * MOST_DEATHS
    for path in deaths.iterdir():
        path.unlink()
    once = CurationPlan((Count(deaths=str(deaths), most=1), Double()))
    results = make(once, CurationStore(tmp_path / "once"), "deadly", "a", workers=2)
    assert results[1]["twice"] == 12, "a worker's death alone is no fault of a recording"


def test_what_a_machine_cannot_do_ends_the_run_and_the_rest_is_stored(tmp_path: Path) -> None:
    """A disk, at one file: what needs that file's results waits, too. Memory is the file's own."""
    plan = CurationPlan((Count(), Double(), Last()), resources={"double": GPU})
    store, names = CurationStore(tmp_path), ("full", "a", "bb", "big")
    with pytest.raises(OSError, match="no space left"), pytest.warns(UserWarning, match="--ray"):
        make(plan, store, *names)
    fresh = CurationStore(tmp_path)
    left = [(task.recording.name) for task in desired(plan, recordings(*names))
            if task.key not in fresh.finished()]  # fmt: skip
    assert left == ["full"] * 3
    (why,) = {result[FAILED] for result in fresh.results("count").values() if FAILED in result}
    assert why == f"count: there was too little memory {MOST_DEATHS} times"
    with pytest.raises(OSError, match="no space left"):
        make(PLAN, CurationStore(tmp_path / "all"), *(f"full{n}" for n in range(50)), "a")
    assert not CurationStore(tmp_path / "all").finished(), "a machine that can do nothing ends it"


def test_stages_need_what_others_have_made(tmp_path: Path) -> None:
    store, tasks = CurationStore(tmp_path), desired(PLAN, recordings("a"))
    with pytest.raises(ValueError, match="--stages lacks count, whose result is not there"):
        perform_all(PLAN, tasks[1:], store, 1, None, lambda done, num: None)
    for own in (tasks[:1], tasks[1:]):
        perform_all(PLAN, own, store, 1, None, lambda done, num: None)
    assert store.result(tasks[1].key)["twice"] == 2


def test_a_run_says_how_far_it_is_though_nothing_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "FLUSH_S", 0.0)
    said: list[float] = []

    class Slow(Here):
        def outcomes(self, timeout_s: float) -> list[engine.Outcome]:
            said.append(json.loads((tmp_path / engine.STATUS_FILE).read_text())["updated"])
            return super().outcomes(timeout_s) if len(said) > 3 else []

    tasks = desired(PLAN, recordings("a"))
    run_passes(missing(PLAN, tasks, set()), CurationStore(tmp_path), Slow(PLAN.stages, tmp_path), 1)
    assert said[0] < said[1] < said[2]


def test_workers_never_have_more_than_they_can_take(tmp_path: Path) -> None:
    most: list[int] = []

    class Watched(Here):
        def outcomes(self, timeout_s: float) -> list[engine.Outcome]:
            most.append(len(self._jobs))
            return super().outcomes(timeout_s)

    workers: Workers = Watched(PLAN.stages, tmp_path)
    tasks = desired(PLAN, recordings(*(f"{n}" for n in range(20))))
    run_passes(missing(PLAN, tasks, set()), CurationStore(tmp_path), workers, 3)
    assert max(most) == 3 * engine.IN_HAND


# The store


def test_a_second_leader_is_refused(tmp_path: Path) -> None:
    store = CurationStore(tmp_path)
    with CurationStore(tmp_path).locked():
        assert store.is_led()
        with (
            pytest.raises(ValueError, match="another process works on this run"),
            store.locked(),
        ):
            pass
    assert not store.is_led()


@pytest.mark.parametrize("text", [b"", b"PAR1", b"\0" * 99])
def test_a_damaged_part_is_named_and_made_again(tmp_path: Path, text: bytes) -> None:
    """As a machine that went dark, a disk or a hand leaves it; by the leader and nobody else."""
    whole = make(PLAN, CurationStore(tmp_path), "a", "bb")
    (path,) = tmp_path.glob("results/count/*.parquet")
    path.write_bytes(text)
    with pytest.warns(UserWarning, match="1 part of results missing until curate goes on"):
        assert len(CurationStore(tmp_path).finished()) == 2
    assert path.is_file()
    with pytest.warns(UserWarning, match=re.escape(f"1 part of results made again, since {path}")):
        assert make(PLAN, CurationStore(tmp_path), "a", "bb") == whole


def test_a_part_of_another_version_is_made_again(tmp_path: Path) -> None:
    CurationStore(tmp_path)._write("count", polars.DataFrame({"key": ["a"], "letters": [1]}))
    with pytest.warns(UserWarning, match="is of another version"):
        make(PLAN, CurationStore(tmp_path), "a")


@pytest.mark.parametrize("value", [math.nan, math.inf, {1, 2}])
def test_what_json_does_not_know_is_never_kept(value: object) -> None:
    assert unkept({"clips": [{"sync": value}]})
    assert unkept({"box": (1, 2)}) == "it is another one as JSON"
    assert unkept({"boxes": [None, [0.5, 1]], "clips": [{"a": 1}, {"b": "2"}], "note": None}) == ""


def test_many_parts_are_joined_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("avatar_v_data.curation.store.MOST_PARTS", 4)
    monkeypatch.setattr("avatar_v_data.curation.store.LARGEST_PART", 6)
    store, drawn = CurationStore(tmp_path), random.Random(0)
    order: deque[int] = deque(range(30))
    store.commit([Row("count", "first", "first", {FAILED: "count: why"})])
    others = [CurationStore(tmp_path) for _ in range(3)]
    assert all(other.finished() == {"first"} for other in others)
    while order:
        some = [order.popleft() for _ in range(min(drawn.randint(1, 3), len(order)))]
        store.commit([Row("count", f"k{n}", f"r{n}", {"n": n}, 0.5) for n in some])
    assert others[0].result("first") == {FAILED: "count: why"}, "its part is another one by now"
    assert others[1].results("count")["k29"] == {"n": 29}
    assert others[2].costs("count", ["first"]) == (0, 1, 0, 0.0)
    store.commit([Row("after", "none", "first", {FAILED: "count: why"})])
    assert store.costs("after", ["none"]) == (0, 0, 1, 0.0), "the stage before it failed"
    store.forget_failures()
    fresh = CurationStore(tmp_path)
    assert fresh.finished() == {f"k{n}" for n in range(30)}
    assert all(fresh.result(f"k{n}") == store.result(f"k{n}") == {"n": n} for n in range(30))
    assert len(list(tmp_path.glob("results/count/*.parquet"))) < 10
    assert fresh.costs("count", [f"k{n}" for n in range(20)]) == (20, 0, 0, 10.0)


def test_processes_come_to_the_results_of_one(tmp_path: Path) -> None:
    names = ("a", "bb", "bad", "cc", "d")
    alone = make(PLAN, CurationStore(tmp_path / "1"), *names)
    assert make(PLAN, CurationStore(tmp_path / "2"), *names, workers=2) == alone
    assert Processes(PLAN.stages, tmp_path).outcomes(0.0) == []


def test_a_recording_that_ends_before_its_header_says_is_named(tmp_path: Path) -> None:
    said = {
        "probe": {"height": 96, "seconds": 8.0},
        "shots": {"num_frames": 100, "shots": []},
        "clips": {"clips": []},
    }
    store, file = CurationStore(tmp_path), FootageRecording("x", "x", "")
    store.commit([Row(name, name, "x", result) for name, result in said.items()])
    stages = ProbeStage(), ShotStage(), ClipStage()
    found = collect([CurationTask(stage, file, stage.name, {}) for stage in stages], store)
    assert found.ends_early == {"x": "holds 4.0 s of the 8.0 s in its header"}
    assert not found.failed


def test_a_call_that_is_refused_changes_nothing_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "films").mkdir()
    (tmp_path / "films" / "a.mp4").write_bytes(b"film")
    store = CurationStore(tmp_path / "run")
    (store.folder / "run.json").write_text("its footage and its plan")
    with store.locked(), pytest.raises(ValueError, match="another process works on this run"):
        curate(tmp_path / "films", store.folder, "world")
    assert (store.folder / "run.json").read_text() == "its footage and its plan"
