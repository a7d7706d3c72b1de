"""One of two ranks ends: the other ends with it within seconds, the run says which and how, and no
process stays."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from avatar_v.parallel.deaths import death_among
from forked import Script
from tiny_run import RECIPES, make_shards

ENDS_S = 120.0
"""3 s where nothing else runs; it would be an epoch's time, or for ever."""
DDP = {"trainer.strategy": "ddp_find_unused_parameters_true"}
SHARDED = {
    "trainer.strategy": "avatar_v.parallel.strategy.ShardedStrategy",
    "trainer.strategy.tensor_parallel_size": "1",
}
GROUP = {**SHARDED, "trainer.strategy.tensor_parallel_size": "2"}


@pytest.mark.multi
@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_two_ranks_end_together(rank: int, tmp_path: Path) -> None:
    with two_ranks(tmp_path, DDP) as ranks:
        os.kill(ranks.pids[rank], signal.SIGTERM)
        status, said = ranks.ended()
    assert status == (130, 2)[rank]  # rank 0 hears of the other's end by itself
    assert ("interrupted at step", "rank 1 of 2 ended with status 130;")[rank] in said
    assert "Traceback" not in said


@pytest.mark.multi
@pytest.mark.parametrize(
    ("strategy", "rank"),
    [
        (GROUP, 0),
        pytest.param(SHARDED, 1, marks=pytest.mark.slow),
        pytest.param(GROUP, 1, marks=pytest.mark.slow),
        pytest.param(DDP, 1, marks=pytest.mark.slow),
        pytest.param(DDP, 0, marks=pytest.mark.slow),
    ],
)
def test_a_killed_rank_is_one_line(strategy: dict[str, str], rank: int, tmp_path: Path) -> None:
    with two_ranks(tmp_path, strategy) as ranks:
        os.kill(ranks.pids[rank], signal.SIGKILL)
        status, said = ranks.ended()
    (line,) = [line for line in said.splitlines() if "error" in line]
    if rank == 0:  # the shell says how
        assert status == -signal.SIGKILL
        assert line.startswith("avatar-v: error: rank 0 of 2 was killed or has ended")
    else:
        assert status == 2
        assert line.startswith("avatar-v: error: rank 1 of 2 was killed by signal 9 (SIGKILL")
    assert "the run cannot go on without it" in line
    assert "Traceback" not in said


@pytest.mark.multi
def test_a_rank_that_hears_nothing_of_another_s_end_ends_with_it(tmp_path: Path) -> None:
    """As one that waits for a GPU: it is stopped, and the watch speaks for it."""
    script = tmp_path / "two.py"
    script.write_text(DEAF)
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=ENDS_S, check=False
    )
    assert done.returncode == 2
    words = "avatar-v: error: rank 1 of 2 was killed by signal 15 (SIGTERM); the run cannot go on"
    assert done.stderr.startswith(words)
    assert time.monotonic() - begin < ENDS_S


DEAF = """
import os, signal, subprocess, sys, time
from lightning.fabric.plugins.environments import LightningEnvironment
from avatar_v.parallel.launched import WatchedLauncher, following

with following() as follower:
    if follower is not None:
        os.kill(os.getpid(), signal.SIGTERM)
    WatchedLauncher(LightningEnvironment(), 2, 1).launch(time.sleep, 1000)
"""


def test_who_was_killed_is_named_before_who_ended_for_its_sake() -> None:
    assert death_among({}, 4) == ""
    assert death_among({1: 1, 3: -11, 2: 2}, 4) == "rank 3 of 4 was killed by signal 11 (SIGSEGV)"
    assert death_among({1: 7}, 2) == "rank 1 of 2 ended with status 7"


@dataclass(frozen=True)
class TwoRanks:
    """The processes of a run of two ranks."""

    first: Script
    second: int

    @property
    def pids(self) -> tuple[int, int]:
        return self.first.pid, self.second

    def ended(self) -> tuple[int, str]:
        """The status of rank 0, and all that was said, once both have ended."""
        self.first.process.join(ENDS_S)
        wait_until(lambda: not is_alive(self.second), ENDS_S)
        done = self.first.ended(0)
        return done.returncode, done.stdout + done.stderr


FIRST = """
import importlib.util, os, sys
from avatar_v.cli import main
os.setsid()
sys.modules["__main__"].__spec__ = importlib.util.find_spec("avatar_v.cli")  # what rank 1 runs
sys.exit(main(sys.argv[1:]))
"""


@contextmanager
def two_ranks(folder: Path, strategy: dict[str, str]) -> Iterator[TwoRanks]:
    """A run that has begun to train."""
    make_shards(folder)
    options = {
        "data.init_args.batch_size": "1",
        "trainer.devices": "2",
        "trainer.max_steps": "100000",
        "trainer.val_check_interval": "100000",
        **strategy,
    }
    overlay = folder / "overlay.yaml"
    overlay.write_text("model: {init_args: {models: {vae: null}}}\n")
    words = ["run", *map(str, (RECIPES / "1_t2v.yaml", RECIPES / "tiny.yaml", overlay))]
    words += [f"--{name}={value}" for name, value in options.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        first = Script(FIRST, *words, OMP_NUM_THREADS="1")
    process = first.process
    try:
        begun = folder / "runs/tiny/1_t2v/recipe.yaml"
        wait_until(lambda: begun.exists() or process.exitcode is not None, 300)
        assert process.exitcode is None, first.err.read_text()
        (other,) = (child for child in children(first.pid) if "avatar_v" in command_of(child))
        yield TwoRanks(first, other)
    finally:
        with suppress(ProcessLookupError):  # both have ended
            os.killpg(first.pid, signal.SIGKILL)
        process.join()


def wait_until(is_so, most_s: float) -> None:
    end = time.monotonic() + most_s
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def is_alive(pid: int) -> bool:
    """Whether a process is there and not merely unburied."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
