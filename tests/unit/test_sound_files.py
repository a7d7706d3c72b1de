"""Which sound of a file is spoken, from which moment on, and what of it a video delivers."""

import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from av import AudioLayout
from av.audio.stream import AudioStream
from av.container import OutputContainer
from av.stream import Disposition

from avatar_v.inputs.speech import SpeechInput, read_speech
from avatar_v.media import containers, reading
from avatar_v.media.channels import VoiceChannel
from avatar_v.media.delivered import Delivered, SoundFormat, delivered_format
from avatar_v.media.files import Mp4File
from avatar_v.media.writer import Writer
from clip_files import beeping_film, heard_and_seen
from hostile_media import write_wav

RATE = 16_000
NUM = 2 * RATE
STEREO = SoundFormat(48_000, "stereo")


def tone(hz: float, rate: int = RATE, num: int | None = None) -> np.ndarray:
    at_s = np.arange(2 * rate if num is None else num) / rate
    return (0.3 * np.sin(2 * np.pi * hz * at_s) * (np.sin(9 * at_s) > -0.5)).astype(np.float32)


def audio_stream(container: OutputContainer, codec: str, rate: int, layout: str) -> AudioStream:
    stream = container.add_stream(codec, rate=rate, layout=layout)
    assert isinstance(stream, AudioStream)
    return stream


def sound_file(
    path: Path,
    *tracks: np.ndarray,
    layout: str = "mono",
    rate: int = RATE,
    default: int | None = None,
    codec: str = "pcm_f32le",
) -> Path:
    """Tracks "c s" (or "s") in one file, of which one may be flagged as the default."""
    with av.open(str(path), "w") as container:
        streams = [audio_stream(container, codec, rate, layout) for _ in tracks]
        for i, stream in enumerate(streams):
            stream.disposition = Disposition.default if i == default else Disposition(0)
        for stream, samples in zip(streams, tracks, strict=True):
            packed = np.ascontiguousarray(np.atleast_2d(samples).T).reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(packed, format="flt", layout=layout)
            frame.sample_rate, frame.pts = rate, 0
            container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    return path


def likeness(one: torch.Tensor, other: np.ndarray) -> float:
    num = min(len(one), len(other))
    return float(np.corrcoef(one[:num].numpy(), other[:num])[0, 1])


# --- which track ---


@pytest.mark.parametrize(("default", "expected"), [(None, 1), (0, 1), (1, 2)])
def test_the_default_track_is_spoken_else_the_first(
    tmp_path: Path, default: int | None, expected: int
) -> None:
    tracks = (tone(300), tone(500))
    path = sound_file(tmp_path / "two.mkv", *tracks, default=default)
    assert (reading.probe(path).track, reading.probe(path).num_tracks) == (expected, 2)
    assert likeness(reading.read_audio(path), tracks[expected - 1]) > 0.99
    spoken = read_speech(path)
    assert (spoken.track.track, spoken.track.num_tracks) == (expected, 2)
    assert likeness(read_speech(path, 1).audio[:], tracks[0]) > 0.99
    assert likeness(read_speech(path, 2).audio[:], tracks[1]) > 0.99
    with pytest.raises(ValueError, match=r"two\.mkv: no sound track 3; it has 2"):
        read_speech(path, 3)


# --- which channel ---

VOICE, OTHER = tone(300), 0.5 * tone(440)
BASS = 0.9 * tone(50)
CHANNELS = [
    ("stereo", [VOICE, VOICE], VOICE),
    ("stereo", [VOICE, -VOICE], VOICE),
    ("stereo", [VOICE, -0.8 * VOICE], VOICE),
    ("stereo", [VOICE, 0 * VOICE], VOICE),
    ("stereo", [VOICE, OTHER], VOICE + OTHER),
    ("2.1", [VOICE, VOICE, BASS], VOICE),
    ("5.1", [OTHER, -OTHER, VOICE, BASS, OTHER, OTHER], VOICE),
    ("5.1", [VOICE, VOICE, 0 * VOICE, BASS, OTHER, OTHER], VOICE),
    ("quad", [VOICE, VOICE, OTHER, OTHER], VOICE),
]


