"""Raw footage of the embedded world: recordings as they come from the internet, with the truth.

A recording is one video of many shots. In most of them its host or a guest speaks. Others are what
a data engine has to find and leave out: nobody speaks, nobody is seen, two people at once, another
voice over the mouth, sound that comes late, a blurred picture, a still. Some recordings are
uploaded twice, cut and compressed anew. `truth.jsonl` beside the videos says all of it, and no
command that curates reads it. Recordings that hold each fault of world_faults.py once, altered
copies of them and broken files are drawn besides, where they are asked for.
"""

import dataclasses
import itertools
import json
import multiprocessing
import os
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.base import checks
from avatar_v.base.seeds import derive
from avatar_v.media.outputs import build_output
from avatar_v.media.writer import Writer
from avatar_v.shards.writer import write_text_atomically
from avatar_v.types import FRAME_RATE_HZ, SAMPLES_PER_FRAME
from avatar_v.world.clip import make_clip
from avatar_v.world.splits import persons, scenes, sentences
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
    draw_planted,
    widened,
    write_altered,
    write_broken,
)
from avatar_v_data.world_settings import MAX_SIZE

Frames = UInt8[Tensor, "f 3 h w"]
Sound = Float[Tensor, " s"]
Motion = Float[Tensor, "f m"]
Kind = Literal["talk", "silent", "voice_over", "two", "dubbed", "late", "blurred", "still", "noise"]

Fault = Literal["", "shaky", "choppy", "light", "flicker"]

TRUTH_FILE = "truth.jsonl"
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
SHAKE = 0.02  # of the height, how far the camera jumps (standard deviation)
HELD_FRAMES = 3  # for which each picture of a choppy shot stands
LIGHT = (0.6, 1.15)  # between which the light of a shot goes up or down
FLICKER = 0.05  # of the brightness, from frame to frame (standard deviation)
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


def write_footage(
    settings: FootageSettings,
    out: str | Path,
    *,
    num_workers: int = 1,
    on_file: Callable[[int], None] = lambda num_done: None,
) -> list[DrawnRecording]:
    """Draw all recordings to ``out``, whose finished files are kept; the truth comes last."""
    checks.at_once("--workers", num_workers)
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; choose a folder")
    plans = plan_footage(settings)
    out.mkdir(parents=True, exist_ok=True)
    todo = [plan for plan in plans if not (out / plan.file).exists()]
    todo.sort(key=_is_made)  # behind what they are made of
    done = itertools.count(len(plans) - len(todo) + 1)
    on_file(len(plans) - len(todo))
    if num_workers == 1:
        for plan in todo:
            _write_one(settings, plan, out)
            on_file(next(done))
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(num_workers, context) as pool:
            for _, some in itertools.groupby(todo, key=_is_made):
                for future in [pool.submit(_write_one, settings, plan, out) for plan in some]:
                    future.result()
                    on_file(next(done))
    lines = [json.dumps(_row(plan)) for plan in plans]
    write_text_atomically(out / TRUTH_FILE, "\n".join(lines) + "\n")
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


def _write_one(settings: FootageSettings, plan: DrawnRecording, out: Path) -> None:
    torch.set_num_threads(1)
    growing = out / f".{plan.file}"
    if plan.altered or plan.broken:
        if plan.altered:
            write_altered(out / plan.copy_of, growing, plan.altered, plan.amount)
        if plan.broken:
            write_broken(out / plan.copy_of, growing, plan.broken)
        os.replace(growing, out / plan.file)
        return
    lacks, drawn = plan.lacks, plan_footage(settings)
    number = next(n for n, p in enumerate(drawn) if p.file == (plan.copy_of or plan.file))
    last: Tensor | None = None
    motions = []
    with Writer(build_output(str(growing))) as writer:
        for index, shot in enumerate(drawn[number].shots):
            frames, sound, motion = _draw(
                settings, derive("shot", settings.seed, number, index), shot,
                is_planted=number >= settings.num_recordings + settings.num_copies,
            )  # fmt: skip
            motions.append(motion)
            if last is not None and shot.dissolve:
                frames = _dissolved(last, frames, shot.dissolve)
            last = frames[-1]
            cut = min(max(lacks - shot.start, 0), len(frames))
            if plan.copy_of:
                frames = _compressed(frames)
            writer.write(frames[cut:], sound[cut * SAMPLES_PER_FRAME :])
    np.save(motion_file(out / plan.file), torch.cat(motions)[lacks:].half().numpy())
    os.replace(growing, out / plan.file)


def _is_made(plan: DrawnRecording) -> bool:
    """Of another file."""
    return bool(plan.altered or plan.broken)


