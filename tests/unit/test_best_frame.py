"""The choice of the reference frame: each measure on pictures where the answer is known."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from avatar_v.base.video_format import VideoFormat
from avatar_v.faces import face_track
from avatar_v.inputs.best_frame import (
    best_frame,
    face_measures,
    mean_rank,
    sharp_enough,
    sharpness,
    unusualness,
)
from avatar_v.media.reading import encode_video_bytes
from avatar_v.motion.extractors import Extractor, from_meter
from avatar_v.types import MOTION_NAMES
from avatar_v.world.clip import make_clip
from avatar_v.world.splits import RANGES

SQUARE = VideoFormat(64, 64)


def texture(seed: int = 0) -> Tensor:
    """A smooth random picture of 64 x 64, 0 … 255."""
    draw = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, 8, 8, generator=draw) * 255
    return F.interpolate(coarse, (64, 64), mode="bilinear")[0]


def moving_clip() -> Tensor:
    """30 frames of slow sway; frames 10-13 "blink" (a small patch changes), 20-21 are blurred."""
    rows = torch.arange(30)
    clip = torch.stack([texture().roll(int(4 * torch.sin(i / 8)), dims=2) for i in rows])
    draw = torch.Generator().manual_seed(1)
    clip = clip + 20 * torch.rand(3, 64, 64, generator=draw)  # grain: what blur takes away
    clip[10:14, :, 20:28, 20:32] = 90.0
    clip[20:22] = F.avg_pool2d(clip[20:22], 5, stride=1, padding=2, count_include_pad=False)
    return clip.clamp(0, 255).round().to(torch.uint8)


def test_short_and_local_changes_are_unusual() -> None:
    clip = moving_clip()
    score = unusualness(clip.float().mean(1))
    calm = [i for i in range(30) if i not in (*range(10, 14), 20, 21)]
    assert float(score[10:14].min()) > float(score[calm].max())


def test_blurred_frames_are_out() -> None:
    kept = sharp_enough(sharpness(moving_clip()))
    assert not kept[20:22].any()
    assert int(kept.sum()) == 28


def test_the_best_frame_of_a_clip_is_neither_blink_nor_blur(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(encode_video_bytes(moving_clip()))
    best = best_frame(path, video=SQUARE, face_crop=False)
    assert best.num_frames == 30
    assert best.index not in (*range(10, 14), 20, 21)
    # the frame of that index, through one lossy coding
    difference = best.image.float() - moving_clip()[best.index].float()
    assert float(difference.abs().mean()) < 4


def test_ranks_are_averaged_without_scales() -> None:
    first, second = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([3e6, 1e6, 2e6])
    assert mean_rank(first, second).tolist() == [1.0, 0.5, 1.5]


def landmarks(nose_x: float = 0.0, eye: float = 0.1, lips: float = 0.05) -> Tensor:
    """Only the points that are measured: eyes one unit apart, outer corners at ±0.5."""
    points = torch.zeros(68, 2)
    for start, centre in ((36, -0.35), (42, 0.35)):
        xs = torch.tensor([-0.15, -0.05, 0.05, 0.15, 0.05, -0.05]) + centre
        ys = torch.tensor([0.0, -eye, -eye, 0.0, eye, eye])
        points[start : start + 6] = torch.stack([xs, ys], dim=1)
    points[30] = torch.tensor([nose_x, 0.4])
    points[60], points[64] = torch.tensor([-0.2, 0.7]), torch.tensor([0.2, 0.7])
    points[62], points[66] = torch.tensor([0.0, 0.7 - lips]), torch.tensor([0.0, 0.7 + lips])
    return points


def test_face_measures_know_turned_shut_and_open() -> None:
    usual, turned = landmarks(), landmarks(nose_x=0.2)
    shut, talking = landmarks(eye=0.01), landmarks(lips=0.2)
    turn, lids, gap = face_measures(torch.stack([usual, turned, shut, talking]))
    assert turn.tolist() == pytest.approx([0, 0.2, 0, 0], abs=1e-6)
    assert lids.tolist() == pytest.approx([-2 / 3, -2 / 3, -1 / 15, -2 / 3], abs=1e-5)
    assert gap.tolist() == pytest.approx([0.25, 0.25, 0.25, 1.0], abs=1e-5)


def test_face_measures_ignore_place_size_and_roll() -> None:
    points = landmarks(nose_x=0.1, eye=0.07, lips=0.1)
    turn = torch.tensor([[0.8, -0.6], [0.6, 0.8]])
    both = torch.stack([points, 3 * points @ turn + 5])
    for measure in face_measures(both):
        assert float(measure[0]) == pytest.approx(float(measure[1]), abs=1e-5)


def reading(**components: list[float]) -> Extractor:
    """An extractor that reads these values of the clip's frames, eyes open, and 0 elsewhere."""

    def read(frames: Tensor, track: object) -> Tensor:
        motion = torch.zeros(len(frames), len(MOTION_NAMES))
        motion[:, MOTION_NAMES.index("eye_open")] = 1
        for name, values in components.items():
            motion[:, MOTION_NAMES.index(name)] = torch.tensor(values)
        return motion

    return read


