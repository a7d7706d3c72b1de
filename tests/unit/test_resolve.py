"""generate/resolve: sizes and chunk length come from the card of the weights, before the preset."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from avatar_v.base.video_format import VideoFormat
from avatar_v.generate.run import run
from avatar_v.models.config import Streaming
from avatar_v.request.request import Request, Weights
from avatar_v.request.resolve import (
    FULL_STEPS,
    NUM_STEPS,
    check_fits,
    format_warnings,
    input_spec,
    live_delay,
    motion_warnings,
    num_steps_of,
    resolved,
    sampler_settings,
    sampling_warnings,
    sizes_of,
    streaming_of,
)
from avatar_v.weights.card import ASSETS, Capabilities, Card, read_card
from avatar_v.weights.presets import PRESETS, format_of


def test_the_card_says_the_length_of_a_chunk_and_the_preset_where_it_does_not() -> None:
    assert format_of(Card("small")) == PRESETS["small"].format
    card = Card("small", can=Capabilities(video=VideoFormat(96, 128, 30), window_latents=9))
    assert (format_of(card).video, format_of(card).chunk_latents) == (VideoFormat(96, 128, 30), 9)
    assert format_of(card).shift == PRESETS["small"].format.shift
    asked = Request.of(reference="", audio="")
    request = resolved(asked, card, has_clips=False)
    assert sampler_settings(request, card, bf16=False).chunk_latents == 9
    assert input_spec(asked, card).video == VideoFormat(96, 128, 30)
    assert input_spec(asked, card, Card("small")).video == VideoFormat(192, 256, 30)
    assert input_spec(asked.changed(size="64x32"), card).video == VideoFormat(64, 32, 30)
    with pytest.raises(ValueError, match="no preset 'grand'"):
        format_of(Card("grand"))


def test_sizes_that_the_card_does_not_say_and_a_refiner_of_others_are_told() -> None:
    said = Capabilities(video=VideoFormat(480, 480), window_latents=41, shift=3.0)
    assert format_warnings(Card("wan_1_3b", can=said)) == ()
    (text,) = format_warnings(Card("wan_1_3b", can=Capabilities(window_latents=41)))
    assert (
        "size of their pictures (taken: 624 x 624 pixels), the shift of their times (taken: 3)"
        in text
    )
    assert "as preset wan_1_3b has it" in text
    card, refiner = Card("wan_1_3b", can=said), Capabilities(video=VideoFormat(960, 960))
    assert format_warnings(card, Card("wan_1_3b", can=refiner)) == ()
    (text,) = format_warnings(
        card, Card("wan_1_3b", can=Capabilities(video=VideoFormat(1248, 1248)))
    )
    assert "trained on pictures of 1248 x 1248 pixels, and makes 960 x 960 of" in text


def test_a_refiner_makes_the_smallest_pictures_that_hold_what_is_asked_for() -> None:
    """480 to 1080 by a factor of 2.25: the pixels beside 1920 are cut off."""
    refiner = Card("wan_14b", can=Capabilities(factor=2.25))
    way = sizes_of("1920x1080", Card("wan_14b"), refiner)
    assert list(map(str, (way.base, way.larger, way.out))) == [
        "864 x 480", "1944 x 1080", "1920 x 1080"
    ]  # fmt: skip
    assert sizes_of("854x480", Card("tiny"), Card("tiny")).base == VideoFormat(432, 240)


@pytest.mark.parametrize(
    ("size", "refined", "why"),
    [
        ("1920x1080", False, "multiples of 16 pixels here; the nearest are 1920x1072, 1920x1088"),
        ("850x471", False, "the nearest are 848x464, 848x480, 864x464, 864x480"),
        ("853x480", True, "multiples of 2 pixels here; the nearest are 852x480, 854x480"),
        ("16:9", False, "WIDTHxHEIGHT, as 832x480, or one number for a square, .* got '16:9'"),
        ("4112x16", False, "of 16 to 4,096 pixels, got '4112x16'"),
    ],
)
def test_a_size_that_cannot_be_made_names_the_nearest(size: str, refined: bool, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        sizes_of(size, Card("wan_14b"), Card("wan_14b") if refined else None)


def test_weights_that_follow_a_motion_and_make_none_say_so() -> None:
    follows = Card("small", can=Capabilities(motion=True))
    (text,) = motion_warnings(follows, makes_motion=False)
    assert "recipes/3_motion.yaml" in text
    assert motion_warnings(follows, makes_motion=True) == ()
    assert motion_warnings(Card("small"), makes_motion=False) == ()


@pytest.mark.parametrize("name", ["small", "small_student"])
def test_the_weights_that_ship_say_their_sizes(name: str) -> None:
    card = read_card(ASSETS / name)
    assert format_of(card) == PRESETS["small"].format
    assert format_warnings(card, read_card(ASSETS / "small_refiner")) == ()


def test_the_weights_that_ship_say_how_long_their_windows_were() -> None:
    assert read_card(ASSETS / "small").can.window_latents == 13
    assert read_card(ASSETS / "small_refiner").can.window_latents == 4


def test_what_a_request_leaves_open_is_decided_by_the_card() -> None:
    card = Card("small", guidance_audio=1.5, guidance_motion=3.0, can=Capabilities(anchor=True))
    open_ = Request.of(reference="", audio="", seed=3)
    asked = resolved(open_, card, has_clips=False).sampling
    assert (asked.guidance_audio, asked.guidance_motion, asked.seed) == (1.5, 3.0, 3)
    assert asked.anchor is False  # there is no clip that an anchor could join
    full = Card("wan_1_3b", can=Capabilities())
    assert (asked.num_steps, num_steps_of(None, full)) == (NUM_STEPS, FULL_STEPS)
    assert asked.chunk_latents == 13
    given = open_.changed(guidance_audio=2.0, guidance_motion=1.0, anchor=True, num_steps=7)
    given = given.changed(chunk_latents=9)
    assert resolved(given, card, has_clips=False) == given


def test_a_few_step_student_says_its_steps_times_and_renoising() -> None:
    card = Card("small", can=Capabilities(num_steps=2, shift=5.0, motion_steps=1))
    open_ = Request.of(reference="", audio="")
    asked = resolved(open_, card, has_clips=False)
    settings = sampler_settings(asked, card, bf16=False)
    assert (settings.num_steps, settings.shift, settings.motion_steps) == (2, 5.0, 1)
    assert settings.renoise
    assert sampling_warnings(asked, card) == ()
    assert sampling_warnings(asked.changed(num_steps=1), card) == ()
    (text,) = sampling_warnings(asked.changed(num_steps=3), card)
    assert "student of 2 steps and were asked for 3" in text
    plain = sampler_settings(
        resolved(open_, Card("small"), has_clips=False), Card("small"), bf16=False
    )
    assert not plain.renoise


def test_causal_weights_see_the_past_as_trained_or_the_difference_is_said() -> None:
    open_ = Request.of(reference="", audio="")
    can = Capabilities(causal_block=3, anchor=True, streaming=Streaming(rolling=False))
    card = Card("small", can=can)
    asked = resolved(open_, card, has_clips=True)
    assert sampling_warnings(asked, card) == ()
    assert streaming_of(asked, card) == Streaming(rolling=False)
    changed = asked.changed(sink="replaced", history="clean")
    sink, history = sampling_warnings(resolved(changed, card, has_clips=True), card)
    assert "sink that is beside, and were asked for one that is replaced" in sink
    assert "history that is same_step, and were asked for one that is clean" in history
    with pytest.raises(ValueError, match="with a clean history a block waits"):
        resolved(changed, card, has_clips=True, num_ranks=2)


def test_a_live_voice_waits_for_its_chunk_and_for_all_that_looks_ahead() -> None:
    open_ = Request.of(reference="", audio="")
    card = Card("small", can=Capabilities(causal_block=3, window_latents=20))
    delay = live_delay(open_, card)
    assert (delay.first_s, delay.later_s) == (0.76, 0.56)
    hears = Card("small", can=dataclasses.replace(card.can, causal_block=1, audio_look_ahead=1))
    assert live_delay(open_, hears).later_s == pytest.approx((4 + 2 + 4) / 25)
    further = open_.changed(look_ahead=2)
    assert live_delay(further, card, hears).first_s == pytest.approx((17 + 2 + 12) / 25)
    assert sampling_warnings(further, card) == ()
    (said,) = sampling_warnings(further.changed(chunk_latents=20), card)
    assert "windows of 20 latents, and motion was asked for over 20 and 2 ahead" in said


def test_a_sink_is_replaced_by_an_anchor_or_not_at_all() -> None:
    open_, nothing = Request.of(reference="", audio=""), "by the anchor, and there is none"
    replaced = Streaming(sink="replaced")
    card = Card("small", can=Capabilities(causal_block=3, anchor=True, streaming=replaced))
    for asked in (open_.changed(anchor=False), open_.changed(sink="replaced", anchor=False)):
        with pytest.raises(ValueError, match=nothing):
            check_fits(card, asked)
    with pytest.raises(ValueError, match=nothing):
        resolved(open_.changed(sink="replaced"), card, has_clips=False)
    without = resolved(open_, card, has_clips=False)  # nor is there a reference
    assert resolved(without, card, has_clips=False) == without
    assert sampling_warnings(without, card) == ()
    assert streaming_of(resolved(open_, card, has_clips=True), card) == replaced


def test_overshoot_is_refused_for_a_student_before_files_are_read(tmp_path: Path) -> None:
    plain, student = Card("small"), Card("small", can=Capabilities(num_steps=2))
    asked = Request.of(reference="no.mp4", audio="no.wav", out=str(tmp_path / "o.mp4"))
    check_fits(student, asked)
    asked = asked.changed(overshoot=0.5)
    check_fits(plain, asked)
    message = r"--overshoot 0\.5 is for weights of many steps; these are a student of 2, whose"
    with pytest.raises(ValueError, match=message):
        check_fits(student, asked)
    with pytest.raises(ValueError, match=message):
        resolved(asked, student, has_clips=False)
    weights = shutil.copytree(ASSETS / "small", tmp_path / "small")
    content = json.loads((weights / "card.json").read_text(encoding="utf-8"))
    content["can"]["num_steps"] = 2
    (weights / "card.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match=message):  # and not that there is no file no.mp4
        run(asked, Weights(str(weights)))
