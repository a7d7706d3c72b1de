"""Faults planted in films of the user's own, in which one person speaks (`avatar-v-data plant`), so
that `avatar-v-eval study curation` can say how well a plan finds them there.

The faults are those of world_faults.py that need no drawing: what is written and shown over a
person, turned pictures, other sounds. The films themselves are the good shots.
"""

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.base import checks
from avatar_v.base.seeds import derive
from avatar_v.media.outputs import build_output
from avatar_v.media.reading import read_audio, read_video
from avatar_v.media.writer import Writer
from avatar_v.types import FRAME_RATE_HZ, SAMPLES_PER_FRAME
from avatar_v.world.lexicon import sentence
from avatar_v_data.footage_drawing import write_truth
from avatar_v_data.world_faults import PlantedShot, middle, with_fault
from avatar_v_data.world_footage import PLANTED_SHOT_S, PLANTED_TALKS, DrawnRecording, Shot

FAULTS: tuple[PlantedShot, ...] = (
    "subtitle", "logo", "slides", "screencast", "bystander", "sideways", "tilted", "music",
    "voices",
)  # fmt: skip
SUFFIXES = (".mp4", ".mov", ".mkv", ".webm", ".avi")
MOST_S = 60
"""Of a film that is read."""


@dataclass(frozen=True)
class Film:
    """A film in memory, at 25 frames a second."""

    frames: UInt8[Tensor, "f 3 h w"]
    sound: Float[Tensor, " s"]

    def part(self, num: int, draw: random.Random) -> "Film":
        """``num`` frames of it."""
        start = draw.randrange(len(self.frames) - num + 1)
        first = start * SAMPLES_PER_FRAME
        sound = self.sound[first : first + num * SAMPLES_PER_FRAME]
        return Film(self.frames[start : start + num], sound)


def plant(
    films: str | Path,
    out: str | Path,
    *,
    num_recordings: int,
    height: int = 256,
    seed: int = 0,
    on_file: Callable[[int], None] = lambda num_done: None,
) -> list[DrawnRecording]:
    """Write recordings of shots of the films in a folder, each fault once in each, and their truth.

    ValueError for fewer than two films, and for one that is too short or has no sound.
    """
    checks.count("--recordings", num_recordings)
    checks.count("--height", height, least=64, most=1080)
    paths = sorted(p for p in Path(films).iterdir() if p.suffix.lower() in SUFFIXES)
    if len(paths) < 2:
        raise ValueError(f"{films}: expected films of two persons or more, got {len(paths)}")
    out, loaded = Path(out), [_read(path, height // 2 * 2) for path in paths]
    plans = [plan_one(seed, number, len(paths)) for number in range(num_recordings)]
    out.mkdir(parents=True, exist_ok=True)
    for number, plan in enumerate(plans):
        _write(plan, loaded, out, derive("film shots", seed, number))
        on_file(number + 1)
    write_truth(plans, out)
    return plans


def plan_one(seed: int, number: int, num_films: int) -> DrawnRecording:
    """Each fault once, in any order, of two films in turn, so that cuts can be seen."""
    draw = random.Random(derive("films", seed, number))
    faults: list[PlantedShot] = [*FAULTS]
    faults.extend("" for _ in range(PLANTED_TALKS))
    draw.shuffle(faults)
    shots: list[Shot] = []
    apart = 1 + number // num_films % (num_films - 1)
    for place, fault in enumerate(faults):
        who = (number + place % 2 * apart) % num_films
        start = shots[-1].stop if shots else 0
        stop = start + round(draw.uniform(*PLANTED_SHOT_S) * FRAME_RATE_HZ)
        shots.append(Shot(start, stop, "talk", who, who, fault=fault))
    return DrawnRecording(f"planted-{number:03d}.mp4", tuple(shots))


def _read(path: Path, height: int) -> Film:
    frames = middle(read_video(path, max_frames=MOST_S * FRAME_RATE_HZ))  # as faults widen squares
    parts = [  # piece by piece: a film in fp32 is large
        F.interpolate(part.float(), size=(height, height), mode="area").round().byte()
        for part in frames.split(FRAME_RATE_HZ)
    ]
    sound = read_audio(path)
    num = min(len(frames), len(sound) // SAMPLES_PER_FRAME)
    least = round(PLANTED_SHOT_S[1] * FRAME_RATE_HZ)
    if num < least:
        raise ValueError(f"{path} has {num / FRAME_RATE_HZ:.1f} s of picture and sound; expected "
                         f"{PLANTED_SHOT_S[1]:g} s or more")  # fmt: skip
    return Film(torch.cat(parts)[:num], sound[: num * SAMPLES_PER_FRAME])


def _write(plan: DrawnRecording, films: Sequence[Film], out: Path, seed: int) -> None:
    growing = out / f".{plan.file}"
    with Writer(build_output(str(growing))) as writer:
        for index, shot in enumerate(plan.shots):
            draw = random.Random(derive("film shot", seed, index))
            own = films[shot.scene].part(len(shot), draw)
            beside = films[draw.choice([n for n in range(len(films)) if n != shot.scene])]

            def another(
                side: int | None, beside: Film = beside, num: int = len(shot),
                draw: random.Random = draw,
            ) -> tuple[UInt8[Tensor, "f 3 h w"] | None, Float[Tensor, " s"]]:  # fmt: skip
                part = beside.part(num, draw)
                if side is None:
                    return None, part.sound
                square = F.interpolate(middle(part.frames).float(), (side, side), mode="area")
                return square.round().byte(), part.sound

            words = sentence(shot.scene, index).text.split()
            frames, sound = with_fault(shot.fault, own.frames, own.sound, words, another, draw)
            writer.write(frames, sound)
    os.replace(growing, out / plan.file)
