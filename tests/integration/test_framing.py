"""Where the person is in a clip: drawn people need no option, filmed ones are looked for."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from avatar_v.base.video_format import VideoFormat
from avatar_v.faces import face_track
from avatar_v.inputs.best_frame import BestFrame, best_frame
from avatar_v.inputs.framing import NOT_LOOKED_FOR
from avatar_v.inputs.reference_clip import ReferenceClip, read_reference
from avatar_v.motion.extractors import from_landmarks, from_meter
from clip_files import clip_file


def read(path: str, *, face_crop: bool, drawn: bool = True) -> tuple[BestFrame, ReferenceClip]:
    how = {"face_crop": face_crop, "drawn": drawn, "extractor": from_meter}
    how["video"] = VideoFormat(64, 64)
    return best_frame(path, **how), read_reference(path, seconds=2.0, **how)


def is_same(one: tuple[BestFrame, ReferenceClip], other: tuple[BestFrame, ReferenceClip]) -> bool:
    (best, clip), (best2, clip2) = one, other
    pairs = [(best.image, best2.image), *((getattr(clip, n), getattr(clip2, n)) for n in NAMES)]
    return best.index == best2.index and all(torch.equal(a, b) for a, b in pairs)


NAMES = ("video", "valid", "audio", "motion")


def widened(video: Tensor) -> Tensor:
    """Grey on both sides: half as wide again."""
    return torch.nn.functional.pad(video, (16, 16), value=128)


@pytest.mark.faces
def test_a_drawn_clip_is_read_as_it_is(spoken: tuple[str, Tensor, Tensor]) -> None:
    found, told = read(spoken[0], face_crop=True), read(spoken[0], face_crop=False)
    assert is_same(found, told)
    assert found[0].warnings == found[1].warnings == ()


@pytest.mark.faces
def test_a_drawn_face_elsewhere_in_the_picture_is_followed(
    spoken: tuple[str, Tensor, Tensor], tmp_path: Path
) -> None:
    path = clip_file(tmp_path / "wide.mkv", widened(spoken[1]), spoken[2])
    best, clip = read(path, face_crop=True)
    assert clip.who is not None
    assert best.image.shape[1] < 64  # the head alone


@pytest.mark.faces
def test_a_square_without_a_face_is_for_weights_of_drawn_people_alone(tmp_path: Path) -> None:
    """dlib misses a drawn face behind a hand."""
    hidden = torch.full((9, 3, 64, 64), 90, dtype=torch.uint8)
    path = clip_file(tmp_path / "hidden.mkv", hidden, torch.zeros(9 * 640))
    best, clip = read(path, face_crop=True)
    assert is_same((best, clip), read(path, face_crop=False))
    for noted in (best, clip):
        assert f"{path}: no face is found in it, so the picture is taken whole" in noted.warnings
    with pytest.raises(ValueError, match=r"no face in 9 frames looked at; .* --no-face-crop"):
        read(path, face_crop=True, drawn=False)
    oblong = clip_file(tmp_path / "oblong.mkv", widened(hidden), torch.zeros(9 * 640))
    with pytest.raises(ValueError, match=r"oblong\.mkv: no face"):
        read(oblong, face_crop=True)


def test_without_dlib_squares_are_taken_whole(
    spoken: tuple[str, Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(face_track, "is_available", lambda: False)
    for drawn in (True, False):
        made = read(spoken[0], face_crop=True, drawn=drawn)
        assert is_same(made, read(spoken[0], face_crop=False))
        assert [noted.warnings for noted in made] == [(NOT_LOOKED_FOR,)] * 2
    missing = r"pip install 'avatar_v\[faces\]'; or take the picture's centre square"
    with pytest.raises(ValueError, match=missing):
        best_frame(spoken[0], video=VideoFormat(64, 64), face_crop=True, extractor=from_landmarks)
    oblong = clip_file(tmp_path / "oblong.mkv", widened(spoken[1]), spoken[2])
    with pytest.raises(ValueError, match=missing):
        read(oblong, face_crop=True)
