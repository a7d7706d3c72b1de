"""Timestep-forcing pipeline parallelism (Live Avatar §4.3): each rank makes its own steps.

In a step, a block of a causal network sees what the blocks before it left in the same step and
nothing else of them (sampling/blocks.py). So the ranks stand in a line, each with consecutive steps
and with the keys and values of these alone: a rank takes a block from the one before it, makes its
steps, hands it on, and begins the next block while this one is further down the line. The last rank
hands what is finished back to the first, which reads, decodes and writes.

Sends do not wait for whoever receives. Messages go over gloo, so through main memory: the latents
of a block are small beside the work of a step.
"""

import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import ProcessGroup, Work

MOST_UNSENT = 4
"""Messages that a rank may be ahead of the next one, which has not taken them yet."""
ITEM, BLOCK, ENDED, STOPPED = "item", "block", "ended", "stopped"
ALONG, FROM_LAST = 0, 1
"""Tags: down the line and from its end back to its beginning; from the last rank to each other."""


class Stopped(Exception):
    """Rank 0 has dropped the video."""


def steps_of_ranks(num_steps: int, num_ranks: int) -> list[range]:
    """The steps of each rank: consecutive ones, as many for all or one more for the last ranks,
    since the first rank decodes, too. ValueError for more ranks than steps."""
    if num_ranks > num_steps:
        raise ValueError(
            f"{num_ranks} devices for {num_steps} steps: with causal weights each device makes at "
            f"least one step, so --devices is at most {num_steps} here"
        )
    least, more = divmod(num_steps, num_ranks)
    counts = [least + (rank >= num_ranks - more) for rank in range(num_ranks)]
    return [range(stop - num, stop) for num, stop in zip(counts, accumulate(counts), strict=True)]


class PipelineGroup:
    """This rank among all, for one video: ``steps`` are those of each rank.

    All ranks go through the same items (`along`) and blocks (`take`, `give`) in one order. Behind
    the last item rank 0 calls `stop` and the others `end`.
    """

    def __init__(self, group: ProcessGroup, steps: Sequence[range]) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        assert len(steps) == self.size
        self.steps = steps[self.rank]
        self.is_first, self.is_last = self.rank == 0, self.rank == self.size - 1
        self._group = group
        self._unsent: deque[list[tuple[Tensor, Work]]] = deque()
        self._has_ended = False

    def along(self, items: Iterator[Any], sent: Callable[[Any], Any]) -> Iterator[Any]:
        """The ``items`` of rank 0, and on the others what ``sent`` makes of them. A rank hands an
        item on before it works on it."""
        if self.is_first:
            for item in items:
                self._hand_on(ITEM, sent(item))
                yield item
            self._has_ended = True
            self._hand_on(ENDED)
            return
        while (message := self._handed())[0] != ENDED:
            assert message[0] == ITEM
            if not self.is_last:
                self._hand_on(*message)
            yield message[1]
        self._hand_on(ENDED)

    def take(self, noise: Tensor) -> Tensor:
        """The block that is next: its ``noise`` on the first rank, else what the rank before made
        of it. Stopped where rank 0 does not want the rest."""
        if self.is_first:
            return noise
        kind, block = self._handed()
        assert kind == BLOCK
        return block.to(noise)

    def give(self, block: Tensor) -> None:
        """Hand a block on behind the steps of this rank; the last rank keeps it."""
        if not self.is_last:
            self._hand_on(BLOCK, block.cpu())

    def from_last(self, x: Tensor) -> Tensor:
        """The ``x`` of the last rank, on all ranks, which wait for it."""
        if self.is_last:
            for rank in range(self.size - 1):
                self._send(x.cpu(), rank, FROM_LAST)
            return x
        return self._receive(self.size - 1, FROM_LAST).to(x)

    def hand_back(self, x: Tensor) -> None:
        """From the last rank to `handed_back` of the first."""
        self._hand_on(BLOCK, x.cpu().clone())

    def handed_back(self) -> Tensor:
        """The next `hand_back` of the last rank, on the first."""
        kind, x = self._handed()
        assert kind == BLOCK
        return x

    def stop(self) -> None:
        """On the first rank: the video has ended, or nothing more of it is wanted. Returns when
        nothing is on its way any more."""
        if not self._has_ended:
            self._hand_on(STOPPED)
        while self._handed()[0] not in (ENDED, STOPPED):
            pass
        self.end()

    def end(self) -> None:
        """Returns when all that this rank has sent is taken."""
        self._wait(0)

    def _hand_on(self, kind: str, value: Any = None) -> None:
        self._send((kind, value), (self.rank + 1) % self.size, ALONG)

    def _handed(self) -> tuple[str, Any]:
        """The next message of the rank before, which is the last one's for the first. STOPPED goes
        on and raises Stopped, but on the first rank."""
        message = self._receive((self.rank - 1) % self.size, ALONG)
        if message[0] == STOPPED and not self.is_first:
            self._hand_on(STOPPED)
            raise Stopped
        return message

    def _send(self, value: Any, rank: int, tag: int) -> None:
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        parts = []
        for x in (torch.tensor([len(data)]), data):
            work = dist.isend(x, rank, group=self._group, tag=tag)
            assert work is not None
            parts.append((x, work))  # its memory is needed until it is sent
        self._unsent.append(parts)
        self._wait(MOST_UNSENT)

    def _wait(self, num: int) -> None:
        """Until at most ``num`` messages are not taken."""
        while len(self._unsent) > num:
            for _, work in self._unsent.popleft():
                work.wait()

    def _receive(self, rank: int, tag: int) -> Any:
        length = torch.empty(1, dtype=torch.int64)
        dist.recv(length, rank, group=self._group, tag=tag)
        data = torch.empty(int(length), dtype=torch.uint8)
        dist.recv(data, rank, group=self._group, tag=tag)
        return pickle.loads(data.numpy().tobytes())
