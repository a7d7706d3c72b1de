"""The base of all critics: frozen fp32 weights on disk, their hash, and the score that carries it.

A critic's folder holds ``config.json`` (the constructor's arguments), ``model.safetensors`` (whose
tensors may be packed, as base/packed.py says) and ``card.json`` (recipe, commit, held-out
numbers). Not here: the networks and how they are trained.
"""

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from safetensors.torch import save_file
from torch import Tensor, nn

from avatar_v.base.device import without_memory
from avatar_v.base.outside import read_json
from avatar_v.base.packed import compressed, decompressed
from avatar_v.base.paths import whole_file
from avatar_v.base.states import check_numbers, check_state, read_tensors
from avatar_v.base.stored import built
from avatar_v.critics.look import Faces, Video

ASSETS = Path(__file__).resolve().parents[1] / "assets" / "critics"

_Critic = TypeVar("_Critic", bound="Critic")

Frames = Float[Tensor, "b 3 h w"] | UInt8[Tensor, "b 3 h w"]


@dataclass(frozen=True)
class Score:
    """Values with the judge that gave them: numbers of two judges must not be compared."""

    values: Float[Tensor, "..."]
    critic: str  # the kind of critic: "motion", "face" or "preference"
    weights_hash: str  # sha256 of its tensors, 12 hex digits


class Critic(nn.Module):
    """A network with a name, whose folder rebuilds it: ``config`` holds the constructor's
    arguments."""

    name: ClassVar[str]

    def __init__(self, config: Mapping[str, object]) -> None:
        super().__init__()
        self.config = config

    @property
    def held_out(self) -> bool:
        """True for a critic that only scores and must never be a loss or a reward."""
        return bool(self.config["held_out"])

    def hash(self) -> str:
        return weights_hash(self.state_dict())

    @classmethod
    def from_pretrained(cls: type[_Critic], name_or_path: Path | str | None = None) -> _Critic:
        """The frozen critic of a folder (None: the shipped one); ValueError if it does not fit."""
        folder = critic_folder(cls.name if name_or_path is None else name_or_path)
        values, where = read_json(folder / "config.json"), folder / "config.json"
        with without_memory():  # the size that a file promises may be any
            expected = built(cls, values, where=where)
        state = read_frozen(folder / "model.safetensors", expected)
        model = built(cls, values, where=where)
        model.load_state_dict(state)
        model.float().eval().requires_grad_(False)
        return model

    @classmethod
    def as_objective(cls: type[_Critic], name_or_path: Path | str | None = None) -> _Critic:
        """The frozen critic of a folder, to be a loss or a reward (`require_objective`)."""
        name_or_path = cls.name if name_or_path is None else name_or_path
        require_objective(name_or_path)
        return cls.from_pretrained(name_or_path)

    def save_pretrained(self, directory: Path | str, dtype: torch.dtype = torch.float32) -> None:
        """Writes ``config.json`` and ``model.safetensors``; a card beside them stays.

        ``dtype`` is that of stored floats, which are read back as fp32; the hash is that of the
        values read back, so round the model first where it shall be known before.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.config, indent=1) + "\n"
        state = {
            name: value.detach().cpu().to(dtype if value.is_floating_point() else value.dtype)
            for name, value in self.state_dict().items()
        }
        with whole_file(directory / "model.safetensors") as partial:
            save_file(compressed({}, state, error=0.0), partial)
        with whole_file(directory / "config.json") as partial:
            partial.write_text(text, encoding="utf-8")


class PictureCritic(Critic):
    """From single pictures to rows of numbers; subclasses give ``forward``."""

    input_size: ClassVar[int] = 64  # pixels
    by_face = False

    def look(self, video: Video, faces: Faces | None = None) -> Float[Tensor, "b f 3 s s"]:
        """All frames, whole, as fp32 pictures of its size."""
        return whole_frames(video, self.input_size)

    def read(self, pictures: Float[Tensor, "n 3 s s"]) -> Float[Tensor, "n d"]:
        return self(pictures)

    @torch.no_grad()
    def measure(self, frames: Frames, *, batch_size: int = 256) -> Score:
        """Judges ``frames`` ("b 3 h w", uint8 or [-1, 1]): values "b d"."""
        parts = [self(as_input(chunk, self.input_size)) for chunk in frames.split(batch_size)]
        return Score(torch.cat(parts).float(), self.name, self.hash())


def as_input(frames: Frames, size: int) -> Float[Tensor, "b 3 size size"]:
    """The centre squares of frames of any size, uint8 or float in [-1, 1], as fp32 in [-1, 1] at
    ``size`` x ``size``.

    Larger frames are averaged down (anti-aliased), as the world's renderer averages its samples.
    """
    height, width = frames.shape[-2:]
    top, left = max(height - width, 0) // 2, max(width - height, 0) // 2
    x = frames[..., top : top + width, left : left + height].float()
    if frames.dtype == torch.uint8:
        x = x / 127.5 - 1
    if x.shape[-2:] == (size, size):
        return x
    return F.interpolate(x, (size, size), mode="bilinear", antialias=True, align_corners=False)


def whole_frames(video: Video, size: int) -> Float[Tensor, "b f 3 size size"]:
    """`as_input` of every frame."""
    pictures = as_input(video.float().clamp(-1, 1).flatten(0, 1), size)
    return pictures.unflatten(0, video.shape[:2])


def weights_hash(state: Mapping[str, Tensor]) -> str:
    """12 hex digits of sha256 over names and values, in name order."""
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode())
        digest.update(state[name].detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]


def hash_files(paths: Iterable[Path]) -> str:
    """12 hex digits of sha256 over names and bytes of files of weights."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode())
        with path.open("rb") as file:
            while block := file.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()[:12]


def hash_folder(folder: Path | str) -> str:
    """The same of a model in a folder of transformers."""
    files = (sorted(Path(folder).glob(kind)) for kind in ("*.json", "*.safetensors"))
    return hash_files(itertools.chain(*files))


def critic_folder(name_or_path: Path | str) -> Path:
    """The name of a critic that ships (motion, face, sync, reader) or a folder, as a folder that
    has both files.

    Raises ValueError naming the file that is missing and the recipe that makes it.
    """
    named = ASSETS / name_or_path
    folder = named if named.is_dir() else Path(name_or_path)
    for file in ("config.json", "model.safetensors"):
        if not (folder / file).is_file():
            raise ValueError(
                f"critic {str(name_or_path)!r}: {folder / file} is missing; expected the name of a "
                "shipped critic (motion, face, sync, also with _held_out; reader) or a folder of "
                "recipes/critic_*.yaml"
            )
    return folder


def require_objective(name_or_path: Path | str) -> None:
    """ValueError for a held-out critic, and for a folder that holds no critic.

    A critic that a model was trained against no longer tells whether the model is good, so the
    held-out critics only score.
    """
    config = read_json(critic_folder(name_or_path) / "config.json")
    if config.get("held_out"):
        raise ValueError(
            f"critic {str(name_or_path)!r} is held out: it scores and is never a loss or a reward; "
            "expected a critic that may be trained against, as motion, face or sync"
        )


def read_frozen(path: Path, expected: nn.Module) -> dict[str, Tensor]:
    """The weights of a safetensors file, packed or not, for a module like ``expected``.

    Raises ValueError for an unreadable file, for names or shapes that do not fit, and for numbers
    that are not finite.
    """
    state, own = decompressed({}, read_tensors(path), where=path), expected.state_dict()
    check_numbers(state, where=path, counters=own)
    check_state(own, state, where=path)
    return state
