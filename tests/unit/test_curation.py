"""The data engine's own decisions: which spans, who is who, what is kept."""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from avatar_v.faces.syncnet_crop import CropPlan
from avatar_v.safety.moderation import picture_scores, read_labels
from avatar_v.types import SAMPLES_PER_FRAME
from avatar_v_data.curation.clips import ClipFinder, ClipStage, longest_cover
from avatar_v_data.curation.content import ContentStage
from avatar_v_data.curation.heads import boxes_between
from avatar_v_data.curation.parts import PartStage, windows
from avatar_v_data.curation.plan import PLANS, Limit, parse_plan, read_plan
from avatar_v_data.curation.samples import SampleStage
from avatar_v_data.curation.select import read_drops, select
from avatar_v_data.curation.shots import LATE, ShotStage
from avatar_v_data.curation.stages import (
    ALL,
    TICK,
    Clip,
    FootageRecording,
    Result,
    Seen,
)
from avatar_v_data.curation.sync import SyncStage
from avatar_v_data.curation.table import CurationResults
from avatar_v_data.import_plan import ImportPart
from avatar_v_eval.records import Number
from avatar_v_eval.studies.curation import _share
from avatar_v_eval.studies.curation_clips import _ratio, by_look, by_shot
from classifiers import picture_classifier
from curation_stubs import FILE, scores

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


def test_clips_chosen_together_bridge_what_single_limits_cut_at() -> None:
    stage, box = ClipStage(min_s=2.0, max_s=5.0, margin_s=0.0), [0.1, 0.1, 0.3, 0.5]
    lacks = (10, 40, 43)  # ticks without a face, of 12 s
    boxes = [None if tick in lacks else box for tick in range(60)]
    faces: Result = {"boxes": boxes, "counts": [int(b is not None) for b in boxes]}
    faces["sharpness"] = [99.0] * 60
    results: dict[str, Result] = {
        "shots": {"num_frames": 300, "shots": [[0, 300]]},
        "faces": faces,
        "speech": {"speech": [[0.0, 12.0]]},
    }
    assert by_look(stage, results) == [(0, 50), (55, 180), (220, 300)]
    assert by_shot(stage, results) == [(0, 100), (100, 200)], "the last has two of twenty without"
    finder = ClipFinder(stage, Seen(FILE, results))
    finder.decide(300, ended=True)
    spans = [(clip["start"], clip["stop"]) for clip in finder.columns["clips"]]
    assert sum(stop - start for start, stop in spans) == 295
    assert sum(b - a for a, b in by_look(stage, results)) == 255


