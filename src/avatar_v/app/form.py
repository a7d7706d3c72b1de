"""The page's form, checked before anything is made, and faults in the words of the page.

Nothing here knows a browser or a network. Files are checked as any request's (serving/asked.py);
here are the fields and numbers of the page alone, consent, and values that it cannot send.
"""

from pathlib import Path
from typing import Any

import pydantic.dataclasses
from pydantic import ConfigDict, StrictBool, StrictFloat, StrictInt, StrictStr

from avatar_v.faces.face_track import TAKE_CENTRE
from avatar_v.inputs.said import MOST_LETTERS
from avatar_v.serving.limits import CONSENT, MAX_PROMPT

NEW_SCENE = "Put the person into this scene, away from the clip's"
SPEECH_TEXT = "The text"
CALLED = {"reference": "The clip", "audio": "The speech"}
"""Fields of a request by what the page calls them."""
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


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class PageForm:
    """The page's form as it arrives: JSON of the right types, an emptied field null. Files are ids
    of uploads."""

    reference: StrictStr | None
    speech: StrictStr | None
    consent: StrictBool
    prompt: StrictStr | None
    new_scene: StrictBool  # no frame of the clip is given: the first is made from the prompt
    num_steps: _Number | None
    guidance_audio: _Number | None
    reference_s: _Number | None
    seed: _Number | None
    weights: StrictStr | None = None  # None: the page's first ones


def form_values(form: PageForm, *, is_live: bool = False) -> dict[str, Any]:
    """The fields of a request (serving/asked.py) for a video, or for a conversation, which needs no
    speech; ValueError, for the user to read, for any fault but those of the files."""
    if not form.reference:
        raise ValueError("Add a clip of the person: upload one, record one, or take a drawn person")
    if not is_live and not form.speech:
        raise ValueError("Add the speech: upload a sound or record one")
    if not form.consent:
        raise ValueError(f"Tick “{CONSENT}” first")
    prompt = (form.prompt or "").strip()
    if len(prompt) > MAX_PROMPT:
        raise ValueError(f"The scene has at most {MAX_PROMPT} characters, got {len(prompt)}")
    if form.new_scene and not prompt:
        raise ValueError(f"Say which scene, or do not tick “{NEW_SCENE}”")
    values = {
        "reference": form.reference,
        "prompt": prompt,
        "from_prompt": form.new_scene,
        "seed": _whole("Seed", form.seed, (0, MAX_SEED)),
        "num_steps": _whole("Steps", form.num_steps, STEPS),
        "guidance_audio": _within("Strength of the sound", form.guidance_audio, GUIDANCE),
        "reference_s": _within("Seconds of reference", form.reference_s, REFERENCE_S),
    }
    if is_live:
        return values
    return {**values, "audio": form.speech} | ({"weights": form.weights} if form.weights else {})


def form_words(text: str, *paths: str | Path | None) -> str:
    """A message of the library in the words of the page: names of ``paths``, labels of options."""
    text = " ".join(text.split())
    for path in paths:
        if path:
            text = text.replace(str(path), Path(path).name)
    for option, label in _WORDS.items():
        text = text.replace(option, label)
    return text


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
