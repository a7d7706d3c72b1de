"""Pairs of drawn clips that are worse than they could be in known ways, judged by simulated raters.

A condition is a person who says something in a scene. Each of its samples is drawn anew with faults
of known size: lips before or behind the sound, a mouth that moves too little or too much, another
face, blur. Raters (avatar_v.rewards.raters) weigh the sizes themselves and no critic, so what they
want is known exactly. All pairs of a condition's samples are judged.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.ndimage import gaussian_filter
from torch import Tensor

from avatar_v.base.outside import parse_json
from avatar_v.base.seeds import derive, stream
from avatar_v.rewards.raters import Panel, SimulatedRater, raters_of
from avatar_v.rewards.terms import Samples
from avatar_v.shards.pairs import WINNERS, Judgment, Pair, PairPictures, encode_pair
from avatar_v.shards.schema import Meta, Sample, to_int16
from avatar_v.shards.writer import RawClip, index_path, read_index, write_shard
from avatar_v.types import MOTION_NAMES, SAMPLES_PER_FRAME
from avatar_v.world.clip import WorldClip, make_clip
from avatar_v.world.person import sample_person
from avatar_v.world.render import render
from avatar_v.world.scene import sample_scene
from avatar_v.world.splits import Split, persons, scenes, sentences

MAX_LAG = 6
"""Frames."""
MOUTH = [MOTION_NAMES.index(name) for name in ("mouth_open", "jaw", "mouth_width", "mouth_round")]
REFERENCE_FRAMES, PORTRAIT_FRAMES = 137, (20, 60, 100)
SAMPLES = 4
"""Of each condition: 6 pairs."""
CONDITIONS_PER_SHARD = 8
SIZE = 64


@dataclass(frozen=True)
class Faults:
    """What is wrong with a sample, in sizes that raters weigh; the default is nothing."""

    lag: int = 0  # frames by which the face moves behind its sound; negative: before it
    mouth: float = 1.0  # factor of how far the mouth moves
    blur: float = 0.0  # standard deviation in pixels of 64
    stranger: bool = False  # another person's face

    def words(self) -> str:
        """What a shard says of a sample."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, words: str) -> "Faults":
        """The inverse of `words`."""
        return cls(**parse_json(words, where="faults"))


def in_sync(*media: Any, faults: Sequence[Faults], **columns: Any) -> Float[Tensor, " b"]:
    """Minus the lag, in the largest that is drawn."""
    return -torch.tensor([abs(of.lag) / MAX_LAG for of in faults])


def own_mouth(*media: Any, faults: Sequence[Faults], **columns: Any) -> Float[Tensor, " b"]:
    """Minus the distance of the mouth's movement from the person's own, on a scale of ratios."""
    return -torch.tensor([of.mouth for of in faults]).log().abs()


def sharp(*media: Any, faults: Sequence[Faults], **columns: Any) -> Float[Tensor, " b"]:
    """Minus the blur."""
    return -torch.tensor([of.blur for of in faults])


def own_face(*media: Any, faults: Sequence[Faults], **columns: Any) -> Float[Tensor, " b"]:
    """Minus 1 for another face."""
    return -torch.tensor([float(of.stranger) for of in faults])


TERMS: tuple[Callable[..., Tensor], ...] = (in_sync, own_mouth, sharp, own_face)
PANEL = Panel(
    raters_of(
        tuple(f"{__name__}.{term.__name__}" for term in TERMS),
        {
            "ears": (6.0, 2.0, 1.5, 2.0),
            "eyes": (3.0, 2.0, 3.0, 2.0),
            "friend": (3.0, 3.0, 1.5, 4.0),
        },
    )
)
"""Who judges: each has an eye for one fault, errs, and leans to one side."""


def draw_faults(draw: np.random.Generator) -> Faults:
    """Each fault is there in one of two or three samples."""
    lag = int(draw.integers(1, MAX_LAG + 1)) * int(draw.choice([-1, 1]))
    little, much = draw.uniform(0.15, 0.75), draw.uniform(1.2, 1.8)
    return Faults(
        lag=lag if draw.random() < 0.5 else 0,
        mouth=float(draw.choice([little, much])) if draw.random() < 0.5 else 1.0,
        blur=float(draw.uniform(0.3, 1.2)) if draw.random() < 0.5 else 0.0,
        stranger=bool(draw.random() < 0.35),
    )


def values_of(rater: SimulatedRater, faults: Sequence[Faults]) -> dict[str, Float[Tensor, " b"]]:
    """What a rater's terms say of samples with these faults, by path."""
    motion = torch.zeros(len(faults), 1, len(MOTION_NAMES))
    every = torch.arange(len(faults))
    audio = torch.zeros(len(faults), SAMPLES_PER_FRAME)
    samples = Samples(None, audio, None, motion, every, 0, {"faults": faults})
    return rater.values(samples)


def margins(
    panel: Panel, first: Sequence[Faults], second: Sequence[Faults]
) -> Float[Tensor, "r p"]:
    """By how much each rater holds the first samples better: no noise, no lean."""
    return torch.stack(
        [rater.margin(values_of(rater, first), values_of(rater, second)) for rater in panel.raters]
    )


