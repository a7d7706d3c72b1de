"""A conversation with tiny weights: the frames of a live sound, by packets, and clean ends."""

import threading
import time
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.session import LiveFrames, LiveSession, measure_rate
from avatar_v.request.request import LIVE, Request
from avatar_v.safety.moderation import RefusedError

BLOCK_S = 12 / 25  # new frames of a chunk of 5 latents


def live(request_: Request, **changes) -> Request:
    return request_.changed(audio=LIVE, out=None, num_steps=1, gain_db=0.0, **changes)


def frames(parts: Sequence[LiveFrames]) -> Tensor:
    return torch.cat([part.frames for part in parts])


def sound(parts: Sequence[LiveFrames]) -> Tensor:
    return torch.cat([part.sound for part in parts])


def noise(num_frames: int) -> Tensor:
    return 0.2 * torch.randn(640 * num_frames, generator=torch.Generator().manual_seed(0))


def num_threads() -> int:
    names = [thread.name for thread in threading.enumerate()]
    return sum(name == "session" or name.startswith("stage-") for name in names)


def test_packets_give_the_frames_of_the_live_sound_with_their_times(
    pipe: AvatarPipeline, request_: Request
) -> None:
    """The same sampler: bit for bit what an iterator of the same samples gives, also where two
    conversations are held at the same time."""
    whole = noise(41)
    name, how = request_.person.reference, {"num_steps": 1, "gain_db": 0.0, "face_crop": False}
    expected = torch.stack(list(pipe(reference=name, audio=iter([whole]), **how)))
    with (
        LiveSession(pipe, live(request_), clock=None) as session,
        LiveSession(pipe, live(request_), clock=None) as other,
    ):
        other.push(whole)
        taken = [part for packet in whole.split(1_111) for part in session.push(packet)]
        parts = taken + session.finish()
        assert torch.equal(frames(other.finish()), expected)
    assert torch.equal(frames(parts), expected)
    assert torch.equal(sound(parts), whole)
    starts = torch.tensor([0, *(len(part.frames) for part in parts)]).cumsum(0)[:-1] / 25
    assert [part.start_s for part in parts] == pytest.approx(starts.tolist())
    assert num_threads() == 0


def test_the_person_lives_on_in_silence_and_falls_silent_when_interrupted(
    pipe: AvatarPipeline, request_: Request
) -> None:
    """By the clock of the machine; ten seconds of speech are pushed at once."""
    parts: list[LiveFrames] = []
    with LiveSession(pipe, live(request_)) as session:

        def until(num_parts: int) -> None:
            while len(parts) < num_parts:
                parts.extend(session.push(torch.zeros(0)))
                time.sleep(0.02)

        until(1)
        assert not sound(parts).any()
        assert frames(parts).float().std(0).max() > 0  # it moves
        parts.extend(session.push(torch.full((160_000,), 0.1)))
        while not parts[-1].sound.any():
            until(len(parts) + 1)
        num_shown = len(sound(parts))
        session.interrupt()
        until(len(parts) + 3)
        until(len(parts) + 1)
    behind = sound(parts)[num_shown:]
    assert not behind[round((2 * BLOCK_S + 0.04) * 16_000) :].any()
    assert session.counts.interrupted_s > 8
    assert num_threads() == 0


def test_other_words_count_from_the_next_block_on(
    pipe: AvatarPipeline, request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, made = noise(5 + 12 * 3), []
    for words in (None, "a green room"):
        with LiveSession(pipe, live(request_), clock=None) as session:
            parts = session.push(whole[: 640 * 19])
            while not parts:
                parts = session.push(torch.zeros(0))
            if words is not None:
                session.change_prompt(words)
            parts += session.push(whole[640 * 19 :])  # the rest of the first block may be ready
            made.append(frames(parts + session.finish()))
    assert torch.equal(made[0][:17], made[1][:17])
    assert not torch.equal(made[0][17:], made[1][17:])
    session = LiveSession(pipe, live(request_), clock=None)
    with pytest.raises(ValueError, match="a prompt may have 256 bytes"):
        session.change_prompt("x" * 300)

    def refuse(prompt: str) -> None:
        raise RefusedError("--prompt is refused")

    monkeypatch.setattr(session._run, "check_prompt", refuse)
    with pytest.raises(RefusedError):
        session.change_prompt("a rude word")


def test_a_fault_of_the_making_is_raised_where_frames_are_taken(
    pipe: AvatarPipeline, request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clips(*args, **kwargs):
        raise OSError("the disk is gone")
        yield

    monkeypatch.setattr(AvatarPipeline, "clips", clips)
    with (
        LiveSession(pipe, live(request_)) as session,
        pytest.raises(OSError, match="the disk is gone"),
    ):
        any(session.push(torch.zeros(640)) for _ in iter(int, 1))
    with pytest.raises(ValueError, match=r"nothing\.mp4"):
        pipe.session(reference="nothing.mp4")
    assert num_threads() == 0


def test_the_rate_of_the_machine_is_measured(pipe: AvatarPipeline, request_: Request) -> None:
    assert 0.01 < measure_rate(pipe, live(request_), num_blocks=2) < 1000
