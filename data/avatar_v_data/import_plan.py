"""Which files an import reads, and what is known of each: person, scene, caption, split, licence
and consent.

A manifest (CSV with a header, or JSON lines) may say all of it, of whole files or of parts of them,
as `avatar-v-data select` writes it; without one every file in and below the folder is taken.
`NAME.heard.wav` beside `NAME.mp4` is no film: it is the voice that the film's person listens to.
Nothing is opened here but captions and the manifest.
"""

import itertools
import math
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base.outside import parse_json, read_table, read_text
from avatar_v.faces.dlib_face import SAME_PERSON
from avatar_v.types import FRAME_RATE_HZ
from avatar_v_data.curation.index import connected

PersonRule = Literal["file", "folder", "face", "manifest"]
FRAMES, BYTES, RATE = ("start", "stop", "sound_late"), "bytes", "rate"
NUMBERS = (*FRAMES, BYTES, RATE)
COLUMNS = ("file", "person", "scene", "caption", "split", "licence", "consent", *NUMBERS)
SPLITS = ("train", "validation")
NOT_MEDIA = {".txt", ".json", ".jsonl", ".md", ".csv", ".npy"}
HEARD = tuple(f".heard.{kind}" for kind in ("flac", "wav", "m4a", "mp3"))
MAX_CAPTION = 1 << 16  # bytes
MAX_FRAME, MAX_BYTES = 1 << 31, 1 << 50
MAX_LATE = 250  # frames, 10 s


@dataclass(frozen=True)
class ImportPart:
    """The frames ``start`` to ``stop`` of a file, at the rate of the import: one person in one
    scene."""

    person: str  # "" where the face tells, once it has been read
    scene: str
    caption: str  # "" for none
    split: str  # "" where none is asked, or the person decides
    start: int = 0
    stop: int | None = None  # None: to the end
    sound_late: int = 0  # frames by which the file's sound is late
    licence: str = ""  # of this part; "": what is said of all
    consent: str = ""


@dataclass(frozen=True)
class Source:
    """One file to import, in parts that follow each other."""

    path: str
    name: str  # its path within the folder, as it can be printed
    parts: tuple[ImportPart, ...]
    caption_note: str  # what was odd about the caption's file
    heard: str = ""  # path of the sound that the person listens to, "" for none

    def part_at(self, frame: int) -> ImportPart:
        """The part that a frame lies in."""
        (part,) = (p for p in self.parts if p.start <= frame and (not p.stop or frame < p.stop))
        return part


