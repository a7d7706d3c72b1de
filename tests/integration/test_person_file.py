"""A person's clips read once, into a file that stands for them."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from avatar_v.base.video_format import VideoFormat
from avatar_v.cli import main
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.inputs.consented import check_consent, request_records
from avatar_v.inputs.inputs import read_inputs
from avatar_v.inputs.person_file import ABOUT, read_person
from avatar_v.request.request import Request
from avatar_v.request.resolve import input_spec
from avatar_v.safety.consent import DRAWN, VERSION, Consent, save_consent
from avatar_v.safety.faces import hash_critic
from avatar_v.weights.card import DRAWN_PEOPLE, Capabilities, Card
from avatar_v.weights.weights import load_pipeline, save_pipeline
from random_models import randomise

CAN = Capabilities(
    people=DRAWN_PEOPLE, video=VideoFormat(32, 32), window_latents=5, shift=1.0, reference=True,
    motion=True, stills=2, stills_from_prompt=3,
)  # fmt: skip


@pytest.fixture(scope="module")
def personal(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny weights that read a reference and motion."""
    dit, conditioner = load_pipeline(weights)
    randomise(dit)
    folder = tmp_path_factory.mktemp("personal") / "tiny"
    save_pipeline(folder, dit, conditioner, Card(preset="tiny", recipe="none", can=CAN))
    return folder


@pytest.fixture(scope="module")
def person(personal: Path, spoken, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("person") / "me.person"
    words = ["--reference", spoken[0], "--out", str(out), "--weights", str(personal)]
    assert main(["person", *words]) == 0
    assert out.stat().st_mode & 0o777 == 0o600  # it holds vectors of the face
    return out


def test_a_video_of_the_file_is_that_of_the_clip(
    personal: Path, person: Path, spoken, request_: Request
) -> None:
    pipe = AvatarPipeline.from_pretrained(personal, device="cpu", precision="fp32")

    def made(reference: str | Path, **how: Any) -> Tensor:
        audio = request_.person.audio
        return torch.stack(list(pipe(reference=reference, audio=audio, num_steps=2, **how)))

    whole = made(spoken[0])
    assert torch.equal(made(person), whole)
    prompted = made(spoken[0], from_prompt=True)  # other frames of the clip are shown
    assert torch.equal(made(person, from_prompt=True), prompted)
    image = request_.person.reference
    other = made(spoken[0], image=image, face_crop=False)
    assert torch.equal(made(person, image=image, face_crop=False), other)
    assert not torch.equal(other, whole)


def test_consent_is_compared_with_the_faces_of_the_file(
    person: Path, tmp_path: Path, request_: Request
) -> None:
    stored, card = read_person(person), Card(preset="tiny", can=CAN)
    (face,) = stored.faces[DRAWN].tolist()

    def asked(face: list[float]) -> str | None:
        consent = Consent(
            VERSION, "Ada", "2026-01-01", "2999-01-01", "", "", None, "0" * 64, DRAWN,
            hash_critic(DRAWN), tuple(face),
        )  # fmt: skip
        save_consent(tmp_path / "ada.consent.json", consent)
        records = (str(tmp_path / "ada.consent.json"),)
        request = request_.changed(reference=str(person), consent=records, face_crop=True)
        spec = input_spec(request, card)
        known, _ = request_records(request.person)
        found = check_consent(request, read_inputs(request, spec), card, spec, known)
        return None if found is None else found.person

    assert asked(face) == "Ada"
    with pytest.raises(ValueError, match="nobody who has agreed"):
        asked([-x for x in face])


def with_nan(tensors: dict[str, Tensor], about: dict) -> None:
    tensors["read.latents"][0, 0, 0, 0, 0] = torch.nan


def with_other_shapes(tensors: dict[str, Tensor], about: dict) -> None:
    tensors["read.latents"] = tensors["read.latents"][..., :1].clone()


def with_parts_of_two(tensors: dict[str, Tensor], about: dict) -> None:
    tensors["read.valid"] = tensors["read.valid"][:, :1].clone()


def of_grey(tensors: dict[str, Tensor], about: dict) -> None:
    tensors["image"] = tensors["image"][:1].clone()


def with_a_number_for_a_face(tensors: dict[str, Tensor], about: dict) -> None:
    tensors[f"face.{DRAWN}"] = torch.zeros(3)


def with_two_persons(tensors: dict[str, Tensor], about: dict) -> None:
    for name in tensors:
        if name.startswith("read."):
            tensors[name] = torch.cat([tensors[name], tensors[name]])


def with_validity_in_numbers(tensors: dict[str, Tensor], about: dict) -> None:
    tensors["read.valid"] = tensors["read.valid"].float()


def of_other_pictures(tensors: dict[str, Tensor], about: dict) -> None:
    about["size"] = [48, 32]


def with_more(tensors: dict[str, Tensor], about: dict) -> None:
    tensors["extra"] = torch.zeros(1)


def of_a_later_version(tensors: dict[str, Tensor], about: dict) -> None:
    about["version"] = 2


def of_other_weights(tensors: dict[str, Tensor], about: dict) -> None:
    about["weights_hash"] = "0" * 16


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_nan, "read.latents holds numbers that are not finite"),
        (with_other_shapes, r"latents of \(\d+, 4, 1\), and these weights read"),
        (with_parts_of_two, "do not fit each other"),
        (with_two_persons, "do not fit each other"),
        (with_validity_in_numbers, "do not fit each other"),
        (with_a_number_for_a_face, "another shape than their numbers"),
        (of_grey, "no person file of this version"),
        (with_more, "no person file of this version"),
        (of_other_pictures, "of pictures of 32 x 48 pixels, and 32 x 32 are asked for"),
        (of_a_later_version, "version"),
        (of_other_weights, "is of other weights"),
    ],
)
def test_a_file_that_is_none_is_one_error(
    change: Callable[[dict[str, Tensor], dict], None],
    words: str,
    personal: Path,
    person: Path,
    request_: Request,
    tmp_path: Path,
) -> None:
    tensors, about = load_file(person), dataclasses.asdict(read_person(person).about)
    change(tensors, about)
    bad = tmp_path / "bad.person"
    save_file(tensors, bad, metadata={ABOUT: json.dumps(about)})
    pipe = AvatarPipeline.from_pretrained(personal, device="cpu", precision="fp32")
    with pytest.raises(ValueError, match=words):
        list(pipe(reference=bad, audio=request_.person.audio, num_steps=1))


def test_clips_are_not_asked_for_beside_the_file(person: Path, request_: Request) -> None:
    given = {"reference": str(person), "audio": request_.person.audio}
    for name, value, flag in (
        ("also", (str(person),), "--also"),
        ("reference_s", 2.0, "--reference-seconds"),
        ("scene", "a beach", "--scene"),
        ("motion", "none", "--motion"),
        ("face_crop", False, "--no-face-crop"),
    ):
        request = Request.of(**given, **{name: value})
        with pytest.raises(ValueError, match=f"{flag} reads the person's clips"):
            read_inputs(request, input_spec(request, Card(preset="tiny", can=CAN)))
