"""What reads motion from a reference clip: those that ship, one of a user's, and wrong ones."""

import pytest
import torch
from torch import Tensor

from avatar_v.base.video_format import VideoFormat
from avatar_v.inputs.reference_clip import ReferenceClip, read_reference, still
from avatar_v.motion.extractors import METER_HABITS, find_extractor
from avatar_v.request.request import Request
from avatar_v.request.resolve import input_spec
from avatar_v.types import MOTION_NAMES
from avatar_v.weights.card import ASSETS, SHIPPED, read_card

ID = 0  # no function


def read(path: str, motion: str) -> ReferenceClip:
    extractor = find_extractor(motion, face_crop=False)
    return read_reference(
        path, video=VideoFormat(64, 64), seconds=16.0, face_crop=False, extractor=extractor
    )


def narrow(frames: Tensor, track: object) -> Tensor:
    return torch.zeros(len(frames), 3)


def still_face(frames: Tensor, track: object) -> Tensor:
    return torch.full((len(frames), len(MOTION_NAMES)), 0.25)


def turning_face(frames: Tensor, track: object) -> Tensor:
    return still_face(frames, track)


turning_face.habits = ("yaw", "pitch")  # pyright: ignore[reportFunctionMemberAccess]


def one_word(frames: Tensor, track: object) -> Tensor:
    return still_face(frames, track)


one_word.habits = "yaw"  # pyright: ignore[reportFunctionMemberAccess]


def test_weights_of_drawn_people_read_motion_as_they_were_trained_to() -> None:
    """Landmarks put some components of a drawn face twelve spreads away, and ruin the video."""
    meter, landmarks = (find_extractor(name, face_crop=True) for name in ("meter", "landmarks"))
    assert find_extractor("auto", face_crop=True) is landmarks
    assert find_extractor("auto", face_crop=True, drawn=True) is meter
    assert find_extractor("landmarks", face_crop=True, drawn=True) is landmarks
    for name in SHIPPED:
        assert input_spec(Request.of(reference=""), read_card(ASSETS / name)).drawn


def mistyped(frames: Tensor, track: object) -> Tensor:
    return still_face(frames, track)


mistyped.habits = ("yaw", "yawn")  # pyright: ignore[reportFunctionMemberAccess]


def broken(frames: Tensor, track: object) -> Tensor:
    raise KeyError("no model")


def listed(frames: Tensor, track: object) -> list:
    return [0.0] * len(frames)


def test_an_extractor_of_ones_own_plugs_in_by_its_path(spoken) -> None:
    clip = read(spoken[0], motion=f"{__name__}:still_face")
    assert clip.motion is not None
    assert clip.motion.eq(0.25).all()
    assert clip.habits_known == MOTION_NAMES
    assert read(spoken[0], motion=f"{__name__}:turning_face").habits_known == ("yaw", "pitch")
    assert read(spoken[0], motion="meter").habits_known == METER_HABITS
    picture = still(
        torch.zeros(3, 64, 64, dtype=torch.uint8),
        video=VideoFormat(64, 64),
        face_crop=False,
        extractor=find_extractor("meter", face_crop=False),
    )
    assert picture.habits_known == METER_HABITS


@pytest.mark.parametrize(
    ("motion", "message"),
    [
        (f"{__name__}:narrow", r"gave \(41, 3\), expected \(41, 16\)"),
        (f"{__name__}:broken", "broken failed, KeyError: 'no model'"),
        (f"{__name__}:listed", r"gave list, expected \(41, 16\)"),
        (f"{__name__}:nobody", "cannot be imported"),
        ("no.such:thing", "cannot be imported"),
        (f"{__name__}:ID", "is no function"),
        ("avatar_v.request.request:Request", "is no function"),  # a class of two arguments
        (f"{__name__}:one_word", "habits of .* is 'yaw', expected a tuple of names"),
        (f"{__name__}:mistyped", "habits of .* is .*yawn.*, expected a tuple of names"),
        ("meters", "there are auto, none, meter, landmarks"),
        ("landmarks", "needs the face track"),
    ],
)
def test_a_wrong_extractor_is_one_error(spoken, motion: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(spoken[0], motion=motion)