def write_edited(
    folder: Path, split: Split, num: int, *, first: int, num_frames: int, seed: int
) -> None:
    """Shards of the pairs of ``num`` conditions, each of a person of its own, persons ``first`` and
    on; finished shards are kept. ValueError for a folder that holds pairs of something else."""
    named = f"{split}-{first}-{num}-{num_frames}-{seed}"
    if any(not path.name.startswith(named) for path in folder.glob("*.tar")):
        raise ValueError(f"{folder} holds other pairs than {named}: choose an empty folder")
    for start in range(0, num, CONDITIONS_PER_SHARD):
        path = folder / f"{named}-{start:06d}.tar"
        if index_path(path).is_file():
            read_index(index_path(path))
            continue
        numbers = range(first + start, first + min(start + CONDITIONS_PER_SHARD, num))
        write_shard(path, _clips(split, numbers, num_frames, seed))


def _clips(split: Split, numbers: range, num_frames: int, seed: int) -> Iterator[RawClip]:
    for number in numbers:
        for pair in edited_pairs(split, number, num_frames=num_frames, seed=seed):
            yield encode_pair(pair)


def edited_pairs(split: Split, number: int, *, num_frames: int, seed: int) -> list[Pair]:
    """All pairs of the samples of person ``number`` of a split, in drawn order, each judged by a
    drawn rater."""
    draw = stream(f"edited {split}", seed, number)
    faults = [draw_faults(draw) for _ in range(SAMPLES)]
    (person, stranger), (place, elsewhere) = persons(split, 2, number), scenes(split, 2, 2 * number)
    said, before = sentences(split, 2, 2 * number)
    clip = make_clip(
        person, place, said, num_frames=num_frames + 2 * MAX_LAG, size=SIZE, render_video=False
    )
    reference = make_clip(
        person, elsewhere, before, num_frames=REFERENCE_FRAMES, size=SIZE, render_video=False
    )
    portrait = render(
        sample_person(person),
        sample_scene(elsewhere),
        reference.motion[list(PORTRAIT_FRAMES)],
        size=SIZE,
        seed=reference.seed,
    ).video
    samples = [_sample(clip, of, stranger, num_frames) for of in faults]
    pairs = []
    for a, b in itertools.combinations(range(SAMPLES), 2):
        a, b = (b, a) if draw.random() < 0.5 else (a, b)
        judgment = _judged(faults[a], faults[b], draw, (seed, number, a, b))
        (first, of_first), (second, of_second) = samples[a], samples[b]
        pairs.append(
            Pair(
                _condition(clip, f"{split}-{seed}-{number}-{a}{b}", num_frames),
                of_first,
                of_second,
                reference.motion,
                reference.valid,
                judgment,
                PairPictures(first, second, portrait),
            )
        )
    return pairs


def _judged(
    first: Faults, second: Faults, draw: np.random.Generator, place: tuple[int, ...]
) -> Judgment:
    rater = PANEL.raters[int(draw.integers(len(PANEL.raters)))]
    margin = rater.margin(values_of(rater, [first]), values_of(rater, [second]))
    answer = rater.judge(margin, torch.Generator().manual_seed(derive("edited", *place)))
    winner = WINNERS[int(answer[0])]
    return Judgment(winner, rater.name, rater.axis, first.words(), second.words())


def _sample(
    clip: WorldClip, faults: Faults, stranger: int, num_frames: int
) -> tuple[Tensor, Float[Tensor, "f m"]]:
    """Pictures and motion of the middle of a clip, with its faults."""
    start = MAX_LAG - faults.lag
    motion = clip.motion[start : start + num_frames].clone()
    motion[:, MOUTH] *= faults.mouth
    person = sample_person(stranger if faults.stranger else clip.person_id)
    video = render(person, sample_scene(clip.scene_id), motion, size=SIZE, seed=clip.seed).video
    if faults.blur:
        blurred = gaussian_filter(video.float().numpy(), (0, 0, faults.blur, faults.blur))
        video = torch.from_numpy(blurred).round().clamp(0, 255).byte()
    return video, motion


def _condition(clip: WorldClip, key: str, num_frames: int) -> Sample:
    """The middle of a clip: its sound and its true motion."""
    frames = slice(MAX_LAG, MAX_LAG + num_frames)
    sound = slice(MAX_LAG * SAMPLES_PER_FRAME, frames.stop * SAMPLES_PER_FRAME)
    boxes = torch.zeros(num_frames, 4)
    meta = Meta(
        person=f"world-{clip.person_id}",
        scene=f"world-{clip.scene_id}",
        sentence=f"world-{clip.sentence_id}",
        text=clip.text,
        num_frames=num_frames,
        height=0,
        width=0,
        licence="CC0-1.0",
        consent="synthetic",
        source="avatar_v.world",
        transcript=clip.transcript,
    )
    return Sample(
        key=key,
        meta=meta,
        audio=to_int16(clip.audio[sound]),
        motion=clip.motion[frames],
        face_box=boxes,
        mouth_box=boxes.clone(),
        landmarks=torch.zeros(num_frames, 0, 2),
        valid=clip.valid[frames],
        phonemes=clip.phonemes[frames],
    )
