"""A voice from a folder: a text-to-speech model of transformers (VITS, which MMS-TTS is, too).

Nothing is downloaded, and no code of the folder is run.
"""

import contextlib
import re
import threading
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base.local_models import load_model, load_part
from avatar_v.base.seeds import derive
from avatar_v.engines.checks import WHERE_FROM, check_folder
from avatar_v.media.sound import resampled
from avatar_v.types import SAMPLE_RATE_HZ

PAUSE_S = 0.3
"""Between sentences, which are said one by one: their memory grows with the square of a length."""
SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|\n\s*\n")


_DRAWS = threading.Lock()


@contextlib.contextmanager
def drawing(purpose: str, *ids: int) -> Iterator[None]:
    """A model draws from torch's own generator, which then is as it was: one model at a time."""
    with _DRAWS, torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(purpose, *ids))
        yield


class StoredVoice:
    """A `voice.VoiceEngine`. ValueError for a folder that `check_folder` refuses."""

    def __init__(self, folder: str) -> None:
        check_folder(folder)
        from transformers import VitsModel, VitsTokenizer

        self.folder = folder
        self.tokenizer = load_part(VitsTokenizer, folder, WHERE_FROM)
        self.model, _ = load_model(VitsModel, folder, WHERE_FROM)

    def speak(self, text: str, *, seed: int) -> Float[Tensor, " s"]:
        """All `pieces`."""
        return torch.cat(list(self.pieces(text, seed=seed)))

    def pieces(self, text: str, *, seed: int) -> Iterator[Float[Tensor, " s"]]:
        """Speech at 16 kHz as it is made: each sentence and the pause behind it. ValueError, before
        any, for text in another alphabet than the voice's."""
        parts = [part for part in SENTENCE.split(text) if any(map(str.isalnum, part))]
        parts = [self._read(part) for part in parts]

        def said() -> Iterator[Float[Tensor, " s"]]:
            pause = torch.zeros(round(PAUSE_S * SAMPLE_RATE_HZ))
            for number, part in enumerate(parts):
                with drawing("stored voice", seed, number), torch.inference_mode():
                    sound = self.model(**part).waveform[0].float()
                rate_hz = int(self.model.config.sampling_rate)
                yield torch.cat([resampled(sound.clone(), rate_hz), pause])

        return said()

    def _read(self, text: str) -> Any:
        """The tokens of a sentence."""
        try:
            inputs = self.tokenizer(text, return_tensors="pt")
        except ImportError as error:  # phonemizer or uroman, which some of these voices ask for
            raise ValueError(f"--voice {self.folder}: {error}") from error
        if inputs.input_ids.shape[1] <= 1:  # a blank alone
            raise ValueError(
                f"--script: the alphabet of the voice {self.folder} has no letter of {text!r}"
            )
        return inputs
