"""Files that media readers must refuse, or take with a warning: tiny, and made on the fly."""

import io
import os
import socket
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image

RATE_HZ = 16_000
FRAMES = 20


@dataclass(frozen=True)
class Case:
    """A file and what readers say of it; None where they take it."""

    make: Callable[[Path], object]  # writes the file
    suffix: str
    video: str | None  # pattern of the error where its pictures are wanted
    audio: str | None  # and where its sound is
    warning: str = ""  # pattern of `containers.early_end`; "" where the file counts as whole


def picture(side: int = 48, number: int = 0) -> np.ndarray:
    """Half red, half blue; the halves move with ``number``, so that no two frames are equal."""
    out = np.zeros((side, side, 3), np.uint8)
    out[: side // 2 + number % 4, :, 0] = 200
    out[side // 2 + number % 4 :, :, 2] = 200
    return out


def tone(duration_s: float = FRAMES / 25, rate: int = RATE_HZ) -> np.ndarray:
    return 0.4 * np.sin(2 * np.pi * 300 * np.arange(round(duration_s * rate)) / rate)


def write_av(
    path: Path,
    *,
    codec: str = "ffv1",
    sound: str | None = "flac",
    sides: tuple[int, ...] = (48,) * FRAMES,
    times_ms: tuple[int, ...] | None = None,
    sound_at_s: int = 0,
    options: dict[str, str] | None = None,
    title: str = "",
) -> Path:
    """A clip with a tone; where ``sides`` differ each size has an encoder of its own."""
    with av.open(str(path), "w", options=options or {}) as container:
        container.metadata["title"] = title
        stream = container.add_stream(codec, rate=25)
        stream.width = stream.height = sides[0]
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        step = Fraction(1, 25 if codec == "mpeg2video" else 1000)  # a codec of few frame rates
        stream.codec_context.time_base = step
        talk = container.add_stream(sound, rate=RATE_HZ) if sound else None
        encoders = {sides[0]: stream.codec_context}
        container.start_encoding()
        for number, side in enumerate(sides):
            if side not in encoders:
                encoders[side] = other_encoder(codec, side)
            frame = av.VideoFrame.from_ndarray(picture(side, number), format="rgb24")
            frame.pts = 40 * number if times_ms is None else times_ms[number]
            frame.time_base = Fraction(1, 1000)
            for packet in encoders[side].encode(frame):
                packet.stream = stream
                container.mux(packet)
        container.mux(stream.encode(None))
        if talk is not None:
            samples = (32767 * tone()).astype(np.int16)[None]
            block = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
            block.sample_rate, block.time_base = RATE_HZ, Fraction(1, RATE_HZ)
            block.pts = sound_at_s * RATE_HZ
            for part in av.AudioResampler(format=talk.codec_context.format.name).resample(block):
                container.mux(talk.encode(part))
            container.mux(talk.encode(None))
    return path


def other_encoder(codec: str, side: int) -> av.VideoCodecContext:
    encoder = av.CodecContext.create(codec, "w")
    encoder.width = encoder.height = side
    encoder.pix_fmt, encoder.time_base = "yuvj420p", Fraction(1, 1000)
    return encoder


def write_wav(
    path: Path,
    *,
    rate: int = RATE_HZ,
    channels: int = 1,
    samples: np.ndarray | None = None,
    says_bytes: int | None = None,
) -> Path:
    """16-bit PCM behind a header that may lie about its length."""
    data = (32767 * (tone() if samples is None else samples)).astype("<i2").tobytes()
    size = len(data) if says_bytes is None else says_bytes
    block = 2 * channels
    head = struct.pack("<HHIIHH", 1, channels, rate, min(rate * block, 2**32 - 1), block, 16)
    riff = struct.pack("<4sI4s4sI", b"RIFF", min(36 + size, 2**32 - 1), b"WAVE", b"fmt ", 16)
    path.write_bytes(riff + head + struct.pack("<4sI", b"data", size) + data)
    return path


def write_sound(path: Path, codec: str, rate: int = RATE_HZ) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout="mono")
        samples = (32767 * tone(2.0, rate)).astype(np.int16)[None]
        block = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        block.sample_rate = rate
        frame_format = stream.codec_context.format.name
        for part in av.AudioResampler(format=frame_format).resample(block):
            container.mux(stream.encode(part))
        container.mux(stream.encode(None))
    return path


def write_image(path: Path) -> Path:
    noise = np.random.default_rng(0).integers(0, 255, (96, 96, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    return path


def cut(path: Path, share: float = 0.6) -> Path:
    """What a download that broke off leaves."""
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    return path


def patch(path: Path, old: bytes, new: bytes) -> Path:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))
    return path


def secret(beside: Path) -> Path:
    """A private video that the files below name; it plays where they are followed."""
    path = beside.with_name("secret.ts")
    return write_av(path, codec="mpeg2video", sound="mp2") if not path.exists() else path


def write_text(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text.format(secret=secret(path).resolve()))


PLAYLIST = "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\nfile://{secret}\n#EXT-X-ENDLIST\n"
CONCAT = "ffconcat version 1.0\nfile 'secret.ts'\n"
DASH = (
    '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" '
    'mediaPresentationDuration="PT2S"><Period><AdaptationSet mimeType="video/mp2t">'
    '<Representation id="1" bandwidth="1"><BaseURL>file://{secret}</BaseURL></Representation>'
    "</AdaptationSet></Period></MPD>"
)
SDP = "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n"
SMIL = '<?xml version="1.0"?><smil><body><video src="file://{secret}"/></body></smil>'
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="64" height="64"><rect width="9"/></svg>'


def numbered(path: Path) -> None:
    """A name that FFmpeg reads as a pattern of pictures, one of which lies beside it."""
    write_image(path.with_name("frame001.png"))
    path.with_name("frame%03d.png").write_text("no picture")
    path.symlink_to(path.with_name("frame%03d.png"))


def external_track(path: Path) -> None:
    """A mov whose first track says that its samples lie in another file (an alias, `alis`)."""
    write_av(path, codec="mjpeg", sound=None)
    target = str(path.with_name("private.mov").resolve()).encode()
    write_av(path.with_name("private.mov"), codec="mjpeg", sound=None)
    record = bytes(10) + bytes([4]) + b"disk".ljust(27, b"\0") + bytes(12)
    record += bytes([11]) + b"private.mov".ljust(63, b"\0") + bytes(16)
    record += struct.pack(">HH", 1, 1) + bytes(16)
    volume = b"disk:" + target.lstrip(b"/").replace(b"/", b":")
    for kind, value in ((2, volume), (18, target), (0xFFFF, b"")):
        record += struct.pack(">HH", kind, len(value)) + value + bytes(len(value) % 2)
    data = path.read_bytes()
    at = data.index(b"dref") + 12
    entry = struct.pack(">I4sI", 12 + len(record), b"alis", 0) + record
    old = data[at : at + int.from_bytes(data[at : at + 4])]
    extra = len(entry) - len(old)
    data = bytearray(data)
    data[at : at + len(old)] = entry
    place = 0
    for name in (b"moov", b"trak", b"mdia", b"minf", b"dinf", b"dref"):
        place = data.index(name, place)
        data[place - 4 : place] = (int.from_bytes(data[place - 4 : place]) + extra).to_bytes(4)
    path.write_bytes(data)


def large_png(path: Path) -> None:
    """Nine hundred bytes that promise 20,000 x 20,000 pixels."""
    head = b"IHDR" + struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    body = b"IDAT" + zlib.compress(bytes(300_000))
    chunks = [
        struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c))
        for c in (head, body, b"IEND")
    ]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


