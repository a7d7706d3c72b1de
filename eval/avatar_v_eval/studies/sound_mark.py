"""The mark in a sound: what it survives, how often it is seen where there is none, how loud it is.

Ten seconds of each of many voices (drawn ones, and recorded ones that flite speaks with) and, with
``--media``, of filmed people are marked and then attacked: encoded, resampled, cut, noisy, faster.
The same sounds without a mark are read with several keys. PESQ of the marked sound against the
plain one is measured where `pesq` is installed.
"""

import argparse
import hashlib
import importlib
import importlib.util
import io
import math
import random
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import av
import av.filter
import numpy as np
import torch
from av.audio.stream import AudioStream
from jaxtyping import Float
from torch import Tensor

from avatar_v.base import checks
from avatar_v.engines.drawn_voice import DrawnVoice
from avatar_v.media.containers import AUDIO_FORMATS, VIDEO_FORMATS, open_bytes
from avatar_v.media.delivered import SoundFormat
from avatar_v.media.sound import normalise_loudness, resampled
from avatar_v.safety.detect import MOST_FALSE
from avatar_v.safety.sound_detect import detect_sound
from avatar_v.safety.sound_mark import SoundMarker
from avatar_v.safety.watermark import Mark
from avatar_v.types import SAMPLE_RATE_HZ, SAMPLES_PER_FRAME
from avatar_v_eval.intervals import mean_interval, rate
from avatar_v_eval.processes import mapped
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.studies.sound import FLITE, TEXTS, filmed_voices, flite_says

