"""Lip-sync scores of a clip: windows, distances over shifts, offset, Sync-D and Sync-C.

The definitions are those of joonson's syncnet_python (Chung & Zisserman, "Out of time", ACCV-W
2016), for any network that embeds 5 frames and 20 MFCC frames in one space: SyncNet (syncnet.py),
which needs its authors' weights, and the world's own (world_sync.py). Numbers of two critics must
not be compared. Finding and cropping the face is the caller's.

Sign: offset k > 0 says that sound comes k frames before the mouth movement that belongs to it.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import python_speech_features
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from avatar_v.critics.frozen import Frames
from avatar_v.types import SAMPLE_RATE_HZ, SAMPLES_PER_FRAME

WINDOW_FRAMES = 5
STEPS_PER_FRAME = 4  # MFCCs come at 100 Hz
WINDOW_STEPS = WINDOW_FRAMES * STEPS_PER_FRAME
NUM_COEFFICIENTS = 13
STEP_SAMPLES, STEP_SPAN = 160, 400
MFCC_BLOCK = 1000  # rows at a time: each takes some 10 kB on the way
MAX_SHIFT = 15  # frames
CLEARLY_SHIFTED = 5  # frames: 0.2 s, beyond what anyone takes for in sync

Waveform = Float[Tensor, " s"]


@dataclass(frozen=True)
class SyncScore:
    """The judgement of one clip."""

    offset: int  # frames; positive: the sound is early
    distance: float  # Sync-D, the smallest mean distance over the shifts; lower is better
    confidence: float  # Sync-C, the median minus the smallest; higher is better
    by_shift: Float[Tensor, " shifts"]  # mean distance, shifts -15 … 15 of the sound's window


@runtime_checkable
class SyncCritic(Protocol):
    """What measuring needs of a network; both methods are differentiable, in fp32."""

    name: str

    def embed_video(self, windows: Float[Tensor, "b 5 3 h w"]) -> Float[Tensor, "b d"]:
        """Windows of RGB face pictures in [-1, 1]."""
        ...

    def embed_audio(self, windows: Float[Tensor, "b 20 13"]) -> Float[Tensor, "b d"]:
        """Windows of ``mfcc``."""
        ...

    def hash(self) -> str: ...


@torch.no_grad()
def embed_clip(
    critic: SyncCritic, frames: Frames, audio: Waveform, *, batch_size: int = 20
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
    """Embeddings of all windows of the pictures and of the sound; they start at frames 0 … n-1."""
    return embed_stream(critic, [frames], len(frames), audio, batch_size=batch_size)


@torch.no_grad()
def embed_stream(
    critic: SyncCritic,
    blocks: Iterable[Tensor],  # Frames, as many at a time as one likes
    num_frames: int,
    audio: Waveform,
    *,
    batch_size: int = 20,
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
    """`embed_clip` of pictures that come in blocks, ``num_frames`` in all: no more than a block and
    a batch of them are in memory, and the numbers are the same."""
    num = num_windows(num_frames, len(audio))
    video = _embed_pictures(critic, blocks, num, batch_size)
    steps = mfcc(audio).to(video.device)
    sound = []
    for start in range(0, num, batch_size):
        stop = min(start + batch_size, num)
        part = steps[start * STEPS_PER_FRAME : (stop + WINDOW_FRAMES - 1) * STEPS_PER_FRAME]
        sound.append(critic.embed_audio(audio_windows(part)))
    return video, torch.cat(sound).float()


def num_windows(num_frames: int, num_samples: int) -> int:
    """Windows that are compared: five fewer than the whole frames of the shorter track.

    One more would fit the pictures, but the last one lacks an MFCC. ValueError if none is left.
    """
    num = min(num_frames, num_samples // SAMPLES_PER_FRAME) - WINDOW_FRAMES
    if num < 1:
        raise ValueError(
            f"a sync score needs {WINDOW_FRAMES + 1} frames and their sound "
            f"({(WINDOW_FRAMES + 1) * SAMPLES_PER_FRAME} samples), "
            f"got {num_frames} frames and {num_samples} samples"
        )
    return num


def joined(parts: Iterable[Tensor], num_rows: int) -> Tensor:
    """All rows of the parts, ``num_rows`` at most, written to one tensor as they come.

    A list of small tensors between large ones that come and go splits the heap's holes, so that
    memory grows with every part. ValueError without parts.
    """
    rows, end = None, 0
    for part in parts:
        if rows is None:
            rows = part.new_empty((num_rows, *part.shape[1:]))
        rows[end : end + len(part)] = part
        end += len(part)
    if rows is None:
        raise ValueError("there is nothing to judge: no frames")
    return rows[:end]


def _embed_pictures(
    critic: SyncCritic, blocks: Iterable[Tensor], num: int, batch_size: int
) -> Float[Tensor, "n d"]:
    """Of the first ``num`` windows."""
    return joined(_embedded(critic, blocks, num, batch_size), num).float()


def _embedded(
    critic: SyncCritic, blocks: Iterable[Tensor], num: int, batch_size: int
) -> Iterator[Float[Tensor, "b d"]]:
    held, start = None, 0  # frames not yet done with, and the window that begins with the first
    for block in blocks:
        held = block if held is None else torch.cat([held, block])
        while start < num:
            size = min(batch_size, num - start)
            part = held[: size + WINDOW_FRAMES - 1]
            if len(part) < size + WINDOW_FRAMES - 1:
                break
            yield critic.embed_video(video_windows(as_unit_range(part)))
            held, start = held[size:], start + size


def mfcc(audio: Waveform) -> Float[Tensor, "t 13"]:
    """python_speech_features.mfcc with its defaults, of the sound as 16-bit numbers, in fp32.

    Row i starts at sample 160 i and spans 400; the first coefficient is the log energy.
    """
    sound = audio.detach().cpu()
    num = max(1, math.ceil((len(sound) - STEP_SPAN) / STEP_SAMPLES) + 1)
    parts = [_mfcc_rows(sound, at, min(MFCC_BLOCK, num - at)) for at in range(0, num, MFCC_BLOCK)]
    return torch.from_numpy(np.concatenate(parts))


def _mfcc_rows(sound: Waveform, first: int, num: int) -> Float[np.ndarray, "num 13"]:
    """Rows from ``first`` on. One row more goes before them, since pre-emphasis looks a sample
    back."""
    before = min(first, 1)
    start = (first - before) * STEP_SAMPLES
    part = sound[start : (first + num - 1) * STEP_SAMPLES + STEP_SPAN]
    samples = (part.double().numpy() * 32768).round().clip(-32768, 32767)
    rows = python_speech_features.mfcc(samples, SAMPLE_RATE_HZ)
    return np.asarray(rows[before : before + num], dtype=np.float32)


def video_windows(frames: Float[Tensor, "f c h w"]) -> Float[Tensor, "n 5 c h w"]:
    """Every run of 5 frames, n = f - 4, without a copy."""
    return frames.unfold(0, WINDOW_FRAMES, 1).movedim(-1, 1)


def audio_windows(steps: Float[Tensor, "t d"]) -> Float[Tensor, "n 20 d"]:
    """Runs of 20 MFCC frames, one every 4; a rest that fills no run is left out."""
    return steps.unfold(0, WINDOW_STEPS, STEPS_PER_FRAME).movedim(-1, 1)


def as_unit_range(frames: Frames) -> Float[Tensor, "b 3 h w"]:
    """uint8 pictures to [-1, 1]; floats as they are, in fp32."""
    return frames.float() / 127.5 - 1 if frames.dtype == torch.uint8 else frames.float()


def distance_table(
    video: Float[Tensor, "n d"], audio: Float[Tensor, "n d"], max_shift: int = MAX_SHIFT
) -> Float[Tensor, "n shifts"]:
    """L2 distance of window i of the pictures and window i + s of the sound, s = -max … max.

    Before the first and after the last window the sound's embedding is taken as zero, and the
    distance has torch's 1e-6 added to each difference, both as in syncnet_python.
    """
    num = len(video)
    padded = F.pad(audio.float(), (0, 0, max_shift, max_shift))
    shifts = range(2 * max_shift + 1)
    return torch.stack(
        [F.pairwise_distance(video.float(), padded[s : s + num]) for s in shifts], dim=1
    )


def sync_score(table: Float[Tensor, "n shifts"]) -> SyncScore:
    """Offset, Sync-D and Sync-C of a distance table: minimum and median of the means over time."""
    by_shift = table.float().mean(0)
    nearest = int(by_shift.argmin())
    distance = float(by_shift[nearest])
    return SyncScore(
        offset=(len(by_shift) - 1) // 2 - nearest,
        distance=distance,
        confidence=float(by_shift.median()) - distance,
        by_shift=by_shift,
    )


def shifted_is_farther(video: Float[Tensor, "n d"], audio: Float[Tensor, "n d"]) -> float:
    """Of a window's own sound and one at least ``CLEARLY_SHIFTED`` frames off in the same clip, how
    often the own is nearer: the area under the ROC curve within windows. Needs more windows."""
    distance = torch.cdist(video, audio)
    index = torch.arange(len(video), device=video.device)
    shifted = (index[:, None] - index[None]).abs() >= CLEARLY_SHIFTED
    if not bool(shifted.any()):
        raise ValueError(f"expected more than {CLEARLY_SHIFTED} windows, got {len(video)}")
    own = distance.diagonal()[:, None]
    wins = (own < distance).float() + 0.5 * (own == distance).float()
    return float(wins[shifted].mean())
