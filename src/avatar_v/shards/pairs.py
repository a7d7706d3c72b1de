"""Shards of pairs: two samples of one condition, and which of them a rater prefers.

A pair is a clip of a shard (schema.py), which is the condition: its sound, its person, its true
motion. Beside the members of the clip it has

    key.pair.json  Judgment: the winner, who said so, what was asked, which systems made the samples
    key.pair.npz   first "f m" and second "f m", the motion of both samples; reference "r m" and
                   reference_valid "r", the motion that they were made after, in fp32
    key.pair.first.mp4, key.pair.second.mp4, key.pair.portrait.npz
                   of judged videos: the pictures of both samples, coded as a clip's own, and
                   pictures "k 3 ph pw" uint8 of the person elsewhere

so that every reader of clips reads pairs too. The first sample is the one that was shown first, or
on the left. Samples that `avatar-v shards pairs` makes begin with the clip's own first frame. A
pair that several raters judged, or on several axes, is written once for each judgment.
"""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from avatar_v.base.outside import parse_json
from avatar_v.base.stored import built
from avatar_v.shards.arrays import encode_arrays, load_arrays
from avatar_v.shards.loader import collate, levelled, read_members
from avatar_v.shards.schema import (
    TEXT,
    VIDEO,
    Sample,
    decode_sample,
    encode_sample,
)
from avatar_v.shards.writer import ClipEntry, RawClip
from avatar_v.types import MOTION_NAMES, Batch, PreferencePairs, PreferenceVideos, num_latents

JUDGMENT, TRACKS = "pair.json", "pair.npz"
VIDEOS, PORTRAIT = ("pair.first.mp4", "pair.second.mp4"), "pair.portrait.npz"
NAMES = ("first", "second", "reference", "reference_valid")
"""The arrays of TRACKS."""
Winner = Literal["first", "second", "tie"]
WINNERS: tuple[Winner, ...] = get_args(Winner)
"""In the order of types.PreferencePairs.winner."""
MOST_MOTION = 1e3
"""No component of motion is larger, whatever its unit."""
MAX_WORDS = 200
NUM_PORTRAITS = 4
"""Pictures of the person that are taken from a reference for judged videos."""


@dataclass(frozen=True)
class Judgment:
    """What one rater said of a pair."""

    winner: Winner
    rater: str
    axis: str = "overall"  # what was asked, e.g. "blinks"
    first: str = ""  # the systems that made the samples, in their makers' words
    second: str = ""

    def __post_init__(self) -> None:
        if self.winner not in WINNERS:
            raise ValueError(f"winner is one of {', '.join(WINNERS)}, got {self.winner!r}")
        if not self.rater or not self.axis:
            raise ValueError(f"a judgment has a rater and an axis, got {self}")
        for name in ("rater", "axis", "first", "second"):
            if len(getattr(self, name)) > MAX_WORDS:
                raise ValueError(f"{name} has at most {MAX_WORDS} characters")


@dataclass(frozen=True)
class PairPictures:
    """What raters of videos saw."""

    first: UInt8[Tensor, "f 3 h w"]
    second: UInt8[Tensor, "f 3 h w"]
    portrait: UInt8[Tensor, "k 3 ph pw"]  # the person elsewhere, a picture or more


@dataclass(frozen=True)
class Pair:
    """A pair with one judgment."""

    clip: Sample  # the condition, of the length of the samples
    first: Float[Tensor, "f m"]
    second: Float[Tensor, "f m"]
    reference: Float[Tensor, "r m"]  # r = 4k + 1
    reference_valid: Bool[Tensor, " r"]
    judgment: Judgment
    pictures: PairPictures | None = None  # None: the pair is one of motion alone


def encode_pair(pair: Pair) -> RawClip:
    """What `writer.write_shard` takes. ValueError if the parts contradict each other."""
    tracks = [getattr(pair, name) for name in NAMES]
    _check(pair.clip, *tracks)
    members = {
        **encode_sample(pair.clip),
        JUDGMENT: encode_judgment(pair.judgment),
        TRACKS: encode_arrays({name: x.numpy() for name, x in zip(NAMES, tracks, strict=True)}),
    }
    if pair.pictures is not None:
        from avatar_v.media import reading  # PyAV, which pairs of motion do without

        videos = (pair.pictures.first, pair.pictures.second)
        _check_pictures(pair.clip, *videos, pair.pictures.portrait)
        members |= {
            name: reading.encode_video_bytes(video, frame_rate_hz=pair.clip.meta.frame_rate_hz)
            for name, video in zip(VIDEOS, videos, strict=True)
        }
        members[PORTRAIT] = encode_arrays({"pictures": pair.pictures.portrait.numpy()})
    return RawClip(pair.clip.key, members)


