"""Drawn footage whose truth is known, beside what the data engine says of it."""

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars

from avatar_v_data.footage_drawing import motion_file

WANTED = ("talk", "late")
WORDS = {
    "talk": "one person is seen speaking",
    "late": "the same, and the sound is late",
    "dubbed": "another voice over the mouth",
    "voice_over": "a voice without a person",
    "two": "two people at once",
    "silent": "nobody speaks",
    "noise": "nobody speaks, and there is noise",
    "still": "a still picture",
    "blurred": "a blurred picture",
    "shaky": "one person speaks, and the camera shakes",
    "choppy": "one person speaks, and frames repeat",
    "light": "one person speaks, and the light changes",
    "flicker": "one person speaks, and the light flickers",
    "subtitle": "subtitles",
    "logo": "a logo",
    "slides": "slides and a voice",
    "screencast": "slides, and who speaks in a corner",
    "bystander": "a second face, small",
    "hand": "a hand beside the face",
    "hand_on_face": "a hand before the face",
    "turned": "the head turned by 43 to 80 degrees",
    "sideways": "the picture lies on its side",
    "tilted": "the picture tilted by 20 to 30 degrees",
    "music": "music under the voice",
    "voices": "a second voice over the first",
}
"""What the kinds of shots are, and their faults."""
WHOLE = 0.8
"""Share of a clip's frames that must show one person for the clip to be counted as theirs."""


@dataclass(frozen=True)
class Truth:
    """One recording: its shots as they were drawn, and what the engine says of it."""

    file: str
    shots: list[dict[str, Any]]
    found_shots: list[list[int]]  # none where another recording shows all of it
    taken: list[dict[str, Any]]  # rows of the manifest
    clips: list[dict[str, Any]]  # all clips
    copy_of: str
    lacks: int  # frames of the original that a copy's beginning lacks
    left_out: list[list[int]]  # before any model looked: copied elsewhere, or still
    motion: np.ndarray  # "f m", of the person seen; empty for altered copies
    altered: str = ""
    broken: str = ""
    failed: str = ""  # why there is nothing of it, or less than there was

    @cached_property
    def num_frames(self) -> int:
        return self.shots[-1]["stop"]

    def of_frames(self, field: str) -> np.ndarray:
        """A field of the shot that each frame belongs to."""
        parts = [[shot[field]] * (shot["stop"] - shot["start"]) for shot in self.shots]
        return np.array(list(itertools.chain.from_iterable(parts)), object)

    def is_in(self, spans: Iterable[Sequence[int]]) -> np.ndarray:
        """Of each frame whether it lies in one of these."""
        found = np.zeros(self.num_frames, bool)
        for start, stop in spans:
            found[start:stop] = True
        return found

    @cached_property
    def is_taken(self) -> np.ndarray:
        return self.is_in((row["start"], row["stop"]) for row in self.taken)

    def most(self, field: str, clip: dict[str, Any]) -> tuple[Any, float]:
        """What most frames of a clip have in a field, and their share."""
        values = list(self.of_frames(field)[clip["start"] : clip["stop"]])
        best = max(set(values), key=values.count)
        return best, values.count(best) / len(values)

    @cached_property
    def visible_cuts(self) -> list[int]:
        """Where the picture changes: not from one sentence of a person in a room to the next."""

        def look(shot: dict[str, Any]) -> tuple[Any, ...]:
            odd = shot["kind"] if shot["kind"] in ("voice_over", "two", "blurred") else ""
            return shot["person"], shot["scene"], odd

        pairs = itertools.pairwise(self.shots)
        return [after["start"] for before, after in pairs if look(before) != look(after)]

    @cached_property
    def any_cuts(self) -> list[int]:
        return [shot["start"] for shot in self.shots[1:]]

    @cached_property
    def found_cuts(self) -> list[int]:
        return [start for start, _ in self.found_shots[1:]]


def read(footage: Path, selected: Path, tier: str) -> list[Truth]:
    """ValueError where the folders do not belong together."""
    manifest, report = selected / f"{tier}.jsonl", selected / "report.json"
    for path in (footage / "truth.jsonl", manifest, report):
        if not path.is_file():
            raise ValueError(f"no file {path}: see avatar-v-data footage and select")
    taken = [json.loads(line) for line in manifest.open()]
    clips = polars.read_parquet(selected / "clips.parquet").to_dicts()
    told = json.loads(report.read_text())
    found = {name: [] for name in told["failed"]} | told["shots"]
    truths = []
    for line in (footage / "truth.jsonl").open():
        row = json.loads(line)
        file = row["file"]
        for shot in row["shots"]:
            shot["kind"] = shot["fault"] or shot["kind"]
        if file not in found:
            raise ValueError(f"{selected}: {file} of {footage} was not curated")
        moves = motion_file(footage / file)
        truths.append(
            Truth(
                file,
                row["shots"],
                found[file],
                [r for r in taken if r["file"] == file],
                [c for c in clips if c["file"] == file],
                row["copy_of"],
                row["lacks"],
                told["left_out"].get(file, []),
                np.load(moves).astype(float) if moves.exists() else np.zeros((0, 0)),
                row.get("altered", ""),
                row.get("broken", ""),
                told["failed"].get(file) or told.get("ends_early", {}).get(file, ""),
            )
        )
    return truths
