"""The card of a folder of weights: where they come from and what they can do; and where they lie.
The same of an adapter.

Torch is not imported, so that a name that leads to no weights is an error at once. The networks of
the folder are weights.py's, the factors of an adapter adapter_files.py's.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from avatar_v.base.outside import read_json
from avatar_v.base.stored import Guidance, Within, built
from avatar_v.base.video_format import VideoFormat
from avatar_v.models.base import (
    CARD,
    SCHEMA_VERSION,
    Base,
    card_values,
    check_version,
    hash_folder,
    part_folder,
    with_defaults,
)
from avatar_v.models.config import Streaming

ASSETS = Path(__file__).resolve().parents[1] / "assets"
DEFAULT_WEIGHTS = "small_student"
"""Of generation: two steps of one pass."""
SHIPPED = {
    DEFAULT_WEIGHTS: "two steps",
    "small_causal": "two steps, block by block, for live sound",
    "small": "undistilled, to train from",
}
"""The pipelines that ship, all of drawn people."""
DRAWN_PEOPLE = "drawn people of avatar_v's world"
"""What `Capabilities.people` says of weights that were trained on drawn people alone."""
ADAPTER_CARD, ADAPTER_CONFIG = "adapter.json", "adapter_config.json"
NEEDS_WHOLE = (
    "these weights encode sound by an encoder that needs the whole recording: pass the sound as a "
    "file, or train them with models.audio_look_ahead"
)
MAX_SCALE = 10.0
"""Of an adapter."""


@dataclass(frozen=True)
class Capabilities:
    """What weights know and what they take, as their training made them."""

    people: str = ""  # whom they were trained on, in a few words; "" where nobody has said
    video: VideoFormat | None = None
    """Of their pictures; None: that of the preset (request/resolve.py)."""
    window_latents: Annotated[int, Within(3, 4096)] | None = None
    """Latents of the windows at the end of training, the length of a chunk; None: the preset's."""
    reference: bool = False  # a reference video, not only its first frame
    motion: bool = False  # the video follows a motion, which a motion network makes
    faces: bool = False  # close-ups of the face beside the reference
    stills: int = 0
    """Of each clip of the reference the network is shown so many single frames, spread over it, and
    the statistics of all its motion; 0: the clip itself."""
    stills_from_prompt: int = 0
    """The same where no first frame is given (--from-prompt), where that is more."""
    identity: str | None = None
    """Recogniser whose vector of the reference's face is read (models/identity.py), and its hash;
    None: none."""
    identity_hash: str | None = None
    anchor: bool = False  # the first frame of the video behind the reference
    causal_block: Annotated[int, Within(1, 4096)] | None = None
    """Latents of a block, of weights that make the video block after block and see no later ones
    (objectives/causal_forcing.py); None: a chunk is made at once."""
    streaming: Streaming | None = None  # what such weights saw of the past; None: its defaults
    audio_look_ahead: Annotated[int, Within(0, 16)] | None = None
    """Latents behind its own whose sound a latent hears, so that the weights can follow a live
    sound; None: the whole recording, or that of the encoder's own config where nobody has said."""
    audio_window: Annotated[int, Within(1, 1000)] | None = None
    """Latents that an encoder hears at once up to a latent's own; None: no windows."""
    factor: Annotated[float, Within(1, 8)] | None = None
    """Of a refiner: its pictures are so many times larger, each way; None: twice."""
    num_steps: Annotated[int, Within(1, 1000)] | None = None
    """Of a student of few steps (objectives/distill_dmd.py), that go to x_0 and back; None: any."""
    shift: Annotated[float, Within(1e-3, 1e3)] | None = None  # of its times; None: the preset's
    motion_steps: Annotated[int, Within(1, 1000)] | None = None
    """Of a motion network of few steps, guidance inside (objectives/distill_motion.py); None: as
    many as the video's, and not fewer than sampling/motion.LEAST_MOTION_STEPS."""

    def inherited(self) -> dict[str, Any]:
        """What weights keep that another stage trains on; the recipe says the rest anew."""
        own = ("people", "stills_from_prompt")
        return {key: value for key, value in vars(self).items() if key not in own}

    def num_stills(self, *, from_prompt: bool) -> int:
        """Single frames that stand for each clip of the reference; 0: none do."""
        return max(self.stills, self.stills_from_prompt) if from_prompt else self.stills


@dataclass(frozen=True)
class Whole:
    """`hash_folder` of weights and of two parts before they were compressed (slim.py), which
    results and adapters made with them name."""

    weights: str
    dit: str
    motion: str = ""


@dataclass(frozen=True)
class Card:
    """Where weights come from, which a stranger needs to make them again, and what they can do."""

    preset: str
    recipe: str = ""  # path of the recipe, with its overlays
    commit: str = ""
    log: str = ""  # training log or its address
    can: Capabilities = field(default_factory=Capabilities)
    guidance_audio: Guidance = 2.0  # what generation takes where none is asked for; 1 is none
    guidance_motion: Guidance = 1.0  # of the style in motion (sampling/motion.py)
    schema_version: int = SCHEMA_VERSION
    base: Base | None = None  # None: the folder holds all
    whole: Whole | None = None  # None: the folder was not compressed


