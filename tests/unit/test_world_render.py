"""Pictures of the world: determinism, sizes, what each motion component moves, ground truth."""

import dataclasses
import hashlib
import subprocess
import sys
import time

import pytest
import torch
from torch import Tensor

from avatar_v.types import MOTION_NAMES
from avatar_v.world.geometry import place, split_motion
from avatar_v.world.landmarks import LANDMARK_NAMES, NUM_LIP_POINTS
from avatar_v.world.person import Person, sample_person
from avatar_v.world.render import Rendered, render
from avatar_v.world.scene import Scene, sample_scene

_DIGEST = """
import sys, hashlib, torch
from avatar_v.world.person import sample_person
from avatar_v.world.render import render
from avatar_v.world.scene import sample_scene
motion = torch.linspace(-0.3, 0.3, 48).view(3, 16)
r = render(sample_person(12), sample_scene(34), motion, size=40, seed=5)
parts = (r.video, r.face_box, r.mouth_box, r.landmarks, r.valid)
print(hashlib.sha256(b"".join(p.numpy().tobytes() for p in parts)).hexdigest())
"""


def moved(num_frames: int = 1, /, **components: float) -> Tensor:
    """A motion track at rest with open eyes, but for ``components``."""
    motion = torch.zeros(num_frames, len(MOTION_NAMES))
    motion[:, MOTION_NAMES.index("eye_open")] = 1.0
    for name, value in components.items():
        motion[:, MOTION_NAMES.index(name)] = value
    return motion


def quiet_scene(scene_id: int = 3) -> Scene:
    """A scene without grain and drift, so that pictures differ by motion alone."""
    return dataclasses.replace(sample_scene(scene_id), grain=0.0, sway=0.0)


def plain_person(person_id: int = 5) -> Person:
    """A person with nothing over mouth and eyes."""
    person = sample_person(person_id)
    return dataclasses.replace(person, glasses="none", beard="none", hair_style="short")


def stack(*tracks: Tensor, person: Person | None = None, size: int = 64) -> Rendered:
    return render(person or plain_person(), quiet_scene(), torch.cat(tracks), size=size, seed=0)


def points(rendered: Rendered, frame: int, prefix: str) -> Tensor:
    """Pixels "k 2" of the landmarks whose names start with ``prefix``."""
    chosen = [k for k, name in enumerate(LANDMARK_NAMES) if name.startswith(prefix)]
    return rendered.landmarks[frame, chosen] * rendered.video.shape[-1]


def change(rendered: Rendered, a: int, b: int) -> Tensor:
    """Absolute difference of two frames in levels, "h w"."""
    return (rendered.video[a].float() - rendered.video[b].float()).abs().mean(dim=0)


def centroid(weight: Tensor) -> Tensor:
    """(x, y) of the middle of a map "h w", in pixels."""
    rows = torch.arange(weight.shape[0]) + 0.5
    columns = torch.arange(weight.shape[1]) + 0.5
    x = (weight.sum(dim=0) * columns).sum() / weight.sum()
    y = (weight.sum(dim=1) * rows).sum() / weight.sum()
    return torch.stack([x, y])


