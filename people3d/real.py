"""The real clips, followed and cropped by dlib as the worlds' are; for testing only.

    python -m people3d.real OUT_DIR

Per clip one .npz: head crops (128 px) at 25 frames a second, landmarks in them, sound at 16 kHz,
and where the dark iris lies between the corners of the eyes, from the full picture.
"""

import sys
import time
from pathlib import Path

import av
import numpy as np
import torch
from torch import Tensor

from avatar_v.faces.face_track import crop, crop_windows, in_windows, track_faces
from people3d.clips import DETECT_EVERY, SIZE

MEDIA = Path("/work/shared/media")
CLIPS = ("talking_head", "presenter", *(f"speaker_{i}" for i in range(1, 6)))
_MOST_FRAMES = 150


def read(path: Path) -> tuple[Tensor, np.ndarray]:
    """Pictures at 25 a second (the nearest in time) and mono sound at 16 kHz."""
    frames, times = [], []
    with av.open(str(path)) as box:
        for frame in box.decode(video=0):
            if frame.time * 25 > _MOST_FRAMES + 2:
                break
            frames.append(frame.to_ndarray(format="rgb24"))
            times.append(frame.time)
    sound = []
    with av.open(str(path)) as box:
        resampler = av.AudioResampler(format="flt", layout="mono", rate=16000)
        for frame in box.decode(audio=0):
            sound += [x.to_ndarray()[0] for x in resampler.resample(frame)]
    num = min(_MOST_FRAMES, int((times[-1] - times[0]) * 25))
    at = [int(np.abs(np.array(times) - (k + 0.5) / 25).argmin()) for k in range(num)]
    video = torch.from_numpy(np.stack([frames[k] for k in at])).permute(0, 3, 1, 2).contiguous()
    audio = np.concatenate(sound)[: num * 640]
    return video, np.pad(audio, (0, num * 640 - len(audio)))


def gaze_of(video: Tensor, points: np.ndarray) -> np.ndarray:
    """-1 … 1 over the eye's width, to the picture's right: the centroid of what is dark in it."""
    height, width = video.shape[2:]
    out = np.zeros(len(video), np.float32)
    for k, frame in enumerate(video):
        sides = []
        for first in (36, 42):
            eye = points[k, first : first + 6] * (width, height)
            (x0, y0), (x1, y1) = eye.min(0), eye.max(0)
            part = frame[:, int(y0) : int(y1) + 1, int(x0) : int(x1) + 1].float().mean(0).numpy()
            dark = np.clip(np.percentile(part, 35) - part, 0, None).sum(0) + 1e-6
            at = (dark * (np.arange(part.shape[1]) + 0.5)).sum() / dark.sum()
            sides.append(2 * at / part.shape[1] - 1)
        out[k] = np.mean(sides)
    return out


def main() -> None:
    """Store all clips."""
    out = Path(sys.argv[1])
    out.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    for name in CLIPS:
        start = time.process_time()
        video, audio = read(MEDIA / f"{name}.mp4")
        track = track_faces(video, detect_every=DETECT_EVERY)
        height, width = video.shape[2:]
        windows = crop_windows(track, height, width)
        np.savez(
            out / f"{name}.npz",
            video=crop(video, windows, SIZE).numpy(),
            points=in_windows(track.landmarks, windows, height, width).numpy(),
            found=track.found.numpy(),
            audio=audio.astype(np.float32),
            gaze=gaze_of(video, track.landmarks.numpy()),
        )
        print(name, len(video), round(time.process_time() - start, 1), flush=True)


if __name__ == "__main__":
    main()
