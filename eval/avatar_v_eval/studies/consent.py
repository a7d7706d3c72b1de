"""Consent checks: how often a person's own record is accepted, and how often another person's is.

Drawn TEST persons make a statement in one scene, of which a record is made as `avatar-v consent`
does; their references show them in another scene and are read as `avatar-v generate` reads them.
"""

import argparse
import tempfile
from datetime import date
from pathlib import Path

import numpy as np
import torch

from avatar_v.generate.stored_pipeline import StoredPipeline
from avatar_v.inputs.consented import shown_faces
from avatar_v.inputs.inputs import read_inputs
from avatar_v.inputs.live import LiveSound
from avatar_v.media.outputs import output_of
from avatar_v.media.writer import Writer
from avatar_v.request.request import LIVE, Request, Weights
from avatar_v.safety.consent import DRAWN, Consent
from avatar_v.safety.faces import SAME, hash_of
from avatar_v.safety.statement import consent_of
from avatar_v.world.clip import WorldClip
from avatar_v_eval.cases import (
    Case,
    add_case_options,
    cases_note,
    check_persons,
    make_cases,
    video_of,
)
from avatar_v_eval.intervals import mean_of, rate
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number

FAR = np.inf
"""The distance of a clip that is refused by itself."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_case_options(parser, persons=24, frames=125, first=9970)


def measure(options: argparse.Namespace) -> Findings:
    check_persons(options, 2)
    torch.set_num_threads(1)
    cases = make_cases(
        options.split,
        options.persons,
        first=options.first,
        num_frames=options.frames,
        reference_frames=options.frames,
        num_workers=options.workers,
    )
    with tempfile.TemporaryDirectory() as folder:
        records = [record_of(case, Path(folder) / "statement.mp4") for case in cases]
        faces = [faces_of(case, Path(folder) / "reference.mp4") for case in cases]
    distances = np.array([[distance(record, shown) for record in records] for shown in faces])
    return Findings(
        "Consent checks of drawn people: own records, and those of others",
        numbers_of(distances, [record is None for record in records]),
        weights={DRAWN: hash_of(DRAWN)},
        notes=[
            cases_note(options),
            "statement and reference are H.264 as generate writes it, in different scenes",
            f"accepted: all faces of the reference are within {SAME[DRAWN]:g} of the record's",
            "pairs of two persons share persons, so their interval is too narrow",
        ],
    )


def record_of(case: Case, path: Path) -> Consent | None:
    """The consent of a case's person; None where the statement is refused."""
    write(path, case.target)
    try:
        today = date(2026, 1, 1)
        return consent_of(path, person="a person", expires="2026-01-01", drawn=True, today=today)
    except ValueError:
        return None


def faces_of(case: Case, path: Path) -> list[list[float]]:
    """The faces that `generate` compares with records; none where it refuses the reference."""
    write(path, case.reference)
    spec = StoredPipeline(Weights()).input_spec
    request = Request.of(reference=str(path), audio=LIVE, face_crop=False)
    inputs = read_inputs(request, spec, LiveSound(()))
    try:
        return [face for _, face in shown_faces(request, inputs, spec, DRAWN)]
    except ValueError:
        return []


def distance(record: Consent | None, faces: list[list[float]]) -> float:
    """Of the face that is farthest from the record's."""
    if record is None:
        return FAR
    return max((record.distance(face) for face in faces), default=FAR)


def numbers_of(distances: np.ndarray, refused: list[bool]) -> dict[str, Number]:
    """Shares accepted. ``distances``: row i is the reference of person i, column j record j."""
    num = len(distances)
    own = distances.diagonal()
    others = distances[~np.eye(num, dtype=bool)].reshape(num, num - 1)
    limit = SAME[DRAWN]
    numbers = {
        "own": rate(int((own <= limit).sum()), num).described("own record accepted"),
        "refused": rate(sum(refused), num).described("statement refused: more than one person"),
        "other": rate(int((others <= limit).sum()), others.size).described(
            "another person's record accepted, of all pairs"
        ),
        "any_other": rate(int((others <= limit).any(1).sum()), num).described(
            "persons for whom one of the others' records is accepted"
        ),
        "own_distance": mean_of(own[np.isfinite(own)]).described("distance of own record"),
    }
    nearest = others.min(1)
    return numbers | {
        "other_distance": mean_of(nearest[np.isfinite(nearest)]).described(
            "distance of the nearest other record"
        )
    }


def write(path: Path, clip: WorldClip) -> None:
    with Writer(output_of(str(path))) as writer:
        writer.write(video_of(clip), clip.audio)
