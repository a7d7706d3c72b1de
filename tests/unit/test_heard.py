"""media/heard.py and the network behind it: somebody else's voice, on the clock of the video."""

import dataclasses

import pytest
import torch
from torch import Tensor

from avatar_v.media.heard import KEPT_S, SLACK_S, HeardSound
from avatar_v.media.sound import high_passed, measure_level
from avatar_v.models.motion_net import MotionNet
from avatar_v.types import SAMPLES_PER_FRAME, MotionCond
from random_models import make_motion_net, randomise

FRAME = SAMPLES_PER_FRAME


def voice(num_frames: int) -> Tensor:
    return 0.1 * torch.randn(num_frames * FRAME, generator=torch.Generator().manual_seed(0))


def heard(sound: Tensor, *, is_live: bool, rate: int = 25) -> HeardSound:
    one = HeardSound(is_live=is_live, frame_rate_hz=rate)
    for packet in sound.split(777):
        one.push(packet)
    return one


def test_a_live_voice_that_keeps_time_is_the_finished_one() -> None:
    sound = voice(100)
    finished, live = heard(sound, is_live=False), HeardSound(is_live=True)
    expected = high_passed(sound)
    torch.testing.assert_close(finished.whole(), expected, atol=2e-5, rtol=0)
    for stop in range(20, 101, 20):
        live.push(sound[(stop - 20) * FRAME : stop * FRAME])
        window = live.window(max(stop - 50, 0), stop + 3, stop)
        begin = max(stop - 50, 0) * FRAME
        torch.testing.assert_close(
            window[: stop * FRAME - begin], finished.whole()[begin : stop * FRAME]
        )
        assert not window[stop * FRAME - begin :].any(), "what has not arrived is silent"
    assert live.gain() == pytest.approx(finished.gain()) == measure_level(expected).gain


def test_what_is_late_is_heard_later_and_what_piles_up_is_dropped() -> None:
    sound, live = voice(60), HeardSound(is_live=True)
    assert not live.window(0, 10, 10).any(), "nobody has spoken yet"
    live.push(sound[: 10 * FRAME])
    later = live.window(0, 20, 20)
    assert not later[: 10 * FRAME].any()
    torch.testing.assert_close(
        later[10 * FRAME :], high_passed(sound)[: 10 * FRAME], atol=2e-5, rtol=0
    )
    live.push(sound[10 * FRAME :])
    newest = live.window(20, 30, 30)
    kept = 10 * FRAME + round(16_000 * SLACK_S)
    expected = high_passed(sound)[-kept:][: 10 * FRAME]
    torch.testing.assert_close(newest, expected, atol=2e-5, rtol=0)
    assert torch.equal(live.window(10, 30, 30)[: 10 * FRAME], later[10 * FRAME :])


def test_a_live_voice_takes_as_much_memory_after_an_hour() -> None:
    live = HeardSound(is_live=True)
    for minute in range(3):
        live.push(voice(1500))
        live.window(1500 * minute, 1500 * (minute + 1), 1500 * (minute + 1))
    assert len(live._placed) == KEPT_S * 16_000
    assert torch.isfinite(live.window(0, 50, 50)).all()
    assert not live.window(0, 50, 50).any(), "what is forgotten is silent"


def test_a_video_of_another_rate_hears_the_same_seconds() -> None:
    sound = torch.sin(torch.arange(16_000 * 2) * 0.1)
    for is_live in (False, True):
        window = heard(sound, is_live=is_live, rate=30).window(15, 45, 45)
        assert len(window) == 30 * FRAME
        spectrum = torch.fft.rfft(window * torch.hann_window(len(window))).abs()
        tone_hz = 0.1 * 16_000 / (2 * torch.pi)
        assert float(spectrum.argmax()) == pytest.approx(tone_hz, abs=1.5)  # of one second


def test_numbers_that_are_none_are_silence() -> None:
    one = heard(torch.tensor([0.1, float("nan"), float("inf"), 0.0] * 800), is_live=False)
    assert torch.isfinite(one.whole()).all()
    assert one.digest() != heard(voice(5), is_live=False).digest()


# --- the network ---


@pytest.fixture(scope="module")
def deaf() -> MotionNet:
    return make_motion_net(32)


def cond(**parts: Tensor | None) -> MotionCond:
    draw = torch.Generator().manual_seed(1)
    audio, other = torch.randn(2, 2, 5, 8, 32, generator=draw)
    return dataclasses.replace(MotionCond(audio, heard=other), **parts)


def said(net: MotionNet, of: MotionCond) -> Tensor:
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        return net(torch.randn(2, 5, 64, generator=draw), torch.full((2, 5), 0.5), of)


def test_a_network_that_learns_to_hear_begins_as_it_was(deaf: MotionNet) -> None:
    hearing = deaf.hearing()
    expected = said(deaf, cond(heard=None))
    assert torch.equal(said(hearing, cond()), expected)
    assert hearing.hearing() is hearing
    with pytest.raises(ValueError, match="this motion network hears nobody else"):
        said(deaf, cond())


def test_who_is_not_kept_is_nobody(deaf: MotionNet) -> None:
    net = deaf.hearing()
    randomise(net, seed=3)
    alone, both = said(net, cond(heard=None)), said(net, cond())
    assert not torch.allclose(alone, both)
    one = said(net, cond(heard_keep=torch.tensor([True, False])))
    torch.testing.assert_close(one, torch.stack([both[0], alone[1]]))
    silent = said(net, cond(audio_keep=torch.zeros(2, dtype=torch.bool)))
    torch.testing.assert_close(silent, said(net, cond(audio=None, heard=None)))
