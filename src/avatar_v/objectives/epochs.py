"""Epochs of random batches, for data that lies in memory."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset


def random_loader(
    draw: Callable[[torch.Generator], Any], batches_per_epoch: int, seed: int
) -> DataLoader:
    """Batches that ``draw`` makes with a generator, others in each epoch: the seed and the number
    of the epoch decide all of them."""
    return DataLoader(_RandomEpochs(draw, batches_per_epoch, seed), batch_size=None)


class _RandomEpochs(IterableDataset):
    def __init__(
        self, draw: Callable[[torch.Generator], Any], batches_per_epoch: int, seed: int
    ) -> None:
        self.draw, self.batches_per_epoch, self.seed = draw, batches_per_epoch, seed
        self.epoch = 0

    def __iter__(self) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        self.epoch += 1
        for _ in range(self.batches_per_epoch):
            yield self.draw(generator)