@pytest.mark.parametrize(("layout", "channels", "expected"), CHANNELS)
def test_the_voice_is_heard_among_channels(
    tmp_path: Path, layout: str, channels: list[np.ndarray], expected: np.ndarray
) -> None:
    samples = np.stack(channels)
    path = sound_file(tmp_path / "a.wav", samples, layout=layout)
    heard = reading.read_audio(path)
    assert likeness(heard, expected) > 0.99
    voice = VoiceChannel(AudioLayout(layout), RATE)
    parts = [voice(samples[:, i : i + 777]) for i in range(0, NUM, 777)]
    assert np.array_equal(np.concatenate(parts), heard.numpy())  # however it arrives


def test_any_number_of_channels_is_read(tmp_path: Path) -> None:
    """Also eight and more, of which PyAV's planes are not all there."""
    for num in (3, 6, 8, 9, 16):
        samples = np.repeat(tone(300)[:, None], num, axis=1)
        path = write_wav(tmp_path / f"{num}.wav", channels=num, samples=samples.reshape(-1))
        assert likeness(reading.read_audio(path), tone(300)) > 0.99


# --- its length and its beginning ---


def rf64(size: int, data: bytes) -> bytes:
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, RATE, 2 * RATE, 2, 16)
    sizes = struct.pack("<4sIQQQI", b"ds64", 28, size, size, 0, 0)
    return b"RF64\xff\xff\xff\xffWAVE" + sizes + form + b"data\xff\xff\xff\xff" + data


@pytest.mark.parametrize(
    "size", [0, 2**32 - 1, 2**31 - 1, 2_000_000_000, 2**32 - 37, 2**31 - 4096, 2**31 + 36]
)
@pytest.mark.parametrize("num_lost", [0, 1])
def test_a_wav_that_says_no_size_is_read_to_its_end(
    tmp_path: Path, size: int, num_lost: int
) -> None:
    path = write_wav(tmp_path / "a.wav", samples=tone(300), says_bytes=size)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - num_lost])  # one may end within a sample
    assert containers.early_end(path) is None
    assert len(reading.read_audio(path)) == NUM - num_lost
    assert reading.probe(path).duration_s == pytest.approx(2, abs=1e-3)
    pcm = data[44:]
    path.write_bytes(rf64(2**64 - 1 if size else 0, pcm[: len(pcm) - num_lost]))
    assert containers.early_end(path) is None
    assert len(reading.read_audio(path)) == NUM - num_lost


@pytest.mark.parametrize("says_bytes", [4 * NUM, 2 * NUM + 100, 1_000_000_000])
def test_a_wav_that_was_cut_still_says_so(tmp_path: Path, says_bytes: int) -> None:
    path = write_wav(tmp_path / "a.wav", samples=tone(300), says_bytes=says_bytes)
    assert "cut or damaged" in (containers.early_end(path) or "")
    assert len(reading.read_audio(path)) == NUM


@pytest.mark.parametrize(
    ("suffix", "codec"),
    [("mp3", "libmp3lame"), ("m4a", "aac"), ("flac", "flac"), ("ogg", "libopus")],
)
def test_the_delay_of_an_encoder_is_no_delay_of_the_sound(
    tmp_path: Path, suffix: str, codec: str
) -> None:
    rate = 48_000
    noise = np.random.default_rng(0).standard_normal(2 * rate)
    burst = (0.1 * np.convolve(noise, np.ones(24) / 5, "same")).astype(np.float32)
    burst[:rate] = 0
    path = tmp_path / f"a.{suffix}"
    with av.open(str(path), "w") as container:
        stream = audio_stream(container, codec, rate, "mono")
        frame = av.AudioFrame.from_ndarray(burst[None], format="fltp", layout="mono")
        frame.sample_rate, frame.pts = rate, 0
        form = stream.codec_context.format.name
        for part in av.AudioResampler(format=form, layout="mono", rate=rate).resample(frame):
            container.mux(stream.encode(part))
        container.mux(stream.encode(None))
    heard = reading.read_audio(path).numpy()
    loud = np.convolve(np.square(heard), np.ones(32), "valid")
    first = int(np.argmax(loud > 0.1 * loud.max()))
    assert abs(first - RATE) < 160  # 10 ms: a quarter of a video frame; the delay is 25 to 70 ms