def drawn_ticks(draw: random.Random, num: int) -> dict[str, Result]:
    """What shots, faces and speech say of so many ticks."""
    here, there = [0.1, 0.1, 0.3, 0.5], [0.6, 0.1, 0.8, 0.5]
    box, boxes = here, []
    for _ in range(num):
        box = (there if box is here else here) if draw.random() < 0.02 else box
        boxes.append(box if draw.random() < 0.95 else None)
    cuts = sorted(draw.sample(range(60, TICK * num - 60, 10), draw.randint(0, 3)))
    edges = [0, *cuts, TICK * num]
    shots = [list(pair) for pair in itertools.pairwise(edges)]
    spans = [[float(t), t + draw.choice([1.0, 4.0])] for t in range(0, num // 5, 3)]
    faces = {"counts": [int(b is not None) for b in boxes], "boxes": boxes}
    faces["sharpness"] = [99.0 for _ in boxes]
    whole = {"num_frames": TICK * num, "shots": shots}
    return {"shots": whole, "faces": faces, "speech": {"speech": spans}}


def test_clips_are_the_same_whether_looks_come_bit_by_bit_or_at_once() -> None:
    draw, stage = random.Random(3), ClipStage(min_s=2.0, max_s=4.0, good=0.8)
    num_found = 0
    for round_number in range(12):
        whole = drawn_ticks(draw, 300)
        at_once = ClipFinder(stage, Seen(FILE, dict(whole)))
        assert at_once.decide(0, ended=False) == ALL
        live = Seen(FILE, dict(whole))
        bit_by_bit = ClipFinder(stage, live)
        for num in range(TICK, 1501, TICK):
            closed = [shot for shot in whole["shots"]["shots"] if shot[1] <= num - LATE]
            is_known = round_number % 2  # from a run before, with other faces
            live.results["shots"] = whole["shots"] if is_known else {"shots": closed}
            live.results["faces"] = {k: v[: num // TICK] for k, v in whole["faces"].items()}
            before = len(bit_by_bit.columns["clips"])
            opened = bit_by_bit.decide(num, ended=False)
            assert num - opened < TICK * (2 * 20 + 1) + LATE + 10, "two clips are held at most"
        live.results.update(whole)
        bit_by_bit.decide(1500, ended=True)
        assert bit_by_bit.columns == at_once.columns
        assert before > 0, "clips are told of before the end"
        num_found += len(at_once.columns["clips"])
        for clip in at_once.columns["clips"]:
            start, stop = clip["start"], clip["stop"]
            assert any(a < start and stop < b for a, b in whole["shots"]["shots"])
            ticks = range(start // TICK, stop // TICK)
            boxes = [whole["faces"]["boxes"][tick] for tick in ticks]
            assert len({str(box) for box in boxes if box}) == 1, "a face that jumps is another's"
            assert sum(box is not None for box in boxes) >= 0.8 * len(boxes)
    assert num_found > 80


def test_parts_become_windows_as_frames_come() -> None:
    parts = (ImportPart("", "", "", "", 3, 30), ImportPart("", "", "", "", 40, None))
    for length in (39, 41, 60, 65, 68):
        reader = PartStage(8).begin(Seen(FootageRecording("", "", "", parts)))
        for num in range(TICK, length + 1, TICK):
            opened = reader.decide(num, ended=False)
            assert opened >= num - 2 * 8 or num < 8
        reader.decide(length, ended=True)
        expected = [3, 11, 19, 22] + windows(40, length, 8)[0]
        assert [clip["start"] for clip in reader.columns["clips"]] == expected
        why = windows(40, length, 8)[1]
        assert [row["reason"] for row in reader.columns["dropped"]] == ([why] if why else [])
    whole = PartStage(8).begin(Seen(FILE))
    whole.decide(20, ended=True)
    assert [clip["start"] for clip in whole.columns["clips"]] == [0, 8, 12], "no part: all of it"


class Read(list[torch.Tensor]):
    """A clip's frames, of which reading more than one gives ``found``."""

    def __init__(self, found: list[torch.Tensor] | Exception) -> None:
        super().__init__([torch.zeros(3, 8, 8, dtype=torch.uint8)] * 5)
        self.found = found

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice) and isinstance(self.found, Exception):
            raise self.found
        return self.found if isinstance(at, slice) else super().__getitem__(at)


def test_a_clip_that_cannot_be_made_is_a_row_and_what_the_machine_cannot_do_is_raised(
    tmp_path: Path,
) -> None:
    seen = Seen(FILE, files=tmp_path)
    seen.audio = torch.rand(20 * SAMPLES_PER_FRAME)
    reader = SampleStage(num_frames=5, size=16, face_crop=False).begin(seen)
    fine = [torch.zeros(3, 8, 8, dtype=torch.uint8)] * 5
    wider = [*fine[:4], torch.zeros(3, 8, 16, dtype=torch.uint8)]
    for number, found in enumerate((fine, wider, fine)):
        reader.clip(Clip(number, 5 * number, 5 * number + 5, Read(found)))
    assert reader.columns["clips"] == [{"samples": 1}, {"samples": 0}, {"samples": 1}]
    (row,) = reader.columns["rows"]
    assert (row["what"], row["frames"]) == ("dropped", "5-9"), "its pictures change their size"
    with pytest.raises(torch.OutOfMemoryError):
        reader.clip(Clip(3, 15, 20, Read(torch.OutOfMemoryError())))


def test_boxes_move_on_straight_lines_between_looks() -> None:
    boxes, seen = boxes_between([None, [0.0, 0.0, 0.2, 0.2], None, [0.4, 0.0, 0.6, 0.2]], 3, 18)
    assert seen == [2, 12]
    left = [0.0] * 3 + [0.04 * n for n in range(1, 11)] + [0.4] * 2
    assert boxes[:, 0].tolist() == pytest.approx(left)
    with pytest.raises(ValueError, match="no face between frames 0 and 5"):
        boxes_between([None, None], 0, 5)


def dissolving() -> Iterator[torch.Tensor]:
    """Two rooms, 40 frames each, from one to the other in ten frames and then at once."""
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


def test_a_dissolve_is_a_cut_too_and_a_shot_that_was_told_of_stays() -> None:
    reader = ShotStage().begin(Seen(FILE))
    told: list[list[int]] = []
    for number, frame in enumerate(dissolving()):
        reader.frame(number, frame)
        assert reader.columns["shots"][: len(told)] == told
        told = reader.columns["shots"]
    found = reader.finish()
    (start, slow), (_, fast), (_, stop) = found["shots"]
    assert found["shots"][:2] == told
    assert (start, stop, found["num_frames"]) == (0, 130, 130)
    assert fast == 90
    assert 40 <= slow <= 50


def test_syncnet_sees_the_faces_that_its_own_pipeline_cuts() -> None:
    frames = torch.randint(0, 255, (20, 3, 60, 80), generator=torch.Generator().manual_seed(0))
    found = [None, [0.2, 0.1, 0.6, 0.7], [0.3, 0.1, 0.7, 0.7], None]
    frames = frames.byte()
    seen = SyncStage(critic="syncnet_v2.model")._faces(frames, 0, found)
    boxes, _ = boxes_between(found, 0, 20)
    assert torch.equal(seen, CropPlan(boxes, 60, 80)(frames, 0))
    assert seen.shape == (20, 3, 224, 224)


def test_content_is_told_by_the_labels_of_a_classifier(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"content: .* lacks config.*Falconsai"):
        ContentStage(model=str(tmp_path)).weights()
    folder = str(picture_classifier(tmp_path / "model", "plain", "odd"))
    frames = torch.zeros(20, 3, 40, 50, dtype=torch.uint8)
    frames[15:] = 255
    stage = ContentStage(model=folder)
    rows = scores(stage, frames, (0, 10), (10, 20))
    assert list(rows[0]) == [f"content_{label}" for label in read_labels(folder, is_text=False)]
    dark, bright = (picture_scores(frames[i : i + 1], folder)[0] for i in (0, 19))
    assert list(rows[0].values()) == pytest.approx(dark.tolist(), abs=1e-4)
    assert list(rows[1].values()) == pytest.approx(dark.maximum(bright).tolist(), abs=1e-4)
    assert len(stage.weights()) > 8


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
    assert [c["scene"] for c in selection.lost["sharpness >= 5"]] == ["y2"]
    assert [c["scene"] for c in selection.lost["num_scenes >= 2"]] == ["y1", "z1"]
    with pytest.raises(ValueError, match="no column 'sharp'; expected one of seconds"):
        select(CurationResults(clips), "sft", {"sharp": Limit(min=1.0)})


def test_clips_that_hold_a_marked_fault_are_left_out(tmp_path: Path) -> None:
    """Of 0 to 0.2 s, 0.2 to 0.4 s and 0.4 to 0.6 s the second; touching is not holding."""
    clips = [clip("x", "x", 9) | {"start": 5 * n, "stop": 5 * n + 5} for n in range(3)]
    found = CurationResults(clips, shots={clips[0]["file"]: []})
    file = tmp_path / "drop.csv"
    row = f"{clips[0]['file']},{{}},{{}},teeth\n"
    file.write_text("file,start_s,stop_s,fault\n" + row.format(0.39, 0.4))
    selection = select(found, "a2v", {}, drops=read_drops(file))
    assert [one["start"] for one in selection.clips] == [0, 10]
    assert [step.what for step in selection.steps][2] == "no marked faults"
    with pytest.raises(ValueError, match=r"of no recording of this run: b\.mp4"):
        select(found, "a2v", {}, drops={"b.mp4": [(0.0, 1.0)]})
    for start, stop in ((0.4, 0.4), ("nan", 1), ("x", 1), (-1, 1)):
        file.write_text("file,start_s,stop_s,fault\n" + row.format(start, stop))
        with pytest.raises(ValueError, match=r"drop\.csv, line 2"):
            read_drops(file)


SEEN = ("probe", "shots", "faces", "speech", "clips", "looks", "person", "content")
SCORED = {"stages": {name: {} for name in SEEN}, "limits": {"t2v": {"content_nsfw": {"max": 0.3}}}}


def grouped_by(groups: dict[str, list[float]]) -> dict[str, Any]:
    known: dict[str, list[float]] = {"kind_light": [], "seconds": [5.0], "person": []}
    return {"balance": {"t2v": {"clips": 9, "groups": known | groups}}}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "plan.yaml is an object"),
        ({"stages": {"shot": {}}}, r"stages: unknown keys \['shot'\]; nearest: shots"),
        ({"stages": {"clips": {}}}, "stage clips needs faces, shots, speech"),
        ({"stages": {"probe": {}, "shots": {"threshold": "high"}}}, "threshold is a finite number"),
        ({"stages": {"probe": {}}, "limits": {"sft": {"x": {"maxi": 1}}}}, "nearest: max"),
        ({"stages": {}, "tiers": {}}, r"unknown keys \['tiers'\]"),
        ({"stages": {}, "resources": {"sync": {}}}, "the plan has no stage 'sync'"),
        ({"stages": {"probe": {}}, "resources": {"probe": {"cpus": 0}}}, "part of a processor"),
        ({"stages": {}, "balance": {"sft": {"clips": 9}}}, "balance: no tier 'sft' in limits"),
        ({"stages": {}, "grouping": {"same_person": {}}}, "same_person names a column"),
        (
            SCORED | {"limits": {"t2v": {"movment": {"min": 1}}}},
            "limits: t2v: no column 'movment'; nearest: movement",
        ),
        (SCORED | {"limits": {"t2v": {"sync_drift": {"max": 1}}}}, "'sync_drift' is .* stage sync"),
        (SCORED | {"limits": {"t2v": {"person": {"max": 1}}}}, "no column 'person'"),
        (SCORED | {"limits": {"t2v": {"kind_light": {"max": 1}}}}, "no column 'kind_light'"),
        (SCORED | grouped_by({"gaze": []}), "balance: t2v: groups: no column 'gaze'"),
        (SCORED | grouped_by({"kind_pace": []}), "'kind_pace' is given by the stage words"),
        (SCORED | {"grouping": {"same_person": {"face": 0.4, "voice": 1}}}, "the stage voice"),
        (SCORED | {"grouping": {"same_video": {"sharpness": 1}}}, "same_video: no column"),
    ],
)
def test_a_wrong_plan_is_one_error(values: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_plan(values, where="plan.yaml")


def test_limits_name_what_stages_and_persons_give() -> None:
    names = ("seconds", "num_scenes", "num_partners", "face_share", "good", "content_nsfw")
    values = SCORED | {"limits": {"t2v": {name: {} for name in names}}} | grouped_by({})
    assert tuple(parse_plan(values, where="plan.yaml").limits["t2v"]) == names


def test_plans_that_ship_can_be_read() -> None:
    nums = {path.stem: len(read_plan(path.stem).stages) for path in PLANS.glob("*.yaml")}
    assert nums == {"people": 12, "world": 12, "world_faults": 15, "film_faults": 14}
    for name in ("nothing", "../plans/world"):
        with pytest.raises(ValueError, match=r"no plan .*people, world"):
            read_plan(name)


def test_recordings_without_a_kind_are_no_units_of_its_share() -> None:
    parts, none = [(20, 100), (60, 100), (90, 100)], [(0, 0)] * 21
    found = _share([*parts, *none], "taken")
    assert found == _share(parts, "taken")
    assert (found.n, found.value, found.label) == (3, pytest.approx(170 / 300), "taken")
    assert _share([(20, 100), *none], "x") == Number(0.2, 1, label="x")
    assert _share(none, "x") == Number(0.0, 0, label="x")
    table = np.array([*parts, *none], float)
    assert _ratio(table) == _ratio(np.array(parts, float))
    assert _ratio(table).n == 3
    assert _ratio(table[3:]) == Number(0.0, 0)
    less = np.array([(20, 100, 0, 0), (0, 0, 10, 50), (0, 0, 0, 0)], float)
    assert (_ratio(less).n, _ratio(less).value) == (2, pytest.approx(0.0))
