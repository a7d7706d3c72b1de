"""Pairwise votes of a study as shards of pairs: what DPO and the preference model are trained on.

Every vote that counts becomes a pair (avatar_v.shards.pairs), and where reviewers decided their
label alone: the two videos as they were seen, left before right, their sound, the motion that is
read from both, and the case's reference clip. Nobody knows the true motion, so the clip's is that
of the first video.
"""

import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base import checks
from avatar_v.base.video_format import VideoFormat
from avatar_v.faces.face_track import spread_frames
from avatar_v.inputs.reference_clip import ReferenceClip, read_reference
from avatar_v.motion.extractors import Extractor, find_extractor, known
from avatar_v.shards.pairs import (
    JUDGMENT,
    NUM_PORTRAITS,
    Judgment,
    Pair,
    PairPictures,
    Winner,
    encode_judgment,
    encode_pair,
)
from avatar_v.shards.schema import NO_PHONEME, Meta, Sample, to_int16
from avatar_v.shards.writer import Failure, RawClip, index_path, write_shard
from avatar_v.types import FRAME_RATE_HZ, MOTION_NAMES, SAMPLES_PER_FRAME, num_latents
from avatar_v_data.import_plan import split_persons
from avatar_v_eval.human.exclude import counted, exclusions
from avatar_v_eval.human.items import Item, study_items
from avatar_v_eval.human.labels import with_decisions
from avatar_v_eval.human.study import Study
from avatar_v_eval.human.votes import Rater, Vote

MOST_APART = 5
"""Frames by which two videos of one case may differ in length; the longer one is cut."""
MAX_FRAMES = 1501
KEPT = 8
"""Decoded clips in memory: those of a case are asked for again by every pair of systems."""


@dataclass(frozen=True)
class VotePairSettings:
    """How videos are read, and which persons are held out."""

    size: int = 64  # of the square pictures
    num_frames: int = MAX_FRAMES  # at most so many of each video, 4k + 1
    face_crop: bool = True
    motion: str = "auto"  # what reads it (motion/extractors.py)
    validation: float = 0.0  # the share of persons whose pairs are held out; 0: one folder
    seed: int = 0

    def __post_init__(self) -> None:
        checks.count("size", self.size, least=32, most=4096)
        checks.count("num_frames", self.num_frames, least=5, most=MAX_FRAMES)
        num_latents(self.num_frames)
        checks.share("validation", self.validation)
        checks.seed("seed", self.seed)


def write_vote_pairs(
    study: Study,
    votes: Sequence[Vote],
    raters: Sequence[Rater],
    out: Path,
    settings: VotePairSettings,
) -> tuple[Counter[str], list[Failure]]:
    """Write ``out/NAME.tar``, or with held-out persons ``out/train`` and ``out/validation``.

    Returns how often each answer was written, and the votes whose videos are no pair, with reasons.
    ValueError for a study without pairwise questions or votes that count, and where no vote is a
    pair.
    """
    chosen = _pair_votes(study, votes, raters)
    items = {
        (item.case, item.first, item.second): item
        for item in study_items(study, "pair")
        if item.reference is not None
    }
    if not items:
        raise ValueError(
            f"study {study.name}: no case that is asked in pairs names a reference clip, and a "
            "pair needs the person; add it to study.yaml (cases: reference)"
        )
    persons = {
        item.case: os.path.relpath(item.reference or "", study.root) for item in items.values()
    }
    split = _split(chosen, persons, settings)
    extractor = find_extractor(settings.motion, face_crop=settings.face_crop)
    name, answers, failures = re.sub("[^A-Za-z0-9_-]+", "_", study.name), Counter(), []
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as beside:
        for part in sorted(set(split)):
            numbered = [(i, vote) for i, vote in enumerate(chosen) if split[i] == part]
            made = _made(name, numbered, items, persons, extractor, settings)
            index = write_shard(Path(beside) / part / f"{name}.tar", _counted(made, answers))
            failures += index.failures
        if not answers:
            raise ValueError(
                f"no vote of study {study.name} is a pair; the first: {failures[0].reason}"
            )
        for part in set(split):
            (out / part).mkdir(parents=True, exist_ok=True)
            shard = Path(beside) / part / f"{name}.tar"
            for path in (shard, index_path(shard)):
                path.replace(out / part / path.name)
    return answers, failures


def _pair_votes(study: Study, votes: Sequence[Vote], raters: Sequence[Rater]) -> list[Vote]:
    """The pairwise votes that count, in one order whatever the file's."""
    if study.task("pair") is None:
        asked = ", ".join(task.kind for task in study.tasks)
        raise ValueError(f"study {study.name} asks no pairwise question (it asks {asked})")
    excluded = exclusions(raters, votes, study.rules)
    said = with_decisions(votes, counted(votes, excluded))
    chosen = [vote for vote in said if vote.kind == "pair"]
    if not chosen:
        num = sum(vote.kind == "pair" and vote.role == "study" for vote in votes)
        why = "".join(f"; {left_out.rater}: {left_out.reason}" for left_out in excluded)
        raise ValueError(f"study {study.name}: none of {num} pairwise votes counts{why}")
    return sorted(chosen, key=lambda vote: (vote.question, vote.rater))  # those of an item together


