"""What of a person is left to people: recordings, weights, videos, files that say the name."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from avatar_v.base.outside import read_yaml
from avatar_v.safety.consent import SUFFIX
from avatar_v.shards.writer import INDEX_SUFFIX
from avatar_v_data.curation.curated import RUN_FILE, footage_of
from avatar_v_data.curation.store import withdrawn
from avatar_v_data.revoke_place import MOST_TEXT, PERSON, Place, is_result, json_object
from avatar_v_data.revoke_who import Withdrawn

LEAST_LETTERS = 4
"""Of a name that is looked for in texts; a shorter one, or a number, is in every file."""
NO_TEXT = {".tar", ".safetensors", ".mp4", ".flac", ".wav", ".ckpt", ".png", ".jpg", ".webp"}
BEFORE = "a recording with a person who withdrew before"


def left_of(who: Withdrawn, place: Place, gone: set[Path]) -> Iterator[tuple[Path, str]]:
    """What people must decide on, each file once. ``gone``: what is removed."""
    seen = set(gone)
    damaged = [
        (path, "a table that cannot be read: look for the person in it") for path in place.damaged
    ]
    known = (*_recordings(who, place), *_weights(who, place), *_videos(who, place), *damaged)
    for path, what in known:
        if path not in seen:
            seen.add(path)
            yield path, what
    words = [
        name for name in who.names | who.clips if len(name) >= LEAST_LETTERS and not name.isdigit()
    ]
    if not words:
        return
    said = re.compile(b"|".join(rb"(?<!\w)" + re.escape(w.encode()) + rb"(?!\w)" for w in words))
    for path in place.files:
        if path in seen or path.suffix in NO_TEXT or path.name.endswith(INDEX_SUFFIX):
            continue
        if (
            not is_result(path)
            and path.stat().st_size <= MOST_TEXT
            and said.search(path.read_bytes())
        ):
            yield path, "says the name, or names a clip"


def _recordings(who: Withdrawn, place: Place) -> Iterator[tuple[Path, str]]:
    """Below the folders, and in the footage of runs of the data engine, wherever that is; of such a
    run those, too, with anybody who withdrew from it before."""
    ends = tuple(f"{os.sep}{name}" for name in who.recordings if name)
    found = {path for path in place.files if str(path).endswith(ends)}
    before: set[Path] = set()
    for run in place.runs:
        if (run.folder / RUN_FILE).is_file():
            footage = footage_of(run.folder)
            found |= {footage / name for name in who.recordings if (footage / name).is_file()}
            before |= {footage / name for name in withdrawn(run.folder)}
    for path in sorted(found):
        yield path, "a recording: an import, or another run of curate, takes it in again"
    for path in sorted(path for path in before - found if path.is_file()):
        yield path, BEFORE


def _weights(who: Withdrawn, place: Place) -> Iterator[tuple[Path, str]]:
    """Runs whose recipe reads a folder with shards of the person, or begins from such weights."""
    runs = {path.parent: _paths_in(path) for path in place.ending("recipe.yaml")}
    seen: set[Path] = set()
    for run, paths in runs.items():
        if any(shard.is_relative_to(path) for path in paths for shard in who.shards):
            seen.add(run)
    yield from ((run, "weights that were trained on the person") for run in sorted(seen))
    while True:
        more = {
            run
            for run, paths in runs.items()
            if run not in seen and any(p.is_relative_to(s) for p in paths for s in seen)
        }
        if not more:
            return
        seen |= more
        yield from ((run, "weights that begin from such") for run in sorted(more))


def _paths_in(recipe: Path) -> set[Path]:
    """The folders that a recipe names, from wherever above it the run was started."""
    try:
        values = read_yaml(recipe, "recipe")
    except ValueError:
        return set()
    found: set[Path] = set()
    left = [values]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value
        elif isinstance(value, str) and value and "\0" not in value and len(value) < 4096:
            tried = [base / value for base in recipe.parents]
            found |= {path.resolve() for path in tried if path.is_dir() and path != recipe.parent}
    return found - set(recipe.parents)


def _videos(who: Withdrawn, place: Place) -> Iterator[tuple[Path, str]]:
    """Records of generation that name the person's consent."""
    for path in place.ending(".json"):
        if path.name.endswith((INDEX_SUFFIX, SUFFIX)):
            continue
        agreed = json_object(path).get("consented")
        if isinstance(agreed, dict) and agreed.get(PERSON) in who.names:
            yield path, f"the record of a video that was made of the person, {path.stem}"
