"""Bad input is one clear error before any model loads; odd input is converted, or warned about."""

import errno
import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image

from avatar_v.base.video_format import VideoFormat
from avatar_v.generate.progress import FrameProgress
from avatar_v.inputs.inputs import Inputs, read_inputs
from avatar_v.request.checks import check_settings
from avatar_v.request.output_files import check_output
from avatar_v.request.request import Request
from avatar_v.request.resolve import InputSpec


def video_file(
    path: Path, pictures: np.ndarray, *, codec: str = "libx264", times: Sequence[int] | None = None
) -> str:
    """RGB pictures "f h w 3" at 25 fps, or at the given times in 1/25 s (VFR). No sound."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25, options={"crf": "1"})
        stream.height, stream.width = pictures.shape[1:3]
        stream.pix_fmt = "yuv444p"
        stream.time_base = stream.codec_context.time_base = Fraction(1, 25)
        for i, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = i if times is None else times[i]
            frame.time_base = Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return str(path)


def audio_file(
    path: Path, samples: np.ndarray, *, rate: int = 16_000, codec: str = "pcm_s16le"
) -> str:
    """Samples "channels s" in [-1, 1]."""
    with av.open(str(path), "w") as container:
        layout = "mono" if samples.shape[0] == 1 else "stereo"
        stream = container.add_stream(codec, rate=rate, layout=layout)
        frame = av.AudioFrame.from_ndarray(samples.astype(np.float32), format="fltp", layout=layout)
        frame.sample_rate, frame.pts = rate, 0
        resampler = av.AudioResampler(format=stream.codec_context.format.name)
        for part in resampler.resample(frame):
            container.mux(stream.encode(part))
        container.mux(stream.encode(None))
    return str(path)


def read(request: Request) -> Inputs:
    """For weights that take one picture of the person."""
    return read_inputs(request, InputSpec(video=VideoFormat(64, 64), reference=False, motion=False))


def tone(duration_s: float = 0.5, rate: int = 16_000, channels: int = 1) -> np.ndarray:
    wave = 0.5 * np.sin(np.arange(round(duration_s * rate)) * (2 * np.pi * 440 / rate))
    return np.stack([wave] * channels)


def half_pictures(num: int, height: int = 48, width: int = 48) -> np.ndarray:
    """The upper half red, the lower blue: tells whether a picture stands upright."""
    pictures = np.zeros((num, height, width, 3), np.uint8)
    pictures[:, : height // 2, :, 0] = 220
    pictures[:, height // 2 :, :, 2] = 220
    return pictures


@pytest.fixture
def good(tmp_path: Path) -> Request:
    """A request that is right in everything; the tests break one part each."""
    (tmp_path / "out").mkdir()
    return Request.of(
        reference=video_file(tmp_path / "me.mp4", half_pictures(5)),
        audio=audio_file(tmp_path / "talk.wav", tone()),
        out=str(tmp_path / "out" / "out.mp4"),
        face_crop=False,
    )


def change(request: Request, **changes: object) -> Request:
    return request.changed(**changes)


def refused(request: Request, message: str) -> None:
    """``message`` is in the error, and nothing is left in the output's folder."""
    folder = Path(request.output.out).parent
    before = sorted(folder.glob("*"))
    with pytest.raises(ValueError, match=message):
        read(request)
    assert sorted(folder.glob("*")) == before


def is_upright(inputs: Inputs) -> bool:
    top, bottom = inputs.image[:, 4].float().mean(1), inputs.image[:, -5].float().mean(1)
    return bool(top[0] > 150 > top[2] and bottom[2] > 150 > bottom[0])


def test_a_good_request_is_read(good: Request) -> None:
    inputs = read(good)
    assert inputs.image.shape == (3, 48, 48)
    assert is_upright(inputs)
    assert inputs.num_frames == 13  # 0.5 s are 12.5 frames
    assert len(inputs.audio) == 13 * 640
    assert float(inputs.audio[8000:].abs().max()) == 0.0  # the padding is silence
    assert inputs.warnings == ()
    assert list(Path(good.output.out).parent.iterdir()) == []