@pytest.mark.parametrize("suffix", ["mp4", "mov", "mkv"])
@pytest.mark.parametrize("late_s", [0.48, -0.48])
def test_sound_that_starts_later_than_the_picture_stays_in_sync(
    tmp_path: Path, suffix: str, late_s: float
) -> None:
    """What an edit list says in mp4 and mov."""
    path, rate = tmp_path / f"a.{suffix}", 48_000
    sound_s, picture_s = max(late_s, 0), max(-late_s, 0)
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=25)
        video.height, video.width, video.pix_fmt = 16, 16, "yuv420p"
        audio = container.add_stream("aac", rate=rate, layout="mono")
        for i in range(50):
            frame = av.VideoFrame.from_ndarray(np.full((16, 16, 3), 99, np.uint8), format="rgb24")
            frame.pts, frame.time_base = i + round(25 * picture_s), Fraction(1, 25)
            container.mux(video.encode(frame))
        samples = tone(300, rate)
        samples[:rate] = 0  # the voice begins one second into the sound
        block = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
        block.sample_rate, block.pts = rate, round(sound_s * rate)
        block.time_base = Fraction(1, rate)
        container.mux(audio.encode(block))
        container.mux(audio.encode(None))
        container.mux(video.encode(None))
    heard = reading.read_audio(path).numpy()
    begin = int(np.argmax(np.abs(heard) > 0.03))
    assert abs(begin / RATE - (1 + late_s)) < 0.02  # half a video frame


# --- its times ---


