"""Which critic a recipe names for a loss or a reward: one that ships, a folder, or others' files.

What looks at drawn faces is our own; at filmed ones ArcFace, SyncNet and DINO, whose files are the
user's to supply, and the reader, which ships. A held-out critic is refused (critics/frozen.py).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from avatar_v.base.outside import read_json
from avatar_v.critics import dino, syncnet
from avatar_v.critics.frozen import ASSETS, Critic, critic_folder, require_objective
from avatar_v.critics.look import FaceJudge
from avatar_v.critics.motion import MotionMeter
from avatar_v.critics.world_sync import WorldSyncNet
from avatar_v.faces import recogniser
from avatar_v.faces.face import FaceCritic
from avatar_v.faces.face_reader import FaceReader

What = Literal["identity", "motion", "features", "sync"]

OWN: dict[What, type[Critic]] = {
    "identity": FaceCritic,
    "motion": MotionMeter,
    "features": FaceCritic,
    "sync": WorldSyncNet,
}
OTHERS: dict[What, tuple[Callable[[str], FaceJudge], str]] = {
    "identity": (recogniser.Recogniser, recogniser.SOURCE),
    "features": (dino.Dino, dino.SOURCE),
    "sync": (syncnet.SyncNet.load, syncnet.SOURCE),
}
"""What reads files of others, and where those are from."""


def objective(what: What, name: str) -> FaceJudge:
    """The frozen critic of a name or path. ValueError for a missing one, saying what to supply,
    for a held-out one and for files that are something else."""
    if what in OTHERS and not _is_own(name):
        if is_missing(name):
            raise ValueError(why_missing(what, name))
        load, _ = OTHERS[what]
        return load(name)
    kind = OWN[what]
    if what == "motion" and "num_hidden" in read_json(critic_folder(name) / "config.json"):
        kind = FaceReader
    critic = kind.as_objective(name)
    assert isinstance(critic, FaceJudge)
    return critic


def check_objective(what: What, name: str) -> None:
    """The errors of `objective` that need no weights read."""
    if _is_own(name) or what not in OTHERS:
        require_objective(name)
    elif is_missing(name):
        raise ValueError(why_missing(what, name))


def is_missing(name: str) -> bool:
    """Whether nothing is at a path, which is no name of a critic that ships."""
    return not _ships(name) and not Path(name).exists()


def why_missing(what: What, name: str) -> str:
    """What is not there, and what to supply."""
    source = f", or {OTHERS[what][1]}" if what in OTHERS else ""
    return (
        f"the critic of {what}, {name}, is missing; expected one that ships or a folder of "
        f"recipes/critic_*.yaml{source}"
    )


def _is_own(name: str) -> bool:
    """A name that ships, or a folder with our own files or a held-out critic's."""
    folder = Path(name)
    ours = (folder / "config.json").is_file() and not (folder / dino.FILES[1]).is_file()
    return _ships(name) or ours


def _ships(name: str) -> bool:
    return name in {path.name for path in ASSETS.iterdir()}
