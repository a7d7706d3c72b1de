"""Face tracks, crops and the motion that landmarks tell."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from avatar_v.base.video_format import Framing
from avatar_v.faces import face_track
from avatar_v.faces.face_track import FaceTrack
from avatar_v.media.reading import read_video
from avatar_v.motion.landmarks import (
    KNOWN,
    RIGID_POINTS,
    head_pose,
    motion_from_landmarks,
)
from avatar_v.types import MOTION_NAMES


def track_of(boxes: list[list[float]]) -> FaceTrack:
    box = torch.tensor(boxes)
    count = len(boxes)
    found = torch.ones(count, dtype=torch.bool)
    return FaceTrack(box, torch.rand(count, 68, 2), found, num_faces=1)


def turned(yaw: float, pitch: float, roll: float) -> torch.Tensor:
    """The rigid points of the mean face after a turn, as a picture shows them."""
    about_y = torch.tensor(
        [[math.cos(yaw), 0, math.sin(yaw)], [0, 1, 0], [-math.sin(yaw), 0, math.cos(yaw)]]
    )
    about_x = torch.tensor(
        [[1, 0, 0], [0, math.cos(pitch), -math.sin(pitch)], [0, math.sin(pitch), math.cos(pitch)]]
    )
    about_z = torch.tensor(
        [[math.cos(roll), -math.sin(roll), 0], [math.sin(roll), math.cos(roll), 0], [0, 0, 1]]
    )
    model = torch.tensor(list(RIGID_POINTS.values()))
    points = torch.zeros(1, 68, 2)
    points[0, list(RIGID_POINTS)] = 0.5 + 0.3 * (model @ (about_z @ about_y @ about_x).T)[:, :2]
    return points


@pytest.mark.parametrize("angles", [(0, 0, 0), (0.3, 0, 0), (0, 0.2, 0), (-0.4, 0.1, -0.2)])
def test_pose_of_the_mean_face_is_exact(angles: tuple[float, float, float]) -> None:
    # least squares without noise: fp32 rounding remains
    assert head_pose(turned(*angles))[0].tolist() == pytest.approx(angles, abs=1e-4)


def test_signs_of_the_pose() -> None:
    nose, eye = 30, 36
    straight = turned(0, 0, 0)[0]
    assert turned(0.3, 0, 0)[0, nose, 0] > straight[nose, 0]  # yaw: to the picture's right
    assert turned(0, 0.3, 0)[0, nose, 1] < straight[nose, 1]  # pitch: up
    assert turned(0, 0, 0.3)[0, eye, 1] < straight[eye, 1]  # roll: clockwise lifts the left


def face(num_frames: int = 9) -> torch.Tensor:
    """A schematic upright face whose lips open from frame to frame."""
    points = torch.zeros(num_frames, 68, 2)
    points[:, list(RIGID_POINTS)] = torch.tensor(list(RIGID_POINTS.values()))[:, :2]
    opening = torch.linspace(0, 0.3, num_frames)
    for upper, lower in ((51, 57), (62, 66)):
        points[:, upper] = torch.tensor([0.0, 0.7])
        points[:, lower, 1] = 0.7 + opening
    points[:, 48], points[:, 54] = torch.tensor([-0.25, 0.75]), torch.tensor([0.25, 0.75])
    points[:, 8, 1] = 1.1 + 0.5 * opening
    points[:, 33, 1] = 0.45
    points[:, [37, 38, 43, 44], 1] = -0.05
    points[:, [40, 41, 46, 47], 1] = 0.05
    return 0.5 + 0.2 * points


def column(motion: torch.Tensor, name: str) -> torch.Tensor:
    return motion[:, MOTION_NAMES.index(name)]


def test_lips_that_part_open_the_mouth() -> None:
    found = torch.ones(9, dtype=torch.bool)
    motion = motion_from_landmarks(face(), found)
    opening = column(motion, "mouth_open")
    assert opening[0] == 0
    assert torch.all(opening.diff() > 0)
    assert column(motion, "jaw")[-1] > column(motion, "jaw")[0]
    unknown = [n for n, name in enumerate(MOTION_NAMES) if name not in KNOWN]
    assert not motion[:, unknown].any()


def test_motion_does_not_depend_on_place_size_and_roll() -> None:
    found = torch.ones(9, dtype=torch.bool)
    angle = 0.3
    spin = torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    moved = 0.3 + 0.6 * (face() @ spin)
    before, after = motion_from_landmarks(face(), found), motion_from_landmarks(moved, found)
    for name in set(KNOWN) - {"roll"}:
        # fp32 on landmarks near 1 with differences near 0.01
        assert column(after, name).tolist() == pytest.approx(
            column(before, name).tolist(), abs=1e-3
        )
    turn = column(after, "roll") - column(before, "roll")
    assert turn.tolist() == pytest.approx([angle] * 9, abs=1e-3)


def test_frames_without_a_face_have_no_motion() -> None:
    found = torch.tensor([True] * 4 + [False] * 5)
    motion = motion_from_landmarks(face(), found)
    assert motion[:4].any()
    assert not motion[4:].any()


def test_crops_are_square_and_hold_the_head() -> None:
    track = track_of([[0.4, 0.4, 0.6, 0.6]] * 30)
    windows = face_track.crop_windows(track, 200, 200)
    side = windows[:, 2] - windows[:, 0]
    assert torch.equal(side, windows[:, 3] - windows[:, 1])
    assert side[0] == round(face_track.HEAD_PER_BOX * 40)
    centre = (windows[0, :2] + windows[0, 2:]) / 2
    assert centre[0] == pytest.approx(100, abs=1)
    assert centre[1] == pytest.approx(100 - face_track.HEAD_SHIFT * 40, abs=1)


@pytest.mark.parametrize(
    ("box", "size", "whole"),
    [
        ([0.2, 0.25, 0.7, 0.75], (64, 64), True),  # the crop's side is 0.85 of the picture's
        ([0.2, 0.25, 0.7, 0.75], (64, 80), False),  # not square
        ([0.3, 0.35, 0.6, 0.65], (64, 64), False),  # a small head: 0.5 of the picture
        ([0.05, 0.1, 0.9, 0.95], (64, 64), False),  # a close-up: 1.45 of it
        ([0.37, 0.25, 0.87, 0.75], (64, 64), False),  # 0.12 off
    ],
)
def test_a_square_picture_that_is_framed_on_the_head_is_taken_whole(
    box: list[float], size: tuple[int, int], whole: bool
) -> None:
    track = track_of([box] * 5)
    assert face_track.is_framed(track, *size) is whole
    windows = face_track.crop_windows(track, *size)
    assert torch.equal(windows, face_track.centre_windows(5, *size)) is whole


@pytest.mark.parametrize("framing", ["face", "body"])
@pytest.mark.parametrize("aspect", [16 / 9, 9 / 16, 4 / 3])
@pytest.mark.parametrize("middle", [0.5, 0.06])  # of the picture's width; 0.06: at its edge
def test_wide_and_tall_crops_hold_the_head_within_the_picture(
    framing: Framing, aspect: float, middle: float
) -> None:
    """A head of 108 pixels, brows to chin 64, in 1920 x 1080."""
    track = track_of([[middle - 0.02, 0.3, middle + 0.02, 0.36]] * 5)
    head = face_track.crop_windows(track, 1080, 1920)
    windows = face_track.crop_windows(track, 1080, 1920, aspect, framing)
    width, height = (windows[0, 2:] - windows[0, :2]).tolist()
    assert width / height == pytest.approx(aspect, rel=0.01)  # nothing is stretched
    assert windows.min() >= 0
    assert windows[:, 2].max() <= 1920
    assert windows[:, 3].max() <= 1080
    short = float(head[0, 2] - head[0, 0])
    times = face_track.BODY_PER_HEAD if framing == "body" else 1
    assert min(width, height) == pytest.approx(times * short, abs=2)
    assert windows[0, 1] == head[0, 1]  # shoulders and chest come below
    assert (head[0, 2:] <= windows[0, 2:] + 1).all()
    if middle == 0.5:
        assert float(windows[0, 0] + windows[0, 2]) / 2 == pytest.approx(960, abs=2)


def test_a_crop_wider_than_its_picture_is_as_wide_as_that() -> None:
    """A large face in a phone's video, for 16:9."""
    track = track_of([[0.2, 0.2, 0.8, 0.5]] * 5)
    (x0, y0, x1, y1) = face_track.crop_windows(track, 1280, 720, 16 / 9)[0].tolist()
    assert (x0, x1, y1 - y0) == (0, 720, 405)
    assert (y0 + y1) / 2 == pytest.approx(0.35 * 1280 - 0.12 * 384, abs=1)  # of the head's square


