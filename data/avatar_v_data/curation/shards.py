"""Samples of a run, chosen and named, to the shards that training reads: the last step of all.

No frame is read here: the samples are copied, and what is only now settled is written into them,
whose they are and in which scene, caption, what is said, licence and consent.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from avatar_v.shards.loader import read_members
from avatar_v.shards.schema import META, decode_meta, encode_meta
from avatar_v.shards.writer import ClipEntry, RawClip, index_path, read_index, write_shard


@dataclass(frozen=True)
class Named:
    """A sample and what is settled of it."""

    sample: ClipEntry
    person: str
    scene: str
    caption: str
    transcript: str
    licence: str
    consent: str

    def raw(self) -> RawClip:
        members = read_members(self.sample, list(self.sample.members))
        meta = dataclasses.replace(
            decode_meta(members[META], self.sample.key),
            person=self.person or "unknown",
            scene=self.scene,
            text=self.caption,
            transcript=self.transcript,
            licence=self.licence,
            consent=self.consent,
        )
        return RawClip(self.sample.key, {**members, META: encode_meta(meta)})


def samples_of(files: Path, key: str) -> Sequence[ClipEntry]:
    """The samples of a recording, which the stage left under its result's key."""
    return read_index(index_path(files / f"{key}.tar")).clips


def write_shards(out: Path, name: str, named: Sequence[Named], per_shard: int) -> None:
    """`NAME-000000.tar` and so on."""
    for number, start in enumerate(range(0, len(named), per_shard)):
        part: Iterable[Named] = named[start : start + per_shard]
        index = write_shard(out / f"{name}-{number:06d}.tar", (one.raw() for one in part))
        assert not index.failures, index.failures