def find_sources(
    folder: Path,
    manifest: str | None,
    person: PersonRule | None,
    frame_rate_hz: int = FRAME_RATE_HZ,
) -> tuple[list[Source], int]:
    """The files of ``folder`` in the order of their names, or the manifest's in its order, and how
    many files a manifest leaves out.

    ``person`` None means the manifest's column where it has one, and otherwise one person a file.
    ValueError for a folder without files, a film that two sounds lie beside, and for whatever is
    wrong in the manifest.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; expected a folder of videos")
    media = sorted(p for p in folder.rglob("*") if _may_be_media(p, folder))
    heard = {_heard(path) for path in media}
    files = [path for path in media if str(path) not in heard]
    if manifest is None:
        if person == "manifest":
            raise ValueError("--person manifest: pass the manifest too (--manifest FILE)")
        if not files:
            raise ValueError(f"{folder}: holds no media files")
        return [_source(folder, path, [{}], person or "file", "") for path in files], 0
    files_of = read_manifest(manifest, folder, frame_rate_hz)
    rows = [(name, row) for name, parts in files_of.items() for row in parts]
    if person is None:
        person = "manifest" if all(row.get("person") for _, row in rows) else "file"
    nameless = [name for name, row in rows if not row.get("person")]
    if person == "manifest" and nameless:
        raise ValueError(
            f"{manifest}: {nameless[0]} has no person; --person manifest needs one each"
        )
    split = "train" if any(row.get("split") for _, row in rows) else ""
    sources = [_source(folder, folder / n, parts, person, split) for n, parts in files_of.items()]
    _check_splits(sources, manifest)
    return sources, len({*files} - {folder / name for name in files_of})


def read_manifest(
    manifest: str | Path, folder: Path, frame_rate_hz: int = FRAME_RATE_HZ
) -> dict[str, list[dict[str, str]]]:
    """Its rows by file, those of one file in the order of their frames.

    ValueError, with the line, for unknown columns and splits, files that lie outside ``folder``
    or are of another size than they had, parts of a file that overlap or are counted at another
    rate, and anything that is no table."""
    found: dict[str, list[tuple[str, dict[str, str]]]] = {}
    for number, row in _manifest_rows(Path(manifest)):
        where = f"{manifest}, line {number}"
        if unknown := [str(column) for column in row if column not in COLUMNS]:
            known = ", ".join(COLUMNS)
            raise ValueError(f"{where}: unknown column {unknown[0]!r}; expected {known}")
        row = {c: str(v) if c in NUMBERS and type(v) is int else v for c, v in row.items()}
        if odd := [column for column, value in row.items() if not isinstance(value, str)]:
            raise ValueError(f"{where}: {odd[0]} is no text: {row[odd[0]]!r}")
        values = {column: value.strip() for column, value in row.items()}
        name = row.get("file", "")
        if not name.strip() or PurePath(name).is_absolute() or ".." in PurePath(name).parts:
            raise ValueError(f"{where}: file {name!r}; expected a path within {folder}")
        name = _found(folder, name, where)
        if values.get("split", "") not in ("", *SPLITS):
            raise ValueError(f"{where}: split {values['split']!r}; expected train or validation")
        for column in NUMBERS:
            _check_number(column, values.get(column, ""), where)
        if int(values.get(RATE) or frame_rate_hz) != frame_rate_hz:
            raise ValueError(
                f"{where}: its frames are counted at {values[RATE]} a second, and the import makes "
                f"{frame_rate_hz}: import with --rate {values[RATE]}"
            )
        if values.get(BYTES):
            _check_size(folder / name, int(values[BYTES]), where)
        found.setdefault(name, []).append((where, values))
    if not found:
        raise ValueError(f"{manifest}: names no files")
    return {name: _in_order(name, rows) for name, rows in found.items()}


def printable(path: Path, folder: Path) -> str:
    """The path of a file within the folder, whatever bytes its name has."""
    return os.fsencode(path.relative_to(folder)).decode("utf-8", "backslashreplace")


def read_caption(path: Path) -> tuple[str, str]:
    """The words beside a video in one line, and what was odd about the file that holds them."""
    try:
        if not path.is_file():
            return "", ""
        with path.open("rb") as file:
            data = file.read(MAX_CAPTION)
    except OSError as error:
        return "", f"its caption cannot be read ({error.strerror})"
    note = ""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        text = data.decode("utf-16", "replace")
    else:
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = data.decode("cp1252", "replace")
            note = f"{path.name} is no UTF-8; the caption was read as Windows-1252 (Latin-1)"
    return " ".join(text.replace("\0", " ").split()), note


def cluster_faces(faces: Sequence[Float[Tensor, " d"]], limit: float = SAME_PERSON) -> list[int]:
    """A person's number for each face: that of the nearest known person, or a new one.

    A person is the mean of the faces found so far; numbers go by first appearance.
    """
    persons: list[list[Tensor]] = []
    numbers = []
    for face in faces:
        distances = [float((face - torch.stack(known).mean(0)).norm()) for known in persons]
        nearest = min(range(len(persons)), key=distances.__getitem__, default=None)
        if nearest is None or distances[nearest] > limit:
            nearest = len(persons)
            persons.append([])
        persons[nearest].append(face)
        numbers.append(nearest)
    return numbers


def groups_of(shown: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The group of each person, by the name of its first. ``shown``: recordings, each with a person
    in it. Persons who share a recording are in one group: they may be one whom two names have, and
    what is learned of a room and a voice is learned of both."""
    rows = sorted(set(shown), key=lambda row: row[1])
    names = sorted({person for _, person in rows})
    number = {person: n for n, person in enumerate(names)}
    files = {file: n for n, file in enumerate({file for file, _ in rows}, len(names))}
    left = np.array([number[person] for _, person in rows], np.int64)
    right = np.array([files[file] for file, _ in rows], np.int64)
    group, _ = connected(left, right, len(names) + len(files))
    first: dict[int, str] = {}
    return {name: first.setdefault(int(group[n]), name) for name, n in number.items()}


