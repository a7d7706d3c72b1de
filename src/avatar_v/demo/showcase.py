"""The demo: one held-out person of the world through the whole way from files to mp4, and a score.

From the test split: a reference clip of one scene; the first picture of another, and another
sentence in the same voice. They go through files and `run`, as a user's would, and a second
time with one frame for a reference. The true video of that sentence exists too, so the results can
be seen beside it and measured against it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from avatar_v.critics.motion import MOUTH_OPEN, MotionMeter
from avatar_v.demo.sheet import Curves, SheetRow, save_sheet
from avatar_v.generate.progress import FrameProgress
from avatar_v.generate.run import run
from avatar_v.media.outputs import build_output
from avatar_v.media.writer import Writer, write_wav
from avatar_v.request.checks import check_settings
from avatar_v.request.record import Record, save_record
from avatar_v.request.request import Request, Weights
from avatar_v.weights.card import DEFAULT_WEIGHTS, read_card, weights_folder
from avatar_v.weights.presets import PRESETS
from avatar_v.weights.weights import load_pipeline
from avatar_v.world.clip import WorldClip, make_clip
from avatar_v.world.splits import persons, scenes, sentences

REFERENCE_FRAMES = 401
MAX_FRAMES = 1_500
"""A minute: the whole demo is held in memory."""
SHUFFLE_BLOCK = 25
"""Frames: shuffled speech keeps its syllables and loses its order."""
NUM_SHUFFLES = 200


@dataclass(frozen=True)
class Cast:
    """Who says what where; numbers count from 0 within the test split."""

    person: int
    scene: int
    speech: int
    num_frames: int


@dataclass(frozen=True)
class Generated:
    """One generated video and what is read from it."""

    record: Record
    video: UInt8[Tensor, "f 3 h w"]
    opening: Float[Tensor, " f"]  # of the mouth


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
    num_steps: int | None = None,
    seed: int = 0,
    weights: str | Path = DEFAULT_WEIGHTS,
    precision: str = "auto",
    meter: str | Path = "motion",
) -> tuple[Record, LipSync]:
    """Generate, measure and draw, in ``folder``: out.mp4 with its out.json, the same shown through
    one picture (picture.mp4), all side by side (side_by_side.mp4) and on sheet.png. What is there
    of these is replaced. Weights that read no reference video make out.mp4 alone.

    ``meter`` is a MotionMeter's name or folder. ValueError for numbers outside the split, missing
    weights, or fewer frames than two shuffle blocks.
    """
    if not 2 * SHUFFLE_BLOCK <= cast.num_frames <= MAX_FRAMES:
        raise ValueError(
            f"a demo has {2 * SHUFFLE_BLOCK} to {MAX_FRAMES:,} frames, got {cast.num_frames}"
        )
    check_settings(Request.of(reference="", audio="", num_steps=num_steps, seed=seed))
    reads_video = read_card(weights_folder(weights)).can.reference
    judge = MotionMeter.from_pretrained(meter)
    for split, number in ((persons, cast.person), (scenes, cast.scene), (sentences, cast.speech)):
        split("test", 2, number)
    load_pipeline(weights_folder(weights))  # faults of the weights come before any file is written
    folder.mkdir(parents=True, exist_ok=True)
    reference, driving = make_clips(cast)
    assert reference.video is not None
    assert driving.video is not None
    request = _write_request(folder, reference, driving, num_steps=num_steps, seed=seed)
    how = Weights(weights, precision=precision)
    made = _generated(request, how, judge)
    truth = driving.motion[:, MOUTH_OPEN]
    seen = judge.measure(driving.video).values[:, MOUTH_OPEN]
    sync = lip_sync(made.opening, seen, truth)
    movement = {"true": _spread(seen), "generated": _spread(made.opening)}
    rows = [SheetRow("reference", reference.video), SheetRow("true", driving.video)]
    if reads_video:
        picture = request.changed(out=str(folder / "picture.mp4"), reference_s=0.0)
        plain = _generated(picture, how, judge)
        movement["from one picture"] = _spread(plain.opening)
        rows.append(SheetRow("1 picture", plain.video, is_made=True))
    label = "16 s video" if reads_video else "generated"
    rows.append(SheetRow(label, made.video, is_made=True))
    ids = {"person": driving.person_id, "scene": driving.scene_id, "speech": driving.sentence_id}
    more = {"lip_sync": asdict(sync), "meter_hash": judge.hash(), "world": ids}
    save_record(folder / "out.json", made.record, **more, mouth_movement=movement)
    with Writer(build_output(str(folder / "side_by_side.mp4"))) as writer:
        writer.write(_beside([row.video for row in rows]), driving.audio)
    save_sheet(
        folder / "sheet.png",
        rows,
        Curves(truth, made.opening, driving.audio),
        title="A person the model has never seen, speaking a sentence it has never heard",
        subtitle=_subtitle(driving, made.record, sync),
    )
    return made.record, sync


def _generated(request: Request, weights: Weights, judge: MotionMeter) -> Generated:
    """The request carried out, with a progress bar."""
    frames: list[Tensor] = []
    assert request.output.out is not None
    with FrameProgress(Path(request.output.out).stem) as progress:
        making = run(request, weights, on_warnings=progress.warn)
        progress.ready(making.inputs)
        record = making.finish(lambda block: (frames.append(block), progress.frames(block))[1])
    video = torch.cat(frames)
    return Generated(record, video, judge.measure(video).values[:, MOUTH_OPEN])


def _spread(opening: Float[Tensor, " f"]) -> float:
    """How much a mouth moves: the standard deviation of its opening."""
    return round(float(opening.std()), 4)


def _beside(
    videos: Sequence[UInt8[Tensor, "_f 3 _side _side"]],
) -> UInt8[Tensor, "_n 3 _h _w"]:
    """Square videos side by side, at the size of the largest, for as long as the last one; shorter
    ones start again."""
    num, side = len(videos[-1]), max(video.shape[-1] for video in videos)
    looped = [video[torch.arange(num) % len(video)] for video in videos]
    return torch.cat([F.interpolate(video, size=(side, side)) for video in looped], dim=3)


def make_clips(cast: Cast) -> tuple[WorldClip, WorldClip]:
    """The reference clip, and the true clip of the driving speech in another scene."""
    (person_id,) = persons("test", 1, cast.person)
    elsewhere_id, scene_id = scenes("test", 2, cast.scene)
    other_id, speech_id = sentences("test", 2, cast.speech)
    side = PRESETS["small"].format.video.height
    return (
        make_clip(person_id, elsewhere_id, other_id, num_frames=REFERENCE_FRAMES, size=side),
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
    reference: WorldClip,
    driving: WorldClip,
    *,
    num_steps: int | None,
    seed: int,
) -> Request:
    """The files a user would have, and the request about them."""
    clip, scene, speech = (folder / name for name in ("reference.mp4", "scene.png", "speech.wav"))
    assert reference.video is not None
    assert driving.video is not None
    with Writer(build_output(str(clip))) as writer:
        writer.write(reference.video, reference.audio)
    Image.fromarray(driving.video[0].permute(1, 2, 0).contiguous().numpy()).save(scene)
    write_wav(speech, driving.audio)
    return Request.of(
        reference=str(clip),
        audio=str(speech),
        image=str(scene),
        out=str(folder / "out.mp4"),
        prompt=driving.text,
        seed=seed,
        num_steps=num_steps,
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
