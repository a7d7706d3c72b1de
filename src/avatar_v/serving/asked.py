"""What a client asks for, checked before it is queued: the JSON of a request for a video.

Its fields are those of request/request.py that a stranger may choose. Files are ids of uploads;
no path, class or key of this machine is taken from a client.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from avatar_v.base.options import option_flag
from avatar_v.base.states import holds_tensors
from avatar_v.engines.checks import check_script
from avatar_v.engines.script import SPOKEN_PER_S
from avatar_v.engines.voices import is_drawn
from avatar_v.media import containers
from avatar_v.request.checks import check_settings
from avatar_v.request.request import LIVE, PersonOptions, Request, SamplingOptions, is_person_file
from avatar_v.request.resolve import check_fits
from avatar_v.serving.limits import CONSENT, Limits, check_cost, check_file
from avatar_v.weights.card import Card

FILES = ("reference", "audio", "listen", "image", "also")
OURS = (
    "motion", "consent", "enhance", "engine", "audio_rate_hz", "audio_channels",
    "audio_patience_s",
)  # fmt: skip
"""Options of a person that are the server's: its folders, code that is named, and what live sound
needs."""
WEIGHTS = "weights"
"""The field that names a set of them."""
FIELDS = (
    WEIGHTS,
    *(
        field.name
        for part in (PersonOptions, SamplingOptions)
        for field in dataclasses.fields(part)
        if field.name not in OURS
    ),
)
LIVE_FIELDS = ("reference", "also", "image", "prompt", "from_prompt", "face_crop", "reference_s",
               "gain_db", "seed", "voice")  # fmt: skip
"""Of a conversation: none that changes its cost, which is measured once for all."""


def checked_options(
    values: Mapping[str, Any],
    find: Callable[[str], Path | None],
    *,
    limits: Limits,
    cards: Mapping[str, Card],
    is_live: bool = False,
    known: Sequence[str] = FIELDS,
    called: Mapping[str, str] = MappingProxyType({}),
    words: Callable[..., str] | None = None,
) -> tuple[dict[str, Any], float]:
    """A request's options with paths in place of ids, and the seconds of its video (of a script
    about, of a conversation at most). ValueError for a fault, and for fields that are not
    ``known``; nothing is decoded. It is for one of the sets of weights with ``cards``: the one that
    it names, or the first. Files are named as their owner did and fields as they are
    ``called``, in ``words`` (`field_words`)."""
    given: list[Path] = []

    def found(id_: str) -> Path | None:
        path = find(id_)
        given.extend([] if path is None else [path])
        return path

    try:
        return _checked(values, found, limits, cards, is_live, known, called)
    except (ValueError, OSError) as error:
        raise ValueError((words or field_words)(str(error), *given)) from error


def _checked(
    values: Mapping[str, Any],
    find: Callable[[str], Path | None],
    limits: Limits,
    cards: Mapping[str, Card],
    is_live: bool,
    known: Sequence[str],
    called: Mapping[str, str],
) -> tuple[dict[str, Any], float]:
    unknown = sorted(set(values).difference(known))
    if unknown:
        raise ValueError(f"unknown fields {', '.join(unknown)}; known are {', '.join(known)}")
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    named = {name: options.pop(name) for name in (WEIGHTS,) if name in options}
    weights = named.get(WEIGHTS, next(iter(cards)))
    if not isinstance(weights, str) or weights not in cards:
        raise ValueError(f"{WEIGHTS} is one of {', '.join(cards)}")
    if "reference" not in options:
        raise ValueError("reference is missing: the id of a file that was sent to /v1/files")
    voice = options.get("voice")
    if voice is not None and not (isinstance(voice, str) and is_drawn(voice)):
        raise ValueError("voice is drawn or drawn:N here")
    script = options.get("script")
    if isinstance(script, str) and script.endswith(".txt"):
        raise ValueError("script is a text here, no file")
    for name in FILES:
        if options.get(name) is not None:
            options[name] = _paths(name, options[name], find, limits, called.get(name, name))
    if is_live:
        options["audio"] = LIVE
    request = Request.of(**options)
    check_settings(request)
    check_cost(request.sampling, limits)
    check_fits(cards[weights], request)
    person = request.person
    if is_live:
        return options, limits.talk_s
    if person.audio is not None:
        return options | named, containers.extent(Path(person.audio))[0]
    assert person.script is not None, "check_settings asks for speech"
    seconds = len(person.script) / SPOKEN_PER_S
    if seconds > limits.speech_s:
        raise ValueError(f"the speech lasts {seconds:.0f} s; at most {limits.speech_s:g} are taken")
    check_script(person.script, person.voice)
    return options | named, seconds


def check_permission(given: object) -> None:
    """ValueError unless a client says that it may show the person."""
    if given is not True:
        raise ValueError(f"consent is to be true: “{CONSENT}”")


def field_words(text: str, *paths: str | Path) -> str:
    """A message of the library with names of fields for options, and of files for ``paths``."""
    for part in (PersonOptions, SamplingOptions):
        for field in dataclasses.fields(part):
            text = text.replace(option_flag(part, field.name), field.name)
    for path in paths:
        text = text.replace(str(path), Path(path).name)
    return " ".join(text.split())


def files_of(request: Request) -> tuple[str, ...]:
    """The paths of a request's files."""
    person = request.person
    given = (person.reference, person.audio, person.listen, person.image, *person.also)
    return tuple(path for path in given if path is not None)


def _paths(
    name: str, given: Any, find: Callable[[str], Path | None], limits: Limits, called: str
) -> str | tuple[str, ...]:
    most_s = limits.speech_s if name in ("audio", "listen") else limits.reference_s
    if name != "also":
        return _path(name, given, find, limits, most_s, called)
    if not isinstance(given, tuple) or len(given) > 8:
        raise ValueError("also is a list of at most 8 ids of files")
    return tuple(_path(name, id_, find, limits, most_s, called) for id_ in given)


def _path(
    name: str,
    id_: Any,
    find: Callable[[str], Path | None],
    limits: Limits,
    most_s: float,
    called: str,
) -> str:
    path = find(id_) if isinstance(id_, str) else None
    if path is None:
        raise ValueError(f"{called} is not here any more; add it again")
    if name != "reference" or not is_person_file(path):
        check_file(called, str(path), limits, most_s)
    elif not holds_tensors(path):
        raise ValueError(f"{called}: {path} is no person file: make one with avatar-v person")
    return str(path)
