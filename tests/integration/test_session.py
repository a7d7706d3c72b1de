"""A conversation with tiny weights: the frames of a live sound, by packets, and clean ends."""

import dataclasses
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
import torch
from torch import Tensor

from avatar_v.engines.drawn_voice import DrawnVoice
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.session import LiveFrames, LiveSession, measure_rate
from avatar_v.media.sound import measure_level
from avatar_v.request.request import LIVE, Request
from avatar_v.safety.moderation import RefusedError
from avatar_v.safety.sound_detect import detect_sound

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


def test_times_are_those_of_the_weights_frames(
    pipe: AvatarPipeline, request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    video = dataclasses.replace(pipe.format.video, frame_rate_hz=24)
    can = dataclasses.replace(pipe.card.can, video=video)
    monkeypatch.setattr(pipe, "card", dataclasses.replace(pipe.card, can=can))
    monkeypatch.setattr(pipe, "format", dataclasses.replace(pipe.format, video=video))
    with LiveSession(pipe, live(request_), clock=None) as session:
        session.hear(noise(50))
        parts = session.finish()
    assert len(frames(parts)) == 48
    assert parts[-1].start_s + len(parts[-1].frames) / 24 == pytest.approx(2.0)


def test_the_person_lives_on_in_silence_and_falls_silent_when_interrupted(
    pipe: AvatarPipeline, request_: Request
) -> None:
    """By the clock of the machine; ten seconds of speech are pushed at once, or said as a text, and
    interrupted by a word or by speech."""
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
        session.interrupt()
        parts.extend(session.push(torch.zeros(0)))
        num_shown = len(sound(parts))
        until(len(parts) + 3)
        until(len(parts) + 1)
        behind = sound(parts)[num_shown:]
        assert not behind[round((2 * BLOCK_S + 0.04) * 16_000) :].any()
        said = session.say("One two three four. " * 12)
        while not parts[-1].sound.abs().max() > 0.05:
            until(len(parts) + 1)
        session.hear(torch.full((1_600,), 0.5))
        given = session._feed._given  # nothing of the text is behind it, however late frames are
        while len(sound(parts)) < given + 16_000:
            until(len(parts) + 1)
    assert set(sound(parts)[given:].tolist()) <= {0.0, 0.5}
    assert (sound(parts) == 0.5).sum() == 1_600, "the speech is heard"
    assert isinstance(said.exception(60), CancelledError)
    assert session.counts.interrupted_s > 12
    assert num_threads() == 0


TEXT = "Hello, the old teacher opened a window. Is it a brown apple? Yes!"


def test_texts_are_said_one_behind_the_other(pipe: AvatarPipeline, request_: Request) -> None:
    """In the voice of the request, at -23 LUFS within the unit that live programmes may be off,
    with the mark."""
    request, raw = live(request_, voice="drawn:3", watermark=True), []
    with LiveSession(pipe, request, clock=None) as session:
        futures = [session.say(TEXT), session.say("Now we walked home.")]
        session.push(torch.zeros(0))
        parts = session.finish()
    for text, future in zip((TEXT, "Now we walked home."), futures, strict=True):
        raw.append(DrawnVoice(3).speak(text, seed=request.sampling.seed))
        assert future.result() == len(raw[-1]) / 16_000
    spoken, expected = sound(parts), torch.cat(raw)
    assert len(spoken) == len(expected) == 640 * len(frames(parts))
    for whole, piece in zip(expected.split(8_000), spoken.split(8_000), strict=True):
        assert torch.corrcoef(torch.stack([whole, piece]))[0, 1] > 0.98  # steps of 1 dB, the mark
    assert measure_level(spoken).lufs == pytest.approx(-23, abs=1)
    found = detect_sound([spoken])
    assert found is not None
    assert found.is_marked


def test_a_text_that_cannot_be_said_ends_nothing(
    pipe: AvatarPipeline, request_: Request, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("words: [window]")
    with LiveSession(pipe, live(request_, policy=str(policy)), clock=None) as session:
        for text, words in {
            " … ": "has no words",
            "yes " * 501: "at most 2,000 characters, got 2,004",
            "We are 10.": "English words, and not '10'",
            "yes\0no": r"no control characters, got '\\x00'",
            "yes \ud800": r"got '\\ud800'",
            "A window.": "is refused: it has 'window'",
        }.items():
            with pytest.raises(ValueError, match=words):
                session.say(text)
        said = [session.say(text) for text in ["One two three four. " * 12] + 15 * ["Yes."]]
        with pytest.raises(ValueError, match="16 texts wait to be said already"):
            session.say("Yes.")
        session.interrupt()
        assert all(isinstance(future.exception(60), CancelledError) for future in said)
        last = session.say("Hello.")
        session.push(torch.zeros(0))
        assert len(sound(session.finish())) / 16_000 == last.result() > 0.5
    with pytest.raises(ValueError, match="the conversation has ended"):
        session.say("Yes.")
    with pytest.raises(ValueError, match="no voice 'nobody'"):
        pipe.session(reference=request_.person.reference, face_crop=False, voice="nobody")
    with pytest.raises(ValueError, match="--voice drawn:3 says a --script, and this request has"):
        pipe(reference=request_.person.reference, audio=iter([torch.zeros(1)]), voice="drawn:3")


def test_a_voice_that_fails_tells_it_and_the_next_text_is_said(
    pipe: AvatarPipeline, request_: Request
) -> None:
    class Silent:
        def speak(self, text: str, *, seed: int) -> Tensor:
            return torch.cat(list(self.pieces(text, seed=seed)))

        def pieces(self, text: str, *, seed: int) -> Iterator[Tensor]:
            if text == "No.":
                raise ValueError("the model says nothing of 'No.'")
            yield torch.full((1_600,), 0.1)

    with LiveSession(pipe, live(request_), clock=None, voice=Silent()) as session:
        bad, good = session.say("No."), session.say("Yes.")
        session.push(torch.zeros(0))
        assert sound(session.finish()).any()
    assert str(bad.exception()) == "the model says nothing of 'No.'"
    assert good.result() == 0.1


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

    def refuse(texts: dict[str, str]) -> None:
        raise RefusedError(f"{list(texts)} is refused")

    monkeypatch.setattr(session._run, "check_texts", refuse)
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
