"""Faces of a reference video: close-ups, landmarks, and what is wrong with whose face it is."""

import dataclasses
from pathlib import Path

import pytest
import torch

from avatar_v.base.video_format import VideoFormat
from avatar_v.faces.face_track import FaceTrack
from avatar_v.inputs import reference_clip
from avatar_v.inputs.best_frame import best_frame
from avatar_v.inputs.reference_clip import check_same_person, read_reference
from avatar_v.media.reading import read_video
from avatar_v.models.reference import NUM_FACES
from avatar_v.motion.extractors import find_extractor
from avatar_v.types import MOTION_NAMES
from clip_files import clip_file

SQUARE = VideoFormat(64, 64)


def test_close_ups_are_cut_out_of_the_larger_picture() -> None:
    """At the file's resolution: stripes of two pixels are grey in the small frame, not in it."""
    frames = torch.zeros(9, 3, 240, 240, dtype=torch.uint8)
    frames[..., ::4] = frames[..., 1::4] = 255
    points = torch.rand(9, 68, 2) * 0.1 + 0.45
    points[:, :17, 0] = torch.linspace(0.4, 0.6, 17)  # the jaw, a fifth of the picture wide
    found = torch.ones(9, dtype=torch.bool)
    track = FaceTrack(torch.rand(9, 4), points, found, num_faces=1)
    pictures = reference_clip.close_ups(frames, track, SQUARE)
    assert pictures is not None
    assert pictures.shape == (NUM_FACES, 3, 64, 64)
    small = torch.nn.functional.interpolate(frames[:1].float(), size=(64, 64), antialias=True,
                                            mode="bilinear")  # fmt: skip
    assert pictures.float().std() > 3 * small.std()
    nobody = dataclasses.replace(track, found=~found)
    assert reference_clip.close_ups(frames, nobody, SQUARE) is None


@pytest.mark.media
def test_close_ups_of_a_real_face(media: Path) -> None:
    how = {"video": SQUARE, "extractor": None, "faces": True}
    clip = read_reference(media / "talking_head.mp4", seconds=1.0, face_crop=True, **how)
    assert clip.faces is not None
    assert clip.faces.shape == (NUM_FACES, 3, 64, 64)
    assert not torch.equal(clip.faces[0], clip.faces[1])
    whole = read_reference(media / "talking_head.mp4", seconds=1.0, face_crop=False, **how)
    assert whole.faces is None
    one = reference_clip.still(read_video(media / "talking_head.mp4", max_frames=1)[0],
                               face_crop=True, **how)  # fmt: skip
    assert one.faces is not None
    assert len(one.faces) == 1


@pytest.mark.media
def test_a_real_face_is_read_by_its_landmarks(media: Path) -> None:
    clip = read_reference(
        media / "talking_head.mp4",
        video=SQUARE,
        seconds=2.0,
        face_crop=True,
        extractor=find_extractor("auto", face_crop=True),
    )
    assert clip.num_frames == 49
    assert clip.motion is not None
    mouth = clip.motion[:, MOTION_NAMES.index("mouth_open")]
    assert mouth.max() > 0.1
    assert clip.motion[:, MOTION_NAMES.index("teeth")].eq(0).all()


@pytest.mark.media
def test_another_person_cut_in_is_named_with_the_time(media: Path, tmp_path: Path) -> None:
    parts = []
    for name, num in (("talking_head.mp4", 38), ("presenter.mp4", 75)):
        frames = read_video(media / name, max_frames=num).float()
        size = (240, 240)
        parts.append(torch.nn.functional.interpolate(frames, size=size, mode="area").byte())
    path = clip_file(tmp_path / "two.mkv", torch.cat(parts), crf=12)
    with pytest.raises(ValueError, match=r"another person's face from 1\.5 s on"):
        read_reference(path, video=SQUARE, seconds=8.0, face_crop=True, extractor=None)


@pytest.mark.media
def test_a_further_clip_of_somebody_else_is_refused(media: Path) -> None:
    own, other = (
        read_reference(media / name, video=SQUARE, seconds=2.0, face_crop=True, extractor=None)
        for name in ("talking_head.mp4", "presenter.mp4")
    )
    check_same_person("again.mp4", own, own)
    with pytest.raises(ValueError, match=r"--also presenter.mp4: another person's face"):
        check_same_person("presenter.mp4", other, own)
    unknown = dataclasses.replace(own, who=None)  # --no-face-crop follows no face
    check_same_person("presenter.mp4", other, unknown)


@pytest.mark.media
def test_no_face_is_one_error(tmp_path: Path) -> None:
    path = clip_file(tmp_path / "grey.mkv", torch.full((9, 3, 240, 240), 90, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"no face in its first 0\.4 s"):
        read_reference(path, video=SQUARE, seconds=8.0, face_crop=True, extractor=None)


@pytest.mark.media
def test_a_small_face_is_called_small(media: Path, tmp_path: Path) -> None:
    """96 pixels high in full HD: cutting out the picture's centre would be the wrong advice."""
    head = read_video(media / "talking_head.mp4", max_frames=1)[:1].float()
    head = torch.nn.functional.interpolate(head, size=(178, 178), mode="area").byte()
    wide = torch.full((1, 3, 1080, 1920), 90, dtype=torch.uint8)
    wide[..., 400:578, 900:1078] = head
    path = clip_file(tmp_path / "wide.mkv", wide, crf=12)
    small = r"wide\.mkv: its face is too small to be followed, \d+% of .*; crop the video to"
    for read in (
        lambda: read_reference(path, video=SQUARE, seconds=8.0, face_crop=True, extractor=None),
        lambda: best_frame(path, video=SQUARE, face_crop=True),
    ):
        with pytest.raises(ValueError, match=small):
            read()
