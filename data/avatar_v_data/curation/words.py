"""What is said in a clip, word by word with times (Avatar V §5.1.2, ASR with word-level
timestamps): by PocketSphinx, whose English model lies in its package, or a model of the user's."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any, ClassVar

import torch

from avatar_v.base.local_models import load_part, load_whole
from avatar_v.critics.frozen import hash_folder
from avatar_v.safety.heard import decoded
from avatar_v.safety.policy import POCKETSPHINX, SPEECH_MODELS, check_recogniser
from avatar_v.types import SAMPLE_RATE_HZ
from avatar_v_data.curation.speech import spoken_in
from avatar_v_data.curation.stages import Clip, Result, Seen, SoundScorer, Waveform, seconds

Word = tuple[str, float, float, float | None]
"""What is said, from and to which second, and how sure that is, None where a model does not say."""


@dataclass(frozen=True)
class WordStage(SoundScorer):
    """``model``: the folder of a speech recogniser of transformers, Whisper or one with CTC; "":
    PocketSphinx, which knows English alone.

    Columns: ``transcript``; ``num_words``; ``words_per_s`` of speech; ``word_confidence``, of
    PocketSphinx, the mean of its words' posterior probabilities; ``words``, [word, from, to] and
    the probability, in seconds of the recording.
    """

    model: str = ""

    name: ClassVar[str] = "words"
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("speech", "clips")
    numbers: ClassVar[tuple[str, ...]] = ("num_words", "words_per_s", "word_confidence")
    texts: ClassVar[tuple[str, ...]] = ("transcript",)

    def weights(self) -> str:
        if self.model:
            check_recogniser(self.model, "words")
            return hash_folder(self.model)
        check_recogniser(POCKETSPHINX, "words")
        return version(POCKETSPHINX)

    def score(self, clip: Clip, seen: Seen) -> Result:
        sound, start_s = clip.sound(seen.audio), seconds(clip.start)
        found = _recognised(sound, self.model) if self.model else _english(sound)
        speech = spoken_in(seen.results["speech"]["speech"], clip)
        spoken_s = sum(stop - start for start, stop in speech) or seconds(clip.stop - clip.start)
        row: Result = {
            "transcript": " ".join(word for word, *_ in found),
            "num_words": len(found),
            "words_per_s": round(len(found) / spoken_s, 3),
        }
        if not self.model:
            sure = [p for *_, p in found if p is not None]
            row["word_confidence"] = round(sum(sure) / max(len(sure), 1), 4)
        times = [(w, round(a + start_s, 2), round(b + start_s, 2), p) for w, a, b, p in found]
        return row | {"words": [[*one[:3], *one[3:][: one[3] is not None]] for one in times]}


def said_between(words: Iterable[Sequence[Any]], start_s: float, stop_s: float) -> str:
    """The words of a result whose middle lies there."""
    return " ".join(w for w, a, b, *_ in words if start_s <= (a + b) / 2 < stop_s)


def _english(sound: Waveform) -> list[Word]:
    decoder = decoded(sound)
    rate = decoder.config["frate"]
    return [
        (
            re.sub(r"\(\d+\)$", "", part.word),  # another pronunciation
            part.start_frame / rate,
            (part.end_frame + 1) / rate,
            round(min(part.prob, 1.0), 4),
        )
        for part in decoder.seg() or ()
        if part.word[0] not in "<["
    ]


@torch.inference_mode()
def _recognised(sound: Waveform, folder: str) -> list[Word]:
    heard = {"raw": sound.numpy(), "sampling_rate": SAMPLE_RATE_HZ}
    parts = _recogniser(folder)(heard, return_timestamps="word")["chunks"]
    length_s = len(sound) / SAMPLE_RATE_HZ
    found: list[Word] = []
    for part in parts:
        word = "".join(filter(str.isprintable, part["text"])).strip()
        begin, end = part["timestamp"]  # Whisper hears 30 s, and may not say when a word ends
        start_s, stop_s = min(begin or 0.0, length_s), min(end or length_s, length_s)
        found += [(word, float(start_s), float(stop_s), None)] if word else []
    return found


@cache
def _recogniser(folder: str) -> Any:
    from transformers import (
        AutoModelForCTC,
        AutoModelForSpeechSeq2Seq,
        AutoProcessor,
        pipeline,
    )

    processor = load_part(AutoProcessor, folder, SPEECH_MODELS)
    is_ctc = check_recogniser(folder, "words").endswith("ForCTC")
    loader = AutoModelForCTC if is_ctc else AutoModelForSpeechSeq2Seq
    model = load_whole(loader, folder, SPEECH_MODELS)
    return pipeline(
        "automatic-speech-recognition",
        model=model,
        tokenizer=processor.tokenizer,
        feature_extractor=processor.feature_extractor,
        device="cuda" if torch.cuda.is_available() else "cpu",
    )
