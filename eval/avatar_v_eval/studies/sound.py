"""What the data engine hears: second speakers, speech, English words and whose voice it is.

Sounds are joined without pictures, which these stages do not look at. Voices are of drawn people,
of flite, and of recordings: those of the clips that can be read in ``--media``, and a folder of
files for each voice in ``--voices``. A second voice is put in by its samples, as loud as the first,
for a fifth, a third or half of 5 to 10 s.
"""

import argparse
import itertools
import random
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torchmetrics.functional.text import word_error_rate

from avatar_v.base import checks
from avatar_v.media.reading import read_audio
from avatar_v.safety.policy import plain_words
from avatar_v.types import SAMPLE_RATE_HZ, SAMPLES_PER_FRAME
from avatar_v.world.clip import make_clip
from avatar_v.world.splits import persons, scenes, sentences
from avatar_v_data.curation.speech import SpeechStage
from avatar_v_data.curation.stages import FootageRecording, Result, Seen, Stage
from avatar_v_data.curation.voice import VoiceStage
from avatar_v_data.curation.words import WordStage
from avatar_v_eval.intervals import jackknife, mean_interval, rate, within_unit
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number

Sound = Float[Tensor, " s"]
FLITE = ("awb", "kal16", "rms", "slt")
TEXTS = (
    "The committee met on Thursday to talk about the new library.",
    "Nobody knew where the books would go, and the mayor asked for more time.",
    "We walked along the river and watched the boats come in before the rain began.",
    "My sister has worked as a doctor in the same small town for twenty years.",
    "If you want to leave early, please tell the driver before nine o'clock.",
    "The price of bread has gone up again, but people still buy it every morning.",
)
ONE_VOICE = ("grandmother", "producer")
"""Clips of `shared/media` whose voice is that of fashion.wav."""
SHARE = 0.1
"""Of a second voice, from which on a clip has one."""
LONGEST_S = 20


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--media", type=Path, required=True, help="folder of clips, each of another voice")
    add("--voices", type=Path, required=True, help="folder with a folder of files for each voice")
    add("--clips", type=int, default=40, help="of each kind of voice, half of them with two")
    add("--seed", type=int, default=0)


