"""What an engine of two small networks is given: a student and a fake score, and numbers."""

from dataclasses import dataclass

import lightning as L
import torch
from torch import Tensor, nn

from avatar_v.training.batch import Draws
from avatar_v.training.subject import Subject


@dataclass(frozen=True)
class Numbers:
    """A batch."""

    x: Tensor

    @property
    def size(self) -> int:
        return len(self.x)

    @property
    def num_tokens(self) -> int:
        return len(self.x)


class TwoNetworks(Subject[Numbers]):
    """Of random weights, ``network`` and ``fake``."""

    def load(self, seed: int, trainer: L.Trainer | None) -> dict[str, nn.Module]:
        torch.manual_seed(seed)
        return {"network": nn.Linear(3, 2), "fake": nn.Linear(2, 2)}

    def begin(self, networks: object, batch: Tensor, draws: Draws) -> Numbers:
        return Numbers(batch)
