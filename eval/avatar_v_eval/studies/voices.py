"""Voices that are trained here, of speakers who were never heard (recipes/voices).

Each TEST speaker of a corpus is heard for ten seconds and then says other sentences of theirs,
whose true recordings stand beside. Whose voice it is is judged by a recording that is not the
prompt. Resemblyzer and PocketSphinx are rewards of `grpo.yaml`; the pitch and the mean spectrum are
of nothing that was trained.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from avatar_v.base import checks
from avatar_v.types import SAMPLE_RATE_HZ, SAMPLES_PER_FRAME
from avatar_v.voices.corpus import world
from avatar_v.voices.model import Drawing, VoiceModel, vector_of
from avatar_v.voices.phonemes import EMOTIONS
from avatar_v.voices.rewards import pause_error, phoneme_error, rate_error
from avatar_v.voices.sequences import asked_of
from avatar_v.voices.shipped import TRAINED, engine_folder
from avatar_v_eval.intervals import mean_interval, rate
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.rollout import Rollout, add_sampling_options
from avatar_v_eval.studies.voices_heard import write_listening_set
from avatar_v_eval.studies.voices_lips import Said, can_speak, lips
from avatar_v_eval.studies.voices_said import (
    PROMPT_S,
    Sound,
    Speaker,
    Speech,
    read_speakers,
    rebuilt,
    speeches,
    true_speeches,
)

MEASURES = {
    "own": "likeness to the speaker (cosine)",
    "others": "likeness to the other speakers (cosine, mean)",
    "phonemes": "phoneme error by PocketSphinx, English",
    "pauses": "share of pauses and speech at the wrong place",
    "length": "|log| of the length over the recording's",
    "pitch": "distance of the median pitch from the speaker's (semitones)",
    "spectrum": "distance of the mean spectrum from the speaker's (dB)",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--corpus", type=Path, required=True, help="avatar-v-data voices --split test")
    add("--models", nargs="+", required=True, metavar="NAME=DIR", help="models to compare")
    add("--speakers", type=int, default=64)
    add("--said", type=int, default=2, help="sentences of each that are said (default: 2)")
    add("--timed", type=int, default=8, help="speeches that are timed alone (default: 8)")
    add("--listening", type=Path, metavar="DIR", help="write a study for avatar-v-eval rate, too")
    add("--lips", type=int, default=0, metavar="N", help="persons of the world that say it, too")
    add("--first", type=int, default=0, help="number of the first of them")
    add_sampling_options(parser)


def measure(options: argparse.Namespace) -> Findings:
    checks.count("--speakers", options.speakers, least=2)
    models = {}
    for word in options.models:
        name, equals, folder = word.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"--models takes NAME=DIR, not {word}")
        models[name] = VoiceModel.load(engine_folder(folder), TRAINED)
    speakers = read_speakers(options.corpus, options.speakers, options.said)
    first = next(iter(models.values()))
    said = {"true": [true_speeches(one) for one in speakers]}
    said["rebuilt"] = [rebuilt(first, one) for one in speakers]
    for name, model in models.items():
        said[name] = speeches(model, speakers, options.seed)
    if options.listening is not None:
        write_listening_set(options.listening, [one.prompt for one in speakers], said)
    vectors = np.stack([unit(vector_of(one.other)) for one in speakers])
    numbers, tables = {}, {}
    for name, found in said.items():
        tables[name] = scores(speakers, found, vectors)
        for key, values in tables[name].items():
            numbers |= _mean(f"{key}_{name}", values, f"{MEASURES[key]}: {name}")
        nearest = nearest_own(found, vectors)
        numbers[f"nearest_{name}"] = rate(nearest, len(speakers)).described(
            f"of {len(speakers)} speakers nearest to their own: {name}"
        )
    names = list(models)
    for name in names[1:]:
        for key in MEASURES:
            differ = tables[name][key] - tables[names[0]][key]
            words = f"{MEASURES[key]}: {name} less {names[0]}"
            numbers |= _mean(f"{key}_{name}_less_{names[0]}", differ, words)
    if options.lips:
        rollout = Rollout.load(options.weights, options)
        numbers |= lips(rollout, spoken(speakers, said, options.lips), first=options.first)
    for name, model in models.items():
        numbers |= manners(name, model, speakers, options.seed)
    numbers |= timed(first, speakers[: options.timed], options.seed)
    return Findings(
        "Voices of speakers never heard",
        numbers,
        notes=[
            f"{len(speakers)} test speakers, {options.said} sentences each, prompts of "
            f"{PROMPT_S:g} s; a speaker is a unit; likeness by Resemblyzer to a recording that is "
            "not the prompt; true: the speaker's own recording, rebuilt: that through the codec",
            f"time: of {names[0]}, {options.timed} speeches one at a time",
        ],
    )


def scores(
    speakers: Sequence[Speaker], found: Sequence[Sequence[Speech]], vectors: np.ndarray
) -> dict[str, np.ndarray]:
    """Of each measure its mean of every speaker; NaN where a speaker has none."""
    rows: dict[str, list[float]] = {key: [] for key in MEASURES}
    for at, (speaker, said) in enumerate(zip(speakers, found, strict=True)):
        near = vectors @ unit(vector_of(torch.cat([one.sound for one in said])))
        rows["own"].append(near[at])
        rows["others"].append(float(np.delete(near, at).mean()))
        pairs = list(zip(speaker.said, said, strict=True))
        english = [pair for pair in pairs if pair[0].language == "en"]
        errors = [phoneme_error(one.sound, row.phonemes) for row, one in english]
        rows["phonemes"].append(float(np.mean(errors)) if errors else np.nan)
        rows["pauses"].append(
            float(np.mean([pause_error(one.sound, row.phonemes, one.spans) for row, one in pairs]))
        )
        lengths = [
            rate_error(len(one.sound) // SAMPLES_PER_FRAME, len(row.sound) / SAMPLES_PER_FRAME)
            for row, one in pairs
        ]
        rows["length"].append(float(np.mean(lengths)))
        sound = torch.cat([one.sound for one in said])
        true = torch.from_numpy(np.concatenate([row.sound for row in speaker.said]))
        rows["pitch"].append(abs(median_pitch(sound) - median_pitch(true)))
        rows["spectrum"].append(
            float(np.sqrt(np.mean((mean_spectrum(sound) - mean_spectrum(true)) ** 2)))
        )
    return {key: np.array(values, float) for key, values in rows.items()}


def nearest_own(found: Sequence[Sequence[Speech]], vectors: np.ndarray) -> int:
    """Of how many speakers the speech is nearest to their own recording."""
    near = [vectors @ unit(vector_of(torch.cat([one.sound for one in said]))) for said in found]
    return int(sum(int(np.argmax(row)) == at for at, row in enumerate(near)))


def median_pitch(sound: Sound) -> float:
    """In semitones; NaN of a sound without voice."""
    pitch, _ = world().dio(sound.double().numpy(), SAMPLE_RATE_HZ)
    voiced = pitch[pitch > 0]
    return float(12 * np.log2(np.median(voiced))) if len(voiced) else float("nan")


def mean_spectrum(sound: Sound) -> np.ndarray:
    """Of the louder half of its windows, in dB around their mean, up to 4 kHz."""
    spectra = torch.stft(
        sound.float(), 512, 128, window=torch.hann_window(512), return_complex=True
    ).abs().square()[1:129]  # fmt: skip
    loud = spectra.sum(0)
    levels = 10 * torch.log10(spectra[:, loud >= loud.median()].mean(1) + 1e-10)
    return (levels - levels.mean()).numpy()


def manners(
    name: str, model: VoiceModel, speakers: Sequence[Speaker], seed: int
) -> dict[str, Number]:
    """What emotions change of one sentence of each speaker, said with the same draws."""
    made = {
        emotion: speeches(model, speakers, seed, emotion=emotion, most=1) for emotion in EMOTIONS
    }
    numbers = {}
    for emotion in EMOTIONS[1:]:
        rows = []
        for (plain,), (felt,) in zip(made[EMOTIONS[0]], made[emotion], strict=True):
            rows.append(
                (
                    len(felt.sound) / len(plain.sound),
                    median_pitch(felt.sound) - median_pitch(plain.sound),
                    float(10 * (felt.sound.square().mean() / plain.sound.square().mean()).log10()),
                )
            )
        for key, words, values in zip(
            ("length", "pitch", "level"),
            ("length over neutral", "pitch above neutral (semitones)", "level above neutral (dB)"),
            np.array(rows).T,
            strict=True,
        ):
            numbers |= _mean(f"{emotion}_{key}_{name}", values, f"{emotion}: {words}: {name}")
    return numbers


def spoken(
    speakers: Sequence[Speaker], said: Mapping[str, Sequence[Sequence[Speech]]], num: int
) -> dict[str, Said]:
    """The first sentences that persons of the world can say, one of a speaker, in each voice.
    ValueError where there are too few."""
    found: dict[str, list] = {name: [] for name in said}
    for at, speaker in enumerate(speakers):
        for number, row in enumerate(speaker.said):
            sounds = {name: own[at][number] for name, own in said.items()}
            lengths = [len(one.sound) // SAMPLES_PER_FRAME for one in sounds.values()]
            if row.language == "en" and can_speak(row.phonemes, min(lengths)):
                for name, one in sounds.items():
                    found[name].append((row.phonemes, one.spans, one.sound))
                break
    if len(next(iter(found.values()))) < num:
        raise ValueError(f"--lips {num}: so many speakers have no English sentence long enough")
    return {name: rows[:num] for name, rows in found.items()}


def timed(model: VoiceModel, speakers: Sequence[Speaker], seed: int) -> dict[str, Number]:
    """Seconds to the first sound, and seconds of computing a second of speech, one at a time."""
    firsts, ratios = [], []
    for at, speaker in enumerate(speakers):
        one = speaker.said[0]
        voice = model.hear(speaker.prompt)  # once for all that it says
        started, num = time.perf_counter(), 0
        head = model.head(one.phonemes, voice, asked_of(one))
        for piece in model.sound(head, one.phonemes, Drawing(seed=seed + at)):
            if num == 0:
                firsts.append(time.perf_counter() - started)
            num += len(piece)
        ratios.append((time.perf_counter() - started) * SAMPLE_RATE_HZ / num)
    return {
        "first_sound": mean_interval(np.array(firsts)).described("seconds to the first sound"),
        "real_time": mean_interval(np.array(ratios)).described(
            "seconds of computing a second of speech"
        ),
    }


def _mean(key: str, values: np.ndarray, words: str) -> dict[str, Number]:
    """Of the speakers that have one."""
    known = values[np.isfinite(values)]
    return {key: mean_interval(known).described(words)} if len(known) > 1 else {}


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / max(float(np.linalg.norm(vector)), 1e-9)
