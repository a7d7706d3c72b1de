"""Who withdraws: names, a face, and what is known by them."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from avatar_v.base.outside import read_json
from avatar_v.safety.consent import FILMED, StoredConsent
from avatar_v.shards.loader import read_members
from avatar_v.shards.schema import AUDIO, FACE, META, MOTION, RAW_AUDIO, decode_meta
from avatar_v.shards.writer import ClipEntry, write_text_atomically
from avatar_v_data.curation.plan import Grouping
from avatar_v_data.curation.stages import Result
from avatar_v_data.curation.table import clip_name
from avatar_v_data.revoke_place import PERSON

NUMBERED = re.compile(r"|unknown|face-\d+")
"""Names of other persons in each import: no clip is known by one that another folder gave it."""
OWN_MEMBERS = (FACE, MOTION, AUDIO, RAW_AUDIO)
"""Of a clip, which its copies in other folders have, too, whoever they are said to show."""
Content = dict[str, list[int]]
"""Size and checksum of each of a clip's own members."""


@dataclass
class Withdrawn:
    """Who withdraws, and what is known by that name."""

    names: set[str]
    face: np.ndarray | None = None  # a unit vector of dlib's
    clips: set[str] = field(default_factory=set)  # keys of shards, and `clip_name`
    contents: dict[str, list[Content]] = field(default_factory=dict)  # of the clips of these keys
    recordings: set[str] = field(default_factory=set)
    shards: set[Path] = field(default_factory=set)
    file: str = ""  # of `keep`

    @classmethod
    def of(cls, person: str | None, record: StoredConsent | None) -> "Withdrawn":
        """ValueError for nobody, and for a record of a drawn face without a name."""
        names = {name for name in (person, record.consent.person if record else None) if name}
        if not names:
            raise ValueError("name the person (--person), or give a record of consent (--record)")
        face = None
        if record is not None and record.consent.critic == FILMED:
            vector = np.array(record.consent.face)
            face = vector / np.linalg.norm(vector)
        digest = hashlib.sha256(json.dumps(sorted(names)).encode()).hexdigest()[:12]
        return cls(names, face, file=f".revoke-{digest}.json")

    @property
    def num_known(self) -> int:
        sets = self.names, self.clips, self.recordings, self.shards, *self.contents.values()
        return sum(map(len, sets))

    def keep(self, path: Path) -> None:
        """What goes first may be all that tells of the rest: the same call finds it here again."""
        sets = {name: sorted(own) for name, own in vars(self).items() if isinstance(own, set)}
        sets["shards"] = [str(shard) for shard in sets["shards"]]
        write_text_atomically(path, json.dumps({**sets, "contents": self.contents}))

    def learn(self, path: Path) -> None:
        """What `keep` has written."""
        known = read_json(path)
        self.names |= set(known["names"])
        self.clips |= set(known["clips"])
        self.recordings |= set(known["recordings"])
        self.shards |= set(map(Path, known["shards"]))
        self.contents |= known["contents"]

    def shows(self, result: Result) -> bool:
        """Whether a clip's face, as the stage `person` has it, is the person's."""
        face = np.array(result["face"])
        return (
            self.face is not None
            and face.shape == self.face.shape  # one of another critic says nothing
            and float(np.linalg.norm(face - self.face)) <= Grouping().same_person["face"]
        )

    def has(self, clip: ClipEntry) -> bool:
        """Whether a clip of a shard is the person's: by its name, or since the same clip has such a
        name in another folder."""
        if clip.person in self.names:
            return True
        return any(_is_same(known, _content(clip)) for known in self.contents.get(clip.key, ()))

    def has_row(self, row: Mapping[str, Any]) -> bool:
        """The same of a row of a manifest."""
        person, clip, _ = said_in(row)
        return person in self.names or clip in self.clips

    def learn_name(self, person: str, recording: str) -> None:
        """Unless it may be somebody else's in another folder, as a file's name may be."""
        if person != recording and not NUMBERED.fullmatch(person):
            self.names.add(person)

    def learn_clip(self, clip: ClipEntry) -> None:
        """One of a shard, which `has` knows."""
        meta = decode_meta(read_members(clip, [META])[META], clip.key)
        self.learn_name(clip.person, meta.source)
        self.recordings |= {meta.source} - {""}
        self.shards.add(Path(clip.shard))
        self.clips.add(clip.key)
        known, own = self.contents.setdefault(clip.key, []), _content(clip)
        if own not in known:
            known.append(own)


def said_in(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Person, clip and recording of a row of a table, "" for what it does not say."""
    file = str(row.get("file") or "")
    is_part = file and row.get("start") is not None and row.get("stop") is not None
    return str(row.get(PERSON) or ""), clip_name(row) if is_part else "", file


def _is_same(one: Content, other: Content) -> bool:
    both = one.keys() & other.keys()
    return FACE in both and all(one[name] == other[name] for name in both)


def _content(clip: ClipEntry) -> Content:
    places = {name: clip.members[name] for name in OWN_MEMBERS if name in clip.members}
    return {name: [member.size, member.crc32] for name, member in places.items()}
