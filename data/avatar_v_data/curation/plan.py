"""A plan: which stages run with which settings, and which clips are wanted, in a YAML file.

Plans that ship are `people.yaml`, for real footage, `world.yaml`, for drawn people, and
`world_faults.yaml`, which looks for more in them. A limit names a column of the stages' results
with its bounds: ``sync_confidence: {min: 3}``.
"""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any

from avatar_v.base.outside import read_yaml
from avatar_v.base.paths import check_name
from avatar_v.base.stored import Within, built
from avatar_v.base.words import near
from avatar_v_data.curation.all_faces import AllFacesStage
from avatar_v_data.curation.bodies import BodyStage
from avatar_v_data.curation.captions import CaptionStage
from avatar_v_data.curation.clips import ClipStage
from avatar_v_data.curation.content import ContentStage, NudityStage, QualityStage
from avatar_v_data.curation.embedding import EmbeddingStage
from avatar_v_data.curation.expression import ExpressionStage
from avatar_v_data.curation.faces import FaceStage
from avatar_v_data.curation.flow import FlowStage
from avatar_v_data.curation.hands import HandStage
from avatar_v_data.curation.kinds import columns, is_among
from avatar_v_data.curation.language import LanguageStage
from avatar_v_data.curation.looks import LookStage
from avatar_v_data.curation.person import PersonStage
from avatar_v_data.curation.pose import PoseStage
from avatar_v_data.curation.prints import PrintStage
from avatar_v_data.curation.probe import ProbeStage
from avatar_v_data.curation.samples import SampleStage
from avatar_v_data.curation.shots import ShotStage
from avatar_v_data.curation.sound_quality import SoundQualityStage
from avatar_v_data.curation.sounds import SoundStage
from avatar_v_data.curation.speech import SpeechStage
from avatar_v_data.curation.stages import Stage
from avatar_v_data.curation.steadiness import SteadinessStage
from avatar_v_data.curation.sync import CONFIDENCE, SyncStage
from avatar_v_data.curation.text import TextStage
from avatar_v_data.curation.voice import VoiceStage
from avatar_v_data.curation.words import WordStage

