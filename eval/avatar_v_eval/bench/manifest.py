"""The cases of a benchmark: one JSON file beside the media it names, each file with its SHA-256.

A case is a reference clip of a person, a driving sound and a scene image to speak it in; ``truth``
is the real video of that sound, where there is one. What is wrong with the file itself is one
ValueError (`load_manifest`); a media file that is missing or changed costs its case alone
(`file_fault`), and the others go on.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from avatar_v.base.outside import parse_json, read_bytes
from avatar_v.base.paths import below
from avatar_v.base.stored import built
from avatar_v.scoring.values import Faces
from avatar_v_eval.files import file_hash

CONDITIONS = ("same", "cross", "generated")
"""The scene image is of the reference's scene, of another one, or made by an image model."""
ROLES = ("reference", "audio", "image", "truth")
FILE_NAME = "manifest.json"

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class CaseFiles:
    """The files of one input. Paths are relative to the manifest; ``sha256`` is by role."""

    id: str  # names the video of every system
    reference: str
    audio: str
    image: str
    condition: str
    person: str
    language: str
    licence: str
    consent: str
    sha256: Mapping[str, str]
    truth: str | None = None
    prompt: str = ""

    def files(self) -> dict[str, str]:
        """Role → path, of those that the case has."""
        paths = {role: getattr(self, role) for role in ROLES}
        return {role: path for role, path in paths.items() if path is not None}

    @property
    def fingerprint(self) -> str:
        """Changes with the contents of any file, and with nothing else."""
        text = json.dumps({role: self.sha256[role] for role in self.files()}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class BenchManifest:
    """All cases of a benchmark. ``content`` names a generated set before encoding (world70.py)."""

    root: Path
    name: str
    faces: Faces
    cases: tuple[CaseFiles, ...]
    content: str = ""

    def path(self, case: CaseFiles, role: str) -> Path:
        """Of a file of a case; ValueError for a role that the case lacks."""
        if role not in case.files():
            raise ValueError(f"case {case.id} has no {role}")
        return below(self.root, case.files()[role], where=f"case {case.id}, {role}")

    @property
    def fingerprint(self) -> str:
        """16 hex digits; changes with any case or file. Where the folder lies does not count."""
        known = dataclasses.asdict(dataclasses.replace(self, root=Path()))
        text = json.dumps({**known, "root": ""}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def load_manifest(path: Path | str) -> BenchManifest:
    """Reads ``manifest.json`` or the folder that holds it. Media files are not read.

    ValueError, naming the file and the first fault: no JSON, missing or unknown keys, an id twice,
    a condition that there is not, a path out of the folder, a file without its SHA-256.
    """
    path = Path(path)
    file = path / FILE_NAME if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"no manifest at {path}: expected a {FILE_NAME} or the folder of one")
    raw = parse_json(read_bytes(file, what="manifest"), where=file)
    manifest = built(BenchManifest, raw, where=file, sparse=True, root=file.parent.resolve())
    try:
        check_manifest(manifest)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    return manifest


def write_manifest(manifest: BenchManifest) -> Path:
    """Checks and writes ``root/manifest.json``, whole or not at all; returns its path."""
    check_manifest(manifest)
    raw = dataclasses.asdict(manifest)
    raw.pop("root")
    path = manifest.root / FILE_NAME
    partial = path.with_suffix(".json.partial")
    partial.write_text(json.dumps(raw, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)
    return path


def check_manifest(manifest: BenchManifest) -> None:
    """ValueError for the first fault of what the manifest says; files are not looked at."""
    if not manifest.cases:
        raise ValueError("a benchmark needs at least one case, got none")
    ids = [case.id for case in manifest.cases]
    if twins := sorted({name for name in ids if ids.count(name) > 1}):
        raise ValueError(f"case ids given twice: {', '.join(twins)}")
    for case in manifest.cases:
        try:
            _check_case(case, manifest.root)
        except ValueError as error:
            raise ValueError(f"case {case.id!r}: {error}") from error


def file_fault(manifest: BenchManifest, case: CaseFiles) -> str:
    """The fault of the files of a case in words; empty where there is none."""
    for role, name in case.files().items():
        try:
            path = manifest.path(case, role)
        except ValueError as error:  # a link out of the folder
            return str(error)
        if not path.is_file():
            return f"{role} {name} is missing"
        if (found := file_hash(path)) != case.sha256[role]:
            known = case.sha256[role][:12]
            return f"{role} {name} has changed: sha256 {found[:12]}…, the manifest has {known}…"
    return ""


def file_hashes(root: Path, files: Mapping[str, str]) -> dict[str, str]:
    """Role → sha256 of the files of a case below ``root``."""
    return {role: file_hash(root / name) for role, name in files.items()}


def _check_case(case: CaseFiles, root: Path) -> None:
    if not _ID.fullmatch(case.id):
        raise ValueError("an id names files: letters, digits, - and _ are allowed")
    if case.condition not in CONDITIONS:
        raise ValueError(f"condition is one of {CONDITIONS}, got {case.condition!r}")
    for field in ("person", "language", "licence", "consent"):
        if not getattr(case, field):
            raise ValueError(f"{field} is empty; say unknown where it is")
    for role, name in case.files().items():
        below(root, name, where=role, links_out=True)  # links are looked at with the files
        if not _SHA256.fullmatch(case.sha256.get(role, "")):
            raise ValueError(f"sha256 of {role} is 64 hex digits, got {case.sha256.get(role)!r}")
    if unknown := sorted(set(case.sha256) - set(case.files())):
        raise ValueError(f"sha256 of {', '.join(unknown)}, which the case does not have")