Sound = Float[Tensor, " s"]
LENGTH_S = 10
NUM_KEYS = 4
"""Keys that a sound without a mark is read with."""
DRAWN_TEXT = (
    "We opened the old window this morning, and then my father made some warm bread for us. "
    "The teacher walked to the river with the children, and she was happy to see the water. "
    "I think that the new house is very good, but my brother wants to live near the school. "
)
ATTACKS = {
    "none": "as it is made",
    "aac": "AAC as generate writes it",
    "mp3_64": "mp3, 64 kb/s",
    "mp3_128": "mp3, 128 kb/s",
    "opus_24": "opus, 24 kb/s",
    "opus_64": "opus, 64 kb/s",
    "at_8000": "at 8 kHz",
    "at_44100": "at 44.1 kHz",
    "cut": "the first 1.3 s cut off",
    "noise": "white noise, 30 dB below",
    "speed": "played 1.02 times as fast, higher",
    "tempo": "played 1.02 times as fast, as high (atempo)",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--drawn", type=int, default=20, help="drawn voices")
    add("--flite", type=int, default=12, help="clips of flite's four voices")
    add("--media", type=Path, help="folder of clips of filmed people")
    add("--workers", type=int, default=1, help="processes")


def measure(options: argparse.Namespace) -> Findings:
    checks.count("--drawn", options.drawn, least=2)
    if options.flite and shutil.which("flite") is None:
        raise ValueError("no flite, which speaks: apt-get install flite")
    torch.set_num_threads(1)
    made = [partial(drawn, number) for number in range(options.drawn)]
    made += [partial(recorded, number) for number in range(options.flite)]
    rows = mapped(lambda i: read(made[i](), i), len(made), "made voices", options.workers)
    numbers = summarise(rows, "", "")
    if options.media is not None:
        filmed = [_levelled(sound) for sound in filmed_voices(options.media).values()]
        rows = mapped(
            lambda i: read(filmed[i], 1000 + i), len(filmed), "filmed voices", options.workers
        )
        numbers |= summarise(rows, "_filmed", "filmed people, ")
    return Findings(
        f"The mark in {LENGTH_S} s of speech: attacks, false alarms, loudness",
        numbers,
        notes=[
            f"{options.drawn} drawn voices and {options.flite} clips of flite's {len(FLITE)} "
            "voices; the width of cells and bands was chosen on flite's voices with other texts",
            f"a plain sound is read with {NUM_KEYS} keys; the bound of false alarms is "
            f"{MOST_FALSE:g} a sound",
        ],
    )


def drawn(number: int) -> Sound:
    """A drawn voice."""
    return _levelled(DrawnVoice(number).speak(DRAWN_TEXT, seed=number))


def recorded(number: int) -> Sound:
    """One of flite's voices, with the texts in an order of its own."""
    texts = random.Random(number).sample(TEXTS, len(TEXTS))
    return _levelled(flite_says(FLITE[number % len(FLITE)], " ".join(texts)))


def read(sound: Sound, number: int) -> dict[str, float]:
    """All measures of one sound, with a mark of its own and without."""
    id_ = hashlib.sha256(b"sound %d" % number).hexdigest()[:8]
    marker, begin = SoundMarker(Mark(id_), SAMPLE_RATE_HZ), time.process_time()
    parts = [marker(part[None])[0] for part in sound.split(4 * SAMPLES_PER_FRAME)]
    seconds = time.process_time() - begin
    marked = torch.cat(parts)
    row = {
        "cost": seconds / (len(sound) / SAMPLE_RATE_HZ),
        "level": _level_db(marked - sound) - _level_db(sound),
    }
    if importlib.util.find_spec("pesq") is not None:
        pesq = importlib.import_module("pesq").pesq
        row["pesq"] = float(pesq(SAMPLE_RATE_HZ, sound.numpy(), marked.numpy(), "wb"))
    for name in ATTACKS:
        found = detect_sound([attacked(name, marked)])
        assert found is not None
        row[f"right_{name}"] = float(found.id == id_)
        row[f"wrong_{name}"] = float(found.id not in (None, id_))
    keys = [hashlib.sha256(b"key %d" % i).digest() for i in range(NUM_KEYS)]
    others = [found for key in keys if (found := detect_sound([sound], key)) is not None]
    row["false"] = float(sum(found.is_marked for found in others))
    row["false_z"] = max(found.z for found in others)
    return row


def attacked(name: str, sound: Sound) -> Sound:
    """A sound as ``name`` of the `ATTACKS` leaves it, at 16 kHz."""
    generator = torch.Generator().manual_seed(0)
    changes: dict[str, Callable[[], Sound]] = {
        "none": lambda: sound,
        "aac": lambda: coded(sound, "aac", "mp4", SAMPLE_RATE_HZ, SoundFormat().bit_rate),
        "mp3_64": lambda: coded(sound, "libmp3lame", "mp3", SAMPLE_RATE_HZ, 64_000),
        "mp3_128": lambda: coded(sound, "libmp3lame", "mp3", 44_100, 128_000),
        "opus_24": lambda: coded(sound, "libopus", "ogg", 48_000, 24_000),
        "opus_64": lambda: coded(sound, "libopus", "ogg", 48_000, 64_000),
        "at_8000": lambda: resampled(resampled(sound, SAMPLE_RATE_HZ, 8_000), 8_000),
        "at_44100": lambda: resampled(resampled(sound, SAMPLE_RATE_HZ, 44_100), 44_100),
        "cut": lambda: sound[round(1.3 * SAMPLE_RATE_HZ) :],
        "noise": lambda: (
            sound
            + torch.randn(len(sound), generator=generator) * 10 ** ((_level_db(sound) - 30) / 20)
        ),
        "speed": lambda: resampled(sound, round(1.02 * SAMPLE_RATE_HZ)),
        "tempo": lambda: _filtered(sound, "atempo", "1.02"),
    }
    return changes[name]()


def coded(sound: Sound, codec: str, container: str, rate_hz: int, bit_rate: int) -> Sound:
    """A sound through a codec at a rate of its own."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = cast(AudioStream, output.add_stream(codec, rate=rate_hz))
        stream.layout = "mono"
        stream.bit_rate = bit_rate
        form = stream.codec_context.format
        resampler = av.AudioResampler(form.name if form else "fltp", "mono", rate_hz)
        for frame in (*resampler.resample(_frame(sound)), *resampler.resample(None), None):
            output.mux(stream.encode(frame))
    resampler = av.AudioResampler("fltp", "mono", SAMPLE_RATE_HZ)
    with open_bytes(file.getvalue(), *VIDEO_FORMATS, *AUDIO_FORMATS) as source:
        frames = [part for one in source.decode(audio=0) for part in resampler.resample(one)]
    frames += resampler.resample(None)
    return torch.from_numpy(np.concatenate([frame.to_ndarray()[0] for frame in frames]))


def summarise(rows: list[dict[str, float]], ending: str, before: str) -> dict[str, Number]:
    """Shares and means over sounds; ``before`` begins their labels."""
    numbers = dict[str, Number]()
    for name, words in ATTACKS.items():
        right = rate(round(sum(row[f"right_{name}"] for row in rows)), len(rows))
        numbers[f"right_{name}"] = right.described(f"{before}id read: {words}")
    wrong = sum(any(row[f"wrong_{name}"] for name in ATTACKS) for row in rows)
    label = f"{before}sounds of which any of these gives a wrong id"
    numbers["wrong"] = rate(wrong, len(rows)).described(label)
    false = rate(round(sum(row["false"] for row in rows)), len(rows) * NUM_KEYS)
    numbers["false"] = false.described(f"{before}a mark found where there is none")
    largest = Number(max(row["false_z"] for row in rows), false.n)
    numbers["false_z"] = largest.described(f"{before}largest z where there is no mark")
    for name, words, unit in (
        ("level", "the mark against the speech", "dB"),
        ("pesq", "PESQ of the marked speech against the plain one (wide band, at most 4.64)", ""),
        ("cost", "seconds of one core for a second of speech", "s"),
    ):
        if name in rows[0]:
            mean = mean_interval(np.array([row[name] for row in rows]))
            numbers[name] = mean.described(f"{before}{words}", unit=unit)
    return {f"{name}{ending}": number for name, number in numbers.items()}


def _levelled(sound: Sound) -> Sound:
    return normalise_loudness(sound[: LENGTH_S * SAMPLE_RATE_HZ])


def _level_db(sound: Sound) -> float:
    return 10 * math.log10(float(sound.double().square().mean()) + 1e-12)


def _frame(sound: Sound) -> av.AudioFrame:
    frame = av.AudioFrame.from_ndarray(sound.numpy()[None], format="fltp", layout="mono")
    frame.sample_rate = SAMPLE_RATE_HZ
    return frame


def _filtered(sound: Sound, name: str, arguments: str) -> Sound:
    """A sound through a filter of FFmpeg."""
    graph = av.filter.Graph()
    source = graph.add_abuffer(sample_rate=SAMPLE_RATE_HZ, format="fltp", layout="mono")
    changed, sink = graph.add(name, arguments), graph.add("abuffersink")
    source.link_to(changed)
    changed.link_to(sink)
    graph.configure()
    parts = []
    for frame in (_frame(sound), None):
        graph.push(frame)
        try:
            while True:
                parts.append(graph.pull().to_ndarray()[0])
        except (BlockingIOError, EOFError):
            continue
    return torch.from_numpy(np.concatenate(parts))
