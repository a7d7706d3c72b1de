"""SIGTERM to one of two ranks ends both within seconds, and the run says how it goes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tiny_run import RECIPES, make_shards

ENDS_S = 60.0
"""3 s where nothing else runs; it would be an epoch's time, or for ever."""


@pytest.mark.multi
@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_two_ranks_end_together(rank: int, tmp_path: Path) -> None:
    make_shards(tmp_path)
    options = {
        "data.init_args.batch_size": "1",
        "trainer.devices": "2",
        "trainer.strategy": "ddp_find_unused_parameters_true",
        "trainer.max_steps": "100000",
        "trainer.val_check_interval": "100000",
    }
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text("model: {init_args: {models: {vae: null}}}\n")
    words = ["run", *map(str, (RECIPES / "1_t2v.yaml", RECIPES / "tiny.yaml", overlay))]
    words += [f"--{name}={value}" for name, value in options.items()]
    process = subprocess.Popen(
        [sys.executable, "-m", "avatar_v.cli", *words], cwd=tmp_path, start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        checkpoints = tmp_path / "runs/tiny/1_t2v/checkpoints"
        wait_until(lambda: any(checkpoints.glob("*.ckpt")) or process.poll() is not None, 300)
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        (other,) = (child for child in children(process.pid) if "avatar_v" in command_of(child))
        begin = time.monotonic()
        os.kill((process.pid, other)[rank], signal.SIGTERM)
        said, _ = process.communicate(timeout=ENDS_S)
        wait_until(lambda: not is_alive(other), ENDS_S)
        assert time.monotonic() - begin < ENDS_S
        assert process.returncode == (130, 2)[rank]  # rank 0 hears of the other's end by itself
        assert ("interrupted at step", "another rank has ended")[rank] in said
        assert "Traceback" not in said
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


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