def _split(votes: Sequence[Vote], persons: dict[str, str], settings: VotePairSettings) -> list[str]:
    """The folder of each vote below ``out``: persons, told by their reference clip, stay apart."""
    if settings.validation == 0:
        return [""] * len(votes)
    names = {persons[vote.case] for vote in votes if vote.case in persons}
    if len(names) < 2:
        raise ValueError(
            f"--validation {settings.validation:g} keeps persons apart and needs two reference "
            f"clips or more, got {len(names)}"
        )
    of = split_persons(names, settings.validation, settings.seed)
    return [of[persons[vote.case]] if vote.case in persons else "train" for vote in votes]


def _counted(
    made: Iterator[tuple[RawClip | Failure, str]], answers: Counter[str]
) -> Iterator[RawClip | Failure]:
    for clip, answer in made:
        if isinstance(clip, RawClip):
            answers[answer] += 1
        yield clip


def _made(
    name: str,
    votes: Sequence[tuple[int, Vote]],
    items: dict[tuple[str, str, str], Item],
    persons: dict[str, str],
    extractor: Extractor | None,
    settings: VotePairSettings,
) -> Iterator[tuple[RawClip | Failure, str]]:
    """A pair for each vote with its answer; those of one item are encoded once for each order."""

    @lru_cache(KEPT)
    def read(path: Path) -> ReferenceClip:
        seconds = (settings.num_frames - 1) / FRAME_RATE_HZ
        return read_reference(
            path,
            video=VideoFormat(settings.size, settings.size),
            seconds=seconds,
            face_crop=settings.face_crop,
            extractor=extractor,
        )

    @lru_cache(2)  # both orders
    def encoded(item: Item, swapped: bool) -> dict[str, bytes]:
        assert item.reference is not None
        videos = item.videos[::-1] if swapped else item.videos
        first, second, reference = (read(path) for path in (*videos, item.reference))
        pair = _pair(item.case, persons[item.case], first, second, reference, extractor)
        return encode_pair(pair).members

    for number, vote in votes:
        key = f"{name}-{number:06d}"
        item = items.get((vote.case, vote.first, vote.second))
        if item is None:
            yield Failure(key, f"case {vote.case} has no reference clip"), vote.answer
            continue
        try:
            members = encoded(item, vote.second_on_left)
            judgment = encode_judgment(_judgment(vote))
        except ValueError as error:
            yield Failure(key, str(error)), vote.answer
            continue
        yield RawClip(key, {**members, JUDGMENT: judgment}), vote.answer


def _judgment(vote: Vote) -> Judgment:
    """What was said, the video on the left first."""
    names, winner = (vote.first, vote.second), vote.answer
    if vote.second_on_left:
        names, winner = names[::-1], {"first": "second", "second": "first"}.get(winner, winner)
    sides: dict[str, Winner] = {"first": "first", "second": "second", "tie": "tie"}
    return Judgment(sides[winner], vote.rater, "overall", *names)


def _pair(
    case: str,
    person: str,
    first: ReferenceClip,
    second: ReferenceClip,
    reference: ReferenceClip,
    extractor: Extractor | None,
) -> Pair:
    """ValueError for videos of clearly different length, without sound, or no face in the
    reference."""
    lengths = (first.num_frames, second.num_frames)
    if abs(lengths[0] - lengths[1]) > MOST_APART:
        raise ValueError(
            f"case {case}: its videos have {lengths[0]} and {lengths[1]} frames, expected the "
            f"same within {MOST_APART}"
        )
    num = min(lengths)
    audio = first.audio if first.audio is not None else second.audio
    if audio is None:
        raise ValueError(f"case {case}: neither of its videos has sound")
    looks = spread_frames(reference.valid, NUM_PORTRAITS)
    if not len(looks):
        raise ValueError(f"case {case}: its reference clip shows no face")
    motions = [
        torch.zeros(clip.num_frames, len(MOTION_NAMES)) if clip.motion is None else clip.motion
        for clip in (first, second, reference)
    ]
    pictures = PairPictures(first.video[:num], second.video[:num], reference.video[looks])
    return Pair(
        _condition(
            case, person, first, audio[: num * SAMPLES_PER_FRAME], motions[0][:num], extractor
        ),
        motions[0][:num],
        motions[1][:num],
        motions[2],
        reference.valid,
        Judgment("tie", "nobody yet"),  # each vote puts its own in the place
        pictures,
    )


def _condition(
    case: str,
    person: str,
    first: ReferenceClip,
    audio: Float[Tensor, " s"],
    motion: Float[Tensor, "f m"],
    extractor: Extractor | None,
) -> Sample:
    """The clip of a pair: its sound and person, without pictures of its own."""
    num = len(motion)
    whole = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).repeat(num, 1)
    told = () if extractor is None else known(extractor)
    meta = Meta(
        person=person,
        scene=case,
        sentence=case,
        text="",
        num_frames=num,
        height=0,
        width=0,
        licence="not stated",
        consent="not stated",
        source=f"a rating study, case {case}",
        motion_known=told,
        habits_known=() if extractor is None else first.habits_known,
    )
    return Sample(
        key="pair",
        meta=meta,
        audio=to_int16(audio),
        motion=motion,
        face_box=whole,
        mouth_box=whole.clone(),
        landmarks=torch.zeros(num, 0, 2),
        valid=first.valid[:num],
        phonemes=torch.full((num,), NO_PHONEME, dtype=torch.int16),
    )
