"""The clips of a folder in columns: what a list of ClipEntry says, in a tenth of its memory.

A million clips are a million entries of some 2 KB each as Python objects, in every rank. Here a
clip is a row of numbers: its shard, its kind (length, size, rate, hashes, names of its members: few
kinds occur), its person and scene as numbers of words that are kept once, and its members' places.
An entry is made when it is asked for. Forked loader workers share the columns with their process.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np

from avatar_v.shards.writer import ClipEntry, Member

Kind = tuple[int, int, int, int, str | None, str | None, tuple[str, ...]]
MAX_NUMBER = (1 << 32) - 1
"""Of the columns: bytes that a clip may span in its tar, clips, members."""


class ClipTable(Sequence[ClipEntry]):
    """``clips``, in their order; ValueError if two shards hold a clip of one key."""

    def __init__(self, clips: Iterable[ClipEntry]):
        shards: dict[str, int] = {}
        kinds: dict[Kind, int] = {}
        keys, words = _Words(), _Words()
        column = {name: array("I") for name in ("shard", "kind", "person", "scene")}
        starts, places, first = array("Q"), array("I"), array("I", [0])
        last = None
        for clip in clips:
            if clip.shard != last:
                words.forget()
                last = clip.shard
            hashes = clip.vae_hash, clip.text_hash
            kind = (*_size(clip), clip.frame_rate_hz, *hashes, tuple(clip.members))
            column["shard"].append(shards.setdefault(clip.shard, len(shards)))
            column["kind"].append(kinds.setdefault(kind, len(kinds)))
            column["person"].append(words.number(clip.person))
            column["scene"].append(words.number(clip.scene))
            keys.add(clip.key)
            starts.append(start := min((m.offset for m in clip.members.values()), default=0))
            for member in clip.members.values():
                row = (member.offset - start, member.size, member.crc32)
                if max(row) > MAX_NUMBER:
                    raise ValueError(f"{clip.shard}, clip {clip.key}: it spans 4 GiB or more")
                places.extend(row)
            first.append(len(places) // 3)
        self._shards, self._kinds = tuple(shards), tuple(kinds)
        self._shard, self._kind, person, scene = map(_frozen, column.values())
        self._starts, self._first = _frozen(starts), _frozen(first)
        self._places = _frozen(places).reshape(-1, 3)
        self._keys = keys
        self._refuse_twins()
        kept, number_of = words.unique()
        self._words = kept
        self.persons: np.ndarray = number_of[person]
        """Of each clip the number of its person; equal numbers are equal names."""
        self.scenes: np.ndarray = number_of[scene]
        """And of its scene."""

    def __len__(self) -> int:
        return len(self._kind)

    @overload
    def __getitem__(self, index: int) -> ClipEntry: ...
    @overload
    def __getitem__(self, index: slice) -> list[ClipEntry]: ...
    def __getitem__(self, index: int | slice) -> ClipEntry | list[ClipEntry]:
        if isinstance(index, slice):
            return [self._entry(i) for i in range(*index.indices(len(self)))]
        return self._entry(range(len(self))[index])

    def __iter__(self) -> Iterator[ClipEntry]:
        return map(self._entry, range(len(self)))

    def kinds(self) -> list[tuple[ClipEntry, np.ndarray]]:
        """The first clip of each kind (all clips of it have one length, size and rate, the same
        hashes and members) and the positions of all of them, ascending, in the order of the first.
        """
        order = np.argsort(self._kind, kind="stable").astype(np.int32)
        bounds = np.cumsum(np.bincount(self._kind, minlength=len(self._kinds)))[:-1]
        return [(self._entry(int(rows[0])), rows) for rows in np.split(order, bounds) if len(rows)]

    @property
    def num_bytes(self) -> int:
        """Of all columns and words."""
        columns = (self._shard, self._kind, self.persons, self.scenes, self._starts, self._first)
        texts = self._keys.num_bytes + self._words.num_bytes
        return sum(column.nbytes for column in (*columns, self._places)) + texts

    def _entry(self, index: int) -> ClipEntry:
        num_frames, height, width, rate, vae_hash, text_hash, names = self._kinds[self._kind[index]]
        start = int(self._starts[index])
        rows = self._places[self._first[index] : self._first[index + 1]].tolist()
        members = {
            name: Member(start + offset, size, crc32)
            for name, (offset, size, crc32) in zip(names, rows, strict=True)
        }
        return ClipEntry(
            shard=self._shards[self._shard[index]],
            key=self._keys[index],
            person=self._words[int(self.persons[index])],
            scene=self._words[int(self.scenes[index])],
            num_frames=num_frames,
            height=height,
            width=width,
            vae_hash=vae_hash,
            members=members,
            frame_rate_hz=rate,
            text_hash=text_hash,
        )

    def _refuse_twins(self) -> None:
        for twins in self._keys.twins():
            (first, *_), shards = twins, [self._shards[self._shard[i]] for i in twins]
            other = next((shard for shard in shards if shard != shards[0]), None)
            if other is not None:
                raise ValueError(f"clip {self._keys[first]} is in {shards[0]} and in {other}")


class _Words:
    """Many texts as one row of bytes. Equal ones are found by their hashes and then compared, so
    that no dictionary of all of them is ever held."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._ends = array("Q", [0])
        self._hashes = array("q")
        self._recent: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, number: int) -> str:
        return self._text[self._ends[number] : self._ends[number + 1]].decode(errors=_ANY_TEXT)

    def add(self, word: str) -> int:
        """Append a word; returns its number."""
        self._text += word.encode(errors=_ANY_TEXT)
        self._ends.append(len(self._text))
        self._hashes.append(hash(word))
        return len(self) - 1

    def number(self, word: str) -> int:
        """The number of a word, which is appended unless `forget` left it known."""
        found = self._recent.get(word)
        if found is None:
            found = self._recent[word] = self.add(word)
        return found

    def forget(self) -> None:
        self._recent = {}

    def twins(self) -> Iterator[list[int]]:
        """The numbers of each word that is there more than once. Ends the appending."""
        hashes, self._hashes = _frozen(self._hashes), array("q")
        order = np.argsort(hashes, kind="stable")
        same = hashes[order[1:]] == hashes[order[:-1]]
        edges = np.flatnonzero(np.diff(same.astype(np.int8), prepend=0, append=0))
        for start, end in edges.reshape(-1, 2):
            groups: dict[str, list[int]] = {}
            for number in order[start : end + 1].tolist():
                groups.setdefault(self[number], []).append(number)
            yield from (group for group in groups.values() if len(group) > 1)

    def unique(self) -> tuple["_Words", np.ndarray]:
        """The different words, and the new number of each old one. Ends the appending."""
        first = np.arange(len(self), dtype=np.uint32)
        for group in self.twins():
            first[group] = group[0]
        kept = _Words()
        numbers = np.flatnonzero(first == np.arange(len(self)))
        for number in numbers.tolist():
            kept.add(self[number])
        kept.forget()
        kept._hashes = array("q")
        return kept, np.searchsorted(numbers, first).astype(np.uint32)

    @property
    def num_bytes(self) -> int:
        return len(self._text) + self._ends.itemsize * len(self._ends)


_ANY_TEXT = "surrogatepass"
"""JSON may escape halves of surrogate pairs."""


def _size(clip: ClipEntry) -> tuple[int, int, int]:
    return clip.num_frames, clip.height, clip.width


def _frozen(column: array) -> np.ndarray:
    return np.array(column)