def _row(plan: DrawnRecording) -> dict[str, Any]:
    """What the truth says of a file; of one that is neither altered nor broken, nothing of that."""
    row, more = dataclasses.asdict(plan), {"altered": "", "amount": 0.0, "broken": ""}
    return {name: value for name, value in row.items() if name not in more or value != more[name]}


def motion_file(recording: Path) -> Path:
    """Where the truth of a recording's motion is: "f m", of the person seen (MOTION_NAMES). Copies
    that are altered have none."""
    return recording.with_suffix(".motion.npy")


def _draw(
    settings: FootageSettings, seed: int, shot: Shot, *, is_planted: bool
) -> tuple[Frames, Sound, Motion]:
    """A shot's frames, sound and motion."""
    draw = random.Random(seed)
    speeches = sentences(settings.split, 2, 2 * draw.randrange(100_000))
    num, size = len(shot), settings.size
    who = shot.person
    if who is None:
        who = persons(settings.split, 1, settings.first)[0]  # heard alone
    beside = persons(settings.split, settings.num_persons, settings.first)
    if is_planted:
        other = draw.choice([person for person in beside if person != who])
        return draw_planted(shot.fault, who, other, shot.scene, speeches, num, size, draw)
    clip = make_clip(who, shot.scene, speeches[0], num_frames=num + shot.late, size=size)
    assert clip.video is not None
    square, sound = clip.video[shot.late :], clip.audio[: num * SAMPLES_PER_FRAME]
    motion = clip.motion[shot.late :]
    match shot.kind:
        case "silent" | "noise":
            loud = 0.02 if shot.kind == "noise" else 0.0005
            noise = torch.Generator().manual_seed(draw.randrange(1 << 31))
            sound = loud * torch.randn(sound.shape, generator=noise)
        case "voice_over":
            square = _backdrop(square)
        case "dubbed":
            other = make_clip(
                who, shot.scene, speeches[1], num_frames=num, size=size, render_video=False
            )
            sound = other.audio
        case "blurred":
            small = F.interpolate(square.float(), scale_factor=0.2, mode="area")
            square = F.interpolate(small, size=(size, size), mode="bilinear").byte()
        case "still":
            square, motion = square[:1].expand_as(square), motion[:1].expand_as(motion)
        case _:
            pass
    if shot.kind != "two":
        return spoilt(widened(square), shot.fault, draw.randrange(1 << 31)), sound, motion
    other = draw.choice([person for person in beside if person != who])
    right = make_clip(other, shot.scene, speeches[1], num_frames=num, size=size).video
    assert right is not None
    return torch.cat([square, right], dim=3), sound, motion


def _backdrop(square: Frames) -> Frames:
    """The scene where the person is not: the left edge over the whole picture, slowly lit."""
    edge = square[:1, :, :, :4].float().mean(3, keepdim=True).expand(-1, -1, -1, square.shape[3])
    light = torch.linspace(0.8, 1.1, len(square)).view(-1, 1, 1, 1)
    return (edge * light).clamp(0, 255).byte()


def spoilt(frames: Frames, fault: Fault | PlantedShot, seed: int) -> Frames:
    """The frames with a fault of the camera."""
    num, _, height, width = frames.shape
    draw = torch.Generator().manual_seed(seed)
    match fault:
        case "shaky":
            reach = round(3 * SHAKE * height)
            wide = F.pad(frames.float(), (reach,) * 4, mode="replicate").byte()
            jumps = (SHAKE * height * torch.randn(num, 2, generator=draw)).round().long()
            corners = (jumps.clamp(-reach, reach) + reach).tolist()
            cut = [wide[n, :, y : y + height, x : x + width] for n, (y, x) in enumerate(corners)]
            return torch.stack(cut)
        case "choppy":
            return frames[torch.arange(num) // HELD_FRAMES * HELD_FRAMES]
        case "light":
            light = torch.linspace(*LIGHT, num)
            light = light if torch.rand((), generator=draw) < 0.5 else light.flip(0)
        case "flicker":
            light = 1 + FLICKER * torch.randn(num, generator=draw)
        case _:
            return frames
    return (frames * light.view(-1, 1, 1, 1)).clamp(0, 255).byte()


def _dissolved(last: UInt8[Tensor, "3 h w"], frames: Frames, num: int) -> Frames:
    share = torch.linspace(0, 1, num + 2)[1:-1].view(-1, 1, 1, 1)
    mixed = (1 - share) * last.float() + share * frames[:num].float()
    return torch.cat([mixed.byte(), frames[num:]])


def _compressed(frames: Frames) -> Frames:
    """As another site's encoder leaves them: smaller, then larger again, and a little brighter."""
    height, width = frames.shape[2:]
    small = F.interpolate(frames.float(), scale_factor=0.75, mode="bilinear", antialias=True)
    large = F.interpolate(small, size=(height, width), mode="bilinear")
    return (large * 1.03).clamp(0, 255).byte()
