"""Speech from recorded speakers, for training sound that is nearer to real voices.

`flite` (Debian package, command line) reads the world's own sentences in the voice of a recorded
speaker and says when each phoneme ends; WORLD (`pyworld`: Morise et al. 2016) gives them the pitch
and the vocal tract of the person and keeps the timing. Segments then move the mouth as those of
`timing.py` do. Both are needed where data is made, and nowhere else.
"""

import difflib
import shutil
import subprocess
import tempfile
import wave
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.ndimage import gaussian_filter1d

from avatar_v.base.seeds import stream
from avatar_v.types import SAMPLE_RATE_HZ, SAMPLES_PER_FRAME
from avatar_v.world.lexicon import VOWELS, Sentence, sentence
from avatar_v.world.speech import Speech, heard
from avatar_v.world.style import Habits
from avatar_v.world.timing import Segment, SpokenWord
from avatar_v.world.voice import Voice, with_noise

SPEAKERS = {"slt": 15.0, "rms": 17.3, "awb": 17.0}
"""flite's voices, and about how long their vocal tracts are in cm (our estimate)."""

_NAMES = {"pau": "SIL", "ssil": "SIL", "ax": "AH", "axr": "ER", "el": "L", "em": "M", "en": "N"}
_NAMES |= {"zh": "SH"}  # the lexicon has no zh; the mouth is the same
_LOUD = 0.06  # root mean square of a sentence, before the gains
_PAUSE_KEPT_S = 0.06  # of flite's own silence at either end of a sentence


@dataclass(frozen=True)
class Phone:
    """A phoneme of `lexicon.PHONEMES` that a recorded speaker says."""

    name: str
    start_s: float
    end_s: float


def say_recorded(speech_id: int, voice: Voice, style: Habits, num_frames: int) -> Speech:
    """The sentences of speech ``speech_id`` as a recorded speaker says them, in the pitch and with
    the tract of ``voice``; as long and as paired with a mouth as `speech.say`.

    ValueError without `flite` and `pyworld`, for fewer than one frame or an id outside the splits.
    """
    require_tools()
    if num_frames < 1:
        raise ValueError(f"speech has at least 1 frame, got {num_frames}")
    rng = stream("recorded speech", speech_id)
    names = tuple(SPEAKERS)
    speaker = names[stream("recorded speaker", voice.person_id).integers(len(names))]
    num_samples = num_frames * SAMPLES_PER_FRAME
    segments: list[Segment] = []
    words: list[SpokenWord] = []
    pieces: list[np.ndarray] = []
    gain_db = rng.normal(0, 4)
    now = _silence(segments, pieces, 0, rng.uniform(0.06, 0.35))
    index = 0
    while now < num_samples:
        said = sentence(speech_id, index)
        sound, phones = _trimmed(*read_aloud(punctuated(said), speaker, 1 / style.speaking_rate))
        sound = in_voice(sound, voice, SPEAKERS[speaker])
        sound *= _LOUD / max(float(np.sqrt(np.mean(sound**2))), 1e-6)
        start_s = now / SAMPLE_RATE_HZ
        own, spoken, effort_db = _segments(said, phones, start_s, len(words), gain_db, rng)
        pieces.append(sound * _gain(effort_db, own, start_s, len(sound)))
        segments += own
        words += spoken
        now = _silence(
            segments, pieces, now + len(sound), rng.uniform(0.06, 0.35) * style.pause_length
        )
        index += 1
    audio = with_noise(np.concatenate(pieces)[:num_samples], voice, speech_id)
    return heard(speech_id, tuple(segments), tuple(words), audio, num_frames)


def require_tools() -> None:
    """ValueError that names what recorded voices need and is not installed."""
    missing = []
    if shutil.which("flite") is None:
        missing.append("the command flite (apt-get install flite)")
    try:
        import pyworld  # noqa: F401  # pyright: ignore
    except ImportError:
        missing.append("the package pyworld (pip install pyworld)")
    if missing:
        raise ValueError(f"recorded voices need {' and '.join(missing)}")


