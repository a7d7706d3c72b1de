"""Speech with its phonemes in time by espeak-ng, a formant synthesiser of a hundred languages.

Its library lies in the wheel espeakng-loader (GPL-3; nothing of it is in this package). It says
what the phonemes of a text are, and is a source of speech to train on.
"""

import ctypes
import functools
import importlib
import importlib.util
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

HOW_TO_INSTALL = "pip install 'espeakng-loader>=0.2.4,<0.3'"
STRESS = "\u02c8\u02cc"
"""Signs before stressed vowels."""
_RETRIEVE, _EVENTS_IPA, _UTF8, _PHONEME, _RATE = 2, 3, 1, 7, 1  # of speak_lib.h
_LOCK = threading.Lock()  # the library has one state
_CALLED: list[Any] = []  # what it calls, which must not go


@dataclass(frozen=True)
class Spoken:
    """A text as espeak-ng says it."""

    sound: Float[np.ndarray, " s"]  # in [-1, 1]
    rate_hz: int
    phonemes: tuple[str, ...]  # IPA with stress; "" is silence
    stops_s: tuple[float, ...]  # where each ends


class _Name(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("message", ctypes.c_uint),
        ("position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_ms", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user", ctypes.c_void_p),
        ("name", _Name),
    )


_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


def speak(text: str, voice: str, words_per_minute: int = 160) -> Spoken:
    """``voice``: a language of espeak-ng, with a variant where it shall sound otherwise ("de+f2").
    ValueError where the library is missing or has no such voice."""
    library, rate_hz, heard = _library()
    with _LOCK:
        heard.clear()
        if library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise ValueError(f"espeak-ng has no voice {voice!r}")
        library.espeak_SetParameter(_RATE, words_per_minute, 0)
        data = text.encode()
        library.espeak_Synth(data, len(data) + 1, 0, 1, 0, _UTF8, None, None)
        library.espeak_Synchronize()
        sounds = [part for part in heard if isinstance(part, np.ndarray)]
        events = [part for part in heard if isinstance(part, tuple)]
    sound = np.concatenate([*sounds, np.zeros(0, np.int16)]).astype(np.float32) / 32768
    stops = [at for at, _ in events[1:]] + [len(sound) / rate_hz]
    return Spoken(sound, rate_hz, tuple(name for _, name in events), tuple(stops))


def is_available() -> bool:
    return importlib.util.find_spec("espeakng_loader") is not None


@functools.cache
def _library() -> tuple[Any, int, list[Any]]:
    """The library, its rate, and what it has said since that was cleared: samples and events."""
    try:
        loader = importlib.import_module("espeakng_loader")
    except ImportError as error:
        raise ValueError(f"phonemes of other languages: {HOW_TO_INSTALL}") from error
    library, heard = ctypes.CDLL(loader.get_library_path()), []
    rate_hz = library.espeak_Initialize(_RETRIEVE, 0, loader.get_data_path().encode(), _EVENTS_IPA)
    if rate_hz <= 0:
        raise ValueError(f"espeak-ng does not start: {HOW_TO_INSTALL}")

    def hear(samples: Any, num: int, events: Any) -> int:
        if samples and num > 0:
            heard.append(np.ctypeslib.as_array(samples, (num,)).copy())
        at = 0
        while events[at].type:
            if events[at].type == _PHONEME:
                name = events[at].name.string.decode("utf-8", "ignore")
                heard.append((events[at].audio_ms / 1000, name))
            at += 1
        return 0

    callback = _CALLBACK(hear)
    _CALLED.append(callback)
    library.espeak_SetSynthCallback(callback)
    return library, rate_hz, heard
