"""What a client asks for, checked before it is queued: the JSON of a request for a video.

Its fields are those of request/request.py that a stranger may choose. Files are ids of uploads;
no path, class or key of this machine is taken from a client.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from avatar_v.app.form import CONSENT, Limits, check_file
from avatar_v.base.options import option_flag
from avatar_v.engines.script import SPOKEN_PER_S
from avatar_v.engines.voices import is_drawn
from avatar_v.media import containers
from avatar_v.request.checks import check_settings
from avatar_v.request.request import LIVE, PersonOptions, Request, SamplingOptions, is_person_file
from avatar_v.request.resolve import check_fits
from avatar_v.weights.card import Card

FILES = ("reference", "audio", "image", "also")
OURS = (
    "motion", "consent", "enhance", "audio_rate_hz", "audio_channels", "audio_patience_s"
)  # fmt: skip
"""Options of a person that are the server's: its folders, code that is named, and what live sound
needs."""
FIELDS = tuple(
    field.name
    for part in (PersonOptions, SamplingOptions)
    for field in dataclasses.fields(part)
    if field.name not in OURS
)
LIVE_FIELDS = ("reference", "also", "image", "prompt", "from_prompt", "face_crop", "reference_s",
               "gain_db", "seed", "voice")  # fmt: skip
"""Of a conversation: none that changes its cost, which is measured once for all."""


def checked_options(
    values: Mapping[str, Any],
    find: Callable[[str], Path | None],
    *,
    limits: Limits,
    card: Card,
    is_live: bool = False,
) -> tuple[dict[str, Any], float]:
    """A request's options with paths in place of ids, and the seconds of its video (of a script
    about, of a conversation at most). ValueError for a fault, in the words of the fields; nothing
    is decoded."""
    known = LIVE_FIELDS if is_live else FIELDS
    unknown = sorted(set(values).difference(known))
    if unknown:
        raise ValueError(f"unknown fields {', '.join(unknown)}; known are {', '.join(known)}")
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
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
            options[name] = _paths(name, options[name], find, limits)
    if is_live:
        options["audio"] = LIVE
    request = Request.of(**options)
    try:
        check_settings(request)
    except ValueError as error:
        raise ValueError(field_words(str(error))) from error
    check_fits(card, request)
    person = request.person
    if is_live:
        return options, limits.talk_s
    if person.audio is not None:
        seconds = containers.extent(Path(person.audio))[0]
    else:
        seconds = len(person.script or "") / SPOKEN_PER_S
    if seconds > limits.speech_s:
        raise ValueError(f"the speech lasts {seconds:.0f} s; at most {limits.speech_s:g} are taken")
    return options, seconds


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


def _paths(
    name: str, given: Any, find: Callable[[str], Path | None], limits: Limits
) -> str | tuple[str, ...]:
    if name == "also":
        if not isinstance(given, tuple) or len(given) > 8:
            raise ValueError("also is a list of at most 8 ids of files")
        return tuple(_path(name, id_, find, limits) for id_ in given)
    return _path(name, given, find, limits)


def _path(name: str, id_: Any, find: Callable[[str], Path | None], limits: Limits) -> str:
    path = find(id_) if isinstance(id_, str) else None
    if path is None:
        raise ValueError(f"{name} is no id of a file of yours; send it to /v1/files (again)")
    if is_person_file(path):
        return str(path)
    most_s = limits.speech_s if name == "audio" else limits.reference_s
    check_file(name, str(path), limits, most_s)
    return str(path)