def split_persons(
    persons: Iterable[str], share: float, seed: int, known: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Each one's split: ``share`` of them, at least one, drawn by ``seed``, are validation. Those
    of ``known`` keep the split that they have there, and count. ``persons``: or their groups."""
    known, names = known or {}, sorted(set(persons))
    if len(names) < 2:
        raise ValueError(
            f"--validation {share:g} keeps persons apart and needs two or more who share no "
            f"recording; got {len(names)}: leave it out, or name persons (--person, --manifest)"
        )
    random.Random(seed).shuffle(names)
    num = min(max(1, round(share * len(names))), len(names) - 1)
    num -= sum(known.get(name) == SPLITS[1] for name in names)
    new = [name for name in names if name not in known]
    drawn = {name: SPLITS[number < num] for number, name in enumerate(new)}
    return {name: known.get(name) or drawn[name] for name in names}


def _source(
    folder: Path, path: Path, rows: Sequence[Mapping[str, str]], person: PersonRule, split: str
) -> Source:
    """``split``: of the rows that name none."""
    name = printable(path, folder)
    parent = os.path.dirname(name) or folder.resolve().name
    beside, note = "", ""
    if not all(row.get("caption") for row in rows):
        beside, note = read_caption(path.with_suffix(".txt"))
    persons = {"file": name, "folder": parent, "face": ""}
    parts = [
        ImportPart(
            persons.get(person, row.get("person", "")),
            row.get("scene") or name,
            row.get("caption") or beside,
            row.get("split") or split,
            int(row.get("start") or 0),
            int(row["stop"]) if row.get("stop") else None,
            int(row.get("sound_late") or 0),
            row.get("licence") or "",
            row.get("consent") or "",
        )
        for row in rows
    ]
    return Source(str(path), name, tuple(parts), note, _heard(path))


def _heard(path: Path) -> str:
    """The sound file beside a film, "" for none. ValueError for several."""
    found = [p for end in HEARD if os.path.lexists(p := path.with_name(path.stem + end))]
    if len(found) > 1:
        names = ", ".join(p.name for p in found)
        raise ValueError(f"{path}: its person listens to one sound, found {names}")
    return str(found[0]) if found else ""


def _found(folder: Path, name: str, where: str) -> str:
    """The path within the folder of a file that a manifest names: as it is there, with blanks
    around it, or as `printable` writes it. ValueError for none."""
    for one in (name, name.strip()):
        if "\0" not in one and os.path.lexists(folder / one):
            return str(PurePath(one))
    if "\\x" in name:  # bytes that are no UTF-8
        for path in folder.rglob("*"):
            if printable(path, folder) == name:
                return str(path.relative_to(folder))
    raise ValueError(f"{where}: no file {name.strip()!r} in {folder}")


def _check_number(column: str, text: str, where: str) -> None:
    lowest = -MAX_LATE if column == "sound_late" else 0
    highest = {"sound_late": MAX_LATE, BYTES: MAX_BYTES}.get(column, MAX_FRAME)
    unit = BYTES if column == BYTES else "frames"
    digits = text.removeprefix("-")
    if text and not (digits.isascii() and digits.isdigit() and len(digits) < 17):
        raise ValueError(f"{where}: {column} is a whole number of {unit}, got {text[:60]!r}")
    if text and not lowest <= int(text) <= highest:
        raise ValueError(f"{where}: {column} is from {lowest} to {highest}, got {text}")


def _check_size(path: Path, expected: int, where: str) -> None:
    """Frames are those of the file that was there when the manifest was written."""
    if path.is_file() and (size := path.stat().st_size) != expected:
        raise ValueError(
            f"{where}: {path} has {size} bytes and had {expected}: it is another file; write the "
            f"manifest again, or take its column {BYTES} out"
        )


def _in_order(name: str, rows: list[tuple[str, dict[str, str]]]) -> list[dict[str, str]]:
    """The rows of one file by their frames. ValueError where two share some."""
    rows = sorted(rows, key=lambda row: int(row[1].get("start") or 0))
    end: float = 0
    for where, row in rows:
        start, stop = int(row.get("start") or 0), int(row.get("stop") or 0) or math.inf
        if stop <= start:
            raise ValueError(f"{where}: {name} from frame {start} to {row['stop']} is no part")
        if start < end:
            raise ValueError(f"{where}: {name} is named twice, frame {start} in two parts")
        end = stop
    return [row for _, row in rows]


def _may_be_media(path: Path, folder: Path) -> bool:
    """Pipes and broken links too: each becomes a row of the report. Hidden files are none."""
    is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return not is_hidden and path.suffix.lower() not in NOT_MEDIA and not path.is_dir()


def _manifest_rows(path: Path) -> Sequence[tuple[int, dict[str, Any]]]:
    """The rows with their line numbers."""
    if path.suffix.lower() not in (".csv", ".jsonl"):
        raise ValueError(f"{path}: a manifest is a .csv or .jsonl file")
    if path.suffix.lower() == ".csv":
        return read_table(path)
    text = read_text(path, what="table in UTF-8")
    lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    rows = [(n, parse_json(line, where=f"{path}, line {n}")) for n, line in lines]
    if odd := [n for n, row in rows if not isinstance(row, dict)]:
        raise ValueError(f"{path}, line {odd[0]}: expected one object a line")
    return rows


def _check_splits(sources: list[Source], manifest: str) -> None:
    """No person in both splits, as far as persons are known yet."""
    split_of: dict[str, str] = {}
    for part in itertools.chain.from_iterable(source.parts for source in sources):
        if part.person and split_of.setdefault(part.person, part.split) != part.split:
            raise ValueError(f"{manifest}: person {part.person} is in train and in validation")
