"""A plan: which stages run with which settings, and which clips are wanted, in a YAML file.

Plans that ship are `people.yaml`, for real footage, and `world.yaml`, for drawn people. A limit
names a column of the stages' results with its bounds: ``sync_confidence: {min: 3}``.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from avatar_v.base.outside import read_yaml
from avatar_v.base.paths import check_name
from avatar_v.base.stored import built, shown
from avatar_v_data.curation.captions import CaptionStage
from avatar_v_data.curation.clips import ClipStage
from avatar_v_data.curation.content import ContentStage
from avatar_v_data.curation.faces import FaceStage
from avatar_v_data.curation.looks import LookStage
from avatar_v_data.curation.person import PersonStage
from avatar_v_data.curation.probe import ProbeStage
from avatar_v_data.curation.shots import ShotStage
from avatar_v_data.curation.speech import SpeechStage
from avatar_v_data.curation.stages import Stage
from avatar_v_data.curation.sync import SyncStage

STAGES: tuple[type, ...] = (
    ProbeStage, ShotStage, FaceStage, SpeechStage, ClipStage, LookStage,
    SyncStage, PersonStage, ContentStage, CaptionStage,
)  # fmt: skip
"""In an order in which each finds what it needs."""
PLANS = Path(__file__).parent.parent / "plans"


@dataclass(frozen=True)
class Limit:
    """Bounds of a column, both included; None: none."""

    min: float | None = None
    max: float | None = None

    def holds(self, value: float) -> bool:
        """Whether a clip with this value stays."""
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)

    def __str__(self) -> str:
        bounds = [f">= {self.min:g}"] if self.min is not None else []
        bounds += [f"<= {self.max:g}"] if self.max is not None else []
        return " and ".join(bounds)


@dataclass(frozen=True)
class Grouping:
    """How alike clips of one person, one scene and one video are (people.py, copies.py)."""

    same_face: float = 0.45  # largest distance of unit vectors: dlib's 0.6 at its length of 1.4
    same_background: float = 8.0  # largest mean difference of colours, of 255
    same_picture: float = 6.0  # the same of two thumbnails
    same_sound: float = 0.9  # smallest correlation of two curves of loudness


@dataclass(frozen=True)
class CurationPlan:
    """What a folder of footage is to become."""

    stages: tuple[Stage, ...]
    limits: Mapping[str, Mapping[str, Limit]]  # tier → column → bounds
    grouping: Grouping = Grouping()

    def __post_init__(self) -> None:
        known = {stage.name for stage in self.stages}
        for stage in self.stages:
            if missing := sorted(set(stage.needs) - known):
                raise ValueError(f"stage {stage.name} needs {', '.join(missing)}")


def read_plan(name_or_path: str) -> CurationPlan:
    """A plan that ships, by its name, or that of a file.

    ValueError for anything that is no plan, with the place in the file.
    """
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        path = PLANS / f"{name_or_path}.yaml"
        if not path.is_file() or path.parent != PLANS:
            names = ", ".join(sorted(p.stem for p in PLANS.glob("*.yaml")))
            raise ValueError(f"no plan {name_or_path!r}; those that ship are {names}, or a .yaml")
    if not path.is_file():
        raise ValueError(f"no file {path}")
    return parse_plan(read_yaml(path, "plan"), where=path)


def parse_plan(values: Any, *, where: str | Path) -> CurationPlan:
    """The plan of a YAML file's values. Stages that are left out do not run."""
    values = _object(values, where)
    if unknown := sorted(set(values) - {"stages", "limits", "grouping"}):
        raise ValueError(f"{where}: unknown key {unknown[0]!r}; expected stages, limits, grouping")
    asked = _object(values.get("stages"), f"{where}: stages")
    classes = {cls.name: cls for cls in STAGES}
    if unknown := sorted(set(asked) - set(classes)):
        raise ValueError(
            f"{where}: unknown stage {unknown[0]!r}; expected one of {', '.join(classes)}"
        )
    stages = [
        _parse_settings(cls, asked[name], f"{where}: {name}")
        for name, cls in classes.items()
        if name in asked
    ]
    limits = {
        check_name(tier, where=f"{where}: limits"): {
            str(column): _parse_settings(Limit, bounds, f"{where}: {tier}: {column}")
            for column, bounds in _object(columns, f"{where}: {tier}").items()
        }
        for tier, columns in _object(values.get("limits", {}), f"{where}: limits").items()
    }
    grouping = _parse_settings(Grouping, values.get("grouping", {}), f"{where}: grouping")
    try:
        return CurationPlan(tuple(stages), limits, grouping)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _parse_settings(cls: type, values: Any, where: str) -> Any:
    """The settings of a file; those it leaves out keep their defaults."""
    given = _object(values if values is not None else {}, where)
    defaults = {f.name: f.default for f in dataclasses.fields(cls)}
    return built(cls, {**defaults, **given}, where=where)


def _object(values: Any, where: str | Path) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ValueError(f"{where} is an object, got {shown(values)}")
    return values