def test_crops_follow_a_walk_but_not_a_nod() -> None:
    at = torch.linspace(0.3, 0.6, 100)
    walking = [[float(x) - 0.1, 0.4, float(x) + 0.1, 0.6] for x in at]
    moved = face_track.crop_windows(track_of(walking), 500, 500)
    assert moved[-1, 0] - moved[0, 0] == pytest.approx(150, abs=2)
    nods = [[0.4, 0.4 + 0.03 * math.sin(n), 0.6, 0.6 + 0.03 * math.sin(n)] for n in range(100)]
    still = face_track.crop_windows(track_of(nods), 500, 500)
    assert still[:, 1].max() - still[:, 1].min() <= 3  # of 30 pixels of movement


def test_a_crop_over_the_edge_repeats_the_border() -> None:
    frames = torch.arange(16, dtype=torch.uint8)[None, None, None].repeat(1, 3, 16, 1) * 10
    windows = torch.tensor([[-8.0, 0.0, 8.0, 16.0]])
    part = face_track.crop(frames, windows, 16)
    assert part[0, 0, 0].tolist() == [0] * 8 + [10 * n for n in range(8)]


def test_points_move_with_the_crop() -> None:
    windows = torch.tensor([[50.0, 20.0, 150.0, 120.0]])
    points = torch.tensor([[[0.25, 0.2], [0.5, 0.7]]])  # pixels (50, 20) and (100, 70) of 200 x 100
    moved = face_track.in_windows(points, windows, 100, 200)
    assert moved.flatten().tolist() == pytest.approx([0, 0, 0.5, 0.5], abs=1e-6)


