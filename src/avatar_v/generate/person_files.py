"""Make a person file (inputs/person_file.py): the clips of a request, read and encoded once."""

from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor

from avatar_v.generate.stored_pipeline import StoredPipeline
from avatar_v.inputs.consented import check_consent, clip_faces, request_records
from avatar_v.inputs.inputs import read_inputs, reference_checked
from avatar_v.inputs.live import LiveSound
from avatar_v.inputs.person_file import VERSION, About, StoredPerson
from avatar_v.request.request import PersonOptions, Request, Weights
from avatar_v.request.resolve import InputSpec, sizes_of
from avatar_v.safety.consent import DRAWN, FILMED


def make_person(request: Request, weights: Weights) -> tuple[StoredPerson, tuple[str, ...]]:
    """The person of a request whose sound is not read (``audio`` LIVE), and what is odd about the
    files. ValueError for bad input, and where ``request.person.consent`` holds none of the person,
    before the weights are loaded."""
    source = StoredPipeline(weights)
    spec = source.input_spec(request)
    inputs = read_inputs(request, spec, LiveSound(()))
    check_consent(request, inputs, source.card, spec, request_records(request.person)[0])
    faces, notes = _faces(request.person, spec)
    about = About(
        version=VERSION,
        source=Path(request.person.reference).name,
        weights=str(weights.name),
        weights_hash=source.weights_hash,
        refiner=source.made_with.get("refiner"),
        size=sizes_of(request.sampling.size, source.card, source.refiner_card).base.size,
        frame=inputs.reference_frame,
        warnings=inputs.warnings,
    )
    with closing(source.load()) as pipeline:
        references = pipeline.references(inputs, request)
        checked = reference_checked(inputs, request.person, pipeline.check_reference)
    stored = StoredPerson("", about, inputs.image, inputs.motion, references, faces)
    return stored, (*checked.warnings, *notes)


def _faces(person: PersonOptions, spec: InputSpec) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Vectors of the face in each clip by critic, and why those of another are left out."""
    found, notes = dict[str, Tensor](), list[str]()
    for critic in (FILMED, DRAWN) if spec.drawn else (FILMED,):
        try:
            found[critic] = torch.stack(clip_faces(person, spec, critic))
        except ValueError as error:
            notes.append(f"no consent by {critic} can be compared with the file: {error}")
    return found, tuple(notes)
