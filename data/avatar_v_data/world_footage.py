"""Raw footage of the embedded world: recordings as they come from the internet, with the truth.

A recording is one video of many shots. In most of them its host or a guest speaks. Others are what
a data engine has to find and leave out: nobody speaks, nobody is seen, two people at once, another
voice over the mouth, sound that comes late, a blurred picture, a still. Some recordings are
uploaded twice, cut and compressed anew. `truth.jsonl` beside the videos says all of it, and no
command that curates reads it. Recordings that hold each fault of world_faults.py once, altered
copies of them and broken files are drawn besides, where they are asked for.
"""

import random
from dataclasses import dataclass, replace
from typing import Literal, get_args

from avatar_v.base import checks
from avatar_v.base.seeds import derive
from avatar_v.types import FRAME_RATE_HZ
from avatar_v.world.splits import persons, scenes
from avatar_v_data.world_faults import (
    ALTERED,
    BROKEN,
    COPIED_FRAMES,
    CROP,
    PLANTED,
    SPEED,
    Altered,
    Broken,
    PlantedShot,
)
from avatar_v_data.world_settings import MAX_SIZE

Kind = Literal["talk", "silent", "voice_over", "two", "dubbed", "late", "blurred", "still", "noise"]
Fault = Literal["", "shaky", "choppy", "light", "flicker"]
WEIGHTS: dict[Kind, float] = {
    "talk": 0.55,
    "silent": 0.06,
    "voice_over": 0.08,
    "two": 0.07,
    "dubbed": 0.06,
    "late": 0.06,
    "blurred": 0.05,
    "still": 0.04,
    "noise": 0.03,
}
"""How often a shot is of each kind."""
SHOT_S = (3.0, 9.0)
MAX_S = 3600
PLANTED_SHOT_S = (3.4, 4.4)
PLANTED_TALKS = 3  # shots without fault of a recording that holds each planted one once
DISSOLVE_FRAMES = 10
DISSOLVES = 0.2  # share of the shots that begin with one
LATE_FRAMES = (3, 10)
SCENES_OF_A_PERSON = 3
GUESTS = 0.3  # share of the talking shots
CUT_OF_A_COPY = 37  # frames that its beginning lacks


@dataclass(frozen=True)
class FootageSettings:
    """What is drawn: recordings of about ``seconds`` each, of persons of the split from ``first``
    on. Pictures are twice as wide as their ``size`` in height, in pixels. ``faults``: the share of
    the talking shots that have one. ``num_planted``: recordings besides, with each fault of
    world_faults.py, and as many of each kind of altered copy and broken file."""

    num_recordings: int
    seconds: float = 40.0
    num_persons: int = 8
    num_copies: int = 0
    size: int = 96
    split: str = "test"
    first: int = 0
    seed: int = 0
    faults: float = 0.0
    num_planted: int = 0

    def __post_init__(self) -> None:
        checks.count("--planted", self.num_planted, least=0)
        checks.count("--recordings", self.num_recordings, least=0 if self.num_planted else 1)
        checks.share("--faults", self.faults)
        checks.count("--persons", self.num_persons, least=2)
        checks.count("--size", self.size, least=8, most=4096)
        if not 0 <= self.num_copies <= self.num_recordings:
            raise ValueError(f"copies are of the recordings: 0 to {self.num_recordings}")
        if not SHOT_S[1] <= self.seconds <= MAX_S:
            raise ValueError(
                f"a recording lasts {SHOT_S[1]:g} s to {MAX_S:,} s, got {self.seconds:g}"
            )
        if self.size % 8 or not 32 <= self.size <= MAX_SIZE:
            raise ValueError(f"size is a multiple of 8 from 32 to {MAX_SIZE}, got {self.size}")


@dataclass(frozen=True)
class Shot:
    """Frames ``start`` to ``stop`` of a recording, at 25 a second."""

    start: int
    stop: int
    kind: Kind
    person: int | None  # who is seen, on the left where there are two
    scene: int
    late: int = 0  # frames by which the sound comes late
    dissolve: int = 0  # frames at its beginning that still show the shot before
    fault: Fault | PlantedShot = ""

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class DrawnRecording:
    """The truth about one file."""

    file: str
    shots: tuple[Shot, ...]
    copy_of: str = ""
    lacks: int = 0  # frames of the original that are cut off its beginning
    altered: Altered | Literal[""] = ""  # how a copy differs, and how much:
    amount: float = 0.0  # what is cropped off each side, or its speed
    broken: Broken | Literal[""] = ""  # what is left of the file


