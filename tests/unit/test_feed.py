"""Packets of a conversation become one steady sound: any size, late, lost, faulty, or none."""

import threading

import numpy as np
import pytest
import torch
from torch import Tensor

from avatar_v.inputs.feed import FeedCounts, SoundFeed

RATE = 16_000


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return float(self.now)


def heard(feed: SoundFeed, clock: Clock, until_s: float) -> Tensor:
    """What is taken until then by somebody who always waits."""
    parts = [torch.zeros(0)]
    while clock.now < until_s:
        found = feed.take()
        if isinstance(found, Tensor):
            parts.append(found)
        else:
            assert found is not None
            clock.now = min(clock.now + found, until_s)
    return torch.cat(parts)


def ramp(start: int, num: int) -> Tensor:
    return (torch.arange(start, start + num) + 1) / 1e5


@pytest.mark.parametrize("size", [1, 640, 1_111, 40_000])
def test_packets_of_any_size_give_the_same_sound(size: int) -> None:
    feed = SoundFeed(clock=None)
    for packet in ramp(0, 5_000).split(size):
        feed.push(packet)
    feed.end()
    assert torch.equal(torch.cat(list(feed)), ramp(0, 5_000))


def test_silence_lives_on_and_speech_follows_it_at_once() -> None:
    clock = Clock()
    feed = SoundFeed(clock=clock)
    assert len(heard(feed, clock, 10)) == pytest.approx(10 * RATE, abs=0.2 * RATE)
    feed.push(ramp(0, 1_600).numpy())
    spoken = heard(feed, clock, 10.001)
    assert torch.equal(spoken, ramp(0, 1_280))  # whole frames; the rest waits for more
    assert len(heard(feed, clock, 20)) == pytest.approx(10 * RATE, abs=0.2 * RATE)
    assert feed.counts == FeedCounts()


def test_who_takes_the_sound_late_once_is_soon_as_near_as_before() -> None:
    """That is not taken for a slower clock of the sender: nothing is said twice or dropped. Blocks
    of 0.48 s take 0.47 s to be made, and one 0.9 s more; two are taken ahead."""
    clock, size, block, held = Clock(), 1_280, 12 * 640, list[float]()
    feed, num_taken, num_pushed, free_at, was_late = (
        SoundFeed(clock=clock, most_wait_s=1.0), 0, 0, 0.0, False
    )  # fmt: skip
    given = 0
    for tick in range(6_500):
        clock.now = tick / 100
        if num_pushed * size < clock.now * RATE:
            is_loud = num_pushed % 50 < 5  # 0.4 s of 4 s
            feed.push(torch.full((size,), 0.5 * is_loud))
            num_pushed += 1
        if clock.now >= free_at and num_taken - given >= block:
            given, free_at = given + block, clock.now + 0.47
            if tick > 1_900 and not was_late:
                free_at, was_late = free_at + 0.9, True
        while num_taken - given < 2 * block and isinstance(taken := feed.take(), Tensor):
            num_taken += len(taken)
        held.append((num_pushed * size - given) / RATE)
    assert feed.counts == FeedCounts()
    before, after, at_last = (np.mean(held[i : i + 500]) for i in (1_000, 2_500, 6_000))
    assert after < before + 0.9
    assert at_last == pytest.approx(before, abs=0.1)


def test_it_begins_with_silence_that_nobody_waits_for() -> None:
    """Speech follows as if the silence had been given in its time."""
    clock = Clock()
    feed = SoundFeed(clock=clock, silent_s=0.76)
    first = feed.take()
    assert isinstance(first, Tensor)
    assert torch.equal(first, torch.zeros(round(0.76 * RATE)))
    feed.push(ramp(0, 1_280))
    assert torch.equal(heard(feed, clock, 0.05), ramp(0, 1_280))
    assert len(heard(feed, clock, 10)) == pytest.approx(10 * RATE, abs=0.2 * RATE)
    assert feed.counts == FeedCounts()


def test_speech_that_is_made_at_once_is_given_in_its_time_until_an_interruption() -> None:
    clock = Clock()
    feed = SoundFeed(clock=clock)
    feed.push(torch.ones(5 * RATE))
    assert len(heard(feed, clock, 1)) == pytest.approx(1.2 * RATE, abs=800)
    feed.interrupt()
    assert not heard(feed, clock, 3).any()
    assert feed.counts.interrupted_s == pytest.approx(3.8, abs=0.05)
    feed.push(torch.ones(RATE))
    assert heard(feed, clock, 4.5).sum() == RATE


