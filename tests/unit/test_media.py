"""Any media file comes onto the grid of 25 frames and 16 000 samples a second, or says why not."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from avatar_v.media.reading import (
    decode_video_bytes,
    encode_video_bytes,
    iter_video,
    probe,
    read_audio,
    read_video,
)

GREY_STEP = 8


def write_video(path: Path, pictures: list[np.ndarray], times_ms: list[int], codec: str) -> Path:
    """Pictures at times in milliseconds; each stays until the next."""
    with av.open(str(path), "w") as container:
        step_ms = times_ms[1] - times_ms[0] if len(times_ms) > 1 else 40
        stream = container.add_stream(codec, rate=Fraction(1000, step_ms))
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = "yuv420p" if codec == "libx264" else "bgr0"
        stream.codec_context.time_base = Fraction(1, 1000)
        for picture, time in zip(pictures, times_ms, strict=True):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = time, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def greys(count: int, height: int = 16, width: int = 16) -> list[np.ndarray]:
    return [np.full((height, width, 3), GREY_STEP * n, np.uint8) for n in range(count)]


def numbers(path: Path) -> list[int]:
    """Which grey picture each read frame is; codecs move a grey by less than half a step."""
    return [round(float(frame.float().mean()) / GREY_STEP) for frame in iter_video(path)]


def write_audio(path: Path, samples: np.ndarray, rate: int, codec: str, sample_format: str) -> Path:
    """Samples "channels s"."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.layout = "mono" if len(samples) == 1 else "stereo"
        packed = np.ascontiguousarray(samples.T).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(packed, format=sample_format, layout=stream.layout.name)
        frame.sample_rate = rate
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def sine(rate: int, duration_s: float = 1.0, hz: float = 220.0) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hz * np.arange(int(rate * duration_s)) / rate)


@pytest.mark.parametrize("size", [(32, 32), (24, 24), (33, 47)])
def test_video_bytes_come_back(size: tuple[int, int]) -> None:
    coarse = torch.rand(9, 3, 3, 3, generator=torch.Generator().manual_seed(0)) * 255
    video = torch.nn.functional.interpolate(coarse, size=size, mode="bilinear").to(torch.uint8)
    data = encode_video_bytes(video)
    back = decode_video_bytes(data)
    assert back.shape == video.shape
    # One to two grey levels on average at crf 8; a wrong colour matrix or range costs over 5.
    assert (back.float() - video.float()).abs().mean() < 3
    assert {encode_video_bytes(video) for _ in range(20)} == {data}


def test_damaged_video_bytes_name_their_origin() -> None:
    with pytest.raises(ValueError, match=r"a\.tar, clip b: not a readable video"):
        decode_video_bytes(b"nothing", "a.tar, clip b")
    with pytest.raises(ValueError, match="at least one frame"):
        encode_video_bytes(torch.zeros(0, 3, 8, 8, dtype=torch.uint8))


def test_varying_frame_rate_keeps_its_times(tmp_path: Path) -> None:
    times = [0, 40, 80, 200, 240, 320]  # at 25 fps: slots 0, 1, 2, 5, 6, 8
    path = write_video(tmp_path / "vfr.mkv", greys(6), times, "ffv1")
    assert numbers(path) == [0, 1, 2, 2, 2, 3, 4, 4, 5]


@pytest.mark.parametrize(
    ("step_ms", "expected"),
    [
        (20, [0, 2, 4, 6]),  # 50 fps: half of them
        (80, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7]),  # 12.5 fps: each twice
        (40, list(range(8))),
    ],
)
def test_constant_frame_rates(tmp_path: Path, step_ms: int, expected: list[int]) -> None:
    times = [step_ms * n for n in range(8)]
    path = write_video(tmp_path / "cfr.mkv", greys(8), times, "ffv1")
    assert numbers(path)[: len(expected)] == expected
    assert len(numbers(path)) == 8 * step_ms / 40