@pytest.fixture
def odd(tmp_path: Path) -> dict[str, str]:
    """Names that the table of faults takes, and their files."""
    names = {name: str(tmp_path / name) for name in ("noise.mp4", "empty.wav", "dir.mp4")}
    Path(names["noise.mp4"]).write_bytes(b"this is not media at all" * 50)
    header = (b"RIFF", 36, b"WAVE", b"fmt ", 16, 1, 1, 16_000, 32_000, 2, 16, b"data", 0)
    Path(names["empty.wav"]).write_bytes(struct.pack("<4sI4s4sIHHIIHH4sI", *header))
    Path(names["dir.mp4"]).mkdir()
    samples = tone()
    samples[0, 100:103] = np.nan
    names["nan.wav"] = audio_file(tmp_path / "nan.wav", samples, codec="pcm_f32le")
    more = {"HERE": "", "no/folder": "not/there/o.mp4", "ME": "me.mp4", "TALK": "talk.wav"}
    return names | {name: str(tmp_path / path) for name, path in more.items()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"audio": "nowhere.wav"}, r"nowhere\.wav: no such file"),
        ({"audio": "noise.mp4"}, r"noise\.mp4: not a readable"),
        ({"audio": "ME"}, r"me\.mp4: no audio stream"),
        ({"audio": "empty.wav"}, r"empty\.wav.*no samples"),
        ({"audio": "nan.wav"}, r"nan\.wav: .*NaN or infinite"),
        ({"reference": "nobody.mp4"}, r"nobody\.mp4: no such file"),
        ({"reference": "noise.mp4"}, r"noise\.mp4: not a readable"),
        ({"reference": "TALK"}, r"talk\.wav: no video stream"),
        ({"reference": "HERE"}, "a folder; expected a video, image or audio"),
        ({"face_crop": True}, r"me\.mp4: no face.*--no-face-crop"),
        ({"out": "no/folder"}, "does not exist; create"),
        ({"out": "dir.mp4", "overwrite": True}, "is a folder"),
        ({"out": "o.avi"}, r"the output is an \.mp4 file"),
        ({"out": "ME", "overwrite": True}, "is an input of this request"),
        ({"motion": "nobody"}, "--motion nobody"),
    ],
)
def test_one_fault_is_one_error(
    good: Request, odd: dict[str, str], changes: dict[str, Any], message: str
) -> None:
    refused(change(good, **{k: odd.get(v, v) for k, v in changes.items()}), message)


def test_the_sound_of_the_other_person_is_an_input(good: Request, tmp_path: Path) -> None:
    other = str(tmp_path / "other.mp4")
    Path(other).write_bytes(b"of a film")
    with pytest.raises(ValueError, match=r"other\.mp4 is an input of this request"):
        check_output(change(good, listen=other, out=other, overwrite=True))
    assert Path(other).read_bytes() == b"of a film"


# --- the sound ---


def test_a_click_is_no_speech(good: Request, tmp_path: Path) -> None:
    short = audio_file(tmp_path / "short.wav", tone(0.003))
    with pytest.raises(ValueError, match="3 ms of sound; expected speech of at least 100 ms"):
        read(change(good, audio=short))
    assert read(change(good, audio=audio_file(tmp_path / "a.wav", tone(0.1)))).num_frames == 3


def test_silence_is_a_warning(good: Request, tmp_path: Path) -> None:
    path = audio_file(tmp_path / "quiet.wav", 0 * tone())
    (warning,) = read(change(good, audio=path)).warnings
    assert "quiet.wav is silent; the mouth will stay still" in warning


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 48_000, 96_000])
@pytest.mark.parametrize(
    ("codec", "channels"), [("pcm_s16le", 1), ("pcm_s24le", 2), ("pcm_f32le", 2), ("pcm_u8", 1)]
)
def test_any_rate_and_format_is_converted(
    good: Request, tmp_path: Path, rate: int, codec: str, channels: int
) -> None:
    samples = tone(0.5, rate, channels)
    inputs = read(
        change(good, audio=audio_file(tmp_path / "a.wav", samples, rate=rate, codec=codec))
    )
    assert inputs.num_frames == 13
    spectrum = torch.fft.rfft(inputs.audio[:8000]).abs()
    assert int(spectrum.argmax()) == 220  # 440 Hz in bins of 2 Hz
    assert float(inputs.audio[:].abs().max()) == pytest.approx(0.5, abs=0.03)  # ripple at the ends


@pytest.mark.parametrize(("num_samples", "frames"), [(1921, 4), (2560, 4), (2561, 5), (6400, 10)])
def test_audio_is_padded_to_whole_frames(
    good: Request, tmp_path: Path, num_samples: int, frames: int
) -> None:
    samples = np.full((1, num_samples), 0.25)
    inputs = read(change(good, audio=audio_file(tmp_path / "a.wav", samples)))
    assert inputs.num_frames == frames
    assert len(inputs.audio) == 640 * frames
    assert int((inputs.audio[:] > 0.2).sum()) == num_samples


# --- the reference ---


