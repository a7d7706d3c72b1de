"""Records that a person agreed to be shown: JSON files, sealed with the key of the marks (key.py).

Neither torch nor any media library is imported here. statement.py makes a record of what a person
says in a video, inputs/consented.py compares a request with records. A seal of the public key
tells damage alone: anyone can make it.
"""

import dataclasses
import hashlib
import hmac
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Literal

from avatar_v.base.outside import parse_json
from avatar_v.base.paths import whole_file
from avatar_v.base.stored import Within, built, shown
from avatar_v.base.words import is_hidden
from avatar_v.safety.key import own_key

SUFFIX = ".consent.json"
VERSION = 2
MAX_BYTES = 2**16
MAX_RECORDS = 1000
"""Of one folder."""
MAX_TEXT = 5000
"""Characters of a name, of uses or of a statement."""
JOINERS = "\u200c\u200d"
"""Which some languages are written with, though they show nothing."""
CLOCKS = timedelta(days=1)
"""So far the clocks and zones of two machines may differ."""
FILMED, DRAWN = "dlib_face", "face_held_out"
"""Critics of faces, of filmed people and of drawn ones."""


@dataclass(frozen=True)
class Consent:
    """What a person agreed to, and the face and voice by which the person is known."""

    version: Annotated[int, Within(VERSION, VERSION)]
    person: str
    recorded: str  # the day, as 2026-11-27
    expires: str  # the last day on which it holds
    uses: str  # in words, for people to read
    statement: str  # what the person was to say; "": not given
    heard: str | None  # what a speech recogniser heard; None: the words were not checked
    video_sha256: str  # of the statement's file
    critic: Literal["dlib_face", "face_held_out"]
    critic_hash: str
    face: tuple[float, ...]  # the mean vector of the statement's looks
    voice: tuple[float, ...] | None = None  # a unit vector; None: nothing read it
    voice_critic_hash: str | None = None

    def __post_init__(self) -> None:
        check_texts(
            person=self.person, uses=self.uses, statement=self.statement, heard=self.heard or ""
        )
        first = parse_day(self.recorded, where="recorded")
        if parse_day(self.expires, where="expires") < first:
            raise ValueError(f"expires {self.expires} is before recorded {self.recorded}")

    def is_to_come(self, today: date) -> bool:
        """Whether it was recorded on a day that has not come yet, so that its dates are wrong."""
        return date.fromisoformat(self.recorded) > today + CLOCKS

    def distance(self, face: Sequence[float]) -> float:
        """How far another vector of the same critic is from this face. ValueError for one of
        another length."""
        if len(face) != len(self.face):
            raise ValueError(
                f"{self.critic} gives {len(face)} numbers, the record {len(self.face)}"
            )
        return math.dist(face, self.face)


@dataclass(frozen=True)
class Consented:
    """The consent that a video was made by, for its record."""

    person: str
    sha256: str  # of the consent's file


@dataclass(frozen=True)
class StoredConsent:
    """A consent with its file."""

    path: Path
    consent: Consent
    sha256: str

    @property
    def named(self) -> Consented:
        return Consented(self.consent.person, self.sha256)


def read_consents(places: Sequence[str | Path]) -> tuple[StoredConsent, ...]:
    """The records in files, and in folders those whose names end in `SUFFIX`. ValueError for none,
    and for one that is damaged or sealed with another key."""
    paths: list[Path] = []
    for place in map(Path, places):
        if not place.is_dir():
            paths.append(place)
            continue
        found = sorted(place.glob(f"*{SUFFIX}"))
        if not found:
            raise ValueError(f"--consent: no *{SUFFIX} in the folder {place}")
        if len(found) > MAX_RECORDS:
            raise ValueError(f"--consent: {place} has more than {MAX_RECORDS:,} records")
        paths += found
    return tuple(map(read_consent, paths))


def read_consent(path: Path) -> StoredConsent:
    """ValueError for a file that is no record, or not as it was sealed."""
    data = read_bounded(path, "--consent")
    values = parse_json(data, where=path)
    if not isinstance(values, dict):
        raise ValueError(f"{path} is no record of a consent (`avatar-v consent` makes one)")
    seal = values.pop("seal", None)
    consent = built(Consent, values, where=path)
    given = seal.encode(errors="replace") if isinstance(seal, str) else b""
    if not hmac.compare_digest(given, compute_seal(consent)):
        raise ValueError(
            f"{path}: its seal does not fit: the record was changed, or made with another key"
        )
    return StoredConsent(path, consent, hashlib.sha256(data).hexdigest())


def save_consent(path: Path, consent: Consent) -> None:
    """Write a record that only its owner may read; the file appears whole or not at all."""
    values = {**dataclasses.asdict(consent), "seal": compute_seal(consent).decode()}
    with whole_file(path) as part:
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)
        part.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def compute_seal(consent: Consent) -> bytes:
    """64 hexadecimal digits that the key gives for all fields."""
    text = json.dumps(dataclasses.asdict(consent), sort_keys=True)
    digest = hmac.new(own_key(), b"avatar_v consent" + text.encode(), hashlib.sha256)
    return digest.hexdigest().encode()


def check_texts(**texts: str) -> None:
    """ValueError for one that is too long or has characters that show nothing, and for a ``person``
    without a name or of several lines."""
    for name, text in texts.items():
        if len(text) > MAX_TEXT:
            raise ValueError(f"{name} has at most {MAX_TEXT:,} characters, got {len(text):,}")
        allowed = JOINERS if name == "person" else JOINERS + "\n\t"
        hidden = [c for c in text if is_hidden(c) and c not in allowed]
        if hidden:
            raise ValueError(
                f"{name} is text without control or hidden characters, got {shown(text)}"
            )
    if "person" in texts and not texts["person"].strip():
        raise ValueError("person is a name, got none")


def parse_day(text: str, *, where: str) -> date:
    """ValueError for a text that is no day."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{where} is a day as 2027-12-31, got {shown(text)}") from error


def read_bounded(path: Path, flag: str) -> bytes:
    """A small file. ValueError for one that cannot be read or has more than `MAX_BYTES`."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{flag}: {path} is no file")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero byte
        why = error.strerror if isinstance(error, OSError) else "not a path"
        raise ValueError(f"{flag}: cannot read {str(path)!r} ({why})") from error
    if len(data) > MAX_BYTES:
        raise ValueError(f"{flag}: {path} has more than {MAX_BYTES:,} bytes")
    return data
