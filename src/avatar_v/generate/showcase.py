"""The demo: one held-out person of the world through the whole way from files to mp4, and a score.

From the test split: a reference clip, and another sentence in the same voice as the driving speech.
Both go through files and `carry_out`, as a user's would. The true video of that sentence exists
too, so the result can be seen beside it and measured against it.
"""

import wave
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.critics.motion import MotionMeter
from avatar_v.generate.inputs import json_path
from avatar_v.generate.pipeline import FORMATS, carry_out, weights_folder
from avatar_v.generate.progress import FrameProgress
from avatar_v.generate.record import Record, save_record
from avatar_v.generate.sheet import Curves, Row, save_sheet
from avatar_v.media import encode_video_bytes
from avatar_v.types import MOTION_NAMES, SAMPLE_RATE_HZ, Request
from avatar_v.world.clip import WorldClip, make_clip
from avatar_v.world.splits import persons, scenes, sentences

REFERENCE_FRAMES = 101
SHUFFLE_BLOCK = 25
"""Frames: shuffled speech keeps its syllables and loses its order."""
NUM_SHUFFLES = 200
MOUTH_OPEN = MOTION_NAMES.index("mouth_open")


@dataclass(frozen=True)
class Cast:
    """Who says what where; numbers count from 0 within the test split."""

    person: int
    scene: int
    speech: int
    num_frames: int


@dataclass(frozen=True)
class LipSync:
    """Pearson correlations of the mouth's opening with that of the driving speech."""

    generated: float  # measured from the generated pixels
    shuffled_mean: float  # the same measurement against shuffled speech
    shuffled_std: float
    true_video: float  # measured from the true pixels: what the meter can see at most


def showcase(
    folder: Path,
    cast: Cast,
    *,
    num_steps: int = 24,
    seed: int = 0,
    weights: str | Path = "small",
    meter: str | Path = "motion",
) -> tuple[Record, LipSync]:
    """Generate, measure and draw: out.mp4, out.json and sheet.png in ``folder``, replaced if there.

    ``meter`` is a MotionMeter's name or folder. ValueError for numbers outside the split, missing
    weights, or fewer frames than two shuffle blocks.
    """
    if cast.num_frames < 2 * SHUFFLE_BLOCK:
        raise ValueError(f"a demo has at least {2 * SHUFFLE_BLOCK} frames, got {cast.num_frames}")
    weights_folder(weights)
    judge = MotionMeter.from_pretrained(meter)
    reference, driving = make_clips(cast)
    assert reference.video is not None
    assert driving.video is not None
    folder.mkdir(parents=True, exist_ok=True)
    request = _write_request(folder, reference.video, driving, num_steps=num_steps, seed=seed)
    made: list[Tensor] = []
    with FrameProgress("demo") as progress:
        record = carry_out(
            request,
            weights=weights,
            on_ready=progress.ready,
            on_frames=lambda frames: (made.append(frames), progress.frames(frames))[1],
        )
    video, truth = torch.cat(made), driving.motion[:, MOUTH_OPEN]
    opening = judge.measure(video).values[:, 0]
    sync = lip_sync(opening, judge.measure(driving.video).values[:, 0], truth)
    ids = {"person": driving.person_id, "scene": driving.scene_id, "speech": driving.sentence_id}
    more = {"lip_sync": asdict(sync), "meter_hash": judge.hash(), "world": ids}
    save_record(json_path(request.out), record, **more)
    save_sheet(
        folder / "sheet.png",
        [Row("reference", reference.video), Row("true", driving.video), Row("generated", video)],
        Curves(truth, opening, driving.audio),
        title="A person the model has never seen, speaking a sentence it has never heard",
        subtitle=_subtitle(driving, record, sync),
    )
    return record, sync


def make_clips(cast: Cast) -> tuple[WorldClip, WorldClip]:
    """The reference clip, and the true clip of the driving speech, in the same scene."""
    (person_id,) = persons("test", 1, cast.person)
    (scene_id,) = scenes("test", 1, cast.scene)
    other_id, speech_id = sentences("test", 2, cast.speech)
    side = FORMATS["small"].side
    return (
        make_clip(person_id, scene_id, other_id, num_frames=REFERENCE_FRAMES, size=side),
        make_clip(person_id, scene_id, speech_id, num_frames=cast.num_frames, size=side),
    )


def lip_sync(
    generated: Float[Tensor, " f"], true_video: Float[Tensor, " f"], truth: Float[Tensor, " f"]
) -> LipSync:
    """Correlate measured openings with ``truth``, and with ``truth`` in shuffled order.

    The order of its blocks is drawn ``NUM_SHUFFLES`` times from a fixed seed, none in its place.
    """
    draw = torch.Generator().manual_seed(0)
    num_blocks = len(truth) // SHUFFLE_BLOCK
    blocks = truth[: num_blocks * SHUFFLE_BLOCK].reshape(num_blocks, SHUFFLE_BLOCK)
    part = generated[: num_blocks * SHUFFLE_BLOCK]
    orders = [_derangement(num_blocks, draw) for _ in range(NUM_SHUFFLES)]
    shuffled = torch.tensor([correlation(part, blocks[order].flatten()) for order in orders])
    return LipSync(
        generated=round(correlation(generated, truth), 4),
        shuffled_mean=round(float(shuffled.mean()), 4),
        shuffled_std=round(float(shuffled.std()), 4),
        true_video=round(correlation(true_video, truth), 4),
    )


def correlation(a: Float[Tensor, " f"], b: Float[Tensor, " f"]) -> float:
    """Pearson's r; 0 where one of them does not move."""
    a, b = a.double() - a.double().mean(), b.double() - b.double().mean()
    norm = float(a.norm() * b.norm())
    return float(torch.dot(a, b)) / norm if norm > 1e-12 else 0.0


def _derangement(num: int, draw: torch.Generator) -> Tensor:
    """A permutation that leaves nothing in its place."""
    while True:
        order = torch.randperm(num, generator=draw)
        if not bool((order == torch.arange(num)).any()):
            return order


def _write_request(
    folder: Path,
    reference: UInt8[Tensor, "f 3 h w"],
    driving: WorldClip,
    *,
    num_steps: int,
    seed: int,
) -> Request:
    """The files a user would have, and the request about them."""
    clip, speech = folder / "reference.mp4", folder / "speech.wav"
    clip.write_bytes(encode_video_bytes(reference))
    samples = (driving.audio.clamp(-1, 1) * 32767).round().to(torch.int16)
    with wave.open(str(speech), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE_HZ)
        file.writeframes(samples.numpy().astype("<i2").tobytes())
    return Request(
        reference=str(clip),
        audio=str(speech),
        out=str(folder / "out.mp4"),
        prompt=driving.text,
        seed=seed,
        num_steps=num_steps,
        face_crop=False,  # the world's clips are framed on the face
        overwrite=True,
    )


def _subtitle(driving: WorldClip, record: Record, sync: LipSync) -> str:
    parts: Sequence[str] = (
        f"test person {driving.person_id}",
        f"{record.num_frames / 25:.1f} s made in {record.timing.total_s:.0f} s",
        f"correlation of the mouth's opening with the speech's {sync.generated:.2f}",
        f"with shuffled speech {sync.shuffled_mean:z.2f} ± {sync.shuffled_std:.2f}",
    )
    return " · ".join(parts)