def test_odd_sizes_one_frame_and_reduction(tmp_path: Path) -> None:
    path = write_video(tmp_path / "odd.mkv", greys(1, 35, 51), [0], "ffv1")
    assert read_video(path).shape == (1, 3, 35, 51)
    (frame,) = iter_video(path, max_side=17)
    assert frame.shape == (3, 12, 17)
    many = write_video(tmp_path / "many.mkv", greys(9), [40 * n for n in range(9)], "ffv1")
    assert len(read_video(many, max_frames=4)) == 4


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100, 48_000, 96_000])
def test_any_rate_becomes_16_khz(tmp_path: Path, rate: int) -> None:
    samples = (32767 * sine(rate)).astype(np.int16)[None]
    audio = read_audio(write_audio(tmp_path / "a.wav", samples, rate, "pcm_s16le", "s16"))
    assert audio.dtype == torch.float32
    assert abs(len(audio) - 16_000) <= 32  # the resampler's filter may cost 2 ms at the ends
    expected = torch.from_numpy(sine(16_000)).float()[: len(audio)]
    inner = slice(500, 15_000)
    # 1 % of full scale: the ripple of a resampling filter is far below, a shift of 1 sample above
    assert (audio[inner] - expected[inner]).abs().max() < 0.01


@pytest.mark.parametrize(
    ("codec", "sample_format", "scale", "dtype"),
    [
        ("pcm_s24le", "s32", 2**31 - 1, np.int32),
        ("pcm_f32le", "flt", 1.0, np.float32),
        ("pcm_u8", "u8", None, np.uint8),
    ],
)
def test_any_sample_format(
    tmp_path: Path, codec: str, sample_format: str, scale: float | None, dtype: type
) -> None:
    wave = sine(16_000)
    scaled = np.round(wave * 127) + 128 if scale is None else wave * scale
    samples = scaled.astype(dtype)[None]
    audio = read_audio(write_audio(tmp_path / "a.wav", samples, 16_000, codec, sample_format))
    tolerance = 0.01 if scale is None else 1e-4  # one step of 8 bits; far above 24 bits
    assert (audio - torch.from_numpy(wave).float()).abs().max() < tolerance


def test_stereo_is_the_mean_of_its_channels(tmp_path: Path) -> None:
    left, right = sine(16_000), sine(16_000, hz=330)
    samples = np.stack([left, right]).astype(np.float32)
    audio = read_audio(write_audio(tmp_path / "a.wav", samples, 16_000, "pcm_f32le", "flt"))
    assert (audio - torch.from_numpy((left + right) / 2).float()).abs().max() < 1e-4
    both = np.stack([left, left]).astype(np.float32)
    audio = read_audio(write_audio(tmp_path / "b.wav", both, 16_000, "pcm_f32le", "flt"))
    assert audio.abs().max() == pytest.approx(0.5, abs=1e-4)  # no louder than each


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_samples_that_are_no_numbers_are_refused(tmp_path: Path, value: float) -> None:
    samples = sine(16_000).astype(np.float32)[None]
    samples[0, 77] = value
    path = write_audio(tmp_path / "a.wav", samples, 16_000, "pcm_f32le", "flt")
    with pytest.raises(ValueError, match=r"a\.wav: .* NaN or infinite"):
        read_audio(path)


def test_no_more_samples_are_read_than_asked_for(tmp_path: Path) -> None:
    samples = sine(16_000, 4.0).astype(np.float32)[None]
    samples[0, 32_000:] = np.nan  # of samples that are not read
    path = write_audio(tmp_path / "a.wav", samples, 16_000, "pcm_f32le", "flt")
    first = read_audio(path, max_samples=20_000)
    assert torch.equal(first, torch.from_numpy(samples[0, :20_000]))
    with pytest.raises(ValueError, match=r"a\.wav: .* NaN or infinite"):
        read_audio(path, max_samples=40_000)


