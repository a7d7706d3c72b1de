"""Two drawn persons talk in turns, and what the face of the one who listens then does.

While one speaks the other is silent. Who listens nods behind a statement, raises the brows behind a
question, hardly ever nods where a sentence only pauses, and looks at the partner. The pauses inside
sentences are as long as those behind them, so what tells them apart is the melody: it falls at the
end of a statement and rises at the end of a question. A rule on pauses (motion/listening.py) hears
none of that.

All of it is a function of ids, and a longer dialogue begins like a shorter.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base.seeds import derive, stream
from avatar_v.motion.listening import NOD_RAD, NOD_S, REST_S, SECOND
from avatar_v.types import FRAME_RATE_HZ, MOTION_NAMES
from avatar_v.world.lexicon import sentence
from avatar_v.world.speech import Speech, frame_times_s, spoken
from avatar_v.world.splits import split_of
from avatar_v.world.style import Habits
from avatar_v.world.timing import PhraseEnd, PhraseKind, Writer, pause_behind, say_sentence
from avatar_v.world.voice import Voice

MOST_SENTENCES = 3
"""Of a turn."""
GAP_S = (0.1, 0.6)
"""From the last word of a turn to the next turn."""
BREAK_S = (0.28, 0.5)
"""Of a pause inside a sentence: enough for the rule of motion/listening.py to nod there."""
DELAY_S = (0.15, 0.4)
"""From the last word of a phrase to the nod, or to the brows."""
BROW_S = 0.5
"""As long the brows are up."""
_RAMP_S = 0.2  # of the gaze, to the partner and back
_PITCH, _BROW = MOTION_NAMES.index("pitch"), MOTION_NAMES.index("brow")
_GAZE = [MOTION_NAMES.index(name) for name in ("gaze_x", "gaze_y")]


@dataclass(frozen=True)
class DialogueSide:
    """What one person says in a dialogue. Turns and ends begin within it."""

    speech: Speech
    turns_s: tuple[tuple[float, float], ...]  # from the first word of a turn to its last
    ends: tuple[PhraseEnd, ...]


@dataclass(frozen=True)
class ListeningHabits:
    """How one person listens."""

    person_id: int
    nod_rate: float  # probability of a nod behind a statement
    break_nod_rate: float  # and at a pause inside a sentence
    nod_rad: float  # depth of a nod's first dip
    second_dip_rate: float  # probability that a nod has two
    brow_raise: float  # behind a question
    gaze_kept: float  # factor on looking elsewhere while the partner speaks


LISTENING_RANGES = {
    "nod_rate": (0.75, 0.95),
    "break_nod_rate": (0.05, 0.15),
    "nod_rad": NOD_RAD,
    "second_dip_rate": (0.3, 0.7),
    "brow_raise": (0.5, 0.7),
    "gaze_kept": (0.2, 0.4),
}
"""Of each habit over persons, who have it uniformly."""


@dataclass(frozen=True)
class ListeningEvent:
    """The end of a phrase of the partner, and what the listener's face does then."""

    kind: PhraseKind
    end_s: float  # of the phrase's last word
    nods: bool
    start_s: float  # of the nod or the brows, if there are any
    dips: int  # of the nod; 0: none
    nod_rad: float  # depth of its first dip, 0 without
    brow: float  # how far the brows go up, 0 but behind questions

    @property
    def stop_s(self) -> float:
        """When the nod or the brows are done; the beginning without either."""
        return self.start_s + (self.dips * NOD_S if self.nods else BROW_S * (self.brow != 0))


def sample_listening(person_id: int) -> ListeningHabits:
    """How a person listens. ValueError for an id outside the splits."""
    split_of(person_id)
    rng = stream("listening habits", person_id)
    return ListeningHabits(person_id, *(float(rng.uniform(*r)) for r in LISTENING_RANGES.values()))


def converse(
    dialogue_id: int,
    voices: tuple[Voice, Voice],
    habits: tuple[Habits, Habits],
    num_frames: int,
    frame_rate_hz: int = FRAME_RATE_HZ,
) -> tuple[DialogueSide, DialogueSide]:
    """The sides of a dialogue of two persons, of ``num_frames`` each, in the persons' order.

    In the other order the same two say the same. Nobody whispers, since whispers have no melody.
    ValueError for one person twice, fewer than one frame, or an id outside the splits.
    """
    first, second = (style.person_id for style in habits)
    if first == second:
        raise ValueError(f"a dialogue has two persons, got {first} twice")
    if num_frames < 1:
        raise ValueError(f"a dialogue has at least 1 frame, got {num_frames}")
    talkers = [_Talker(dialogue_id, style) for style in habits]
    order = sorted(talkers, key=lambda talker: talker.style.person_id)
    _take_turns(dialogue_id, order, num_frames / frame_rate_hz)
    one, other = (
        talker.side(dialogue_id, voice, num_frames, frame_rate_hz)
        for talker, voice in zip(talkers, voices, strict=True)
    )
    return one, other


