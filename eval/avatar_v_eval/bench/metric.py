"""The base of all metrics, a torchmetrics Metric over clips, and their discovery in `metrics/`.

A metric is one file of `metrics/` that gives ``METRIC``, a class below `ClipMetric`. Nothing else
has to know it: the file's being there is enough.
"""

import functools
import importlib
import pkgutil
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from avatar_v_eval.bench import metrics as package
from avatar_v_eval.bench.footage import Clip
from avatar_v_eval.bench.manifest import Faces
from avatar_v_eval.bench.measured import Measured, Output

NO_WEIGHTS = "none"
"""Hash of a measure that is a formula."""
DRAWN: tuple[Faces, ...] = ("drawn",)
REAL: tuple[Faces, ...] = ("real",)
ANY: tuple[Faces, ...] = ("drawn", "real")


class ClipMetric(Metric):
    """Means over clips of what `measure` says of each. Subclasses give the class variables,
    `measure`, and `weights_hash` where a network judges."""

    full_state_update: bool | None = False
    name: ClassVar[str]
    version: ClassVar[int]  # raise it when the numbers change: caches hold it
    judge: ClassVar[str]  # detector and network, in words
    faces: ClassVar[tuple[Faces, ...]]
    outputs: ClassVar[tuple[Output, ...]]
    needs_weights: ClassVar[str] = ""  # what --weights NAME=PATH gives; "": all ships
    reads_timing: ClassVar[bool] = False  # what the system reports is part of what is measured

    def __init__(self) -> None:
        super().__init__()
        for output in self.outputs:
            self.add_state(_state(output), default=[], dist_reduce_fx="cat")

    @abstractmethod
    def measure(self, clip: Clip) -> Measured:
        """Judge one clip; ValueError says why it cannot be judged."""

    def weights_hash(self) -> str:
        """Of all networks that judge."""
        return NO_WEIGHTS

    @functools.cached_property
    def weights(self) -> str:
        """`weights_hash`, computed once: judges are frozen."""
        return self.weights_hash()

    def update(self, clip: Clip) -> None:
        """Take one clip in."""
        measured = self.measure(clip)
        for output in self.outputs:
            value = torch.tensor([measured.values[output.key]], dtype=torch.float64)
            getattr(self, _state(output)).append(value)

    def compute(self) -> dict[str, Float[Tensor, ""]]:
        """Output key → mean over the clips taken in."""
        return {o.key: dim_zero_cat(getattr(self, _state(o))).mean() for o in self.outputs}


def metric_classes() -> dict[str, type[ClipMetric]]:
    """Name → class of every file of `metrics/`; ValueError for a file without METRIC."""
    found = {}
    for module in pkgutil.iter_modules(package.__path__):
        one = _metric_of(f"{package.__name__}.{module.name}")
        found[one.name] = one
    return found


def find_metrics(
    names: Sequence[str], weights: Mapping[str, str], faces: Faces
) -> tuple[list[type[ClipMetric]], dict[str, str]]:
    """The metrics to use, and the left out ones with the reason.

    ``names`` are names or dotted modules; none means all that apply to these faces and whose
    weights are given. ValueError for unknown names, and for a named one that cannot be used.
    """
    known = metric_classes()
    chosen, left_out = [], {}
    for name in names or known:
        one = _metric_of(name) if "." in name else known.get(name)
        if one is None:
            raise ValueError(f"no metric {name!r}; there are {', '.join(known)}")
        if reason := _unusable(one, weights, faces):
            if names:
                raise ValueError(f"metric {name}: {reason}")
            left_out[name] = reason
        else:
            chosen.append(one)
    if unknown := sorted(set(weights) - set(known) - {one.name for one in chosen}):
        raise ValueError(f"--weights {', '.join(unknown)}: metrics are {', '.join(known)}")
    _one_key_each(chosen)
    return chosen, left_out


def build(one: type[ClipMetric], weights: Mapping[str, str]) -> ClipMetric:
    """The metric with its networks loaded; ValueError where their files or code are absent."""
    arguments: list[Any] = [weights[one.name]] if one.needs_weights else []
    try:
        return one(*arguments)
    except ImportError as error:
        raise ValueError(f"metric {one.name}: {error}") from error


def _unusable(one: type[ClipMetric], weights: Mapping[str, str], faces: Faces) -> str:
    if faces not in one.faces:
        return f"is for {' and '.join(one.faces)} faces, the manifest has {faces} ones"
    if one.needs_weights and one.name not in weights:
        return f"needs --weights {one.name}=PATH: {one.needs_weights}"
    return ""


def _metric_of(path: str) -> type[ClipMetric]:
    try:
        one = importlib.import_module(path).METRIC
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{path} is no metric: {error}") from error
    if not (isinstance(one, type) and issubclass(one, ClipMetric)):
        raise ValueError(f"{path}.METRIC is no class below ClipMetric")
    return one


def _one_key_each(chosen: Sequence[type[ClipMetric]]) -> None:
    keys = [output.key for one in chosen for output in one.outputs]
    if twins := sorted({key for key in keys if keys.count(key) > 1}):
        raise ValueError(f"two metrics give {', '.join(twins)}")


def _state(output: Output) -> str:
    return f"all_{output.key}"