@pytest.mark.parametrize(
    ("components", "expected"),
    [
        ({"cover": [1, 1, 0, 1, 0.9, 1]}, 2),
        ({"yaw": [0.4, -0.3, 0.2, 0.0, 0.1, -0.1]}, 3),
        ({"gaze_x": [0.4, -0.3, 0.2, 0.1, 0.0, -0.1], "cover": [0, 0, 0, 0, 1, 0]}, 3),
        ({"eye_open": [0, 0.1, 0, 0.2, 0.4, 1.0], "mouth_open": [0.5, 0.4, 0.3, 0.2, 0.1, 0]}, 5),
        ({"cover": [1, 1, 1, 1, 1, 1], "mouth_open": [0.5, 0.1, 0.3, 0.2, 0.3, 0.4]}, 1),
    ],
)
def test_the_best_frame_shows_a_face_at_rest_as_far_as_its_motion_is_read(
    tmp_path: Path, components: dict[str, list[float]], expected: int
) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(encode_video_bytes(texture().byte().expand(6, 3, 64, 64)))
    best = best_frame(path, video=SQUARE, face_crop=False, extractor=reading(**components))
    assert (best.index, best.num_frames) == (expected, 6)


def test_an_extractor_that_tells_frames_not_apart_leaves_the_most_usual_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(encode_video_bytes(moving_clip()))
    usual = best_frame(path, video=SQUARE, face_crop=False)
    best = best_frame(path, video=SQUARE, face_crop=False, extractor=reading())
    assert (best.index, best.num_frames) == (usual.index, usual.num_frames)


def test_an_extractor_reads_squares_of_tall_and_wide_pictures(tmp_path: Path) -> None:
    shown = []

    def read(frames: Tensor, track: object) -> Tensor:
        shown.append(tuple(frames.shape))
        return reading()(frames, track)

    path = tmp_path / "clip.mp4"
    path.write_bytes(encode_video_bytes(moving_clip()))
    for video in (VideoFormat(48, 80, 30), VideoFormat(80, 48, 24)):
        best_frame(path, video=video, face_crop=False, extractor=read)
    (_, _, *tall), (_, _, *wide) = shown
    assert tall == wide == [38, 38]  # of 64 pixels


def test_a_drawn_face_is_picked_uncovered_and_turned_to_the_camera(tmp_path: Path) -> None:
    """This person keeps still behind a hand: the stillest frame does not show the face."""
    person, scene, speech = (RANGES["validation"][i] for i in (8, 25, 17))
    clip = make_clip(person, scene, speech, num_frames=145, size=64)
    assert clip.video is not None
    path = tmp_path / "clip.mp4"
    path.write_bytes(encode_video_bytes(clip.video))
    cover, yaw, mouth = (
        clip.motion[:, MOTION_NAMES.index(name)] for name in ("cover", "yaw", "mouth_open")
    )
    stillest = best_frame(path, video=SQUARE, face_crop=False).index
    assert float(cover[stillest]) == 1
    picked = best_frame(path, video=SQUARE, face_crop=False, extractor=from_meter).index
    assert float(cover[picked]) == 0
    assert abs(float(yaw[picked])) < 0.1
    assert float(mouth[picked]) < 0.1


@pytest.mark.media
@pytest.mark.faces
def test_a_real_head_is_found_and_centred(media: Path) -> None:
    best = best_frame(media / "talking_head.mp4", video=SQUARE, face_crop=True)
    side = best.image.shape[1]
    track = face_track.track_faces(best.image[None])
    assert bool(track.found[0])
    centre = (track.box[0, :2] + track.box[0, 2:]) / 2
    assert 0.4 < float(centre[0]) < 0.6
    assert 0.4 < float(centre[1]) < 0.7  # the hair counts, the neck less
    assert 0.35 < float(track.box[0, 3] - track.box[0, 1]) < 0.7
    assert side > 150
