"""Timestep-forcing pipeline parallelism (Live Avatar §4.3): each rank makes its own steps.

In a step, a block of a causal network sees what the blocks before it left in the same step and
nothing else of them (sampling/blocks.py). So the ranks stand in a line, each with consecutive steps
and with the keys and values of these alone: a rank takes a block from the one before it, makes its
steps, hands it on, and begins the next block while this one is further down the line. The last rank
hands what is finished back to the first, which reads, decodes and writes.

Sends do not wait for whoever receives, but for the one before the last: two messages are on their
way at most. A thread of each rank but the first receives what comes next while the rank works, so
that a block need not travel when it is wanted. The last rank may hand back all that the first one
can have in work, so nobody in the line waits for whoever takes what is finished, and a video can be
dropped at any time. A message is a header of whole numbers, and behind it the bytes of a tensor as
they lie in memory, and what else there is to say. They go over gloo, so through main memory: the
latents of a block are small beside the work of a step.
"""

import pickle
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import ProcessGroup, Work

MOST_UNSENT = 2
"""Messages that a rank may be ahead of the next one, which has not taken them yet."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
MOST_AXES = 6
ITEM, BLOCK, ENDED, STOPPED = range(4)
"""Kinds of messages."""
ALONG, FROM_LAST = 0, 1
"""Tags: down the line and from its end back to its beginning; from the last rank to each other."""

_Item = TypeVar("_Item")


class Stopped(Exception):
    """Rank 0 has dropped the video."""


def steps_of_ranks(num_steps: int, num_ranks: int) -> list[range]:
    """The steps of each rank: consecutive ones, as many for all or one more for the last ranks,
    since the first rank decodes, too. With one rank more than steps it does nothing else.
    ValueError for more."""
    if num_ranks > num_steps + 1:
        raise ValueError(
            f"{num_ranks} devices for {num_steps} steps: with causal weights each device but the "
            f"first makes at least one step, so --devices is at most {num_steps + 1} here"
        )
    if num_ranks > num_steps:
        return [range(0), *(range(i, i + 1) for i in range(num_steps))]
    least, more = divmod(num_steps, num_ranks)
    counts = [least + (rank >= num_ranks - more) for rank in range(num_ranks)]
    return [range(stop - num, stop) for num, stop in zip(counts, accumulate(counts), strict=True)]


@dataclass(frozen=True)
class _Message:
    kind: int
    tensor: Tensor | None = None  # on the CPU
    value: Any = None  # without tensors

    def parts(self) -> list[Tensor]:
        """What is sent: header, tensor, value."""
        x, data = self.tensor, pickle.dumps(self.value) if self.value is not None else b""
        shape = [] if x is None else [DTYPES.index(x.dtype), x.dim(), *x.shape]
        header = torch.tensor([self.kind, len(data), *shape] + [-1] * (2 + MOST_AXES - len(shape)))
        parts = [header]
        if x is not None:
            parts.append(x.contiguous().flatten().view(torch.uint8))
        if data:
            parts.append(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        return parts

    @classmethod
    def received(cls, take: Callable[[Tensor], Tensor]) -> "_Message":
        """``take`` fills a tensor with what comes next."""
        header = take(torch.empty(4 + MOST_AXES, dtype=torch.int64))
        kind, num_bytes, dtype, num_axes, *shape = header.tolist()
        x = value = None
        if num_axes >= 0:
            x = torch.empty(shape[:num_axes], dtype=DTYPES[dtype])
            take(x.flatten().view(torch.uint8))
        if num_bytes:
            value = pickle.loads(take(torch.empty(num_bytes, dtype=torch.uint8)).numpy().tobytes())
        return cls(kind, x, value)


class _Inbox:
    """Receives messages in a thread, one more than was asked for, up to the last of a video."""

    def __init__(self, receive: Callable[[], _Message]) -> None:
        self._receive = receive
        self._found: queue.Queue[_Message | Exception] = queue.Queue(maxsize=1)
        threading.Thread(target=self._run, name="line", daemon=True).start()

    def next(self) -> _Message:
        """Waits for it. What the thread met is raised here."""
        found = self._found.get()
        if isinstance(found, Exception):
            self._found.put(found)  # for whoever asks again
            raise found
        return found

    def _run(self) -> None:
        while True:
            try:
                message = self._receive()
            except Exception as error:
                self._found.put(error)
                return
            self._found.put(message)
            if message.kind in (ENDED, STOPPED):
                return


class PipelineGroup:
    """This rank among all, for one video: ``steps`` are those of each rank.

    All ranks go through the same items (`along`) and blocks (`take`, `give`) in one order. Behind
    the last item rank 0 calls `stop` and the others `end`.
    """

    receives_ahead = True

    def __init__(self, group: ProcessGroup, steps: Sequence[range]) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        assert len(steps) == self.size
        self.steps = steps[self.rank]
        self.is_first, self.is_last = self.rank == 0, self.rank == self.size - 1
        self._group = group
        self._unsent: deque[list[tuple[Tensor, Work]]] = deque()
        self._has_ended = False
        # the first rank takes what comes back in a thread of its own anyway (generate/making.py)
        ahead = self.receives_ahead and not self.is_first
        self._next = _Inbox(self._receive_along).next if ahead else self._receive_along

    def along(
        self,
        items: Iterator[_Item],
        sent: Callable[[_Item], tuple[Tensor, Any]],
        taken: Callable[[Tensor, Any], _Item],
    ) -> Iterator[_Item]:
        """The ``items`` of rank 0, and on the others what ``taken`` makes of what is ``sent`` of
        them: a tensor on the CPU, and the rest. A rank hands an item on before it works on it."""
        if self.is_first:
            for item in items:
                self._hand_on(_Message(ITEM, *sent(item)))
                yield item
            self._has_ended = True
            self._hand_on(_Message(ENDED))
            return
        while (message := self._handed()).kind != ENDED:
            assert message.kind == ITEM
            assert message.tensor is not None
            if not self.is_last:
                self._hand_on(message)
            yield taken(message.tensor, message.value)
        self._hand_on(_Message(ENDED))

    def take(self, noise: Tensor) -> Tensor:
        """The block that is next: its ``noise`` on the first rank, else what the rank before made
        of it. Stopped where rank 0 does not want the rest."""
        if self.is_first:
            return noise
        return self._block().to(noise)

    def give(self, block: Tensor) -> None:
        """Hand a block on behind the steps of this rank; the last rank keeps it."""
        if not self.is_last:
            self._hand_on(_Message(BLOCK, block.cpu()))

    def from_last(self, x: Tensor) -> Tensor:
        """The ``x`` of the last rank, on all ranks, which wait for it."""
        if self.is_last:
            for rank in range(self.size - 1):
                self._send(_Message(BLOCK, x.cpu()), rank, FROM_LAST)
            return x
        found = self._receive(self.size - 1, FROM_LAST).tensor
        assert found is not None
        return found.to(x)

    def hand_back(self, x: Tensor) -> None:
        """From the last rank to `handed_back` of the first."""
        self._hand_on(_Message(BLOCK, x.cpu().clone()))

    def handed_back(self) -> Tensor:
        """The next `hand_back` of the last rank, on the first."""
        return self._block()

    def stop(self) -> None:
        """On the first rank: the video has ended, or nothing more of it is wanted. Returns when
        nothing is on its way any more."""
        if not self._has_ended:
            self._hand_on(_Message(STOPPED))
        while self._handed().kind not in (ENDED, STOPPED):
            pass
        self.end()

    def end(self) -> None:
        """Returns when all that this rank has sent is taken."""
        self._wait(0)

    def _hand_on(self, message: _Message) -> None:
        self._send(message, (self.rank + 1) % self.size, ALONG)

    def _block(self) -> Tensor:
        message = self._handed()
        assert message.kind == BLOCK
        assert message.tensor is not None
        return message.tensor

    def _handed(self) -> _Message:
        """The next message of the rank before, which is the last one's for the first. STOPPED goes
        on and raises Stopped, but on the first rank."""
        message = self._next()
        if message.kind == STOPPED and not self.is_first:
            self._hand_on(message)
            raise Stopped
        return message

    def _receive_along(self) -> _Message:
        return self._receive((self.rank - 1) % self.size, ALONG)

    def _send(self, message: _Message, rank: int, tag: int) -> None:
        # of the last rank: a chunk for each place between stages of the first (generate/making.py),
        # the one that waits for a place, and the end behind them
        self._wait(self.size + 1 if self.is_last else MOST_UNSENT - 1)
        parts = []
        for x in message.parts():
            work = dist.isend(x, rank, group=self._group, tag=tag)
            assert work is not None
            parts.append((x, work))  # its memory is needed until it is sent
        self._unsent.append(parts)

    def _wait(self, num: int) -> None:
        """Until at most ``num`` messages are not taken."""
        while len(self._unsent) > num:
            for _, work in self._unsent.popleft():
                work.wait()

    def _receive(self, rank: int, tag: int) -> _Message:
        def take(x: Tensor) -> Tensor:
            dist.recv(x, rank, group=self._group, tag=tag)
            return x

        return _Message.received(take)
