"""The ranks that a trainer starts by itself: no one of them ends without a word, and none stays.

Lightning's own observer kills all processes, the first included, some seconds after one has ended,
so that nothing is said. Here the first rank says which one has ended and how, and ends the others;
where the first one is killed, the second says so. What waits for a rank that is gone is woken by
the closed connection (gloo), or, where that does not help (NCCL), the process ends. Ranks that
torchrun or SLURM has started are theirs to end and to tell of.
"""

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import lightning as L
from lightning.fabric.utilities.distributed import _set_num_threads_if_needed
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

from avatar_v.parallel.deaths import PATIENCE_S, death_among

LEADER = "AVATAR_V_LEADER"
"""In the environment of a rank that another one started: the process of that one."""
POLL_S = 0.1
WAIT_S = 2.0
"""The connections of a rank that is killed close a moment before its status is there."""
AFTER_AN_ERROR_S = 30.0
"""A rank that ends by itself tells of its error and takes its time: until the others end."""
_CONNECTION = re.compile("[Cc]onnection|gloo|NCCL|[Ss]ocket|Broken pipe")


class RankGone(ChildProcessError):
    """Another rank has ended. ``is_told_here``: it is this rank that says so."""

    def __init__(self, text: str, *, is_told_here: bool = True) -> None:
        super().__init__(f"{text}; the run cannot go on without it")
        self.is_told_here = is_told_here


class WatchedLauncher(_SubprocessScriptLauncher):
    """Lightning's launcher of the ranks of this machine, the first of which is this process."""

    is_over = False

    def launch(
        self, function: Callable, *args: Any, trainer: L.Trainer | None = None, **kwargs: Any
    ) -> Any:
        """As Lightning's, but for the observer."""
        self.cluster_environment.validate_settings(
            num_devices=self.num_processes, num_nodes=self.num_nodes
        )
        self._call_children_scripts()
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()
        _set_num_threads_if_needed(num_processes=self.num_processes)
        return function(*args, **kwargs)

    def kill(self, signum: Any) -> None:
        self.is_over = True
        super().kill(signum)

    def end(self) -> None:
        """End the other ranks, whatever they are in."""
        self.is_over = True
        for process in self.procs:
            process.kill()
            process.wait()

    def death(self, wait_s: float = 0.0) -> str:
        """`death_among` the other ranks, after at most ``wait_s`` seconds without one."""
        end_s = time.monotonic() + wait_s
        while not (codes := self._codes()) and time.monotonic() < end_s:
            time.sleep(POLL_S)
        return death_among(codes, self.num_processes * self.num_nodes)

    def _codes(self) -> dict[int, int]:
        """The status of each rank that has ended otherwise than with 0."""
        first = self.cluster_environment.node_rank() * self.num_processes
        return {first + i: code for i, p in enumerate(self.procs, 1) if (code := p.poll())}

    def _watch(self) -> None:
        while not (codes := self._codes()):
            if self.is_over or all(process.returncode == 0 for process in self.procs):
                return
            time.sleep(POLL_S)
        time.sleep(PATIENCE_S if min(codes.values()) < 0 else AFTER_AN_ERROR_S)
        if not self.is_over:
            death = self.death()
            self.end()
            _end_with(RankGone(death))

    def _call_children_scripts(self) -> None:
        os.environ[LEADER] = str(os.getpid())
        try:
            super()._call_children_scripts()
        finally:
            del os.environ[LEADER]


class Follower:
    """This process, where the first rank of its machine has started it."""

    def __init__(self, leader: int) -> None:
        self._leader, self.is_over = leader, False
        self._size = os.environ["WORLD_SIZE"]  # which Lightning deletes at its end
        threading.Thread(target=self._watch, name="leader", daemon=True).start()

    def gone(self) -> RankGone:
        """The error of another rank's end, which the second rank tells where the first one is
        gone."""
        words = (
            f"rank 0 of {self._size} was killed or has ended (its status, as 137 for signal 9, "
            "says which)"
        )
        end_s = time.monotonic() + WAIT_S
        while self._has_leader() and time.monotonic() < end_s:
            time.sleep(POLL_S)
        is_second = os.environ["LOCAL_RANK"] == "1"
        return RankGone(words, is_told_here=is_second and not self._has_leader())

    def _has_leader(self) -> bool:
        return os.getppid() == self._leader

    def _watch(self) -> None:
        while self._has_leader():
            time.sleep(POLL_S)
        time.sleep(PATIENCE_S)
        if not self.is_over:
            _end_with(self.gone())


@contextmanager
def following() -> Iterator[Follower | None]:
    """This process as a `Follower`, if it is one. Within the block it does not outlive the rank
    that started it."""
    leader = os.environ.pop(LEADER, None)
    follower = None if leader is None else Follower(int(leader))
    try:
        yield follower
    finally:
        if follower is not None:
            follower.is_over = True


def watch_ranks(trainer: L.Trainer) -> None:
    """Put a `WatchedLauncher` in the place of Lightning's, where the trainer starts ranks as
    processes."""
    launcher = trainer.strategy.launcher
    if not isinstance(launcher, _SubprocessScriptLauncher):
        return
    environment = launcher.cluster_environment
    if not environment.creates_processes_externally:
        trainer.strategy._launcher = WatchedLauncher(
            environment, launcher.num_processes, launcher.num_nodes
        )


@contextmanager
def no_rank_alone(trainer: L.Trainer, follower: Follower | None) -> Iterator[None]:
    """RankGone in place of an error that the end of another rank causes within the block. An error
    of the rank that has started others ends them."""
    launcher = trainer.strategy.launcher
    try:
        yield
    except BaseException as error:
        gone = _gone(error, launcher, follower) if trainer.world_size > 1 else None
        if isinstance(launcher, WatchedLauncher):
            launcher.end()
        if gone is not None:
            _end_in_time()
            raise gone from error
        raise


def _gone(error: BaseException, launcher: Any, follower: Follower | None) -> RankGone | None:
    if not isinstance(error, RuntimeError):
        return None
    is_of_connection = _CONNECTION.search(str(error)) is not None
    if isinstance(launcher, WatchedLauncher):
        if death := launcher.death(AFTER_AN_ERROR_S if is_of_connection else 0.0):
            return RankGone(death)
    elif is_of_connection and follower is not None:
        return follower.gone()
    return RankGone("another rank has ended") if is_of_connection else None


def _end_in_time() -> None:
    """End this process in some seconds, wherever the way out takes it."""
    timer = threading.Timer(PATIENCE_S, os._exit, (2,))
    timer.daemon = True
    timer.start()


def _end_with(gone: RankGone) -> None:
    if gone.is_told_here:
        print(f"avatar-v: error: {gone}", file=sys.stderr, flush=True)
    os._exit(2)
