"""A voice that was recorded: a model that clones says a script in it, piece by piece."""

import textwrap
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.engines.cloning import load_engine, manners_of, say_pieces
from avatar_v.engines.manner import Manner
from avatar_v.engines.stored_voice import PAUSE_S, SENTENCE, drawing
from avatar_v.engines.voice_file import read_voice
from avatar_v.media.sound import resampled
from avatar_v.types import SAMPLE_RATE_HZ

MOST_LETTERS = 200
"""Of a piece: models lose long texts, and Dia has room for 35 s with the prompt."""


class ClonedVoice:
    """A `voice.VoiceEngine` of a voice file. ``engine`` is the folder of the model; None: where the
    file was made with. ValueError for a file or folder that is none, and for another model."""

    def __init__(self, voice: str, engine: str | None = None) -> None:
        recorded = read_voice(voice)
        folder = engine or recorded.about.engine
        self.model = load_engine(folder)
        recorded.check_made_for(folder)
        self.voice, self.prompt = voice, recorded.prompt
        if self.model.rate_hz != self.prompt.rate_hz:
            raise ValueError(
                f"{voice}: a sound of {self.prompt.rate_hz} Hz, and the model in {folder} takes "
                f"{self.model.rate_hz} Hz; make the file anew"
            )

    def speak(self, text: str, *, seed: int) -> Float[Tensor, " s"]:
        """All `pieces`, with pauses between them."""
        return torch.cat(list(self.pieces(text, seed=seed)))

    def pieces(self, text: str, *, seed: int) -> Iterator[Float[Tensor, " s"]]:
        """Speech at 16 kHz as it is made: of models that can a third of a second and more, else
        whole sentences; and the pause behind each. ValueError, before any, as `manners_of`; later
        for one of which the model says nothing."""
        parts = [
            (manner, piece)
            for manner, part in manners_of(self.model, text)
            for piece in split_pieces(part)
        ]
        return self._said(parts, seed)

    def _said(self, parts: list[tuple[Manner, str]], seed: int) -> Iterator[Float[Tensor, " s"]]:
        pause = torch.zeros(round(PAUSE_S * SAMPLE_RATE_HZ))
        for number, (manner, part) in enumerate(parts):
            with drawing("cloned voice", seed, number):
                sounds = say_pieces(self.model, part, self.prompt, manner)
            is_said = False
            for sound in sounds:
                is_said = len(sound) > 0 and bool(torch.isfinite(sound).all())
                if not is_said:
                    break
                yield resampled(sound.clone(), self.model.rate_hz)
            if not is_said:
                raise ValueError(f"--voice {self.voice}: the model says nothing of {part!r}; "
                                 "another --seed or another recording may help")  # fmt: skip
            yield pause


def split_pieces(text: str) -> list[str]:
    """The text in pieces of at most `MOST_LETTERS`: the first sentence, which is heard while others
    are made, then as many whole ones as fit, and longer ones between words."""
    pieces: list[str] = []
    for sentence in SENTENCE.split(text.strip()):
        for part in textwrap.wrap(sentence, MOST_LETTERS):
            if len(pieces) > 1 and len(pieces[-1]) + 1 + len(part) <= MOST_LETTERS:
                pieces[-1] += " " + part
            else:
                pieces.append(part)
    return [piece for piece in pieces if any(map(str.isalnum, piece))]