def lying_size(path: Path) -> None:
    """48 x 48 in the container's header, a picture of 8,200 x 8,200 in the stream."""
    large = io.BytesIO()
    Image.new("L", (8_200, 8_200)).save(large, "jpeg")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=25)
        stream.width = stream.height = 48
        stream.pix_fmt = "yuvj420p"
        container.start_encoding()
        packet = av.Packet(large.getvalue())
        packet.stream, packet.pts, packet.dts = stream, 0, 0
        packet.time_base = Fraction(1, 25)
        container.mux(packet)


def long_header(path: Path) -> None:
    """A Matroska header that promises three hundred years."""
    write_av(path)
    data = bytearray(path.read_bytes())
    at = data.index(b"\x44\x89\x88") + 3
    data[at : at + 8] = struct.pack(">d", 1e13)
    path.write_bytes(data)


def latin_title(path: Path) -> None:
    patch(write_av(path, title="Gruesse QQ"), b"QQ", b"\xfc\xdf")


def wide(path: Path) -> None:
    """Pixels each of which counts as sixty thousand."""
    data = write_image(path).read_bytes()
    at = data.index(b"JFIF") + 7  # a byte of unit, then the density across and down
    path.write_bytes(data[:at] + struct.pack(">BHH", 0, 60_000, 1) + data[at + 5 :])