def test_what_is_lost_is_silent_and_what_comes_twice_is_dropped() -> None:
    feed = SoundFeed(clock=None)
    for at in (0, 640, 1_920, 1_280, 1_920, 1_600, 100_000):  # 640 more each; the last begins anew
        feed.push(ramp(at, 640), at=at)
    feed.end()
    sound, whole = torch.cat(list(feed)), ramp(0, 2_560)
    whole[1_280:1_920] = 0  # came behind what follows it
    assert torch.equal(sound, torch.cat([whole, ramp(100_000, 640)]))
    assert feed.counts == FeedCounts(late_s=0.12, lost_s=0.04)


def test_silence_that_was_given_for_what_is_late_is_not_filled_in_again() -> None:
    clock = Clock()
    feed = SoundFeed(clock=clock)
    feed.push(torch.ones(640), at=0)
    before = heard(feed, clock, 0.5)
    num_silent = len(before) - 640
    assert num_silent > 0
    feed.push(torch.ones(640), at=640 + 9_600)
    after = heard(feed, clock, 0.9)
    assert int(after.argmax()) == 9_600 - num_silent
    assert feed.counts.lost_s == pytest.approx(0.6)


def test_a_packet_of_nan_is_silent_and_counted() -> None:
    feed = SoundFeed(clock=None)
    for packet in (ramp(0, 100), torch.tensor([0.1, torch.nan] * 50), ramp(200, 100)):
        feed.push(packet)
    feed.end()
    sound = torch.cat(list(feed))
    assert torch.equal(sound, torch.cat([ramp(0, 100), torch.zeros(100), ramp(200, 100)]))
    assert feed.counts == FeedCounts(num_bad=1)


