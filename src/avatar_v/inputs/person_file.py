"""A person as a file: what weights read of a reference, so that no video of it is read again.

A safetensors file whose tensors are the first picture, the encoded reference (a `Reference` of the
weights, one more where `--from-prompt` shows other frames, one of a refiner) and vectors of the
face; its header is JSON (`About`). Keys and values are left out: of 16 pictures of 832 x 480 they
are 20 GB at 14B, and the latents that they come from 6 MB. The file is for the weights that made it
alone. It holds biometric data, as a record of consent does.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from jaxtyping import Float, UInt8
from safetensors.torch import save
from torch import Tensor

from avatar_v.base.outside import parse_json
from avatar_v.base.paths import whole_file
from avatar_v.base.states import read_with_header
from avatar_v.base.stored import Within, built
from avatar_v.types import MOTION_NAMES, Reference

VERSION = 1
MAX_BYTES = 1 << 32
MAX_SIDE = 16_384  # of the first picture
ABOUT = "about"
READ, FROM_PROMPT, REFINED = "read", "from_prompt", "refined"
"""References of a file: with a first picture, without one, and as a refiner reads it."""
FACE = "face."
KINDS = {
    "valid": torch.bool, "faces_valid": torch.bool, "anchor": torch.bool,
    "habits_known": torch.bool, "segment": torch.int64,
}  # fmt: skip
"""Of the parts of a reference that are not fp32."""


@dataclass(frozen=True)
class About:
    """What a person file says of itself."""

    version: Annotated[int, Within(VERSION, VERSION)]
    source: str  # the file that was read
    weights: str
    weights_hash: str
    refiner: str | None  # hash of the refiner that the file is for, too
    size: tuple[int, int]  # height and width of the weights' pictures
    frame: int | None  # of the source, which the first picture is; None: `--image`
    warnings: tuple[str, ...] = ()  # of reading the source


@dataclass(frozen=True)
class StoredPerson:
    """A person file, read. References are on the CPU, of one sample."""

    path: str
    about: About
    image: UInt8[Tensor, "3 h w"]  # of the weights' aspect, at the source's resolution
    motion: Float[Tensor, " m"] | None  # of ``image``
    references: dict[str, Reference]
    faces: dict[str, Float[Tensor, "n d"]]  # of each clip that was read, by critic (consent.py)

    def name_of(self, *, from_prompt: bool) -> str:
        """The reference that the weights read."""
        return FROM_PROMPT if from_prompt and FROM_PROMPT in self.references else READ

    def tensors(self) -> Iterator[Tensor | None]:
        """All that a video depends on besides the first picture."""
        for reference in self.references.values():
            yield from vars(reference).values()

    def check_made_for(self, weights_hash: str, refiner: str | None, size: tuple[int, int]) -> None:
        """ValueError unless it is of these weights, of pictures of this height and width, and of
        this refiner, or of none as well."""
        about = self.about
        again = f"avatar-v person --reference {about.source} --out {Path(self.path).name}"
        if about.weights_hash != weights_hash:
            raise ValueError(
                f"{self.path} is of other weights ({about.weights}, {about.weights_hash}); make it "
                f"of these: {again} --weights …"
            )
        if about.size != size:
            made, asked = (f"{width} x {height}" for height, width in (about.size, size))
            raise ValueError(
                f"{self.path} is of pictures of {made} pixels, and {asked} are asked for; make it "
                f"of these: {again} --size …"
            )
        if about.refiner != refiner:
            made, asked = ("with a", "none") if refiner is None else ("without this", "one")
            raise ValueError(
                f"{self.path} was made {made} refiner, and the request has {asked}: clips are read "
                f"larger for a refiner; make it anew: {again}"
            )


def save_person(path: str | Path, person: StoredPerson) -> None:
    """Write the file, whole or not at all; only its owner may read it."""
    tensors: dict[str, Tensor] = {"image": person.image}
    if person.motion is not None:
        tensors["motion"] = person.motion
    tensors |= {FACE + critic: face for critic, face in person.faces.items()}
    for name, reference in person.references.items():
        for field, value in vars(reference).items():
            if value is not None:
                tensors[f"{name}.{field}"] = value
    apart = {name: x.detach().cpu().contiguous().clone() for name, x in tensors.items()}
    header = {ABOUT: json.dumps(dataclasses.asdict(person.about))}
    data = save(apart, metadata=header)
    with whole_file(path) as partial:
        partial.unlink(missing_ok=True)
        partial.touch(mode=0o600)
        partial.write_bytes(data)


def read_person(path: str | Path) -> StoredPerson:
    """ValueError for a file that is none, is damaged, or holds numbers that are not finite."""
    if Path(path).is_file() and Path(path).stat().st_size > MAX_BYTES:
        raise ValueError(f"{path}: a person file has at most {MAX_BYTES >> 30} GiB")
    tensors, header = read_with_header(Path(path))
    if ABOUT not in header:
        raise ValueError(f"{path} is no person file: make one with avatar-v person")
    values = parse_json(header[ABOUT].encode(), where=path)
    about = built(About, values, where=path)
    for name, x in tensors.items():
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            raise ValueError(f"{path}: {name} holds numbers that are not finite")
    names = {name.split(".")[0] for name in tensors if not name.startswith(FACE)}
    unknown = names - {"image", "motion", READ, FROM_PROMPT, REFINED}
    image, motion = tensors.get("image"), tensors.get("motion")
    faces = {k.removeprefix(FACE): x for k, x in tensors.items() if k.startswith(FACE)}
    if unknown or image is None or not _is_picture(image):
        raise ValueError(f"{path} is no person file of this version: make it anew")
    fits = motion is None or (motion.shape == (len(MOTION_NAMES),) and motion.is_floating_point())
    if not fits or not all(x.ndim == 2 and x.is_floating_point() for x in faces.values()):
        raise ValueError(f"{path}: its motion or faces have another shape than their numbers")
    found = [name for name in (READ, FROM_PROMPT, REFINED) if name in names]
    references = {name: _reference(tensors, name, path) for name in found}
    return StoredPerson(str(path), about, image, motion, references, faces)


def _is_picture(image: Tensor) -> bool:
    """Of three colours, of a size that a picture has."""
    is_uint8 = image.dtype == torch.uint8 and image.ndim == 3
    return is_uint8 and image.shape[0] == 3 and all(16 <= x <= MAX_SIDE for x in image.shape[1:])


def _reference(tensors: Mapping[str, Tensor], name: str, path: str | Path) -> Reference:
    """One reference of the file. ValueError for parts that do not fit each other."""
    parts = {k.split(".")[1]: x for k, x in tensors.items() if k.startswith(name + ".")}
    fields = {field.name for field in dataclasses.fields(Reference)}
    known = {"latents", "valid", "segment"} <= parts.keys() <= fields
    shape = parts["latents"].shape if known else torch.Size()
    fits = len(shape) == 5 and shape[0] == 1
    for field, part in parts.items():
        fits = fits and part.dtype == KINDS.get(field, torch.float32) and part.shape[:1] == (1,)
        if field in ("valid", "segment", "audio", "motion", "anchor", "identity"):
            fits = fits and part.shape[:2] == shape[:2]
    if not fits:
        raise ValueError(f"{path}: the parts of its reference do not fit each other")
    return Reference(**parts)