@pytest.mark.parametrize(
    ("suffix", "codecs"),
    [
        ("mp4", ("libx264", "aac")),
        ("webm", ("libvpx", "libopus")),
        ("mkv", ("libx264", "libopus")),
        ("ts", ("libx264", "aac")),
    ],
)
def test_a_hole_in_the_sound_is_silence(
    tmp_path: Path, suffix: str, codecs: tuple[str, str]
) -> None:
    path = tmp_path / f"a.{suffix}"
    beeping_film(path, 4, (0.48, 3.0), codecs=codecs, lost_s=(1.0, 2.5))
    sound, video = reading.read_audio(path), reading.read_video(path)
    beeps, flashes = heard_and_seen(sound, video)
    assert flashes == pytest.approx([0.48, 3.0])
    assert beeps == pytest.approx(flashes, abs=0.02)  # half a video frame
    assert len(sound) == pytest.approx(len(video) * 640, abs=2 * 1024 // 3)  # two AAC frames
    num_stereo = sum(len(part) for part in reading.iter_channels(path, STEREO)) // 2
    assert abs(num_stereo - 3 * len(sound)) < 100  # 2 ms


def test_what_overlaps_is_cut_and_what_is_later_waits(tmp_path: Path) -> None:
    """Two recordings that were joined, of which the second begins before, or long after, the end of
    the first."""
    first = beeping_film(tmp_path / "a.ts", 2, (0.48,), at_s=1.0).read_bytes()
    for at_s, num in ((1.6, 90), (5.0, 175)):
        second = beeping_film(tmp_path / "b.ts", 2, (1.2,), at_s=1.0 + at_s).read_bytes()
        path = tmp_path / "c.ts"
        path.write_bytes(first + second)
        sound, video = reading.read_audio(path), reading.read_video(path)
        beeps, flashes = heard_and_seen(sound, video)
        assert flashes == pytest.approx([0.48, at_s + 1.2], abs=0.041)
        assert beeps == pytest.approx(flashes, abs=0.03)  # a transport stream delays AAC by 21 ms
        assert len(video) == num
        assert len(sound) == pytest.approx(num * 640, abs=2 * 1024 // 3)


def test_times_that_are_rounded_leave_no_hole(tmp_path: Path) -> None:
    """Matroska counts milliseconds; at 44.1 kHz no frame of FLAC has a whole number of them."""
    how = {"rate": 44_100, "codec": "flac"}
    rounded = sound_file(tmp_path / "a.mkv", tone(300, 44_100), **how)
    exact = sound_file(tmp_path / "a.flac", tone(300, 44_100), **how)
    assert torch.equal(reading.read_audio(rounded), reading.read_audio(exact))


def test_the_length_of_a_file_is_that_of_what_is_read(tmp_path: Path) -> None:
    late = beeping_film(tmp_path / "late.ts", 2, (0.48,), at_s=5400.0)
    assert containers.extent(late)[0] == pytest.approx(2.0, abs=0.1)  # frames of AAC
    assert containers.early_end(late) is None
    path = tmp_path / "dense.mka"  # a minute of packets, all stamped into one second
    with av.open(str(path), "w", format="matroska") as container:
        stream = audio_stream(container, "libopus", 48_000, "mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 48_000), np.float32), format="fltp",
                                           layout="mono")  # fmt: skip
        for second in range(60):
            frame.sample_rate, frame.pts = 48_000, 48_000 * second
            for packet in stream.encode(frame):
                packet.pts = packet.dts = (packet.pts or 0) // 60
                container.mux(packet)
    assert containers.extent(path)[0] == pytest.approx(60.0, abs=0.1)
    assert len(reading.read_audio(path)) < 1.1 * RATE


# --- what is delivered ---


@pytest.mark.parametrize(
    ("rate", "layout", "expected"),
    [
        (16_000, "mono", SoundFormat()),
        (48_000, "stereo", SoundFormat(48_000, "stereo")),
        (44_100, "5.1(side)", SoundFormat(44_100, "5.1")),
        (8_000, "mono", SoundFormat(8_000, "mono")),
        (192_000, "stereo", SoundFormat(96_000, "stereo")),
        (22_255, "mono", SoundFormat(24_000, "mono")),
        (48_000, "16 channels", SoundFormat(48_000, "mono")),
        (48_000, "8 channels", SoundFormat(48_000, "5.1")),
    ],
)
def test_the_form_is_that_of_the_file_as_far_as_aac_has_it(
    rate: int, layout: str, expected: SoundFormat
) -> None:
    assert delivered_format(rate, layout) == expected


def spoken_of(path: Path, rate: int, layout: str, *channels: np.ndarray) -> SpeechInput:
    return read_speech(sound_file(path, np.stack(channels), layout=layout, rate=rate))


@pytest.mark.parametrize("rate", [44_100, 48_000, 8_000])
def test_a_video_delivers_the_sound_of_the_file(tmp_path: Path, rate: int) -> None:
    left, right = tone(300, rate), tone(500, rate)
    spoken = spoken_of(tmp_path / "a.wav", rate, "stereo", left, right)
    assert spoken.delivered is not None
    num = len(spoken.audio) // 640
    with Writer(Mp4File(tmp_path / "a.mp4"), spoken.delivered.form) as writer:
        for start in range(0, num, 7):
            pictures = torch.zeros(min(7, num - start), 3, 16, 16, dtype=torch.uint8)
            writer.write(pictures, spoken.delivered.of_frames(start, len(pictures)))
    with av.open(str(tmp_path / "a.mp4")) as container:
        audio = container.streams.audio[0]
        assert (audio.codec_context.sample_rate, audio.codec_context.layout.name) == (
            rate, "stereo",
        )  # fmt: skip
        assert audio.duration is not None
        assert audio.time_base is not None
        assert abs(audio.duration * audio.time_base - Fraction(num, 25)) < Fraction(1, 1000)
    back = torch.cat([*reading.iter_channels(tmp_path / "a.mp4", SoundFormat(rate, "stereo"))])
    for channel, expected in zip(back.reshape(-1, 2).T, (left, right), strict=True):
        assert likeness(channel, expected) > 0.99  # nor is there a delay


def test_16_khz_mono_is_delivered_as_it_is_spoken(tmp_path: Path) -> None:
    spoken = spoken_of(tmp_path / "a.wav", RATE, "mono", tone(300))
    assert spoken.delivered is None
    assert torch.equal(spoken.audio[:NUM], torch.from_numpy(tone(300)))


def test_behind_its_end_a_sound_is_silent_and_a_wrong_length_is_refused(tmp_path: Path) -> None:
    short = Delivered(torch.ones(3 * 2 * 1920), SoundFormat(48_000, "stereo"))
    part = short.of_frames(2, 2)
    assert part.shape == (2, 2 * 1920)
    assert part[:, :1920].all()
    assert not part[:, 1920:].any()
    picture = torch.zeros(1, 3, 16, 16, dtype=torch.uint8)
    with (
        pytest.raises(ValueError, match="1920 samples each, in 2 channels, got 640 in 1"),
        Writer(Mp4File(tmp_path / "a.mp4"), short.form) as writer,
    ):
        writer.write(picture, torch.zeros(640))