@pytest.mark.parametrize("audio_late_ms", [200, -200])
def test_sound_starts_with_the_first_frame(tmp_path: Path, audio_late_ms: int) -> None:
    path = tmp_path / "av.mkv"
    start_ms = 400
    with av.open(str(path), "w") as container:
        video = container.add_stream("ffv1", rate=25)
        video.height, video.width, video.pix_fmt = 16, 16, "bgr0"
        video.codec_context.time_base = Fraction(1, 1000)
        audio = container.add_stream("flac", rate=16_000)
        audio.layout = "mono"
        for number, picture in enumerate(greys(10)):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = start_ms + 40 * number, Fraction(1, 1000)
            container.mux(video.encode(frame))
        ramp = np.arange(1, 16_001, dtype=np.int16)[None]
        frame = av.AudioFrame.from_ndarray(ramp, format="s16", layout="mono")
        frame.sample_rate, frame.time_base = 16_000, Fraction(1, 16_000)
        frame.pts = 16 * (start_ms + audio_late_ms)
        container.mux(audio.encode(frame))
        container.mux(video.encode(None))
        container.mux(audio.encode(None))
    first = read_audio(path)[:6400] * 32768
    expected = torch.arange(1, 6401) - 16 * audio_late_ms
    # Matroska counts milliseconds, 16 samples
    assert (first - expected.clamp(min=0)).abs().max() <= 17


@pytest.mark.parametrize("read", [probe, read_video, read_audio])
def test_missing_and_unreadable_files(tmp_path: Path, read) -> None:
    with pytest.raises(ValueError, match=r"gone\.mp4: no such file"):
        read(tmp_path / "gone.mp4")
    (tmp_path / "words.mp4").write_text("this is no video " * 50)
    with pytest.raises(ValueError, match=r"words\.mp4: not a readable media file"):
        read(tmp_path / "words.mp4")
    (tmp_path / "empty.mp4").touch()
    with pytest.raises(ValueError, match=r"empty\.mp4: not a readable media file"):
        read(tmp_path / "empty.mp4")


def test_missing_streams_and_truncated_files(tmp_path: Path) -> None:
    silent = write_video(tmp_path / "silent.mp4", greys(9), [40 * n for n in range(9)], "libx264")
    with pytest.raises(ValueError, match=r"silent\.mp4: no audio stream"):
        read_audio(silent)
    samples = (32767 * sine(16_000)).astype(np.int16)[None]
    blind = write_audio(tmp_path / "blind.wav", samples, 16_000, "pcm_s16le", "s16")
    with pytest.raises(ValueError, match=r"blind\.wav: no video stream"):
        read_video(blind)
    assert not probe(blind).has_video
    assert probe(blind).sample_rate_hz == 16_000
    assert (probe(silent).width, probe(silent).has_audio) == (16, False)
    data = silent.read_bytes()
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=r"cut\.mp4"):
        read_video(cut)


def test_streams_without_content(tmp_path: Path) -> None:
    path = write_audio(
        tmp_path / "none.wav", np.zeros((1, 1), np.int16), 16_000, "pcm_s16le", "s16"
    )
    data = path.read_bytes()
    start = data.index(b"data")
    path.write_bytes(data[: start + 4] + bytes(4))
    with pytest.raises(ValueError, match=r"none\.wav: the audio stream holds no samples"):
        read_audio(path)


@pytest.mark.media
def test_real_clips(media: Path) -> None:
    assert read_video(media / "presenter.mp4", max_frames=3).shape == (3, 3, 458, 458)
    audio = read_audio(media / "presenter.mp4")
    assert abs(len(audio) - 375 * 640) < 640  # 44.1 kHz stereo AAC
    assert read_video(media / "fashion.jpg").shape[0] == 1
    assert len(read_audio(media / "fashion.wav")) == 16_000 * 12.8