def weights_folder(name_or_path: str | Path) -> Path:
    """The folder of a shipped name or of a path; ValueError if it is neither."""
    named = ASSETS / name_or_path
    for folder in (named, Path(name_or_path)):
        if (folder / CARD).is_file():
            return folder
    names = ", ".join(f"{name}: {words}" for name, words in SHIPPED.items())
    raise ValueError(
        f"no weights {str(name_or_path)!r}: expected a name that ships with the package ({names}; "
        "as a refiner small_refiner) or a folder with card.json, as `avatar-v run` leaves it"
    )


def names_of(words: Iterable[str]) -> dict[str, str]:
    """Sets of weights by name: a word is a name that ships, a folder, whose last part is then the
    name, or NAME=DIR. ValueError for a word without a name, and for two of one name."""
    found: dict[str, str] = {}
    for word in words:
        name, given, where = word.partition("=")
        if not given or Path(word).is_dir():
            name, where = Path(word).name, word
        if not name:
            raise ValueError(f"weights {word!r} have no name: say NAME=DIR")
        if name in found:
            raise ValueError(f"two sets of weights are called {name}: say NAME={where}")
        found[name] = where
    return found


def read_card(folder: str | Path, *, preset: str | None = None) -> Card:
    """The card of a pipeline; ValueError for another schema version, fields that do not fit, or
    another preset if one is given."""
    folder = Path(folder)
    card = built(Card, card_values(folder), where=folder / CARD)
    if preset is not None and card.preset != preset:
        raise ValueError(f"{folder} holds weights of preset {card.preset!r}, expected {preset!r}")
    return card


def check_follows(folder: Path, card: Card) -> None:
    """ValueError for weights in ``folder`` that encode whole recordings: they cannot follow a live
    sound. Nothing is loaded."""
    values = read_json(part_folder(folder / "audio") / "config.json")
    known = (card.can.audio_look_ahead, values.get("look_ahead"))
    if values.get("class") == "HiddenStateAudioEncoder" and known == (None, None):
        raise ValueError(NEEDS_WHOLE)


@dataclass(frozen=True)
class AdapterCard:
    """What an adapter was trained on, and the card of the weights that it makes of them."""

    part: Literal["dit", "motion"]  # the folder of the network that it changes
    card: Card
    base: str = ""  # folder of the weights that it was trained on
    base_hash: str = ""  # `hash_folder` of their part; "" where training began with fresh weights
    vae_hash: str = ""  # of the VAE whose latents it was trained on; "" where that is not recorded


@dataclass(frozen=True)
class AdapterSpec:
    """An adapter and how strongly it counts; 1 is as it was trained."""

    folder: Path
    scale: float = 1.0

    @classmethod
    def of(cls, word: str) -> "AdapterSpec":
        """Of ``DIR`` or ``DIR:SCALE``. ValueError for a folder without an adapter, and for a scale
        that is no number from -10 to 10."""
        folder, colon, number = word.rpartition(":")
        if not colon or Path(word).is_dir():
            folder, number = word, "1"
        try:
            scale = float(number)
        except ValueError:
            scale = float("nan")
        if not abs(scale) <= MAX_SCALE:
            raise ValueError(
                f"adapter {word!r}: expected DIR or DIR:SCALE with a scale from -{MAX_SCALE:g} to "
                f"{MAX_SCALE:g}"
            )
        read_adapter_card(folder)
        return cls(Path(folder), scale)

    def __str__(self) -> str:
        return f"{self.folder}:{self.scale!r}".removesuffix(".0")


def read_adapter_card(folder: str | Path) -> AdapterCard:
    """The card of an adapter; ValueError for another schema version or fields that do not fit."""
    path = Path(folder) / ADAPTER_CARD
    missing = [n for n in (ADAPTER_CARD, ADAPTER_CONFIG) if not (Path(folder) / n).is_file()]
    if missing:
        raise ValueError(
            f"no adapter {str(folder)!r}: expected a folder with {missing[0]}, as a run with "
            "trainable.parts lora leaves it (runs/NAME/adapter); `avatar-v weights import-lora` "
            "makes one of a LoRA of Wan by another trainer"
        )
    values = read_json(path)
    card = values.get("card")
    card = card if isinstance(card, dict) else {}
    check_version(card, folder)
    return built(AdapterCard, {**values, "card": with_defaults(card)}, where=path)


def hash_with(folder: str | Path, adapters: Sequence[AdapterSpec]) -> str:
    """`hash_folder`, and with adapters that of all of them with their scales."""
    base = hash_folder(folder)
    if not adapters:
        return base
    digest = hashlib.sha256(base.encode())
    for adapter in adapters:
        digest.update(f"{hash_folder(adapter.folder)} {adapter.scale!r}".encode())
        digest.update((adapter.folder / ADAPTER_CONFIG).read_bytes())  # holds alpha
    return digest.hexdigest()[:16]
