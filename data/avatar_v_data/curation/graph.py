"""The identity graph of a run's clips (Avatar V §5.4), and which clips are copies.

Two clips are joined where all of this holds: their faces are near, and so are other vectors that
the plan names; their backgrounds are seen and not alike; both are long enough; and neither is a
copy. A person's clips that show a head alone have a scene of their own and no partner. Names
hold the graph: joined are the clips of one person from different scenes. As persons are complete
linkage and scenes are connected (people.py), each such pair was compared and found to be so.

`graph.parquet` keeps what was compared: a row for each clip, with the clips before it that it is
near to. The next run looks for the neighbours of new clips alone, and of those whose vectors have
changed; then it makes persons, scenes and copies anew from all pairs. So the order in which clips
come does not matter, except to what IVF misses (index.py).
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars
from jaxtyping import Bool, Float, Float32, Int

from avatar_v.base.paths import whole_file
from avatar_v_data.curation.copies import copies, same_sound
from avatar_v_data.curation.index import Pairs, distances, near_pairs
from avatar_v_data.curation.people import (
    NOTHING,
    background_distances,
    backgrounds,
    group_persons,
    group_scenes,
    shared_frames,
)
from avatar_v_data.curation.plan import Grouping
from avatar_v_data.curation.table import clip_name, shows_background

GRAPH_FILE = "graph.parquet"
VERSION = 1
"""Of what pairs are compared by."""
LIST = polars.List(polars.UInt32)
FLOATS = polars.List(polars.Float32)
SCHEMA = {
    "clip": polars.String,
    "compared": polars.String,  # hash of its vectors and the plan's grouping
    "person": polars.String,
    "scene": polars.String,
    "copy_of": polars.String,
    "num_partners": polars.UInt32,
    "near": LIST,  # rows before this one whose faces are near
    "face_distance": FLOATS,
    "background_distance": FLOATS,  # people.NOTHING where no piece is seen in both
    "twins": LIST,  # rows before this one with the same picture and sound
}
Clips = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Looks:
    """What clips are compared by, a row each."""

    vectors: Mapping[str, Float32[np.ndarray, "n _d"]]  # the plan's, the one to look in first
    pictures: Float32[np.ndarray, "n p"]
    backgrounds: Float32[np.ndarray, "n k c"]  # NaN where the head is
    loudness: Sequence[Float[np.ndarray, " _f"]]
    videos: Mapping[str, Float32[np.ndarray, "n _v"]] = field(default_factory=dict)
    """By which clips may be copies, too."""


@dataclass(frozen=True)
class Compared:
    """What is known of pairs of clips."""

    near: Pairs  # in their faces
    apart: Float32[np.ndarray, " p"]  # and how far their backgrounds lie apart
    twins: Pairs  # in picture and sound

    def joined(self, other: "Compared") -> "Compared":
        return Compared(
            self.near.joined(other.near),
            np.concatenate([self.apart, other.apart]),
            self.twins.joined(other.twins),
        )


def grouped(clips: list[dict[str, Any]], grouping: Grouping, file: Path) -> None:
    """Add to each clip its ``person``, its ``scene``, the clip that it is a ``copy_of``, "" for
    none, ``num_partners``, the clips that it is joined with, and ``num_scenes`` of its person, 0
    where its own background is not seen. ``file`` is read and written."""
    if not clips:
        return
    names = [clip_name(clip) for clip in clips]
    hashes = _hashes(clips, grouping)
    is_new, known = _read(file, names, hashes)
    pairs = known
    if is_new.any():
        pairs = known.joined(compare(_looks(clips, grouping), grouping, is_new, known))
    files = np.unique([clip["file"] for clip in clips], return_inverse=True)[1]
    starts, stops = (np.array([clip[end] for clip in clips]) for end in ("start", "stop"))
    may_be_one = ~shared_frames(pairs.near, files, starts, stops)
    near = pairs.near.where(may_be_one)
    persons = group_persons(near, len(clips))
    is_seen = np.array([shows_background(clip) for clip in clips])
    apart = pairs.apart[may_be_one]
    unknown = (apart == NOTHING) & (is_seen[near.left] == is_seen[near.right])
    apart = np.where(unknown, 0, apart)  # what cannot be compared makes no scene
    scenes = group_scenes(near, apart, persons, grouping.same_background)
    twins = copies(pairs.twins, [clip["sharpness"] for clip in clips])
    may_pair = is_seen & ~np.isin(np.arange(len(clips)), list(twins))
    is_long = np.array([clip["seconds"] >= grouping.least_s for clip in clips])
    partners = num_partners(persons, scenes, may_pair & is_long)
    counted = zip(persons.tolist(), scenes.tolist(), may_pair.tolist(), strict=True)
    scenes_of = Counter(person for person, _ in {(p, s) for p, s, may in counted if may})
    person_of, scene_of = _named(persons, names), _named(scenes, names)
    for number, clip in enumerate(clips):
        clip["person"] = f"person-{person_of[number]}"
        clip["scene"] = f"{clip['person']}-scene-{scene_of[number]}"
        clip["copy_of"] = names[twins[number]] if number in twins else ""
        clip["num_partners"] = int(partners[number])
        clip["num_scenes"] = scenes_of[int(persons[number])] if is_seen[number] else 0
    _write(file, clips, names, hashes, pairs)


def compare(
    looks: Looks, grouping: Grouping, is_new: Bool[np.ndarray, " n"], known: Compared
) -> Compared:
    """All pairs of which one is new."""
    (first, most), *others = grouping.same_person.items()
    near = near_pairs(looks.vectors[first], most, is_new, known.near)
    for column, far in others:
        apart = distances(looks.vectors[column], near.left, near.right)
        near = near.where(~(apart > far))  # NaN where one of them has none
    reach = grouping.same_picture * looks.pictures.shape[1] ** 0.5
    alike = near_pairs(looks.pictures, reach, is_new, Pairs.none())
    for column, most in grouping.same_video.items():
        alike = alike.joined(near_pairs(looks.videos[column], most, is_new, Pairs.none()))
    twins = same_sound(alike, looks.loudness, grouping.same_sound)
    return Compared(near, background_distances(looks.backgrounds, near), twins)


def num_partners(
    persons: Int[np.ndarray, " n"],
    scenes: Int[np.ndarray, " n"],
    takes_part: Bool[np.ndarray, " n"],
) -> Int[np.ndarray, " n"]:
    """How many clips each is joined with: those of its person, less those of its scene."""
    of_person = np.bincount(persons[takes_part], minlength=persons.max() + 1)
    of_scene = np.bincount(scenes[takes_part], minlength=scenes.max() + 1)
    return np.where(takes_part, of_person[persons] - of_scene[scenes], 0)


def _looks(clips: Clips, grouping: Grouping) -> Looks:
    pictures = np.array([clip["thumbnail"] for clip in clips], np.float32)
    first = next(iter(grouping.same_person))
    return Looks(
        {c: _vectors(clips, c, of_all=c == first) for c in grouping.same_person},
        pictures.reshape(len(clips), -1),
        backgrounds([clip["background"] for clip in clips]),
        [np.array(clip["loudness"], np.float64) for clip in clips],
        {c: _vectors(clips, c, of_all=True) for c in grouping.same_video},
    )


def _vectors(clips: Clips, column: str, *, of_all: bool) -> Float32[np.ndarray, "n d"]:
    """A column of unit vectors, NaN for clips without. ValueError for other columns, and with
    ``of_all`` for a clip without."""
    rows = [clip.get(column) for clip in clips]
    width = next((len(row) for row in rows if row is not None), 0)
    without = next((n for n, row in enumerate(rows) if row is None), None)
    if not width or (of_all and without is not None):
        who = "no clip" if not width else f"not each clip ({clip_name(clips[without or 0])})"
        raise ValueError(f"grouping: {column}: {who} has such a vector")
    found = np.array([[np.nan] * width if row is None else row for row in rows], np.float32)
    odd = np.flatnonzero(np.abs(np.linalg.norm(found, axis=1) - 1) > 0.01)
    if len(odd):
        name = clip_name(clips[odd[0]])
        raise ValueError(f"grouping: {column} of {name} is no unit vector")
    return found


def _hashes(clips: Clips, grouping: Grouping) -> list[str]:
    """Of all that the comparison of a clip with others depends on."""
    columns = (*grouping.same_person, "thumbnail", "background", "loudness", *grouping.same_video)
    settings = [VERSION, grouping.same_person, grouping.same_picture, grouping.same_sound]
    settings += [grouping.same_video] if grouping.same_video else []
    words = (json.dumps([settings, *(clip.get(column) for column in columns)]) for clip in clips)
    return [hashlib.blake2b(text.encode(), digest_size=12).hexdigest() for text in words]


def _named(labels: Int[np.ndarray, " n"], names: Sequence[str]) -> list[str]:
    """The name of each clip's group: a hash of its first clip's, which other groups do not
    change."""
    _, first, group = np.unique(labels, return_index=True, return_inverse=True)
    words = [hashlib.sha256(names[int(n)].encode()).hexdigest()[:12] for n in first]
    return [words[n] for n in group.tolist()]


def _read(
    file: Path, names: Sequence[str], hashes: Sequence[str]
) -> tuple[Bool[np.ndarray, " n"], Compared]:
    """Which clips the file does not know as they are, and the pairs of the others."""
    old = polars.DataFrame(schema=SCHEMA)
    if file.is_file():
        try:
            old = polars.read_parquet(file)
        except polars.exceptions.PolarsError as error:
            raise ValueError(f"{file} is damaged: delete it, it is made again") from error
        if old.schema != SCHEMA:
            raise ValueError(f"{file} is of another version: delete it, it is made again")
    place = {pair: n for n, pair in enumerate(zip(names, hashes, strict=True))}
    now = [place.get(pair, -1) for pair in old.select("clip", "compared").iter_rows()]
    now = np.array(now, np.int64)
    is_new = np.ones(len(names), bool)
    is_new[now[now >= 0]] = False
    rows = old.with_row_index("row").select("row", "near", "face_distance", "background_distance")
    rows = rows.explode("near", "face_distance", "background_distance").drop_nulls()
    left, right = now[rows["near"].to_numpy()], now[rows["row"].to_numpy()]
    kept = (left >= 0) & (right >= 0)
    near = Pairs.of(left, right, rows["face_distance"].to_numpy()).where(kept)
    apart = rows["background_distance"].to_numpy()[kept]
    rows = old.with_row_index("row").select("row", "twins").explode("twins").drop_nulls()
    left, right = now[rows["twins"].to_numpy()], now[rows["row"].to_numpy()]
    twins = Pairs.of(left, right, np.zeros(len(left), np.float32))
    return is_new, Compared(near, apart, twins.where((left >= 0) & (right >= 0)))


def _write(
    file: Path, clips: Clips, names: Sequence[str], hashes: Sequence[str], pairs: Compared
) -> None:
    columns = ("person", "scene", "copy_of", "num_partners")
    table = polars.DataFrame(
        {"clip": names, "compared": hashes, **{c: [clip[c] for clip in clips] for c in columns}}
    ).with_row_index("row")
    near = polars.DataFrame(
        {
            "row": pairs.near.right,
            "near": pairs.near.left,
            "face_distance": pairs.near.distance,
            "background_distance": pairs.apart,
        }
    )
    twins = polars.DataFrame({"row": pairs.twins.right, "twins": pairs.twins.left})
    for own in (near, twins):
        own = own.cast({"row": polars.UInt32}).group_by("row").agg(polars.all())
        table = table.join(own, on="row", how="left", maintain_order="left")
    with whole_file(file) as temporary:
        table.select(polars.col(c).cast(t) for c, t in SCHEMA.items()).write_parquet(temporary)
