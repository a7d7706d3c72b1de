"""What is said in the study of voices (voices.py): by the speakers of a corpus in recordings, by
these through the codec, and by models in their voices."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base.seeds import derive
from avatar_v.types import FRAME_RATE_HZ, SAMPLE_RATE_HZ
from avatar_v.voices.corpus import Recording, corpus_files, read_recordings
from avatar_v.voices.model import Drawing, VoiceModel
from avatar_v.voices.phonemes import EMOTIONS
from avatar_v.voices.sequences import asked_of

PROMPT_S = 10.0
TOGETHER = 16
"""Speeches that are drawn at once."""
Sound = Float[Tensor, " s"]


@dataclass(frozen=True)
class Speaker:
    """What is heard of a speaker, and what they say."""

    prompt: Sound
    other: Sound  # not in the prompt
    said: tuple[Recording, ...]


@dataclass(frozen=True)
class Speech:
    """A sentence as it was said, with the frames of its phonemes."""

    sound: Sound
    spans: list[tuple[int, int]]


def read_speakers(corpus: Path, num: int, num_said: int) -> list[Speaker]:
    """ValueError for a corpus with too little of too few speakers, or with a speaker in two files:
    what is said there may be what is heard here."""
    own: dict[int, list[Recording]] = {}
    for path in corpus_files(corpus):
        found: dict[int, list[Recording]] = {}
        for one in read_recordings([path]):
            found.setdefault(one.number, []).append(one)
        if twice := own.keys() & found.keys():
            raise ValueError(f"{corpus}: voice {min(twice)} is in two files, {path.name} is one")
        own |= found
    speakers = []
    for rows in list(own.values())[:num]:
        sounds = [torch.from_numpy(one.sound.copy()) for one in rows[:-num_said]]
        heard, at = sounds[:1], 1
        while at < len(sounds) - 1 and sum(map(len, heard)) < PROMPT_S * SAMPLE_RATE_HZ:
            heard.append(sounds[at])
            at += 1
        if at >= len(sounds):
            raise ValueError(f"{corpus}: a voice needs {num_said + 2} sentences and more")
        prompt = torch.cat(heard)[: round(PROMPT_S * SAMPLE_RATE_HZ)]
        speakers.append(Speaker(prompt, torch.cat(sounds[at:]), tuple(rows[-num_said:])))
    if len(speakers) < num:
        raise ValueError(f"{corpus} has {len(speakers)} voices, and {num} are asked for")
    return speakers


def true_speeches(speaker: Speaker) -> list[Speech]:
    found = []
    for one in speaker.said:
        stops = [round(stop * FRAME_RATE_HZ) for stop in one.stops_s]
        spans = list(zip([0, *stops[:-1]], stops, strict=True))
        found.append(Speech(torch.from_numpy(one.sound.copy()), spans))
    return found


def rebuilt(model: VoiceModel, speaker: Speaker) -> list[Speech]:
    """True recordings through the codec."""
    found = true_speeches(speaker)
    codec = model.codec
    return [Speech(codec.decode(codec.encode(one.sound[None]))[0], one.spans) for one in found]


def speeches(
    model: VoiceModel,
    speakers: Sequence[Speaker],
    seed: int,
    *,
    emotion: str | None = None,
    most: int | None = None,
) -> list[list[Speech]]:
    """What a model says in each speaker's voice: all sentences or the first so many, with the
    emotion of the recording or another."""
    heads, phonemes = [], []
    for speaker in speakers:
        voice = model.hear(speaker.prompt)
        for one in speaker.said[:most]:
            asked = asked_of(one)
            if emotion is not None:
                asked = asked._replace(emotion=EMOTIONS.index(emotion))
            heads.append(model.head(one.phonemes, voice, asked))
            phonemes.append(one.phonemes)
    hows = [Drawing(seed=derive("voices", seed, n) % (1 << 31)) for n in range(len(heads))]
    found: list[Speech] = []
    for start in range(0, len(heads), TOGETHER):
        part = slice(start, start + TOGETHER)
        for saying in model.say_together(heads[part], phonemes[part], hows[part]):
            codes, spans = model.vocabulary.codes_of(saying.tokens)
            found.append(Speech(model.codec.decode(torch.from_numpy(codes)[None])[0], spans))
    num = len(found) // len(speakers)
    return [found[n * num : (n + 1) * num] for n in range(len(speakers))]