def plan_footage(settings: FootageSettings) -> list[DrawnRecording]:
    """The shots of all recordings. The same for the same settings."""
    people = persons(settings.split, settings.num_persons, settings.first)
    plans = [_plan_one(settings, number, people) for number in range(settings.num_recordings)]
    for number in range(settings.num_copies):
        plans.append(_copy(plans[number], f"again-{number:03d}.mp4"))
    planted = [_plan_planted(settings, number, people) for number in range(settings.num_planted)]
    for number, one in enumerate(planted):
        plans += [one, *(_altered(settings, number, one, how) for how in ALTERED)]
    for how in BROKEN:
        plans += [
            replace(one, file=_named(one, how), copy_of=one.file, broken=how) for one in planted
        ]
    return plans


def _plan_one(settings: FootageSettings, number: int, people: list[int]) -> DrawnRecording:
    draw = random.Random(derive("footage", settings.seed, number))
    faults = random.Random(derive("faults", settings.seed, number))
    host = number % len(people)
    guest = draw.choice([n for n in range(len(people)) if n != host])
    visit = number // len(people)  # the host's first, second … recording: another scene each
    rooms = {n: _scene(settings, n, (visit if n == host else number)) for n in (host, guest)}
    shots: list[Shot] = []
    while not shots or shots[-1].stop < settings.seconds * FRAME_RATE_HZ:
        start = shots[-1].stop if shots else 0
        stop = start + round(draw.uniform(*SHOT_S) * FRAME_RATE_HZ)
        kind = draw.choices(get_args(Kind), [WEIGHTS[name] for name in get_args(Kind)])[0]
        who = guest if draw.random() < GUESTS else host
        late = draw.randint(*LATE_FRAMES) if kind == "late" else 0
        dissolve = DISSOLVE_FRAMES if shots and draw.random() < DISSOLVES else 0
        seen = None if kind == "voice_over" else people[who]
        is_bad = kind == "talk" and faults.random() < settings.faults
        fault = faults.choice(get_args(Fault)[1:]) if is_bad else ""
        shots.append(Shot(start, stop, kind, seen, rooms[who], late, dissolve, fault))
    return DrawnRecording(f"recording-{number:03d}.mp4", tuple(shots))


def _plan_planted(settings: FootageSettings, number: int, people: list[int]) -> DrawnRecording:
    """Each fault once, in any order, of two persons in turn, so that cuts can be seen."""
    draw = random.Random(derive("planted", settings.seed, number))
    faults: list[PlantedShot] = [*PLANTED]
    faults.extend("" for _ in range(PLANTED_TALKS))
    draw.shuffle(faults)
    shots: list[Shot] = []
    for place, fault in enumerate(faults):
        who = (number + place % 2 * (len(people) // 2)) % len(people)
        start = shots[-1].stop if shots else 0
        stop = start + round(draw.uniform(*PLANTED_SHOT_S) * FRAME_RATE_HZ)
        room = _scene(settings, who, place // 2)
        shots.append(Shot(start, stop, "talk", people[who], room, fault=fault))
    return DrawnRecording(f"planted-{number:03d}.mp4", tuple(shots))


def _altered(
    settings: FootageSettings, number: int, plan: DrawnRecording, how: Altered
) -> DrawnRecording:
    draw = random.Random(derive("altered", settings.seed, number, ALTERED.index(how)))
    amount = {"cropped": draw.uniform(*CROP), "slowed": draw.uniform(*SPEED)}.get(how, 0.0)
    speed = amount if how == "slowed" else 1.0
    shots = tuple(
        replace(
            shot, start=round(shot.start / speed), stop=round(min(shot.stop, COPIED_FRAMES) / speed)
        )
        for shot in plan.shots
        if shot.start < COPIED_FRAMES
    )
    return DrawnRecording(_named(plan, how), shots, plan.file, altered=how, amount=amount)


def _named(plan: DrawnRecording, how: str) -> str:
    """The name of a copy: behind the original's, which stays."""
    return plan.file.replace(".", f"_{how}.")


def _scene(settings: FootageSettings, person: int, visit: int) -> int:
    """A person's scenes are its own: no two people sit in one."""
    number = SCENES_OF_A_PERSON * (settings.first + person) + visit % SCENES_OF_A_PERSON
    return scenes(settings.split, 1, number)[0]


def _copy(plan: DrawnRecording, file: str) -> DrawnRecording:
    moved = [
        replace(shot, start=max(shot.start - CUT_OF_A_COPY, 0), stop=shot.stop - CUT_OF_A_COPY)
        for shot in plan.shots
        if shot.stop > CUT_OF_A_COPY
    ]
    return DrawnRecording(file, tuple(moved), copy_of=plan.file, lacks=CUT_OF_A_COPY)
