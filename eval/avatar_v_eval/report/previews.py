"""Small copies of videos that fit into a page: the first seconds, reduced, H.264 and AAC."""

import io
from itertools import islice
from pathlib import Path

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.video.frame import VideoFrame

from avatar_v.media.reading import iter_video, probe, read_audio
from avatar_v.types import FRAME_RATE_HZ, SAMPLE_RATE_HZ, SAMPLES_PER_FRAME
from avatar_v_eval.files import file_hash

MAX_S = 10
MAX_SIDE = 256  # pixels
CRF = 26
AUDIO_BIT_RATE = 48_000


def preview(file: str, sha256: str) -> bytes:
    """mp4 of a scored video. ValueError says why there is none: gone, changed, unreadable."""
    path = Path(file)
    if not file:
        raise ValueError("no video was delivered")
    if not path.is_file():
        raise ValueError(f"{_named(path)} is not on this machine")
    if file_hash(path) != sha256:
        raise ValueError(f"{_named(path)} has changed since it was scored")
    return encode_preview(path)


def encode_preview(path: Path) -> bytes:
    """The first `MAX_S` seconds at most `MAX_SIDE` pixels wide and high; sides become even."""
    frames = islice(iter_video(path, max_side=MAX_SIDE), MAX_S * FRAME_RATE_HZ)
    silence = np.zeros(MAX_S * SAMPLE_RATE_HZ, dtype=np.float32)
    sound = read_audio(path).numpy() if probe(path).has_audio else silence
    data = io.BytesIO()
    with av.open(data, "w", format="mp4") as container:
        picture = container.add_stream("libx264", rate=FRAME_RATE_HZ, options={"crf": str(CRF)})
        picture.pix_fmt = "yuv420p"
        voice = container.add_stream("aac", rate=SAMPLE_RATE_HZ, layout="mono")
        voice.bit_rate = AUDIO_BIT_RATE
        for index, frame in enumerate(frames):
            height, width = (side // 2 * 2 for side in frame.shape[1:])
            if index == 0:
                picture.height, picture.width = height, width
            image = frame[:, :height, :width].permute(1, 2, 0).contiguous().numpy()
            container.mux(picture.encode(VideoFrame.from_ndarray(image, format="rgb24")))
            container.mux(voice.encode(_sound(sound, index)))
        container.mux(picture.encode(None))
        container.mux(voice.encode(None))
    return data.getvalue()


def _named(path: Path) -> str:
    """A page is for others: no more of a path than says which file is meant."""
    return "/".join(path.parts[-2:])


def _sound(samples: np.ndarray, index: int) -> AudioFrame:
    """The sound of one picture; silence beyond the end."""
    part = samples[index * SAMPLES_PER_FRAME : (index + 1) * SAMPLES_PER_FRAME]
    part = np.pad(part, (0, SAMPLES_PER_FRAME - len(part)))
    frame = AudioFrame.from_ndarray(part[None], format="fltp", layout="mono")
    frame.sample_rate = SAMPLE_RATE_HZ
    frame.pts = index * SAMPLES_PER_FRAME
    return frame