def encode_judgment(judgment: Judgment) -> bytes:
    """The JSON member."""
    return json.dumps(dataclasses.asdict(judgment), sort_keys=True).encode()


def read_pair(entry: ClipEntry, *, pictures: bool = False) -> Pair:
    """Decode one pair; its pictures, if it has any, stay where they are unless ``pictures``.
    ValueError, naming shard and key, for a clip that is no pair and for bytes that are cut, changed
    or unfit; with ``pictures`` also for a pair of motion alone."""
    require_pair(entry, pictures=pictures)
    unread = (VIDEO, *(() if pictures else (*VIDEOS, PORTRAIT, TEXT)))
    members = read_members(entry, [name for name in entry.members if name not in unread])
    clip = decode_sample(entry.key, members, where=entry.shard, decode_video=False)
    name = f"{entry.shard}, clip {entry.key}"
    try:
        tracks = load_arrays(members[TRACKS], f"{name}.{TRACKS}")
        first, second, reference, valid = (torch.from_numpy(tracks[of]) for of in NAMES)
        _check(clip, first, second, reference, valid)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        if str(error).startswith(name):
            raise
        raise ValueError(f"{name}.{TRACKS}: {error}") from error
    judgment = decode_judgment(members[JUDGMENT], f"{name}.{JUDGMENT}")
    shown = _read_pictures(clip, members, name) if pictures else None
    return Pair(clip, first, second, reference, valid, judgment, shown)


def read_judgment(entry: ClipEntry) -> Judgment:
    """What was said of a pair, without the pair. Errors as in `read_pair`."""
    require_pair(entry)
    members = read_members(entry, [JUDGMENT])
    return decode_judgment(members[JUDGMENT], f"{entry.shard}, clip {entry.key}.{JUDGMENT}")


def require_pair(entry: ClipEntry, *, pictures: bool = False) -> None:
    """ValueError for a clip that is no pair, with ``pictures`` also for one of motion alone."""
    missing = [member for member in (JUDGMENT, TRACKS) if member not in entry.members]
    if missing:
        raise ValueError(
            f"{entry.shard}, clip {entry.key}: it is no pair, without {', '.join(missing)}; "
            "make pairs with `avatar-v shards pairs`"
        )
    if pictures and (missing := [of for of in (*VIDEOS, PORTRAIT) if of not in entry.members]):
        raise ValueError(
            f"{entry.shard}, clip {entry.key}: a pair of motion alone, without "
            f"{', '.join(missing)}; expected judged videos, as `avatar-v-eval votes pairs` and "
            "`avatar-v shards pairs --video` make"
        )


def decode_judgment(data: bytes, name: str) -> Judgment:
    """The JSON member; ValueError for missing or unknown keys, and for other types."""
    return built(Judgment, parse_json(data, where=name), where=name)


def collate_pairs(pairs: Sequence[Pair]) -> Batch:
    """Pairs of one length to a Batch with ``preferences``; the clip is the condition. ValueError
    for pictures of several sizes."""
    batch = collate([levelled(pair.clip) for pair in pairs])
    reference = reference_batch(batch, [(pair.reference, pair.reference_valid) for pair in pairs])
    judged = PreferencePairs(
        torch.stack([pair.first for pair in pairs]),
        torch.stack([pair.second for pair in pairs]),
        torch.tensor([WINNERS.index(pair.judgment.winner) for pair in pairs]),
        tuple(pair.judgment.axis for pair in pairs),
        _stack_videos(pairs),
    )
    return dataclasses.replace(batch, reference=reference, preferences=judged)