def punctuated(said: Sentence) -> str:
    """The sentence as text: a comma at each break, and how it ends."""
    texts = [w.text + "," * (i in said.breaks) for i, w in enumerate(said.words)]
    return " ".join(texts).rstrip(",") + ("?" if said.question else ".")


def read_aloud(text: str, speaker: str, stretch: float) -> tuple[np.ndarray, list[Phone]]:
    """flite's sound of ``text`` at 16 kHz in [-1, 1], and its phonemes; ``stretch`` slows down."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "said.wav"
        command = ["flite", "-voice", speaker, "--setf", f"duration_stretch={stretch:.3f}"]
        command += ["-t", text, "-o", str(file), "-psdur"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        with wave.open(str(file)) as opened:
            rate_hz = opened.getframerate()
            samples = np.frombuffer(opened.readframes(opened.getnframes()), "<i2")
    if rate_hz != SAMPLE_RATE_HZ:
        raise ValueError(f"flite's {speaker} speaks at {rate_hz} Hz, expected {SAMPLE_RATE_HZ}")
    return samples / 32768.0, parse_phones(done.stdout)


def parse_phones(text: str) -> list[Phone]:
    """What flite prints with ``-psdur``, ``hh:0.116 ax:0.164 …``: names and ends in seconds."""
    phones: list[Phone] = []
    for entry in text.split():
        name, end = entry.rsplit(":", 1)
        start_s = phones[-1].end_s if phones else 0.0
        phones.append(Phone(_NAMES.get(name, name.upper()), start_s, float(end)))
    return phones


def in_voice(sound: np.ndarray, voice: Voice, tract_cm: float) -> np.ndarray:
    """A speaker's sound with the pitch, the intonation and the tract of ``voice``, timed alike.

    Spectral envelopes are stretched by the ratio of the tracts, as `voice.py` scales formants.
    """
    import pyworld  # pyright: ignore

    f0, times = pyworld.dio(sound, SAMPLE_RATE_HZ)
    f0 = pyworld.stonemask(sound, f0, times, SAMPLE_RATE_HZ)
    envelope = pyworld.cheaptrick(sound, f0, times, SAMPLE_RATE_HZ)
    noisiness = pyworld.d4c(sound, f0, times, SAMPLE_RATE_HZ)
    voiced = f0 > 0
    if voiced.any():
        moves = np.log2(f0[voiced] / np.median(f0[voiced])) * (0.5 + voice.intonation)
        f0[voiced] = np.clip(voice.pitch_hz * 2**moves, 60, 400)
    bins = np.arange(envelope.shape[1])
    source = np.clip(bins * voice.tract_length_cm / tract_cm, 0, bins[-1])
    low = source.astype(int)
    high, share = np.minimum(low + 1, bins[-1]), source - low
    log = np.log(envelope)
    envelope = np.exp(log[:, low] * (1 - share) + log[:, high] * share)
    made = pyworld.synthesize(f0, np.ascontiguousarray(envelope), noisiness, SAMPLE_RATE_HZ)
    return np.pad(made, (0, max(0, len(sound) - len(made))))[: len(sound)]


def _trimmed(sound: np.ndarray, phones: list[Phone]) -> tuple[np.ndarray, list[Phone]]:
    """Without most of the silence at both ends, in whole samples."""
    spoken = [phone for phone in phones if phone.name != "SIL"]
    first = max(0, round((spoken[0].start_s - _PAUSE_KEPT_S) * SAMPLE_RATE_HZ))
    last = min(len(sound), round((spoken[-1].end_s + _PAUSE_KEPT_S) * SAMPLE_RATE_HZ))
    offset_s, length_s = first / SAMPLE_RATE_HZ, (last - first) / SAMPLE_RATE_HZ
    kept = []
    for phone in phones:
        start_s, end_s = np.clip(np.array([phone.start_s, phone.end_s]) - offset_s, 0, length_s)
        if end_s > start_s:
            kept.append(Phone(phone.name, float(start_s), float(end_s)))
    if kept[-1].end_s < length_s:
        kept.append(Phone("SIL", kept[-1].end_s, length_s))
    return sound[first:last], kept


def _silence(segments: list[Segment], pieces: list[np.ndarray], now: int, duration_s: float) -> int:
    """Add a pause; returns the sample behind it."""
    num = round(duration_s * SAMPLE_RATE_HZ)
    pieces.append(np.zeros(num))
    start_s, end_s = now / SAMPLE_RATE_HZ, (now + num) / SAMPLE_RATE_HZ
    segments.append(Segment("SIL", start_s, end_s, 0.0, 0.0, False, 0.0, -1))
    return now + num


def _segments(
    said: Sentence,
    phones: list[Phone],
    start_s: float,
    first_word: int,
    gain_db: float,
    rng: np.random.Generator,
) -> tuple[list[Segment], list[SpokenWord], list[float]]:
    """Segments and words of a sentence, and the loudness of each segment in dB."""
    of_word, stressed = matched(said, [phone.name for phone in phones])
    loudness = gain_db + rng.normal(0, 2) + rng.normal(0, 3, len(said.words))
    segments, effort_db = [], []
    for phone, word, stress in zip(phones, of_word, stressed, strict=True):
        level = float(loudness[word]) if word >= 0 else float(loudness.mean())
        where = first_word + word if word >= 0 else -1
        times = start_s + phone.start_s, start_s + phone.end_s
        segments.append(Segment(phone.name, *times, float(stress), level, False, 0.0, where))
        effort_db.append(level)
    words, end_s = [], start_s
    for i, word in enumerate(said.words):
        own = [s for s in segments if s.word == first_word + i]
        begin_s = own[0].start_s if own else end_s
        end_s = own[-1].end_s if own else end_s
        words.append(SpokenWord(word.text, begin_s, end_s))
    return segments, words, effort_db


def matched(said: Sentence, names: list[str]) -> tuple[list[int], list[bool]]:
    """The word of each of a speaker's phonemes (-1 in pauses), and whether it carries stress.

    A speaker's pronunciation differs from the lexicon's in some sounds; what stands between equal
    ones is spread evenly.
    """
    known = [(w, i, name) for w, word in enumerate(said.words)
             for i, name in enumerate(word.phonemes)]  # fmt: skip
    spoken = [i for i, name in enumerate(names) if name != "SIL"]
    of_word, stressed = [-1] * len(names), [False] * len(names)
    pattern = difflib.SequenceMatcher(
        None, [names[i] for i in spoken], [name for *_, name in known], autojunk=False
    )
    for _, a, a_end, b, b_end in pattern.get_opcodes():
        for i in range(a, a_end):
            at = b + (i - a) * (b_end - b) // (a_end - a)
            word, place, _ = known[min(at, len(known) - 1)]
            of_word[spoken[i]] = word
            is_vowel = names[spoken[i]] in VOWELS
            stressed[spoken[i]] = is_vowel and place == said.words[word].stressed and b_end > b
    return of_word, stressed


def _gain(effort_db: list[float], segments: list[Segment], start_s: float, num: int) -> np.ndarray:
    """The loudness of segments as a smooth factor for each sample."""
    step = SAMPLE_RATE_HZ // 200
    middle_s = start_s + (np.arange(-(-num // step)) + 0.5) * step / SAMPLE_RATE_HZ
    index = np.searchsorted([s.end_s for s in segments], middle_s, "right")
    level = np.array(effort_db)[np.minimum(index, len(segments) - 1)]
    level = gaussian_filter1d(level, 0.03 * 200, mode="nearest")
    at = (np.arange(num) + 0.5) / step - 0.5
    return 10 ** (np.interp(at, np.arange(len(level)), level) / 20)
