"""Hostile and broken files: each reader refuses them with one clear error, or says what is odd."""

import re
from pathlib import Path
from typing import Any

import av
import pytest

from avatar_v.base.outside import read_json
from avatar_v.base.paths import indexed_weights
from avatar_v.base.states import read_tensors
from avatar_v.base.video_format import VideoFormat
from avatar_v.critics.syncnet import SyncNet
from avatar_v.inputs.inputs import Inputs, picture_warnings, read_inputs
from avatar_v.media import containers, reading
from avatar_v.recipe.checkpoint_file import check_checkpoint
from avatar_v.request.request import Request
from avatar_v.request.resolve import InputSpec
from avatar_v.shards.writer import scan_shard
from bad_inputs.pointer_files import POINTER
from hdr_files import write_hdr
from hostile_media import CASES, Case, external_track, picture, secret, write_av, write_wav

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


def error_of(read, *args: object) -> str | None:
    """The one clear error of a call; anything but a ValueError or an OSError fails the test."""
    try:
        read(*args)
    except (ValueError, OSError) as error:
        return str(error)
    return None


def agrees(error: str | None, pattern: str | None, path: Path) -> None:
    if pattern is None:
        assert error is None
    else:
        assert error is not None, f"taken, expected: {pattern}"
        assert "\n" not in error
        assert re.search(pattern, error), error
        assert path.name in error


def test_readers_refuse_or_warn(case: Case, tmp_path: Path) -> None:
    path = tmp_path / f"file{case.suffix}"
    case.make(path)
    video = error_of(lambda: list(reading.iter_video(path)))
    audio = error_of(reading.read_audio, path)
    agrees(video, case.video, path)
    agrees(audio, case.audio, path)
    if (probed := error_of(reading.probe, path)) is not None:
        assert probed in (video, audio)
    if case.video is None or case.audio is None:
        assert re.search(case.warning or "^$", containers.early_end(path) or "")
        assert containers.extent(path)[0] > 0


def test_a_request_gets_one_error_or_a_warning(case: Case, tmp_path: Path) -> None:
    path = tmp_path / f"file{case.suffix}"
    case.make(path)
    good, speech = write_av(tmp_path / "good.mkv"), write_wav(tmp_path / "good.wav")
    wanted = InputSpec(video=VideoFormat(32, 32), reference=False, motion=False)
    for field, pattern in (("reference", case.video), ("audio", case.audio)):
        parts: dict[str, Any] = {"reference": str(good), "audio": str(speech), field: str(path)}
        request = Request.of(out=str(tmp_path / "out.mp4"), face_crop=False, **parts)
        found: list[Inputs] = []
        error = error_of(lambda r, out: out.append(read_inputs(r, wanted)), request, found)
        agrees(error, pattern, path)
        if error is None:
            notes = " ".join(found[0].warnings)
            assert re.search(case.warning, notes), notes
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("field", ["reference", "audio", "also", "image", "out"])
def test_links_in_a_circle_are_named(field: str, tmp_path: Path) -> None:
    good, speech = str(write_av(tmp_path / "good.mkv")), str(write_wav(tmp_path / "good.wav"))
    ring = str(tmp_path / "ring.mp4")
    CASES["links in a circle"].make(Path(ring))
    parts: dict[str, Any] = {"reference": good, "audio": speech, "out": str(tmp_path / "out.mp4")}
    parts[field] = (ring,) if field == "also" else ring
    request = Request.of(face_crop=False, **parts)
    error = error_of(
        read_inputs, request, InputSpec(video=VideoFormat(32, 32), reference=True, motion=False)
    )
    assert error is not None
    assert "ring.mp4: its links go in a circle" in error


def test_a_pointer_of_git_lfs_is_called_one(tmp_path: Path) -> None:
    """As media, settings, weights, a folder of the Hub's layout, a checkpoint and a shard."""
    said = r"is a pointer of Git LFS, not the file itself; run `git lfs pull` in its repository"
    for name, read in {
        "clip.mp4": reading.probe,
        "config.json": read_json,
        "model.safetensors": read_tensors,
        "last.ckpt": lambda path: check_checkpoint(str(path)),
        "0.tar": scan_shard,
        "syncnet_v2.model": SyncNet.load,
    }.items():
        path = tmp_path / name
        path.write_text(POINTER)
        with pytest.raises(ValueError, match=f"{name} {said}"):
            read(path)
    with pytest.raises(ValueError, match=f"0.tar {said}"):
        indexed_weights(tmp_path)


def test_hdr_is_a_warning_of_the_request(tmp_path: Path) -> None:
    """Warnings are in the record, too."""
    path = write_hdr(tmp_path / "hdr.mkv", picture(64), "HLG", num=9)
    request = Request.of(
        reference=str(path),
        audio=str(write_wav(tmp_path / "good.wav")),
        out=str(tmp_path / "out.mp4"),
        face_crop=False,
    )
    inputs = read_inputs(
        request, InputSpec(video=VideoFormat(32, 32), reference=False, motion=False)
    )
    assert f"{path} has HLG colours; they are converted to standard range (BT.709)" in (
        inputs.warnings
    )


def test_a_path_with_a_zero_byte_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"not a path; expected a video"):
        reading.probe("a\0b.mp4")


def test_an_external_track_is_not_read(tmp_path: Path) -> None:
    """FFmpeg follows such a track where it is told to, which shows that the file would do harm."""
    path = tmp_path / "track.mov"
    external_track(path)
    followed = {"enable_drefs": "1", "use_absolute_path": "1"}
    with av.open(str(path), options=followed) as container:
        assert next(container.decode(video=0)).width == 48
    with pytest.raises(ValueError, match="holds no frames"):
        next(reading.iter_video(path))


def test_the_playlist_would_be_followed_by_ffmpeg(tmp_path: Path) -> None:
    path = tmp_path / "list.mp4"
    secret(path)
    CASES["list of files named mp4"].make(path)
    with av.open(str(path)) as container:
        assert container.streams.video
    with pytest.raises(ValueError, match="its container is none that is read"):
        reading.probe(path)


@pytest.mark.parametrize(
    ("value", "warning"), [(0, "almost one colour"), (255, "almost one colour"), (None, None)]
)
def test_a_reference_in_which_nobody_is_seen_is_a_warning(
    value: int | None, warning: str | None, tmp_path: Path
) -> None:
    image = next(reading.iter_video(write_av(tmp_path / "good.mkv")))
    if value is not None:
        image = image * 0 + value
    notes = " ".join(picture_warnings("me.mp4", image))
    assert (warning in notes) if warning else notes == ""
    dark = picture_warnings("me.mp4", (image.float() * 0.1).byte())
    assert value is not None or "very dark" in " ".join(dark)


def test_media_are_opened_in_one_place() -> None:
    """Elsewhere `av.open` writes, or reads the one format of its own pipe."""
    allowed = {"containers.py": 2, "push.py": 1}
    for folder in ("src", "eval"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            calls = re.findall(r"av\.open\((?:[^()]|\([^()]*\))*\)", path.read_text())
            reading = [call for call in calls if not re.search(r',\s*"w"', call)]
            assert len(reading) <= allowed.get(path.name, 0), f"{path}: {reading}"
