"""A voice from a folder: a text-to-speech model of transformers (VITS, which MMS-TTS is, too).

Nothing is downloaded, and no code of the folder is run.
"""

import re

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base.local_models import load_model, load_part
from avatar_v.engines.checks import WHERE_FROM, check_folder
from avatar_v.media.sound import resampled
from avatar_v.types import SAMPLE_RATE_HZ

PAUSE_S = 0.3
"""Between sentences, which are said one by one: their memory grows with the square of a length."""
SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|\n\s*\n")


class StoredVoice:
    """A `voice.VoiceEngine`. ValueError for a folder that `check_folder` refuses."""

    def __init__(self, folder: str) -> None:
        check_folder(folder)
        from transformers import VitsModel, VitsTokenizer

        self.folder = folder
        self.tokenizer = load_part(VitsTokenizer, folder, WHERE_FROM)
        self.model, _ = load_model(VitsModel, folder, WHERE_FROM)

    def speak(self, text: str, *, seed: int) -> Float[Tensor, " s"]:
        """ValueError for text in another alphabet than the voice's."""
        rate_hz = int(self.model.config.sampling_rate)
        pause = torch.zeros(round(PAUSE_S * SAMPLE_RATE_HZ))
        parts = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for part in filter(str.strip, SENTENCE.split(text)):
                parts += [resampled(self._said(part), rate_hz), pause]
        return torch.cat(parts)

    @torch.inference_mode()
    def _said(self, text: str) -> Float[Tensor, " n"]:
        """At the model's own rate."""
        try:
            inputs = self.tokenizer(text, return_tensors="pt")
        except ImportError as error:  # phonemizer or uroman, which some of these voices ask for
            raise ValueError(f"--voice {self.folder}: {error}") from error
        if inputs.input_ids.shape[1] <= 1:  # a blank alone
            raise ValueError(
                f"--script: the alphabet of the voice {self.folder} has no letter of {text!r}"
            )
        return self.model(**inputs).waveform[0].float().clone()
