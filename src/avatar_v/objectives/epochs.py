"""Epochs of random batches, for data that lies in memory."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist


class RandomLoader:
    """Batches that ``draw`` makes with a generator, others in each epoch: the seed and the number
    of the epoch decide all of them. Lightning keeps its state in checkpoints, so that a resumed run
    sees the batches that the uninterrupted one would have seen.

    ValueError for several ranks, which would all see the same.
    """

    def __init__(
        self, draw: Callable[[torch.Generator], Any], batches_per_epoch: int, seed: int
    ) -> None:
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            raise ValueError(
                f"this stage is trained by one process, got {dist.get_world_size()} ranks, which "
                "would all see the same batches: pass --trainer.devices 1 --trainer.num_nodes 1"
            )
        self.draw, self.batches_per_epoch, self.seed = draw, batches_per_epoch, seed
        self.epoch = self.num_done = 0
        self._is_begun = False

    def __len__(self) -> int:
        return self.batches_per_epoch

    def __iter__(self) -> Iterator[Any]:
        if self._is_begun:  # begun before: a new iteration is a new epoch
            self.epoch, self.num_done = self.epoch + 1, 0
        self._is_begun, given = True, self.num_done
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        for number in range(self.batches_per_epoch):
            batch = self.draw(generator)
            if number >= given:  # the others were given before the checkpoint
                self.num_done = number + 1
                yield batch

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "num_done": self.num_done}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on behind the batches that were given; behind the last, with the next epoch."""
        whole, self.num_done = divmod(state_dict["num_done"], self.batches_per_epoch)
        self.epoch, self._is_begun = state_dict["epoch"] + whole, False
