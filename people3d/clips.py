"""Clips of both worlds from the same speech and motion, followed by dlib and stored.

    python -m people3d.clips WORLD OUT.npz CLIPS FRAMES [FIRST]    # WORLD: drawn or people

Clip i says speech i with the voice, habits and motion of the drawn world's person i, in scene i:
sound and motion are those of both worlds. Nobody is covered or turned away from the camera.
Stored per frame: the picture (128 px, framed on the head), dlib's landmarks in it, the motion and
the true opening between the inner lips; per clip: sound at 16 kHz.
"""

import os
import sys
import time
import warnings
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from avatar_v.faces.face_track import track_faces
from avatar_v.types import MOTION_NAMES
from avatar_v.world.clip import make_clip
from avatar_v.world.landmarks import LANDMARK_NAMES
from avatar_v.world.person import sample_person
from avatar_v.world.render import render
from avatar_v.world.scene import sample_scene

SIZE = 128
DETECT_EVERY = 20
_MOST_YAW = 0.6


def shared_track(i: int, num_frames: int) -> tuple[Tensor, Tensor, int]:
    """Motion "f m", sound and seed of clip i, for both worlds."""
    clip = make_clip(i, i, i, num_frames=num_frames, size=64, render_video=False)
    motion = clip.motion.clone()
    yaw, cover = MOTION_NAMES.index("yaw"), MOTION_NAMES.index("cover")
    motion[:, yaw] = motion[:, yaw].clamp(-_MOST_YAW, _MOST_YAW)
    motion[:, cover] = 0.0
    return motion, clip.audio, clip.seed


def drawn_frames(i: int, motion: Tensor, seed: int, size: int = SIZE) -> tuple[Tensor, Tensor]:
    """The drawn world's video "f 3 n n" and the opening of its lips, in interocular distances."""
    out = render(sample_person(i), sample_scene(i), motion, size=size, seed=seed)
    points = {n: out.landmarks[:, k] for k, n in enumerate(LANDMARK_NAMES)}
    gap = (points["lip_inner_lower"] - points["lip_inner_upper"]).norm(dim=1)
    person = sample_person(i)
    scale = sample_scene(i).head_height * person.eye_distance  # half the interocular, of the size
    return out.video, gap / (2 * scale)


def people_frames(i: int, motion: Tensor, seed: int, size: int = SIZE) -> tuple[Tensor, Tensor]:
    """The same of the three-dimensional world."""
    from people3d.render import render_people

    return render_people(i, i, motion, size=size, seed=seed)


def make(world: str, ids: list[int], num_frames: int) -> Iterator[dict[str, np.ndarray]]:
    """Stored form of every clip; those in which dlib finds no face are left out."""
    draw = {"drawn": drawn_frames, "people": people_frames}[world]
    for i in ids:
        motion, audio, seed = shared_track(i, num_frames)
        video, gap = draw(i, motion, seed)
        stored = whole(video)
        if stored is None:
            print(world, i, "no face", flush=True)
            continue
        yield {
            **stored,
            "motion": motion.numpy(),
            "gap": gap.numpy().astype(np.float32),
            "audio": audio.numpy().astype(np.float32),
            "id": np.array(i),
        }


def whole(video: Tensor, detect_every: int = DETECT_EVERY) -> dict[str, np.ndarray] | None:
    """The pictures as they are (framed on the head already) and dlib's landmarks; None where it
    finds no face."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        track = track_faces(video, detect_every=detect_every)
    if not bool(track.found.any()):
        return None
    return {
        "video": video.numpy(),
        "points": track.landmarks.numpy(),
        "found": track.found.numpy(),
    }


def _store(out: str, rows: list[dict[str, np.ndarray]]) -> None:
    part = f"{out}.part.npz"
    np.savez(part, **{k: np.stack([r[k] for r in rows]) for k in rows[0]})
    os.replace(part, out)


def main() -> None:
    """Make and store the clips of one world."""
    world, out, clips, frames = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    first = int(sys.argv[5]) if len(sys.argv) > 5 else 0
    torch.set_num_threads(1)
    start = time.time()
    rows = []
    for row in make(world, list(range(first, first + clips)), frames):
        rows.append(row)
        if len(rows) % 8 == 0:  # so that what is there can be used before the end
            seconds = round(time.time() - start, 1), round(time.process_time(), 1)
            print(world, len(rows), *seconds, flush=True)
            _store(out, rows)
    _store(out, rows)
    print(world, len(rows), "clips", round(time.time() - start, 1), "s", flush=True)


if __name__ == "__main__":
    main()
