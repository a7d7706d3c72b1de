"""speed timestep: a line of ranks that sleep, and what its slowest one could do."""

import argparse
import threading
from pathlib import Path

import pytest
import torch

from avatar_v.parallel.timestep import BLOCK, ENDED, ITEM, _Inbox, _Message
from avatar_v_eval.speed import timestep
from forked import spawn


@pytest.mark.multi
def test_blocks_go_through_a_line_at_the_rate_of_its_slowest_rank(tmp_path: Path) -> None:
    options = argparse.Namespace(blocks=16, jitter=0.0, repeats=1)
    spawn(timestep.sleeper, (2, options, tmp_path), 2)
    found = torch.load(tmp_path / "found.pt")
    assert set(found) == {"two buffers", "blocking"}
    for (rate,) in found.values():
        # a block that a busy machine has held up makes those behind it look fast
        assert 0 < rate * max(timestep.work_s(2)) < 1.5, "no line is faster than a rank of it"


def test_a_rank_receives_one_message_ahead_up_to_the_last() -> None:
    """And says what it met to whoever asks, again and again."""
    messages = iter([_Message(ITEM), _Message(BLOCK), _Message(ENDED)])
    num_received = threading.Semaphore(0)

    def receive() -> _Message:
        num_received.release()
        return next(messages)

    inbox = _Inbox(receive)
    for _ in range(2):
        assert num_received.acquire(timeout=30), "the second before the first was asked for"
    assert [inbox.next().kind for _ in range(3)] == [ITEM, BLOCK, ENDED]
    assert num_received.acquire(timeout=30)
    assert not num_received.acquire(timeout=0.2), "nothing comes behind the last"

    def lost() -> _Message:
        raise RuntimeError("gone")

    inbox = _Inbox(lost)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="gone"):
            inbox.next()


def test_the_first_rank_decodes_beside_its_steps() -> None:
    step_s, decode_s = timestep.STEP_S, timestep.DECODE_S
    assert timestep.work_s(2) == pytest.approx([2 * step_s + decode_s, 2 * step_s])
    assert timestep.work_s(5) == pytest.approx([decode_s, *[step_s] * 4])
    with pytest.raises(ValueError, match="--jitter is a share"):
        timestep.measure(argparse.Namespace(frames=9, blocks=16, repeats=1, jitter=2.0))


def test_weights_without_a_line_are_refused() -> None:
    parser = argparse.ArgumentParser()
    timestep.add_options(parser)
    with pytest.raises(ValueError, match=r"--weights are causal ones.* got small_student"):
        timestep.measure(parser.parse_args(["--weights", "small_student"]))
