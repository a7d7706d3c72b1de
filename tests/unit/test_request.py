"""generate/request, options: one definition of an option for Python, command line and out.json."""

import dataclasses
import json

import pytest

from avatar_v import cli
from avatar_v.base.options import option_flag, parsed
from avatar_v.request.request import PARTS, Request, SamplingOptions, Weights

WORDS = ["generate", "--reference", "me.mp4", "--audio", "talk.wav", "--out", "out.mp4"]
MORE = {
    "person": ["--also", "a.mp4", "--also", "b.mp4", "--prompt", "a room", "--no-face-crop",
               "--gain", "-3", "--reference-seconds", "4", "--from-prompt",
               "--voice", "drawn:3"],
    "sampling": ["--steps", "7", "--no-anchor", "--no-blend", "--interpolate", "--seed", "3",
                 "--guidance-audio", "2.5", "--sink", "replaced", "--history", "clean",
                 "--no-rolling"],
    "output": ["--overwrite"],
}  # fmt: skip


def request_of(words: list[str]) -> Request:
    args = cli.build_parser(["generate"]).parse_args(words)
    return Request(**{name: parsed(args, kind) for name, kind in PARTS.items()})


def test_the_command_line_without_options_is_the_request_without_options() -> None:
    expected = Request.of(reference="me.mp4", audio="talk.wav", out="out.mp4")
    assert request_of(WORDS) == expected
    args = cli.build_parser(["generate"]).parse_args(WORDS)
    assert parsed(args, Weights) == Weights()


def test_a_flag_alone_has_a_value_of_its_own() -> None:
    for words, expected in (([], "off"), (["--compile"], "on"), (["--compile", "auto"], "auto")):
        args = cli.build_parser(["generate"]).parse_args([*WORDS, *words])
        assert parsed(args, Weights).compile == expected


def test_every_option_of_the_command_line_is_a_field() -> None:
    expected = Request.of(
        reference="me.mp4", audio="talk.wav", out="out.mp4", also=("a.mp4", "b.mp4"),
        prompt="a room", face_crop=False, gain_db=-3.0, reference_s=4.0, from_prompt=True,
        voice="drawn:3", num_steps=7, anchor=False, blend=False, interpolate=True, seed=3,
        guidance_audio=2.5, overwrite=True, sink="replaced", history="clean", rolling=False,
    )  # fmt: skip
    assert request_of([*WORDS, *(word for words in MORE.values() for word in words)]) == expected


def test_a_request_survives_its_record() -> None:
    request = request_of([*WORDS, *(word for words in MORE.values() for word in words)])
    values = json.loads(json.dumps(dataclasses.asdict(request)))
    assert list(values) == list(PARTS)
    assert Request.from_json(values) == request
    assert Request.of(**request.options()) == request
    values["sampling"]["num_steps"] = 0
    with pytest.raises(ValueError, match=r"out\.json: sampling: num_steps is a whole number"):
        Request.from_json(values, where="out.json")
    del values["sampling"]["num_steps"]
    with pytest.raises(ValueError, match=r"missing keys \['num_steps'\]"):
        Request.from_json(values)


def test_fields_are_sorted_into_their_parts() -> None:
    request = Request.of(reference="me.mp4", audio="-", seed=1)
    changed = request.changed(seed=2, prompt="a room", out="o.mp4")
    assert (changed.sampling.seed, changed.person.prompt) == (2, "a room")
    assert changed.output.out == "o.mp4"
    assert changed.changed(seed=1, prompt="", out=None) == request
    names = [field.name for kind in PARTS.values() for field in dataclasses.fields(kind)]
    assert len(names) == len({*names}), "a name in two parts would be ambiguous"
    with pytest.raises(TypeError, match="unknown options steps; known are reference, audio,"):
        Request.of(reference="me.mp4", audio="-", steps=1)
    with pytest.raises(TypeError, match="'reference'"):
        Request.of(audio="-")


def flags_in(text: str) -> set[str]:
    return {word.strip(",") for line in text.splitlines() for word in line.split()[:2]
            if word.startswith("--")}  # fmt: skip


def test_the_first_page_of_help_has_what_people_need_and_the_second_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pages = []
    for word in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as end:
            cli.main(["generate", word])
        assert end.value.code == 0
        pages.append(capsys.readouterr().out.split("options:")[1])
    first, whole = (flags_in(page) - {"--help", "--help-all"} for page in pages)
    assert len(first) == 19
    assert {"--reference", "--audio", "--out", "--prompt", "--steps", "--seed"} <= first
    every = {
        option_flag(kind, field.name)
        for kind in (*PARTS.values(), Weights)
        for field in dataclasses.fields(kind)
    }
    assert whole - {"--no-anchor", "--no-watermark"} == every  # the other ways of two switches
    assert {"--interpolate", "--no-blend", "--overshoot"} <= whole - first


def test_flags_for_messages() -> None:
    assert option_flag(SamplingOptions, "num_steps") == "--steps"
