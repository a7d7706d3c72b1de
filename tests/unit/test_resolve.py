"""generate/resolve: sizes and chunk length come from the card of the weights, before the preset."""

import json
import shutil
from pathlib import Path

import pytest

from avatar_v.generate.run import run
from avatar_v.models.config import Streaming
from avatar_v.request.request import Request, Weights
from avatar_v.request.resolve import (
    NUM_STEPS,
    check_fits,
    format_warnings,
    input_spec,
    motion_warnings,
    resolved,
    sampler_settings,
    sampling_warnings,
    streaming_of,
)
from avatar_v.weights.card import ASSETS, Capabilities, Card, read_card
from avatar_v.weights.presets import PRESETS, format_of


def test_the_card_says_the_length_of_a_chunk_and_the_preset_where_it_does_not() -> None:
    assert format_of(Card("small")) == PRESETS["small"].format
    card = Card("small", can=Capabilities(side=128, window_latents=9))
    assert (format_of(card).side, format_of(card).chunk_latents) == (128, 9)
    assert format_of(card).shift == PRESETS["small"].format.shift
    request = resolved(Request.of(reference="", audio=""), card, has_clips=False)
    assert sampler_settings(request, card, bf16=False).chunk_latents == 9
    assert input_spec(card).side == 128
    assert input_spec(card, refined=True).side == 256
    with pytest.raises(ValueError, match="no preset 'grand'"):
        format_of(Card("grand"))


def test_sizes_that_the_card_does_not_say_and_a_refiner_of_others_are_told() -> None:
    said = Capabilities(side=480, window_latents=41, shift=3.0)
    assert format_warnings(Card("wan_1_3b", can=said)) == ()
    (text,) = format_warnings(Card("wan_1_3b", can=Capabilities(window_latents=41)))
    assert "size of their pictures (taken: 624 pixels), the shift of their times (taken: 3)" in text
    assert "as preset wan_1_3b has it" in text
    card, refiner = Card("wan_1_3b", can=said), Capabilities(side=960)
    assert format_warnings(card, Card("wan_1_3b", can=refiner)) == ()
    (text,) = format_warnings(card, Card("wan_1_3b", can=Capabilities(side=1248)))
    assert "trained on pictures of 1248 pixels, and makes 960 of these weights' 480" in text


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
    assert asked.num_steps == NUM_STEPS
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
