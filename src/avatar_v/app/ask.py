"""What the page asks for, judged before anything is made, and faults in the words of the page.

Nothing here knows Gradio or a network. The library judges files and numbers too (generate/
inputs.py); here is what only the page limits: sizes, durations, consent, and values it cannot send.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import av
from av.error import FFmpegError

from avatar_v import media
from avatar_v.types import Request

CONSENT = "This is my own face or a drawn one, or I have the person's permission"
CAMERA = "filmed: find the face in it"
FRAMED = "drawn, or framed on the face: take it as it is"
NEW_SCENE = "Put the person into this scene, away from the clip's"
MAX_PROMPT = 500  # characters
MAX_SEED = 2**32 - 1
STEPS = (1, 64)
GUIDANCE = (0.0, 6.0)
REFERENCE_S = (0.0, 60.0)

_WORDS = {
    "pass --no-face-crop": f"choose “{FRAMED}”",
    "--no-face-crop": f"“{FRAMED}”",
    "--reference-seconds": "Seconds of reference",
    "--guidance-audio": "Strength of the sound",
    "--steps": "Steps",
}


@dataclass(frozen=True)
class Limits:
    """What one user may ask of the machine."""

    upload_mib: float = 200.0
    speech_s: float = 300.0
    reference_s: float = 600.0  # of the file; how much of it is read is Ask.reference_s
    keep_s: float = 3600.0  # files that nobody has touched for so long go
    num_waiting: int = 8  # videos behind the one that is being made

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < math.inf:
                raise ValueError(f"the limit {name} is a number above 0, got {value}")


@dataclass(frozen=True)
class Ask:
    """The page's form as it arrives: an emptied field is None, and nothing is checked yet."""

    reference: str | None
    speech: str | None
    consent: bool
    prompt: str | None
    new_scene: bool  # no frame of the clip is given: the first is made from the prompt
    picture: str | None  # CAMERA or FRAMED
    num_steps: int | float | None
    guidance_audio: int | float | None
    reference_s: int | float | None
    seed: int | float | None


def checked_request(ask: Ask, limits: Limits, out: str | Path) -> Request:
    """The library's request for ``out``, an mp4; ValueError, for the user to read, for any fault.

    Sizes and durations are read from the files themselves, whatever their headers promise.
    """
    if not ask.reference:
        raise ValueError("Add a clip of the person: upload one, record one, or take a drawn person")
    if not ask.speech:
        raise ValueError("Add the speech: upload a sound or record one")
    if not ask.consent:
        raise ValueError(f"Tick “{CONSENT}” first")
    prompt = (ask.prompt or "").strip()
    if len(prompt) > MAX_PROMPT:
        raise ValueError(f"The scene has at most {MAX_PROMPT} characters, got {len(prompt)}")
    if ask.new_scene and not prompt:
        raise ValueError(f"Say which scene, or do not tick “{NEW_SCENE}”")
    if ask.picture not in (CAMERA, FRAMED):
        raise ValueError(f"The picture is “{CAMERA}” or “{FRAMED}”, got {ask.picture!r}")
    request = Request(
        reference=ask.reference,
        audio=ask.speech,
        out=str(out),
        prompt=prompt,
        from_prompt=ask.new_scene,
        seed=_whole("Seed", ask.seed, (0, MAX_SEED)),
        num_steps=_whole("Steps", ask.num_steps, STEPS),
        guidance_audio=_within("Strength of the sound", ask.guidance_audio, GUIDANCE),
        reference_s=_within("Seconds of reference", ask.reference_s, REFERENCE_S),
        face_crop=ask.picture == CAMERA,
    )
    _check_file("The clip", request.reference, limits.upload_mib, limits.reference_s)
    _check_file("The speech", request.audio, limits.upload_mib, limits.speech_s)
    return request


def duration_s(path: str | Path) -> float:
    """Seconds up to the end of the last packet. ValueError as media.probe.

    Headers are not asked: a browser's recording has no duration there, and others may lie.
    """
    media.probe(path)
    end = 0.0
    try:
        with av.open(str(path)) as container:
            for packet in container.demux():
                if packet.pts is not None and packet.time_base is not None:
                    end = max(end, float((packet.pts + (packet.duration or 0)) * packet.time_base))
    except FFmpegError as error:
        raise ValueError(f"{path}: cannot be read to its end ({error})") from error
    return end


def page_words(text: str, *paths: str | None) -> str:
    """What the library says, as the page says it: names of ``paths`` and labels of options."""
    text = " ".join(text.split())
    for path in paths:
        if path:
            text = text.replace(path, Path(path).name)
    for option, label in _WORDS.items():
        text = text.replace(option, label)
    return text


def _check_file(name: str, path: str, max_mib: float, max_s: float) -> None:
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"{name} is not here any more; add it again")
    size_mib = file.stat().st_size / 2**20
    if not size_mib:
        raise ValueError(f"{name} is empty; upload or record it again")
    if size_mib > max_mib:
        raise ValueError(f"{name} has {size_mib:.3g} MiB; at most {max_mib:g} MiB are taken")
    length_s = duration_s(file)
    if length_s > max_s:
        raise ValueError(f"{name} lasts {length_s:.0f} s; at most {max_s:g} s are taken")


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
