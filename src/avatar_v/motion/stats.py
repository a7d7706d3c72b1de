"""Motion statistics: what normalises motion vectors and the styles of people, as a file.

They are statistics of the people that weights were trained on, so the file `motion.json` belongs to
a pipeline's folder like its weights, and `avatar-v shards stats` computes it from training shards
(shards/motion_stats.py). Weights read motion in its units: another file means other weights.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base.outside import read_json
from avatar_v.base.paths import whole_file
from avatar_v.base.stored import Count, Within, built
from avatar_v.types import MOTION_NAMES

FILE = "motion.json"
NUM_KINDS = 4
"""Numbers of a style for each component: mean, spread, change, calm spread (style.py)."""
MAX_CLIPS = 10**12

Positive = Annotated[float, Within(1e-6, 1e6)]


@dataclass(frozen=True)
class ComponentStats:
    """The statistics of one component of motion, as the file holds them."""

    name: str
    mean: float  # over the visible frames of the training clips, in the component's own unit
    deviation: Positive
    style_average: tuple[float, ...]  # over people: mean, spread, change, calm spread
    style_deviation: tuple[Positive, ...]

    def __post_init__(self) -> None:
        lengths = {len(self.style_average), len(self.style_deviation)}
        if lengths != {NUM_KINDS}:
            raise ValueError(f"a style has {NUM_KINDS} numbers a component, got {lengths}")


@dataclass(frozen=True)
class StatsFile:
    """All that `motion.json` holds."""

    components: tuple[ComponentStats, ...]  # in the order of MOTION_NAMES
    num_clips: Annotated[int, Within(0, MAX_CLIPS)]  # that the numbers were computed from
    num_people: Annotated[int, Within(0, MAX_CLIPS)]
    version: Count = 1

    def __post_init__(self) -> None:
        names = tuple(component.name for component in self.components)
        if names != MOTION_NAMES:
            raise ValueError(f"components are {', '.join(MOTION_NAMES)}, got {', '.join(names)}")


@dataclass(frozen=True)
class MotionStats:
    """The statistics as tensors, in the order of MOTION_NAMES; styles as style.py orders them."""

    mean: Float[Tensor, " m"]
    deviation: Float[Tensor, " m"]
    style_average: Float[Tensor, " s"]  # the average person's style, before it is shrunk
    style_deviation: Float[Tensor, " s"]  # how far people differ in each number of a style
    num_clips: int = 0
    num_people: int = 0


def of_file(file: StatsFile) -> MotionStats:
    """The tensors of a file's numbers."""

    def column(name: str) -> Tensor:
        return torch.tensor([getattr(component, name) for component in file.components])

    return MotionStats(
        column("mean"),
        column("deviation"),
        column("style_average").T.flatten(),
        column("style_deviation").T.flatten(),
        file.num_clips,
        file.num_people,
    )


def to_file(stats: MotionStats) -> StatsFile:
    """The numbers of the tensors; reading them back gives the same tensors."""
    averages, deviations = (
        of.unflatten(0, (NUM_KINDS, -1)).T.tolist()
        for of in (stats.style_average, stats.style_deviation)
    )
    columns = (MOTION_NAMES, stats.mean.tolist(), stats.deviation.tolist(), averages, deviations)
    components = tuple(
        ComponentStats(name, mean, deviation, tuple(average), tuple(style_deviation))
        for name, mean, deviation, average, style_deviation in zip(*columns, strict=True)
    )
    return StatsFile(components, stats.num_clips, stats.num_people)


def same_units(one: MotionStats, other: MotionStats) -> bool:
    """Whether both normalise motion and styles alike."""
    pairs = zip(_tensors(one), _tensors(other), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def _tensors(stats: MotionStats) -> list[Tensor]:
    return [stats.mean, stats.deviation, stats.style_average, stats.style_deviation]


def read_stats(path: str | Path) -> MotionStats:
    """The statistics in a file or in the folder of a pipeline.

    ValueError for a missing or damaged file; the error of a missing one has the command that makes
    it.
    """
    path = stats_path(path)
    if not path.is_file():
        raise ValueError(f"no motion statistics in {path}; {how_to_make(path)}")
    return of_file(built(StatsFile, read_json(path), where=path))


def write_stats(path: str | Path, stats: MotionStats) -> None:
    """Write the file, or the file of a pipeline's folder."""
    file = to_file(stats)
    rows = [
        json.dumps({name: _shortest(value) for name, value in vars(component).items()})
        for component in file.components
    ]
    lines = ",\n    ".join(rows)
    text = (
        f'{{\n  "components": [\n    {lines}\n  ],\n  "num_clips": {file.num_clips},\n'
        f'  "num_people": {file.num_people},\n  "version": {file.version}\n}}\n'
    )
    with whole_file(stats_path(path)) as partial:
        partial.write_text(text, encoding="utf-8")


def stats_path(path: str | Path) -> Path:
    """The file itself, or the one in a folder."""
    path = Path(path)
    return path if path.suffix == ".json" else path / FILE


def how_to_make(path: str | Path) -> str:
    """The command that makes the file, for errors about its absence."""
    return f"make them with: avatar-v shards stats TRAINING_SHARDS --out {stats_path(path)}"


def _shortest(value: object) -> object:
    """Numbers with the fewest digits that are the same in fp32."""
    if isinstance(value, tuple):
        return [_shortest(each) for each in value]
    if not isinstance(value, float):
        return value
    exact = torch.tensor(value)
    texts = (f"{value:.{digits}g}" for digits in range(1, 18))
    return next(float(text) for text in texts if torch.equal(torch.tensor(float(text)), exact))