def two_rates(path: Path) -> None:
    write_sound(path, "aac", 44_100)
    other = write_sound(path.with_name("other.aac"), "aac", 16_000)
    path.write_bytes(path.read_bytes() + other.read_bytes())


def joined(path: Path) -> None:
    """Two recordings in one file, each with times from 0 on."""
    how = {"codec": "mpeg2video", "sound": "mp2"}
    write_av(path, sides=(48,) * 60, sound_at_s=1, **how)
    other = write_av(path.with_name("other.ts"), **how)
    path.write_bytes(path.read_bytes() + other.read_bytes())


def circle(path: Path) -> None:
    path.symlink_to(path.with_name("round"))
    path.with_name("round").symlink_to(path)


def a_socket(path: Path) -> None:
    server = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket has 107 bytes at most
    try:
        server.bind(path.name)
    finally:
        os.chdir(here)
        server.close()


def both(make: Callable[[Path], object], suffix: str, why: str) -> Case:
    """A file that is refused whatever is wanted of it."""
    return Case(make, suffix, why, why)


UNREADABLE = "not a readable media file"
NO_SOUND, NO_PICTURE = "no audio stream", "no video stream"
FAST = {"movflags": "faststart"}

CASES = {
    "playlist": both(write_text(PLAYLIST), ".m3u8", UNREADABLE),
    "playlist named mp4": both(write_text(PLAYLIST), ".mp4", UNREADABLE),
    "list of files": both(write_text(CONCAT), ".ffconcat", UNREADABLE),
    "list of files named mp4": both(write_text(CONCAT), ".mp4", UNREADABLE),
    "dash": both(write_text(DASH), ".mpd", UNREADABLE),
    "session": both(write_text(SDP), ".sdp", UNREADABLE),
    "smil": both(write_text(SMIL), ".smil", UNREADABLE),
    "svg": both(write_text(SVG), ".svg", UNREADABLE),
    "numbered pictures": both(numbered, ".png", UNREADABLE),
    "words": both(lambda path: path.write_text("no media " * 99), ".mp4", UNREADABLE),
    "empty": both(lambda path: path.touch(), ".webm", UNREADABLE),
    "random bytes": both(
        lambda path: path.write_bytes(np.random.default_rng(1).bytes(4096)), ".mkv", UNREADABLE
    ),
    "external track": Case(external_track, ".mov", "holds no frames", NO_SOUND),
    "folder": both(lambda path: path.mkdir(), ".mp4", "a folder; expected"),
    "pipe": both(lambda path: os.mkfifo(path), ".mp4", "a pipe; expected"),
    "socket": both(a_socket, ".mp4", "a socket; expected"),
    "device": both(lambda path: path.symlink_to("/dev/zero"), ".mp4", "a device; expected"),
    "links in a circle": both(circle, ".mp4", "its links go in a circle; expected"),
    "broken link": both(lambda path: path.symlink_to("gone.mp4"), ".mp4", "no such file; expected"),
    "video without decoder": Case(
        lambda path: patch(write_av(path, codec="mjpeg"), b"V_MJPEG", b"V_QJPEG"),
        ".mkv",
        "no decoder for its video stream",
        None,
    ),
    "sound without decoder": Case(
        lambda path: patch(write_av(path), b"A_FLAC", b"A_QLAC"),
        ".mkv",
        None,
        "no decoder for its audio stream",
    ),
    "size changes": Case(
        lambda path: write_av(path, codec="mjpeg", sides=(48,) * 15 + (64,) * 5),
        ".mkv",
        r"changes its size from 48 x 48 to 64 x 64 pixels 0\.60 s into the video",
        None,
    ),
    "two pixels": Case(
        lambda path: write_av(path, sides=(2,) * FRAMES), ".mkv", "2 x 2 pixels; each side", None
    ),
    "pixels without end": Case(large_png, ".png", "67108864 pixels", NO_SOUND),
    "pixels the header hides": Case(
        lying_size, ".mkv", "or of more than 67108864 pixels", NO_SOUND
    ),
    "very wide pixels": Case(wide, ".jpg", "at most 67108864 pixels", NO_SOUND),
    "years in the header": both(long_header, ".mkv", "its header says that it lasts"),
    "a picture for months": Case(
        lambda path: write_av(path, sides=(48, 48), times_ms=(0, 10**10)),
        ".mkv",
        "its header says that it lasts",
        "its header says that it lasts",
    ),
    "a picture for hours": Case(
        lambda path: write_av(path, sides=(48, 48), times_ms=(0, 10**7)),
        ".mkv",
        "one picture stands still for 10000 s",
        None,
    ),
    "sound hours later": Case(
        lambda path: write_av(path, sound_at_s=50_000), ".mkv", None, "its sound starts at 50000 s"
    ),
    "one sample a second": both(
        lambda path: write_wav(path, rate=1), ".wav", f"{NO_PICTURE}|has 1 samples a second"
    ),
    "3,999 samples a second": both(
        lambda path: write_wav(path, rate=3_999), ".wav", f"{NO_PICTURE}|has 3999 samples a second"
    ),
    "too many samples": both(
        lambda path: write_wav(path, rate=2**31 - 1), ".wav", f"{NO_PICTURE}|2147483647 samples"
    ),
    "channels": both(
        lambda path: write_wav(path, channels=500, samples=np.zeros(5_000)),
        ".wav",
        f"{NO_PICTURE}|500 channels, at most 64|{UNREADABLE}",
    ),
    "no samples": Case(
        lambda path: write_wav(path, samples=np.zeros(0)), ".wav", NO_PICTURE, "holds no samples"
    ),
    "joined": both(joined, ".ts", r"jump back \d\.\d s, \d\.\d s into it"),
    "two rates": Case(two_rates, ".aac", NO_PICTURE, "the sound changes its form"),
    "title in Latin-1": Case(latin_title, ".mkv", None, None),
    "mp4 cut, index first": Case(
        lambda path: cut(write_av(path, codec="mpeg4", sound="aac", options=FAST)),
        ".mp4",
        None,
        None,
        r"ends early: it holds 0\.\d s of the 1\.\d s|cut or damaged",
    ),
    "mp4 cut, index last": both(
        lambda path: cut(write_av(path, codec="mpeg4", sound="aac")), ".mp4", UNREADABLE
    ),
    "mkv cut": Case(
        lambda path: cut(write_av(path, sides=(48,) * 60)), ".mkv", None, None, "ends early"
    ),
    "wav cut": Case(
        lambda path: cut(write_wav(path)), ".wav", NO_PICTURE, None, "ends early|cut or damaged"
    ),
    "flac cut": Case(
        lambda path: cut(write_sound(path, "flac")), ".flac", NO_PICTURE, None, "ends early"
    ),
    "mp3 cut": Case(
        lambda path: cut(write_sound(path, "libmp3lame")), ".mp3", NO_PICTURE, None, "ends early"
    ),
    "jpeg cut": Case(lambda path: cut(write_image(path)), ".jpg", None, NO_SOUND, "cut or damaged"),
    "png cut": Case(lambda path: cut(write_image(path)), ".png", "cannot be decoded", NO_SOUND),
}