def test_reference_of_zero_frames(good: Request, tmp_path: Path) -> None:
    path = tmp_path / "zero.avi"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=25)
        stream.height = stream.width = 32
        stream.pix_fmt = "yuvj420p"
        container.start_encoding()
    refused(change(good, reference=str(path)), r"zero\.avi")


def test_reference_of_one_frame_is_a_still(good: Request, tmp_path: Path) -> None:
    path = video_file(tmp_path / "one.mp4", half_pictures(1))
    inputs = read(change(good, reference=path))
    assert inputs.reference_frame == 0
    assert "one.mp4 has one frame; it is used as a still image" in inputs.warnings[0]


def test_variable_frame_rate_is_put_on_the_grid(good: Request, tmp_path: Path) -> None:
    """Black until 1/25 s, then upright colours shown for 1 s: they are what is typical."""
    pictures = np.concatenate([0 * half_pictures(1), half_pictures(2)])
    path = video_file(tmp_path / "vfr.mp4", pictures, times=[0, 1, 25])
    inputs = read(change(good, reference=path))
    assert is_upright(inputs)
    assert inputs.reference_frame is not None
    assert 1 <= inputs.reference_frame <= 25  # a number of the 25 fps grid


def test_rotated_video_is_turned(good: Request, tmp_path: Path) -> None:
    """The pixels lie on their side; the file's matrix says so, as phones write it."""
    lying = np.rot90(half_pictures(5), k=1, axes=(1, 2)).copy()
    path = Path(video_file(tmp_path / "phone.mp4", lying))
    assert not is_upright(read(change(good, reference=str(path))))
    data = path.read_bytes()
    one, plain = 0x10000, struct.pack(">9i", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
    at = data.index(plain, data.index(b"tkhd"))
    turned = struct.pack(">9i", 0, one, 0, -one, 0, 0, 48 * one, 0, 0x40000000)
    path.write_bytes(data[:at] + turned + data[at + len(plain) :])
    assert is_upright(read(change(good, reference=str(path))))


@pytest.mark.parametrize("size", [(47, 33), (33, 95), (101, 40)])
def test_odd_sizes_become_the_central_square(
    good: Request, tmp_path: Path, size: tuple[int, int]
) -> None:
    path = video_file(tmp_path / "odd.mp4", half_pictures(3, *size))
    inputs = read(change(good, reference=path))
    assert inputs.image.shape == (3, min(size), min(size))
    assert is_upright(inputs)


def test_image_replaces_the_frames_of_the_reference(good: Request, tmp_path: Path) -> None:
    Image.fromarray(half_pictures(1, 80, 60)[0]).save(tmp_path / "scene.png")
    inputs = read(change(good, image=str(tmp_path / "scene.png")))
    assert inputs.image.shape == (3, 60, 60)
    assert inputs.reference_frame is None
    refused(change(good, image="nothing.png"), r"nothing\.png: no such file")


# --- the output and the settings ---


def test_existing_output_needs_overwrite(good: Request) -> None:
    Path(good.output.out).write_bytes(b"old")
    refused(good, r"out\.mp4 exists; pass --overwrite")
    assert Path(good.output.out).read_bytes() == b"old"
    read(change(good, overwrite=True))


def test_an_existing_record_needs_overwrite_too(good: Request) -> None:
    Path(good.output.out).with_suffix(".json").write_text("{}")
    refused(good, r"out\.json exists; pass --overwrite")


def test_folder_that_cannot_be_written(good: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*args: object, **kwargs: object) -> None:
        raise PermissionError(errno.EROFS, "read-only file system", "/media/tmp1234")

    monkeypatch.setattr("avatar_v.request.output_files.tempfile.TemporaryFile", denied)
    refused(good, r"cannot write to .*\(read-only file system\)$")
    refused(change(good, out=f"{good.person.audio}/o.mp4"), "is a file, not a folder")


def test_resume_says_where_there_is_nothing_to_go_on_with(good: Request) -> None:
    noted = read(change(good, resume=True)).warnings[0]
    assert noted == f"--resume: no chunks of {good.output.out} are kept, so it begins anew"
    assert not read(good).warnings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_steps": 0}, "--steps is a whole number from 1 to 1,000, got 0"),
        ({"num_steps": 10**9}, "--steps .*, got 1000000000"),
        ({"num_steps": 2.0}, r"--steps is a whole number from 1 to 1,000, got 2\.0"),
        ({"num_steps": "4"}, "--steps is a whole number .*, got '4'"),
        ({"num_steps": True}, "--steps is a whole number .*, got True"),
        ({"seed": -1}, "--seed is a whole number from 0 to 9,223,372,036,854,775,807, got -1"),
        ({"seed": 2**63}, "--seed .*, got 9223372036854775808"),
        ({"seed": 10**400}, "--seed .*, got a huge number"),
        ({"seed": 1e9}, "--seed is a whole number"),
        ({"guidance_audio": float("nan")}, "--guidance-audio is a finite number .*, got nan"),
        ({"guidance_motion": float("nan")}, "--guidance-motion is a finite number .*, got nan"),
        ({"guidance_text": float("inf")}, "--guidance-text is a finite number .*, got inf"),
        ({"guidance_reference": 1e9}, "--guidance-reference is a finite number from 0 to 100, got"),
        ({"guidance_audio": -1.0}, r"--guidance-audio .*, got -1\.0"),
        ({"overshoot": -0.5}, r"--overshoot is a finite number from 0 to 1, got -0\.5"),
        ({"overshoot": 7.0}, r"--overshoot is a finite number from 0 to 1, got 7\.0"),
        ({"overshoot": float("nan")}, "--overshoot is a finite number from 0 to 1, got nan"),
        ({"reference_s": -1.0}, r"--reference-seconds .* from 0 to 300, got -1\.0"),
        ({"reference_s": float("inf")}, "--reference-seconds .*, got inf"),
        ({"gain_db": 1e9}, "--gain is a finite number from -60 to 60"),
        ({"gain_db": float("nan")}, "--gain .*, got nan"),
        ({"audio_rate_hz": 1}, "--audio-rate is a whole number from 1,000 to 384,000, got 1"),
        ({"audio_channels": 3}, "--audio-channels is a whole number from 1 to 2, got 3"),
        ({"audio_patience_s": 0.0}, "--audio-patience is a finite number from 0.001"),
        ({"audio_patience_s": 1e9}, "--audio-patience .* to 86,400"),
        ({"prompt": None}, "--prompt is text, got None"),
        ({"prompt": "x" * 20_000}, "--prompt has at most 10,000 characters, got 20,000"),
        ({"prompt": "\ud800"}, "--prompt is text in Unicode"),
        ({"prompt": "a\0b"}, "--prompt is text without NUL"),
        ({"reference": "a\0.mp4"}, "--reference is text without NUL"),
        ({"reference": None}, "--reference is text, got None"),
        ({"audio": 3}, "--audio is text, got 3"),
        ({"out": 3}, "--out is text, got 3"),
        ({"image": ["x"]}, r"--image is text, got \['x'\]"),
        ({"also": "me.mp4"}, "--also is a list"),
        ({"also": ("x", 3)}, r"--also\[1\] is text, got 3"),
        ({"also": ("x",) * 5000}, "--also is a list of at most 4096"),
        ({"anchor": 1}, "--anchor is true or false, got 1"),
        ({"overwrite": "no"}, "--overwrite is true or false"),
    ],
)
def test_impossible_settings(good: Request, changes: dict[str, Any], message: str) -> None:
    """Python takes any type; checked after it is made, as beartype would refuse it in tests."""
    request = change(good)
    for name, value in changes.items():
        (part,) = (part for part in vars(request).values() if hasattr(part, name))
        object.__setattr__(part, name, value)
    with pytest.raises(ValueError, match=message):
        check_settings(request)


def test_links_of_the_output_are_not_followed_or_replaced(good: Request, tmp_path: Path) -> None:
    for name, target, message in (
        ("circle.mp4", "circle.mp4", "its links go in a circle"),
        ("nowhere.mp4", "not/there.mp4", "exists; pass --overwrite"),
    ):
        out = tmp_path / "out" / name
        out.symlink_to(tmp_path / "out" / target)
        refused(change(good, out=str(out)), message)
    refused(change(good, reference=str(out), out=str(out), overwrite=True), "is an input")
    part = tmp_path / "out" / ".out.mp4.part"
    part.symlink_to(tmp_path)
    refused(change(good, overwrite=True), "is in the way, which is no folder")
    part.unlink()
    part.write_text("mine")
    refused(change(good, overwrite=True), "is in the way, which is no folder")


def test_a_name_too_long_for_what_lies_beside_it(good: Request, tmp_path: Path) -> None:
    long = "ä" * 100 + ".mp4"
    refused(change(good, out=str(tmp_path / "out" / long)), "--out has a name of at most 200 bytes")


def test_a_bar_that_an_error_closes_leaves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="no such"), FrameProgress():
        raise ValueError("no such file")
    assert capsys.readouterr() == ("", "")