def measure(options: argparse.Namespace) -> Findings:
    checks.count("--clips", options.clips, least=4)
    if shutil.which("flite") is None:
        raise ValueError("no flite, which speaks: apt-get install flite")
    kinds = {"drawn": drawn_voices(), "synthetic": flite_voices()}
    kinds["filmed"] = filmed_voices(options.media)
    kinds["recorded"] = recorded_voices(options.voices)
    numbers: dict[str, Number] = {}
    spoken: list[bool] = []
    for kind, voices in kinds.items():
        draw = random.Random(options.seed)
        found, own = second_voices(list(voices.values()), options.clips, draw)
        spoken += own
        numbers |= {
            f"{name}_{kind}": n.described(f"{n.label}, {kind} voices") for name, n in found.items()
        }
    numbers |= speech_present(spoken, options.clips, options.seed)
    numbers |= one_voice({**kinds["filmed"], **kinds["recorded"]}, "filmed and recorded")
    numbers |= one_voice(kinds["drawn"], "drawn")
    numbers |= word_errors(max(options.clips // 4, 2))
    return Findings("What the data engine hears", numbers)


def second_voices(
    voices: Sequence[Sound], num: int, draw: random.Random
) -> tuple[dict[str, Number], list[bool]]:
    """How well a second speaker is found, and whether speech is, of each clip."""
    rows, spoken = [], []
    for number in range(num):
        has_two, (one, other) = number % 2 == 1, draw.sample(voices, 2)
        length = draw.randint(5, 10) * SAMPLE_RATE_HZ
        sound = _part(one, length, draw)
        if has_two:
            second = _part(other, round(draw.choice((0.2, 0.35, 0.5)) * len(sound)), draw)
            louder = sound.square().mean().sqrt() / second.square().mean().sqrt()
            sound = torch.cat([sound[: len(sound) - len(second)], louder * second])
        row = heard(VoiceStage(), sound)
        rows.append((has_two, row["second_voice_share"] > SHARE))
        spoken.append(row["spoken"] >= 0.5)
    return _judged("second", "a second speaker", rows), spoken


def speech_present(spoken: Sequence[bool], num: int, seed: int) -> dict[str, Number]:
    """Whether half of a clip is called speech, of speech and of silence, noise and music."""
    generator, draw = torch.Generator().manual_seed(seed), random.Random(seed)
    rows = [(True, found) for found in spoken]
    for number in range(num):
        length = draw.randint(5, 10) * SAMPLE_RATE_HZ
        noise = torch.randn(length, generator=generator)
        sound = (0.0005 * noise, 0.05 * noise, music(length, draw))[number % 3]
        rows.append((False, heard(SpeechStage(), sound)["spoken"] >= 0.5))
    return _judged("speech", "speech in half of a clip", rows)


def one_voice(voices: dict[str, Sound], kind: str) -> dict[str, Number]:
    """How often two halves of one recording are nearer than halves of two, by ``voice``."""
    halves = np.array(
        [
            [heard(VoiceStage(), half)["voice"] for half in sound.tensor_split(2)]
            for sound in voices.values()
        ]
    )
    near = np.einsum("ahv,bgv->abhg", halves, halves)
    own = near[:, :, 0, 1].diagonal()

    def statistic(index: np.ndarray) -> float:
        pairs = [near[a, b] for a, b in itertools.combinations(np.unique(index), 2)]
        return float((own[index, None] > np.ravel(pairs)).mean())

    number = within_unit(jackknife(statistic, len(halves)))
    words = f"two halves of a recording are nearer than halves of two, {kind} voices"
    return {f"voice_{kind.split()[0]}": number.described(words)}


def word_errors(num_drawn: int) -> dict[str, Number]:
    """Of PocketSphinx, by voice."""
    flite = [
        [
            word_errors_of(text, heard(WordStage(), flite_says(voice, text))["transcript"])
            for text in TEXTS
        ]
        for voice in FLITE
    ]  # a voice is the unit: its texts are alike, and all voices say the same
    drawn = []
    for number, person in enumerate(persons("test", num_drawn, 9900)):
        clip = make_clip(
            person, scenes("test", 1, 0)[0], sentences("test", 1, 9900 + number)[0],
            num_frames=200, size=32, render_video=False,
        )  # fmt: skip
        said = heard(WordStage(), clip.audio)["transcript"]
        drawn.append(word_errors_of(clip.transcript, said))
    return {
        "word_errors_synthetic": mean_interval(np.array(flite).mean(1)).described(
            "word error rate of PocketSphinx, mean of each synthetic voice"
        ),
        "word_errors_drawn": mean_interval(np.array(drawn)).described(
            "word error rate of PocketSphinx, drawn voices"
        ),
    }


def word_errors_of(said: str, found: str) -> float:
    """The word error rate of a transcript."""
    found, said = (" ".join(plain_words(text)) for text in (found, said))
    return float(word_error_rate(found, said))


def heard(stage: Stage, sound: Sound) -> Result:
    """What a stage says of a sound that is one clip, and the share of it that is speech."""
    seen = Seen(FootageRecording("", "", ""))
    seen.audio = sound[: len(sound) // SAMPLES_PER_FRAME * SAMPLES_PER_FRAME]
    num = len(seen.audio) // SAMPLES_PER_FRAME
    seen.results = {"clips": {"clips": [{"start": 0, "stop": num}]}}
    seen.results["speech"] = SpeechStage().begin(seen).finish()
    spoken_s = sum(b - a for a, b in seen.results["speech"]["speech"])
    row = {"spoken": spoken_s * SAMPLE_RATE_HZ / len(sound)}
    if not isinstance(stage, SpeechStage):
        row |= stage.begin(seen).finish()["clips"][0]
    return row


def drawn_voices() -> dict[str, Sound]:
    scene, found = scenes("test", 1, 0)[0], {}
    for number, person in enumerate(persons("test", 12, 9800)):
        speech = sentences("test", 1, 9800 + number)[0]
        clip = make_clip(person, scene, speech, num_frames=375, size=32, render_video=False)
        found[str(person)] = clip.audio
    return found


def flite_voices() -> dict[str, Sound]:
    return {voice: flite_says(voice, " ".join(TEXTS[:4])) for voice in FLITE}


def filmed_voices(folder: Path) -> dict[str, Sound]:
    paths = [path for path in sorted(folder.iterdir()) if path.suffix in (".wav", ".mp4")]
    kept = [path for path in paths if path.stem not in ONE_VOICE]
    return {path.name: read_audio(path)[: LONGEST_S * SAMPLE_RATE_HZ] for path in kept}


def recorded_voices(folder: Path) -> dict[str, Sound]:
    found = {}
    for voice in sorted(path for path in folder.iterdir() if path.is_dir()):
        parts = [read_audio(path) for path in sorted(voice.iterdir())]
        found[voice.name] = torch.cat(parts)[: 2 * LONGEST_S * SAMPLE_RATE_HZ]
    return found


def music(num: int, draw: random.Random) -> Sound:
    """Chords of plucked tones, another one every half second."""
    t, found = torch.arange(SAMPLE_RATE_HZ // 2) / SAMPLE_RATE_HZ, []
    while len(found) * len(t) < num:
        root = 110 * 2 ** (draw.randrange(24) / 12)
        tones = [
            torch.sin(2 * torch.pi * root * ratio * n * t) / n
            for ratio in (1, 5 / 4, 3 / 2) for n in range(1, 6)
        ]  # fmt: skip
        found.append(0.05 * torch.stack(tones).sum(0) * (-4 * t).exp())
    return torch.cat(found)[:num]


def _judged(name: str, what: str, rows: Sequence[tuple[bool, bool]]) -> dict[str, Number]:
    """Recall and precision of (true, found)."""
    both = sum(true and found for true, found in rows)
    num_true, num_found = (sum(row[n] for row in rows) for n in (0, 1))
    recall = rate(both, num_true).described(f"{what}, found")
    if not num_found:
        return {f"{name}_recall": recall}
    words = f"{what}: found ones that are true"
    return {f"{name}_recall": recall, f"{name}_precision": rate(both, num_found).described(words)}


def _part(sound: Sound, length: int, draw: random.Random) -> Sound:
    start = draw.randint(0, max(len(sound) - length, 0))
    return sound[start : start + length]


def flite_says(voice: str, text: str) -> Sound:
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        subprocess.run(["flite", "-voice", voice, "-t", text, file.name], check=True)
        return read_audio(file.name)