def test_same_bytes_in_another_process(capsys: pytest.CaptureFixture[str]) -> None:
    exec(_DIGEST, {})
    here = capsys.readouterr().out.strip()
    done = subprocess.run(
        [sys.executable, "-c", _DIGEST], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == here
    assert len(here) == len(hashlib.sha256().hexdigest())


def test_the_seed_is_the_grain_alone() -> None:
    args = (sample_person(1), sample_scene(2), moved())
    first, again = (render(*args, size=32, seed=1).video.int() for _ in range(2))
    other = render(*args, size=32, seed=2).video.int()
    assert torch.equal(first, again)
    difference = (first - other).abs()
    assert difference.max() > 0
    assert difference.max() <= 12  # grain is at most 1 level: 12 is six deviations each


def test_a_frame_does_not_depend_on_its_neighbours() -> None:
    track = torch.cat([moved(yaw=-0.4), moved(mouth_open=1.0, yaw=0.1), moved(pitch=0.2, roll=0.2)])
    together = stack(track).video
    alone = torch.cat([stack(track[k : k + 1]).video for k in range(3)])
    # windows differ, so a rim that leaves its window may lose one level
    assert (together.int() - alone.int()).abs().max() <= 1


@pytest.mark.parametrize(("size", "supersample"), [(32, 1), (40, 2), (64, 3), (128, 1)])
def test_sizes(size: int, supersample: int) -> None:
    rendered = render(
        sample_person(0), sample_scene(0), moved(2), size=size, seed=0, supersample=supersample
    )
    assert rendered.video.shape == (2, 3, size, size)
    assert rendered.landmarks.shape == (2, len(LANDMARK_NAMES), 2)
    boxes = torch.stack([rendered.face_box, rendered.mouth_box])
    assert bool(((boxes >= 0) & (boxes <= 1)).all())
    assert bool((boxes[..., 2:] > boxes[..., :2]).all())


def test_size_does_not_move_the_face() -> None:
    small, large = (stack(moved(yaw=0.2), size=size) for size in (32, 96))
    # same geometry in shares of the picture: float32 arithmetic in pixels, then divided
    torch.testing.assert_close(small.landmarks, large.landmarks, atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", [(64, 112), (112, 64)])
def test_a_wide_or_tall_picture_is_the_square_and_more_of_the_scene(size: tuple[int, int]) -> None:
    square, whole = (stack(moved(yaw=0.2), size=s) for s in (64, size))
    corner, part = torch.tensor([(n - 64) / 2 for n in size[::-1]]), torch.tensor(size[::-1])
    inside = (whole.landmarks * part - corner) / 64
    torch.testing.assert_close(inside, square.landmarks, atol=1e-5, rtol=0)
    top, left = ((n - 64) // 2 for n in size)
    face = whole.video[..., top + 16 : top + 48, left + 16 : left + 48].float()
    # the same face over another part of the backdrop
    assert float((face - square.video[..., 16:48, 16:48].float()).abs().mean()) < 2


@pytest.mark.parametrize(
    ("motion", "size", "supersample", "words"),
    [
        (torch.zeros(1, 16), 24, 2, "multiple of 8"),
        (torch.zeros(1, 16), 68, 2, "multiple of 8"),
        (torch.zeros(0, 16), 64, 2, "frames >= 1"),
        (torch.zeros(1, 15), 64, 2, "16 components"),
        (torch.full((1, 16), float("nan")), 64, 2, "finite"),
        (torch.zeros(1, 16), 64, 0, "supersample"),
    ],
)
def test_errors(motion: Tensor, size: int, supersample: int, words: str) -> None:
    person, scene = sample_person(0), sample_scene(0)
    with pytest.raises(ValueError, match=words):
        render(person, scene, motion, size=size, seed=0, supersample=supersample)


def test_ids_are_not_negative() -> None:
    with pytest.raises(ValueError, match="person id"):
        sample_person(-1)
    with pytest.raises(ValueError, match="scene id"):
        sample_scene(-1)


MOUTH = {
    "mouth_open": 0.8,
    "mouth_width": -1.0,
    "mouth_round": 1.0,
    "corner_raise": 1.0,
    "corner_asymmetry": 1.0,
}


@pytest.mark.parametrize(("name", "value"), MOUTH.items())
def test_lips_change_the_mouth_alone(name: str, value: float) -> None:
    rendered = stack(moved(), moved(**{name: value}))
    lips = torch.cat([points(rendered, k, "lip") for k in (0, 1)])
    left, top = (lips.amin(dim=0) - 3).int().tolist()
    right, bottom = (lips.amax(dim=0) + 3).int().tolist()
    difference = change(rendered, 0, 1)
    assert difference.max() > 15
    outside = difference.clone()
    outside[top : bottom + 1, left : right + 1] = 0
    if name == "corner_raise":  # a smile also lifts the lower lids
        eye_y = int(points(rendered, 0, "eye")[:, 1].max())
        assert outside[eye_y - 4 : eye_y + 5].max() > 3
        outside[eye_y - 4 : eye_y + 5] = 0
    assert outside.max() <= 3  # three pixels round the lips hold all but rounding


@pytest.mark.parametrize("name", ["teeth", "tongue"])
def test_teeth_and_tongue_show_in_an_open_mouth(name: str) -> None:
    rendered = stack(moved(mouth_open=0.7), moved(mouth_open=0.7, **{name: 1.0}))
    box = (rendered.mouth_box[0] * 64).int().tolist()
    difference = change(rendered, 0, 1)
    assert difference[box[1] : box[3], box[0] : box[2]].max() > 30
    shut = stack(moved(), moved(**{name: 1.0}))
    # nothing of them shows between closed lips
    assert change(shut, 0, 1).max() <= 1


def test_jaw_lengthens_the_lower_face() -> None:
    rendered = stack(moved(), moved(jaw=1.0))
    difference = change(rendered, 0, 1)
    nose_y = int(points(rendered, 0, "nose_tip")[0, 1])
    assert difference[: nose_y - 2].max() <= 2
    assert difference[nose_y:].max() > 15
    drop = points(rendered, 1, "chin") - points(rendered, 0, "chin")
    assert drop[0, 1] > 1.5


@pytest.mark.parametrize(
    ("name", "value", "prefix"),
    [
        ("eye_open", 0.0, "eye"),
        ("gaze_x", 1.0, "eye"),
        ("gaze_y", -1.0, "eye"),
        ("brow", 1.0, "brow"),
        ("brow", -1.0, "brow"),
    ],
)
def test_eyes_and_brows_change_the_upper_face(name: str, value: float, prefix: str) -> None:
    rendered = stack(moved(), moved(**{name: value}))
    difference = change(rendered, 0, 1)
    assert difference.max() > 12
    middle = points(rendered, 0, prefix).mean(dim=0)
    # half a feature's height: the change lies on it, not on the cheek or the hair
    assert (centroid(difference) - middle).abs().max() < 3.0


@pytest.mark.parametrize(
    ("name", "axis"), [("yaw", torch.tensor([1.0, 0.0])), ("pitch", torch.tensor([0.0, -1.0]))]
)
def test_turning_moves_the_nose_more_than_the_chin(name: str, axis: Tensor) -> None:
    """Parallax: near points move further, to the side that types.MOTION_NAMES says."""
    rendered = stack(moved(), moved(**{name: 0.3}))
    shift = {
        part: float((points(rendered, 1, part) - points(rendered, 0, part))[0] @ axis)
        for part in ("nose_tip", "eye_left_inner", "jaw_left")
    }
    assert shift["nose_tip"] > shift["eye_left_inner"] > 1.0
    assert shift["nose_tip"] > shift["jaw_left"]
    assert change(rendered, 0, 1).max() > 30


def test_roll_turns_the_eyes_clockwise() -> None:
    rendered = stack(moved(roll=0.3))
    eyes = points(rendered, 0, "eye")
    line = eyes[3] - eyes[0]
    # roll is rigid in the picture, so the line of the eyes turns by exactly that angle
    assert torch.atan2(line[1], line[0]).item() == pytest.approx(0.3, abs=1e-3)


@pytest.mark.parametrize("person_id", range(6))
def test_closures_close(person_id: int) -> None:
    rendered = stack(moved(), moved(mouth_open=1.0), person=sample_person(person_id))
    inner = points(rendered, 0, "lip_inner")
    assert float(inner[1, 1] - inner[0, 1]) == pytest.approx(0.0, abs=1e-3)
    gap = points(rendered, 1, "lip_inner")
    assert float(gap[1, 1] - gap[0, 1]) > 6.5  # a wide mouth opens by 6.5 pixels of 64 and more
    x, y = gap.mean(dim=0).int().tolist()
    dark = rendered.video[1, :, y, x].float().mean()
    skin = rendered.video[0].float().mean(dim=0)[y, x]
    assert dark < 0.6 * skin  # the cavity is dark where lip or chin was


@pytest.mark.parametrize("yaw", [-0.35, 0.0, 0.35])
def test_landmarks_lie_on_the_drawn_features(yaw: float) -> None:
    still = moved(yaw=yaw)
    rendered = stack(
        still,
        moved(yaw=yaw, mouth_open=0.8),
        moved(yaw=yaw, eye_open=0.0),
        person=plain_person(9),
        size=128,
    )
    mouth = centroid(change(rendered, 0, 1))
    lips = torch.cat([points(rendered, k, "lip_") for k in (0, 1)])
    assert bool((mouth > lips.amin(dim=0)).all() & (mouth < lips.amax(dim=0)).all())
    middle = 0.5 * (lips.amin(dim=0) + lips.amax(dim=0))
    assert (mouth - middle).abs().max() < 5.0  # of 128: a sixth of the mouth's width
    eyes = points(rendered, 0, "eye")
    assert (centroid(change(rendered, 0, 2)) - eyes.mean(dim=0)).abs().max() < 5.0


def test_the_chin_landmark_is_where_the_face_ends() -> None:
    rendered = stack(moved(), size=128)
    x, y = points(rendered, 0, "chin")[0].tolist()
    column = rendered.video[0].float().mean(dim=0)[:, round(x)]
    step = (column[2:] - column[:-2]).abs()
    near = range(round(y) - 4, round(y) + 5)
    edge = max(near, key=lambda row: float(step[row - 1]))
    assert abs(edge - y) <= 4


def test_boxes_hold_their_landmarks() -> None:
    rendered = stack(moved(), moved(yaw=0.3, roll=0.1), moved(jaw=1.0, mouth_open=1.0))
    lips = rendered.landmarks[:, :NUM_LIP_POINTS]
    torch.testing.assert_close(rendered.mouth_box[:, :2], lips.amin(dim=1))
    torch.testing.assert_close(rendered.mouth_box[:, 2:], lips.amax(dim=1))
    assert bool((rendered.face_box[:, None, :2] <= lips).all())
    assert bool((rendered.face_box[:, None, 2:] >= lips).all())
    height = rendered.face_box[:, 3] - rendered.face_box[:, 1]
    assert bool(((height > 0.70) & (height < 0.86)).all())  # the face fills the picture


@pytest.mark.parametrize("scene_id", range(4))
def test_a_covered_or_turned_face_is_not_valid(scene_id: int) -> None:
    tracks = [moved(), moved(cover=1.0), moved(yaw=1.2), moved(yaw=-1.2), moved(cover=0.1)]
    rendered = render(plain_person(), quiet_scene(scene_id), torch.cat(tracks), size=64, seed=0)
    assert rendered.valid.tolist() == [True, False, False, False, True]
    x, y = points(rendered, 0, "lip_").mean(dim=0).int().tolist()
    mouth = slice(y - 2, y + 3), slice(x - 6, x + 7)
    assert change(rendered, 0, 1)[mouth].mean() > 8  # the cover hides the mouth


def test_motion_outside_its_range_is_clamped() -> None:
    rendered = stack(moved(mouth_open=1.0), moved(mouth_open=7.0))
    assert torch.equal(rendered.video[0], rendered.video[1])


def test_persons_differ_and_are_correlated() -> None:
    persons = [sample_person(k) for k in range(300)]
    assert len({dataclasses.replace(p, id=0) for p in persons}) == len(persons)
    assert {p.hair_style for p in persons} >= {"bald", "short", "curly", "long", "bob"}
    assert {p.glasses for p in persons} == {"none", "round", "square", "half"}
    assert {p.beard for p in persons} >= {"none", "stubble", "full"}
    names = ("head_width", "eye_distance", "nose_width", "mouth_y", "upper_lip", "brow_y")
    looks = torch.tensor([[getattr(p, name) for name in names] for p in persons])
    correlation = torch.corrcoef(looks.T) - torch.eye(len(names))
    assert 0.25 < correlation.abs().max() < 0.9  # shared factors, but no look tells another


def test_speed_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Not a requirement: other processes share the machine. The number is for the reader."""
    start = time.process_time()
    stack(moved(16))
    rate = 16 / (time.process_time() - start)
    with capsys.disabled():
        print(f"\nworld.render: {rate:.0f} frames per CPU second at 64 px with shape checks")
    assert rate > 0


@pytest.mark.gpu
def test_a_gpu_draws_the_same_picture() -> None:
    args = (sample_person(4), sample_scene(6), moved(2, mouth_open=0.5, cover=0.2))
    here = render(*args, size=64, seed=0).video.int()
    there = render(*args, size=64, seed=0, device="cuda").video.cpu().int()
    # other rounding may flip a level, and an edge pixel may move a little more
    assert (here - there).abs().float().mean() < 0.05


def test_the_camera_drifts_by_the_amplitude_of_its_scene() -> None:
    """Across by ``sway`` of the canvas to both sides, up and down by 0.6 of that."""
    scene = dataclasses.replace(quiet_scene(), sway=0.01, sway_hz=0.5, sway_phase=0.0)
    still = split_motion(torch.zeros(400, len(MOTION_NAMES)))
    pose = place(scene, still, 1000)
    for drift, most in ((pose.center_x, 10.0), (pose.center_y, 6.0)):
        assert float(drift.max() - drift.min()) == pytest.approx(2 * most, rel=0.01)