def listening_events(
    dialogue_id: int, habits: ListeningHabits, ends: Sequence[PhraseEnd]
) -> tuple[ListeningEvent, ...]:
    """What a person does at the ends of the partner's phrases (`DialogueSide.ends`)."""
    events: list[ListeningEvent] = []
    rested_s = 0.0
    for number, end in enumerate(ends):
        rng = stream("listening", dialogue_id, habits.person_id, number)
        draw_nod, draw_dips = rng.random(2)
        start_s = end.end_s + rng.uniform(*DELAY_S)
        rates = {"statement": habits.nod_rate, "break": habits.break_nod_rate, "question": 0.0}
        nods = bool(draw_nod < rates[end.kind]) and start_s >= rested_s
        event = ListeningEvent(
            kind=end.kind,
            end_s=end.end_s,
            nods=nods,
            start_s=start_s,
            dips=(1 + int(draw_dips < habits.second_dip_rate)) if nods else 0,
            nod_rad=habits.nod_rad if nods else 0.0,
            brow=habits.brow_raise if end.kind == "question" else 0.0,
        )
        if nods:
            rested_s = event.stop_s + REST_S
        events.append(event)
    return tuple(events)


def with_listening(
    motion: Float[Tensor, "f m"],
    events: Sequence[ListeningEvent],
    partner: DialogueSide,
    habits: ListeningHabits,
) -> Float[Tensor, "f m"]:
    """The motion of `motion_track` with nods and brows, and with the gaze on the partner, who
    speaks."""
    speech = partner.speech
    times_s = frame_times_s(speech.num_frames, speech.frame_rate_hz)
    pitch, brow = np.zeros_like(times_s), np.zeros_like(times_s)
    for event in events:
        dip = (times_s - event.start_s) / NOD_S
        depth_rad = event.nod_rad * SECOND ** np.floor(dip.clip(0, event.dips))
        pitch -= depth_rad * _bumps(dip, event.dips)
        brow += event.brow * _bumps((times_s - event.start_s) / BROW_S, 1)
    kept = 1 - (1 - habits.gaze_kept) * _spoken_to(times_s, partner.turns_s)
    heard = motion.double()
    heard[:, _PITCH] += torch.from_numpy(pitch)
    heard[:, _BROW] = (heard[:, _BROW] + torch.from_numpy(brow)).clamp(-1, 1)
    heard[:, _GAZE] *= torch.from_numpy(kept)[:, None]
    return heard.float()


class _Talker:
    """One of two, who speaks and is silent."""

    def __init__(self, dialogue_id: int, style: Habits) -> None:
        self.style = style
        self.writer = Writer()
        self.turns_s: list[tuple[float, float]] = []
        self._gain_db = stream("dialogue gain", dialogue_id, style.person_id).normal(0, 4)

    def wait(self, until_s: float) -> None:
        self.writer.silence(until_s - self.writer.now_s)

    def speak(self, dialogue_id: int, sentences: range, rng: np.random.Generator) -> float:
        """Take a turn; returns when it ends."""
        writer, start_s = self.writer, self.writer.now_s
        for index in sentences:
            if index > sentences.start:
                pause_behind(writer, self.style, self._gain_db, rng)
            said = sentence(dialogue_id, index)
            say_sentence(writer, said, self.style, self._gain_db, False, rng, break_s=BREAK_S)
        self.turns_s.append((start_s, writer.now_s))
        return writer.now_s

    def side(
        self, dialogue_id: int, voice: Voice, num_frames: int, frame_rate_hz: int
    ) -> DialogueSide:
        duration_s = num_frames / frame_rate_hz
        # Each hears the noise of another room, so the sounds have seeds of their own.
        seed_id = derive("side of a dialogue", dialogue_id, self.style.person_id)
        segments, words = tuple(self.writer.segments), tuple(self.writer.words)
        speech = spoken(seed_id, segments, words, voice, num_frames, frame_rate_hz)
        return DialogueSide(
            dataclasses.replace(speech, speech_id=dialogue_id),
            tuple(turn for turn in self.turns_s if turn[0] < duration_s),
            tuple(end for end in self.writer.ends if end.end_s < duration_s),
        )


def _take_turns(dialogue_id: int, talkers: list[_Talker], duration_s: float) -> None:
    """Both talk, and are silent, for at least so long."""
    rng = stream("dialogue", dialogue_id)
    begins, lead_s = int(rng.integers(2)), rng.uniform(0.06, 0.35)
    for talker in talkers:
        talker.wait(lead_s)
    num_said = 0
    for turn in itertools.count():
        if talkers[0].writer.now_s >= duration_s:
            return
        speaker, listener = talkers[(begins + turn) % 2], talkers[(begins + turn + 1) % 2]
        rng = stream("turn", dialogue_id, turn)
        sentences = range(num_said, num_said + int(rng.integers(1, MOST_SENTENCES + 1)))
        end_s = speaker.speak(dialogue_id, sentences, rng) + rng.uniform(*GAP_S)
        speaker.wait(end_s)
        listener.wait(end_s)
        num_said = sentences.stop


def _bumps(phase: np.ndarray, num: int) -> np.ndarray:
    """So many bumps of height 1, one behind the other; 0 before and behind them."""
    inside = (phase > 0) & (phase < num)
    return np.where(inside, np.sin(np.pi * phase) ** 2, 0.0)


def _spoken_to(times_s: np.ndarray, turns_s: Sequence[tuple[float, float]]) -> np.ndarray:
    """1 while the partner has the turn, else 0, with smooth ramps behind both ends."""
    level = np.zeros_like(times_s)
    for start_s, stop_s in turns_s:
        ramp = np.minimum(times_s - start_s, stop_s + _RAMP_S - times_s) / _RAMP_S
        ramp = ramp.clip(0, 1)
        level = np.maximum(level, ramp * ramp * (3 - 2 * ramp))
    return level