def _stack_videos(pairs: Sequence[Pair]) -> PreferenceVideos | None:
    """None where a pair has no pictures, or they were not read."""
    shown = [pair.pictures for pair in pairs if pair.pictures is not None]
    if len(shown) < len(pairs):
        return None
    for name in ("first", "portrait"):
        sizes = {
            pair.clip.key: tuple(getattr(of, name).shape[2:])
            for pair, of in zip(pairs, shown, strict=True)
        }
        if len(set(sizes.values())) > 1:
            found = ", ".join(f"{h}x{w} ({key})" for key, (h, w) in sizes.items())
            raise ValueError(f"pictures of one size are a batch, those of {name} have {found}")
    counts = torch.tensor([len(of.portrait) for of in shown])
    return PreferenceVideos(
        _pixels(torch.stack([of.first for of in shown])),
        _pixels(torch.stack([of.second for of in shown])),
        _pixels(pad_sequence([of.portrait for of in shown], batch_first=True)),
        torch.arange(int(counts.max())) < counts[:, None],
    )


def _pixels(pictures: UInt8[Tensor, "*b 3 h w"]) -> Float[Tensor, "*b 3 h w"]:
    return pictures.to(torch.float32) / 127.5 - 1


def reference_batch(
    batch: Batch, rows: Sequence[tuple[Float[Tensor, "_r m"], Bool[Tensor, " _r"]]]
) -> Batch:
    """References of the clips of ``batch`` that are known by their motion, and where a face is
    seen; shorter ones are filled up with frames that show none. They have no sound."""
    motion, valid = (pad_sequence(list(row), batch_first=True) for row in zip(*rows, strict=True))
    nothing, words = motion.new_zeros(*motion.shape[:2], 4), ("",) * len(rows)
    return Batch(
        video=None,
        audio=motion.new_zeros(len(rows), 0),
        text=words,
        motion=motion,
        face_box=nothing,
        mouth_box=nothing,
        valid=valid,
        key=batch.key,
        person=batch.person,
        scene=words,
        habits_known=batch.habits_known,
    )


def _read_pictures(clip: Sample, members: dict[str, bytes], name: str) -> PairPictures:
    from avatar_v.media import reading

    first, second = (reading.decode_video_bytes(members[of], f"{name}.{of}") for of in VIDEOS)
    where = f"{name}.{PORTRAIT}"
    arrays = load_arrays(members[PORTRAIT], where)
    try:
        portrait = torch.from_numpy(arrays["pictures"])
        _check_pictures(clip, first, second, portrait)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error
    return PairPictures(first, second, portrait)


def _check_pictures(clip: Sample, first: Tensor, second: Tensor, portrait: Tensor) -> None:
    """ValueError for pictures that do not fit the clip or each other."""
    for name, shown in (("first", first), ("second", second), ("portrait", portrait)):
        if shown.dtype != torch.uint8 or shown.dim() != 4 or shown.shape[1] != 3 or not len(shown):
            raise ValueError(f"pictures of {name} are {shown.dtype} of {tuple(shown.shape)}")
    shape = (clip.meta.num_frames, *first.shape[1:])
    if tuple(first.shape) != shape or tuple(second.shape) != shape:
        found = f"{tuple(first.shape)} and {tuple(second.shape)}"
        raise ValueError(f"videos of {found}, expected two of {clip.meta.num_frames} frames")


def _check(clip: Sample, first: Tensor, second: Tensor, reference: Tensor, valid: Tensor) -> None:
    """ValueError for shapes that do not fit the clip, and for numbers that are no motion."""
    if valid.dtype != torch.bool or valid.dim() != 1:
        raise ValueError(f"reference_valid is {valid.dtype}, expected a row of truth values")
    lengths = (clip.meta.num_frames, clip.meta.num_frames, len(valid))
    tracks = (first, second, reference)
    for name, track, length in zip(NAMES[:3], tracks, lengths, strict=True):
        shape = (length, len(MOTION_NAMES))
        if tuple(track.shape) != shape or track.dtype != torch.float32:
            found = f"{track.dtype} of {tuple(track.shape)}"
            raise ValueError(f"{name} is {found}, expected float32 of {shape}")
        if not bool((track.abs() <= MOST_MOTION).all()):  # neither is NaN
            raise ValueError(f"{name} has numbers that are no motion")
    num_latents(len(valid))
