"""The card of a folder of weights: where they come from and what they can do; and where they lie.

Torch is not imported, so that a name that leads to no weights is an error at once. The networks of
the folder are weights.py's.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from avatar_v.stored import Guidance, Within, built, read_json

SCHEMA_VERSION = 3
"""Raised whenever the meaning of a stored weight, or the form of the card, changes. 2:
``style_embed`` reads styles in units of how far people differ (motion/style.style_code). 3: the
card has `Capabilities`."""
ASSETS = Path(__file__).resolve().parents[1] / "assets"
"""What ships with the package, by name."""


@dataclass(frozen=True)
class Capabilities:
    """What weights know and what they take, as their training made them."""

    people: str = ""  # whom they were trained on, in a few words; "" where nobody has said
    side: Annotated[int, Within(16, 4096)] | None = None
    """Pixels of the square picture; None: that of the preset (generate/resolve.py)."""
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
    anchor: bool = False  # the first frame of the video behind the reference
    num_steps: Annotated[int, Within(1, 1000)] | None = None
    """Of a few-step student (stages/distill_dmd.py), whose steps go to x_0 and back; None: any."""
    shift: Annotated[float, Within(1e-3, 1e3)] | None = None  # of its times; None: the preset's
    motion_steps: Annotated[int, Within(1, 1000)] | None = None
    """Of a motion network of few steps with guidance inside (stages/distill_motion.py); None: as
    many as the video's, and not fewer than sampling/motion.LEAST_MOTION_STEPS."""

    def num_stills(self, *, from_prompt: bool) -> int:
        """Single frames that stand for each clip of the reference; 0: none do."""
        return max(self.stills, self.stills_from_prompt) if from_prompt else self.stills


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


def weights_folder(name_or_path: str | Path) -> Path:
    """The folder of a shipped name or of a path; ValueError if it is neither."""
    named = ASSETS / name_or_path
    for folder in (named, Path(name_or_path)):
        if (folder / "card.json").is_file():
            return folder
    raise ValueError(
        f"no weights {str(name_or_path)!r}: expected a name that ships with the package (small; "
        "small_student, of two steps; as a refiner small_refiner) or a folder with card.json, as "
        "`avatar-v run` leaves it"
    )


def read_card(folder: str | Path, *, preset: str | None = None) -> Card:
    """The card of a pipeline; ValueError for another schema version, fields that do not fit, or
    another preset if one is given."""
    folder = Path(folder)
    values = read_json(folder / "card.json")
    version = values.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ValueError(f"{folder} has schema version {version}, this code reads {SCHEMA_VERSION}")
    card = built(Card, values, where=folder / "card.json")
    if preset is not None and card.preset != preset:
        raise ValueError(f"{folder} holds weights of preset {card.preset!r}, expected {preset!r}")
    return card
