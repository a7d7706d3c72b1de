"""Metrics that judge a set of videos and not one: FID and FVD, from feature rows of every video.

Rows are measured and kept per video like any number; the distance is taken once a run, over the
cases that every system has (sets.py). Such a metric is one file, too.
"""

from abc import abstractmethod
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torchmetrics.utilities import dim_zero_cat

from avatar_v_eval.bench.footage import Clip, Footage
from avatar_v_eval.bench.frechet import frechet_distance
from avatar_v_eval.bench.measured import Measured, Output
from avatar_v_eval.bench.metric import ClipMetric


class SetMetric(ClipMetric):
    """Fréchet distance between features of the true videos and of a system's. Subclasses give
    `features`; ``outputs`` is what a case shows of it, `rows_output`."""

    distance: ClassVar[Output]  # the number of a whole set; its key is the metric's name
    true_rows: list[Tensor]
    shown_rows: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("true_rows", default=[], dist_reduce_fx="cat")
        self.add_state("shown_rows", default=[], dist_reduce_fx="cat")

    @abstractmethod
    def features(self, footage: Footage) -> Float[Tensor, "n d"]:
        """Rows of one video; ValueError says why there are none."""

    def measure(self, clip: Clip) -> Measured:
        rows = self.features(clip.video)
        return Measured({self.outputs[0].key: float(len(rows))}, rows=rows)

    def update(self, clip: Clip) -> None:
        """Take a video in, and the true one of its case. ValueError without one."""
        if clip.truth is None:
            raise ValueError("the case has no truth to compare with")
        self.shown_rows.append(self.features(clip.video))
        self.true_rows.append(self.features(clip.truth))

    def compute(self) -> dict[str, Float[Tensor, ""]]:
        """The distance of all that was taken in."""
        true, shown = (_joined(rows) for rows in (self.true_rows, self.shown_rows))
        return {self.name: torch.tensor(frechet_distance(true, shown), dtype=torch.float64)}


def rows_output(name: str, words: str) -> Output:
    """The number of rows that a case adds."""
    return Output(f"{name}_rows", f"{words} taken in", "")


def _joined(rows: list[Tensor]) -> Float[np.ndarray, "n d"]:
    return dim_zero_cat(rows).cpu().numpy()