def test_without_dlib_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(face_track, "is_available", lambda: False)
    face_track._detector.cache_clear()
    with pytest.raises(ImportError, match=r"pip install 'avatar_v\[faces\]'"):
        face_track.track_faces(torch.zeros(1, 3, 64, 64, dtype=torch.uint8))


def test_the_largest_face_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = np.array([0.0, 0, 20, 20]), np.array([100.0, 0, 160, 60])
    drifting = [large + np.array([3.0 * n, 0, 3.0 * n, 0]) for n in range(4)]
    seen = [[drifting[0], small], [small], [drifting[2], small], [drifting[3], small]]
    queue = iter(seen)
    monkeypatch.setattr(face_track, "detect_faces", lambda frame: next(queue))
    monkeypatch.setattr(face_track, "_landmarks", lambda frame, box: np.zeros((68, 2)))
    frames = torch.zeros(4, 3, 100, 200, dtype=torch.uint8)
    with pytest.warns(UserWarning, match="2 faces in one picture: the largest is taken"):
        track = face_track.track_faces(frames, detect_every=1)
    assert track.found.tolist() == [True, False, True, True]
    middles = (track.box[:, 0] + track.box[:, 2]) / 2 * 200
    assert middles.tolist() == pytest.approx([130, 133, 136, 139])  # bridged where it was lost


@pytest.mark.faces
def test_noise_has_no_face() -> None:
    noise = torch.randint(0, 256, (1, 3, 96, 96), dtype=torch.uint8)
    track = face_track.track_faces(noise)
    assert not track.found.any()
    with pytest.raises(ValueError, match="no face was found"):
        face_track.face_crop(noise, track, 32)


@pytest.mark.faces
@pytest.mark.media
def test_a_real_face_is_found_and_centred(media: Path) -> None:
    frames = read_video(media / "talking_head.mp4", max_frames=6)
    track = face_track.track_faces(frames)
    assert track.found.all()
    windows = face_track.crop_windows(track, *frames.shape[2:])
    points = face_track.in_windows(track.landmarks, windows, *frames.shape[2:])
    mouth = face_track.mouth_box(points)[0]
    assert 0.35 < (mouth[0] + mouth[2]) / 2 < 0.65
    assert 0.55 < (mouth[1] + mouth[3]) / 2 < 0.85
    head = face_track.head_box(points)[0]
    assert 0.6 < head[3] - head[1] < 0.95  # of the crop's height
    assert face_track.face_crop(frames, track, 64).shape == (6, 3, 64, 64)


def test_a_close_up_holds_the_features_at_the_side_of_the_face() -> None:
    box = torch.tensor([[0.25, 0.1, 0.75, 0.9]])  # 100 wide, 80 high in a picture of 200 x 100
    (window,) = face_track.face_windows(box, 100, 200).tolist()
    x0, y0, x1, y1 = window
    assert x1 - x0 == y1 - y0 == pytest.approx(face_track.CLOSE_UP * 100, abs=1)
    assert (x0 + x1) / 2 == pytest.approx(100, abs=1)
    assert y1 == pytest.approx(90 + 5, abs=1)  # a little under the chin
    picture = torch.zeros(1, 3, 100, 200, dtype=torch.uint8)
    picture[:, :, 40:60, 90:110] = 255
    near = face_track.crop(picture, face_track.face_windows(box, 100, 200), 22)[0, 0]
    assert near.float().mean() == pytest.approx(255 * 400 / 110**2, rel=0.1)


def test_frames_are_spread_over_the_valid_ones() -> None:
    valid = torch.ones(12, dtype=torch.bool)
    assert face_track.spread_frames(valid, 2).tolist() == [3, 9]
    valid[4:] = False
    assert face_track.spread_frames(valid, 2).tolist() == [1, 3]
    assert face_track.spread_frames(valid, 9).tolist() == [0, 1, 2, 3]
    assert face_track.spread_frames(~valid & valid, 2).tolist() == []
