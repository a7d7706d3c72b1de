"""The drawn voice: the source-filter synthesiser of the embedded world says any English script.

It is the sound that the weights that ship were trained on, in a voice of nobody or of a number.
It copies no voice.
"""

from collections.abc import Iterator

from jaxtyping import Float
from torch import Tensor

from avatar_v.base.seeds import derive
from avatar_v.engines.script import split_sentences
from avatar_v.world.speech import Speech, say_pieces, say_sentences
from avatar_v.world.style import HABIT_RANGES, STYLE_NAMES, Habits
from avatar_v.world.voice import Voice, sample_voice

NEUTRAL = Voice(
    person_id=0,
    pitch_hz=150.0,
    tract_length_cm=16.3,
    breathiness=0.3,
    open_quotient=0.6,
    jitter=0.008,
    shimmer=0.05,
    intonation=1.0,
    noise_db=-66.0,
)
"""The middle of the voices of persons, with little noise."""


class DrawnVoice:
    """A `voice.VoiceEngine`. ``number``: of the person whose voice it is; None: of nobody."""

    def __init__(self, number: int | None = None) -> None:
        self.voice = NEUTRAL if number is None else sample_voice(number)

    def speak(self, text: str, *, seed: int) -> Float[Tensor, " s"]:
        """ValueError as `split_sentences`; ``seed`` decides what varies from take to take."""
        return self.speech(text, seed=seed).audio

    def pieces(self, text: str, *, seed: int) -> Iterator[Float[Tensor, " s"]]:
        """The same, bit for bit, from pause to pause."""
        return say_pieces(split_sentences(text), self.voice, plain_style(), derive("script", seed))

    def speech(self, text: str, *, seed: int) -> Speech:
        """The same with the time of each phoneme."""
        return say_sentences(
            split_sentences(text), self.voice, plain_style(), derive("script", seed)
        )


def plain_style() -> Habits:
    """The middle of all habits, with every pause of the punctuation and without fillers."""
    middle = {name: sum(HABIT_RANGES[name]) / 2 for name in STYLE_NAMES}
    return Habits(person_id=0, **{**middle, "pause_rate": 1.0, "filler_rate": 0.0})
