"""The page's form, checked before anything is made, and faults in the words of the page.

Nothing here knows a browser or a network. The library checks files and numbers too
(inputs/inputs.py); here are the limits of the page alone: sizes, durations, consent, and values
that it cannot send.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import pydantic.dataclasses
from pydantic import ConfigDict, StrictBool, StrictFloat, StrictInt, StrictStr

from avatar_v.app.uploads import is_plain_file
from avatar_v.faces.face_track import TAKE_CENTRE
from avatar_v.inputs.said import MOST_LETTERS
from avatar_v.media import containers, reading
from avatar_v.request.request import LIVE, Request

CONSENT = "This is my own face or a drawn one, or I have the person's permission"
NEW_SCENE = "Put the person into this scene, away from the clip's"
SPEECH_TEXT = "The text"
MAX_PROMPT = 500  # characters
MAX_TEXT = MOST_LETTERS  # of what is to be said
MAX_SEED = 2**32 - 1
STEPS = (1, 64)
GUIDANCE = (0.0, 6.0)
REFERENCE_S = (0.0, 60.0)

_Number = StrictInt | StrictFloat
_WORDS = {
    f"; or {TAKE_CENTRE}": "",
    TAKE_CENTRE: "send one that shows the face",
    "--reference-seconds": "Seconds of reference",
    "--guidance-audio": "Strength of the sound",
    "--steps": "Steps",
    "--prompt": "The scene",
    "--script": SPEECH_TEXT,
    "--consent": "The records of consent",
    "--policy": "The rules of this page",
}


@dataclass(frozen=True)
class Limits:
    """The share of the machine that one user may have."""

    upload_mib: float = 200.0
    speech_s: float = 300.0
    reference_s: float = 600.0  # of the file; how much of it is read is PageForm.reference_s
    keep_s: float = 3600.0  # files that nobody has touched for so long go
    total_mib: float = 4096.0  # of all files that the server keeps
    frame_mp: float = 16.0  # megapixels of one picture: a decoder holds many of them
    video_mp: float = 80e3  # megapixels of all pictures: ten minutes of 1920 x 1080 at 60 a second
    num_waiting: int = 8  # videos behind the one that is being made
    talk_s: float = 600.0  # of a conversation

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < math.inf:
                raise ValueError(f"the limit {name} is a number above 0, got {value}")


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class PageForm:
    """The page's form as it arrives: JSON of the right types, an emptied field null. Files are ids
    of uploads there, and paths when the request is made."""

    reference: StrictStr | None
    speech: StrictStr | None
    consent: StrictBool
    prompt: StrictStr | None
    new_scene: StrictBool  # no frame of the clip is given: the first is made from the prompt
    num_steps: _Number | None
    guidance_audio: _Number | None
    reference_s: _Number | None
    seed: _Number | None


def checked_request(form: PageForm, limits: Limits, out: str | Path | None) -> Request:
    """The library's request for ``out``, an mp4, or for a conversation, which needs no speech;
    ValueError, for the user to read, for any fault.

    Sizes and durations are read from the files themselves, whatever their headers promise.
    """
    if not form.reference:
        raise ValueError("Add a clip of the person: upload one, record one, or take a drawn person")
    if out is not None and not form.speech:
        raise ValueError("Add the speech: upload a sound or record one")
    if not form.consent:
        raise ValueError(f"Tick “{CONSENT}” first")
    prompt = (form.prompt or "").strip()
    if len(prompt) > MAX_PROMPT:
        raise ValueError(f"The scene has at most {MAX_PROMPT} characters, got {len(prompt)}")
    if form.new_scene and not prompt:
        raise ValueError(f"Say which scene, or do not tick “{NEW_SCENE}”")
    request = Request.of(
        reference=form.reference,
        audio=LIVE if out is None else form.speech,
        out=None if out is None else str(out),
        prompt=prompt,
        from_prompt=form.new_scene,
        seed=_whole("Seed", form.seed, (0, MAX_SEED)),
        num_steps=_whole("Steps", form.num_steps, STEPS),
        guidance_audio=_within("Strength of the sound", form.guidance_audio, GUIDANCE),
        reference_s=_within("Seconds of reference", form.reference_s, REFERENCE_S),
        watermark=True,
    )
    check_file("The clip", form.reference, limits, limits.reference_s)
    if out is not None and form.speech:
        check_file("The speech", form.speech, limits, limits.speech_s)
    return request


def form_words(text: str, *paths: str | None) -> str:
    """A message of the library in the words of the page: names of ``paths``, labels of options."""
    text = " ".join(text.split())
    for path in paths:
        if path:
            text = text.replace(path, Path(path).name)
    for option, label in _WORDS.items():
        text = text.replace(option, label)
    return text


def check_file(name: str, path: str, limits: Limits, max_s: float) -> None:
    """ValueError unless the file may be decoded; nothing of it has been decoded then."""
    file = Path(path)
    if not is_plain_file(file):
        raise ValueError(f"{name} is not here any more; add it again")
    size_mib = file.stat().st_size / 2**20
    if not size_mib:
        raise ValueError(f"{name} is empty; upload or record it again")
    if size_mib > limits.upload_mib:
        most = f"at most {limits.upload_mib:g} MiB are taken"
        raise ValueError(f"{name} has {size_mib:.3g} MiB; {most}")
    info = reading.probe(file)
    frame_mp = (info.width or 0) * (info.height or 0) / 1e6
    if frame_mp > limits.frame_mp:
        raise ValueError(
            f"{name} has pictures of {info.width} × {info.height} pixels; at most "
            f"{limits.frame_mp:g} million are taken"
        )
    length_s, num_pictures = containers.extent(file)
    if length_s > max_s:
        raise ValueError(f"{name} lasts {length_s:.0f} s; at most {max_s:g} s are taken")
    if frame_mp * num_pictures > limits.video_mp:
        raise ValueError(
            f"{name} has {num_pictures} pictures of {info.width} × {info.height} pixels; at most "
            f"{limits.video_mp:g} million pixels are taken in all"
        )


def _within(name: str, value: int | float | None, span: tuple[float, float]) -> float:
    low, high = span
    if value is None or not low <= value <= high:  # NaN fails the comparison
        raise ValueError(f"{name} is from {low:g} to {high:g}, got {_shown(value)}")
    return float(value)


def _whole(name: str, value: int | float | None, span: tuple[int, int]) -> int:
    low, high = span
    if value is None or not low <= value <= high or value != int(value):
        raise ValueError(f"{name} is a whole number from {low} to {high}, got {_shown(value)}")
    return int(value)


def _shown(value: int | float | None) -> str:
    return "nothing" if value is None else f"{value:g}"