STAGES: tuple[type, ...] = (
    ProbeStage, PrintStage, ShotStage, FaceStage, SpeechStage, ClipStage, LookStage,
    SteadinessStage, FlowStage, AllFacesStage, HandStage, BodyStage, PoseStage, ExpressionStage,
    TextStage, SyncStage, PersonStage, EmbeddingStage, VoiceStage, WordStage, LanguageStage,
    SoundStage, SoundQualityStage, NudityStage, ContentStage, QualityStage, CaptionStage,
    SampleStage,
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

    def beyond(self, value: float) -> float:
        """How far a value lies outside."""
        below = 0.0 if self.min is None else self.min - value
        above = 0.0 if self.max is None else value - self.max
        return max(below, above, 0.0)

    def __str__(self) -> str:
        bounds = [f">= {self.min:g}"] if self.min is not None else []
        bounds += [f"<= {self.max:g}"] if self.max is not None else []
        return " and ".join(bounds)


@dataclass(frozen=True)
class Grouping:
    """How alike clips of one person, one scene and one video are (graph.py)."""

    same_person: Mapping[str, float] = field(default_factory=lambda: {"face": 0.45})
    """Column of unit vectors → largest distance of two clips of one person; dlib's usual one, 0.6
    at its length of 1.4, is 0.43. In the first column neighbours are looked for; others, such as a
    voice, must agree where both clips have them."""
    same_background: float = 8.0  # largest mean difference of colours, of 255
    same_picture: float = 8.0  # largest root mean square difference of two thumbnails
    same_sound: float = 0.9  # smallest correlation of two curves of loudness
    same_motion: float = 0.92  # smallest correlation of how two pictures change (prints.py)
    same_video: Mapping[str, float] = field(default_factory=dict)
    """Column of unit vectors, such as the stage embedding's ``video`` → distance of two clips up to
    which they may be copies, too, whatever their thumbnails say; their sound decides."""
    least_s: float = 2.0  # length from which on a clip is somebody's partner

    def __post_init__(self) -> None:
        if not self.same_person:
            raise ValueError("grouping: same_person names a column of vectors, such as face: 0.4")


@dataclass(frozen=True)
class Balance:
    """The clips that a tier takes of what its limits leave, evenly (balance.py)."""

    clips: Annotated[int, Within(2, 1 << 40)]  # at most
    groups: Mapping[str, list[float]] = field(default_factory=dict)
    """Column → where a group of its values ends: ``face_pixels: [160, 320]`` makes three; []: each
    value is a group, as in ``kind_framing: []`` (kinds.py)."""


@dataclass(frozen=True)
class Resources:
    """What a worker holds, and how many of this kind there are. Stages that ask for the same share
    their workers, and each decode."""

    cpus: float = 1.0
    gpus: float = 0.0
    memory_gb: float = 0.0  # that is set aside; 0: none
    workers: Annotated[int, Within(0, 1 << 20)] = 0  # 0: as many as the command says

    def __post_init__(self) -> None:
        if min(self.cpus, self.gpus, self.memory_gb) < 0 or self.cpus + self.gpus == 0:
            raise ValueError(f"a worker has a part of a processor, got {self}")


@dataclass(frozen=True)
class CurationPlan:
    """What a folder of footage is to become."""

    stages: tuple[Stage, ...]
    limits: Mapping[str, Mapping[str, Limit]] = field(default_factory=dict)
    """Tier → column → bounds."""
    grouping: Grouping = Grouping()
    resources: Mapping[str, Resources] = field(default_factory=dict)
    """Stage → its own kind of worker; the others share one."""
    balance: Mapping[str, Balance] = field(default_factory=dict)
    """Tier → how it is evened out; the others take all."""

    def __post_init__(self) -> None:
        known = {stage.name for stage in self.stages}
        if unknown := sorted(set(self.balance) - set(self.limits)):
            raise ValueError(f"balance: no tier {unknown[0]!r} in limits")
        if unknown := sorted(set(self.resources) - known):
            raise ValueError(f"resources: the plan has no stage {unknown[0]!r}")
        for one, other in itertools.combinations(self.stages, 2):
            if both := sorted({*one.numbers} & {*other.numbers}):
                raise ValueError(f"stages {one.name} and {other.name} both say {both[0]}: keep one")
        for stage in self.stages:
            if missing := sorted(set(stage.needs) - known):
                raise ValueError(f"stage {stage.name} needs {', '.join(missing)}")
        for tier, limits in self.limits.items():
            if self.samples and (limit := limits.get(CONFIDENCE)):
                sure = self.samples.sure
                if limit.min is None or sure is None or limit.min < sure:
                    raise ValueError(
                        f"limits: {tier}: {CONFIDENCE} {limit} takes clips whose late sound stays "
                        f"late: samples moves it from sure: {sure} on; lower sure of samples, too, "
                        f"or raise the limit"
                    )

    @property
    def prints(self) -> PrintStage | None:
        """The stage that knows copies, where there is one."""
        return next((stage for stage in self.stages if isinstance(stage, PrintStage)), None)

    @property
    def first(self) -> tuple[str, ...]:
        """The stages that run for all recordings before the others begin."""
        is_before = self.prints is not None and self.prints.beforehand
        return (*PrintStage.needs, PrintStage.name) if is_before else ()

    @property
    def samples(self) -> SampleStage | None:
        """The stage that makes samples, where there is one."""
        return next((stage for stage in self.stages if isinstance(stage, SampleStage)), None)

    def sure(self, tier: str) -> float | None:
        """From which `CONFIDENCE` on sound that is late is moved, None: never. The stage samples
        says it, and without one the tier's own limit does."""
        stage = self.samples
        return stage.sure if stage else self.limits[tier].get(CONFIDENCE, Limit()).min

    def kind_of(self, stage: Stage) -> Resources:
        """The workers that a stage runs on."""
        return self.resources.get(stage.name, Resources())


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
    file = built(_File, values, where=where, sparse=True)
    stages = tuple(stage for stage in vars(file.stages).values() if stage is not None)
    for tier in file.limits:
        check_name(tier, where=f"{where}: limits")
    rest = {name: value for name, value in vars(file).items() if name != "stages"}
    plan = built(CurationPlan, {}, where=where, stages=stages, **rest)
    known = [stage.name for stage in stages]
    for place, column, numbers, words in _columns_named(plan):
        if not is_among(column, (*numbers, *words)):
            raise ValueError(f"{where}: {place}: {_nowhere(column, numbers, words, known)}")
    return plan


def _columns_named(plan: CurationPlan) -> Iterator[tuple[str, str, list[str], list[str]]]:
    """Each column that a plan with limits names, where it does, and which it can name there:
    numbers and other ones."""
    numbers, words = columns(plan.stages)
    for tier, limits in plan.limits.items():
        yield from ((f"limits: {tier}", column, numbers, []) for column in limits)
    for tier, balance in plan.balance.items():
        for column, ends in balance.groups.items():
            yield f"balance: {tier}: groups", column, numbers, [] if ends else words
    vectors = [name for stage in plan.stages for name in stage.vectors]
    for name in ("same_person", "same_video") if plan.limits else ():
        for column in getattr(plan.grouping, name):
            yield f"grouping: {name}", column, [], vectors


def _nowhere(
    column: str, numbers: Sequence[str], words: Sequence[str], known: Collection[str]
) -> str:
    """What is wrong with a column that the ``known`` stages do not give."""
    for stage in (stage for stage in STAGES if stage.name not in known):
        own = {*itertools.chain(*columns([stage]), stage.vectors)}
        if is_among(column, own.difference(*columns([]))):
            return f"{column!r} is given by the stage {stage.name}, which the plan has not"
    names = ", ".join(f"{x}LABEL" if x[-1] == "_" else x for x in sorted({*numbers, *words}))
    alike = ", ".join(near(column, [*numbers, *words]))
    return f"no column {column!r}; " + (
        f"nearest: {alike}" if alike else f"expected one of {names}"
    )


_Stages = make_dataclass("_Stages", [(cls.name, cls, None) for cls in STAGES], frozen=True)


@dataclass(frozen=True)
class _File:
    """The YAML of a plan."""

    stages: _Stages  # pyright: ignore[reportInvalidTypeForm]
    limits: Mapping[str, Mapping[str, Limit]] = field(default_factory=dict)
    grouping: Grouping = Grouping()
    resources: Mapping[str, Resources] = field(default_factory=dict)
    balance: Mapping[str, Balance] = field(default_factory=dict)