@pytest.mark.parametrize(
    ("packet", "told"),
    [
        (torch.zeros(640, dtype=torch.int16), r"in \[-1, 1\], got int16 \(640,\)"),
        (np.zeros((2, 640), np.float32), r"got float32 \(2, 640\)"),
        (torch.zeros(61 * RATE), "at most 60 s, got 61 s"),
    ],
)
def test_what_is_no_packet_is_an_error(packet, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        SoundFeed(clock=None).push(packet)


def test_neither_waiting_sound_nor_lost_time_grows() -> None:
    clock = Clock()
    feed = SoundFeed(clock=clock, most_wait_s=1.0)
    for _ in range(100):
        feed.push(torch.ones(RATE // 2))
    assert feed.counts.dropped_s == pytest.approx(49)
    assert heard(feed, clock, 5).sum() == RATE
    clock.now = 100.0  # who makes the video comes late
    assert len(heard(feed, clock, 101)) < 1.2 * RATE
    assert feed.counts.skipped_s == pytest.approx(95, abs=0.3)
    full = SoundFeed(clock=clock)
    for _ in range(11):
        full.push(torch.zeros(60 * RATE))
    with pytest.raises(ValueError, match="600 s of sound wait already"):
        full.push(torch.zeros(1))


@pytest.mark.parametrize(
    ("drift", "seconds"),
    [(200e-6, 400), (-200e-6, 400), pytest.param(200e-6, 3_600, marks=pytest.mark.slow)],
)
def test_sound_keeps_its_place_for_long_although_the_senders_clock_drifts(
    drift: float, seconds: int
) -> None:
    """Minutes, or an hour, of sentences with a click every two seconds, in packets that jitter by
    60 ms: without a correction the last click would be 80 ms from its place, or 720."""
    clock, draw = Clock(), np.random.default_rng(0)
    feed, rate, size = SoundFeed(clock=clock, most_wait_s=1.0), RATE * (1 + drift), 1_280
    voice, clicks, found, num, arrives = 0.1 * torch.ones(size), [], [], 0, 0.0
    place = 0
    while clock.now < seconds:
        part = feed.take()
        if isinstance(part, Tensor):
            if part.max() > 0.9:
                found.append((place + int(part.argmax())) / RATE)
            place += len(part)
        elif clock.now + (part or 0) < arrives:
            clock.now += part or 0
        else:
            clock.now, packet = arrives, voice.clone()
            if num / size % 67 > 50:
                packet.zero_()  # a pause after each sentence
            elif num / size % 25 == 0:
                packet[0] = 1.0
                clicks.append(num / rate)
            feed.push(packet)
            num += size
            arrives = max(arrives, (num + size) / rate + 0.06 * draw.random())
    delays = np.array(found) - np.array(clicks)[: len(found)]
    assert len(clicks) - len(found) <= 1
    assert delays.max() - delays.min() < 0.04
    assert feed.counts == FeedCounts()


def test_a_text_is_said_in_its_time_until_somebody_speaks() -> None:
    """Pauses and a click of the microphone are not heard meanwhile, its speech is from its
    beginning; afterwards all of it is."""
    clock = Clock()
    feed = SoundFeed(clock=clock, most_wait_s=1.0)

    def talked(level: float, num: int) -> Tensor:
        """What is given while so many packets of 40 ms come."""
        parts = []
        for _ in range(num):
            feed.push(torch.full((640,), level))
            parts.append(heard(feed, clock, clock.now + 0.04))
        return torch.cat(parts)

    assert talked(0.01, 25).sum() == pytest.approx(0.01 * RATE, rel=0.1)
    turn = feed.expect()
    assert feed.say(torch.full((5 * RATE,), 0.5), turn)
    feed.said(turn)
    text = torch.cat([talked(0.01, 20), talked(0.9, 2), talked(0.01, 3)])
    assert set(text.tolist()) <= {0.5, float(torch.tensor(0.01)), 0.0}
    assert (text == 0.5).sum() == pytest.approx(1.2 * RATE, abs=900)
    assert feed.counts.unheard_s == pytest.approx(1.0)
    speech = talked(0.3, 5)
    assert not feed.say(torch.ones(1), turn), "its turn is over"
    speech = torch.cat([speech, talked(0.01, 20)])
    assert (speech == torch.tensor(0.3)).sum() == 5 * 640
    assert (speech == 0.5).sum() < 0.15 * RATE, "what was given, and while it was no click yet"
    assert (speech == torch.tensor(0.01)).any()
    assert feed.counts.interrupted_s == pytest.approx(5 - 1.3, abs=0.1)
    turn = feed.expect()
    feed.say(torch.full((RATE,), 0.5), turn)
    feed.said(turn)
    assert (talked(0.01, 60) == torch.tensor(0.01)).sum() > 0.8 * RATE, "it is heard again"


def test_an_end_waits_for_texts_and_their_maker_for_room() -> None:
    feed, taken = SoundFeed(clock=None), []
    feed.push(ramp(0, 100))
    turns = [feed.expect(), feed.expect()]
    feed.end()
    thread = threading.Thread(target=lambda: taken.extend(feed))
    thread.start()
    for i, turn in enumerate(turns):
        assert feed.say(ramp(100 + 50 * i, 50), turn)
        feed.said(turn)
    thread.join(60)
    assert torch.equal(torch.cat(taken), ramp(0, 200))
    with pytest.raises(ValueError, match="the conversation has ended"):
        feed.expect()
    full, told = SoundFeed(clock=None), []
    turn = full.expect()
    assert full.say(torch.ones(11 * RATE), turn)
    thread = threading.Thread(target=lambda: told.append(full.say(torch.ones(1), turn)))
    thread.start()
    thread.join(0.1)
    assert thread.is_alive(), "it waits for room"
    assert isinstance(full.take(), Tensor)
    thread.join(60)
    full.interrupt()
    assert told == [True]
    assert not full.say(torch.ones(1), turn)


def test_who_waits_for_sound_is_woken() -> None:
    feed, parts = SoundFeed(clock=None), []
    thread = threading.Thread(target=lambda: parts.extend(feed))
    thread.start()
    feed.push(torch.ones(10))
    feed.end()
    thread.join(60)
    assert [len(part) for part in parts] == [10]
    thread = threading.Thread(target=lambda: parts.extend(SoundFeed(clock=None)))
    stopped = SoundFeed(clock=None)
    thread = threading.Thread(target=lambda: parts.extend(stopped))
    thread.start()
    stopped.stop()
    thread.join(60)
    assert not thread.is_alive()
