"""Drawing the recordings that world_footage.py has planned, and their truth, `truth.jsonl`."""

import dataclasses
import itertools
import json
import multiprocessing
import os
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

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
from avatar_v.types import SAMPLES_PER_FRAME
from avatar_v.world.clip import make_clip
from avatar_v.world.splits import persons, sentences
from avatar_v_data.world_faults import (
    PlantedShot,
    draw_planted,
    widened,
    write_altered,
    write_broken,
)
from avatar_v_data.world_footage import (
    DrawnRecording,
    Fault,
    FootageSettings,
    Shot,
    plan_footage,
)

Frames = UInt8[Tensor, "f 3 h w"]
Sound = Float[Tensor, " s"]
Motion = Float[Tensor, "f m"]
TRUTH_FILE = "truth.jsonl"
SETTINGS_FILE = "footage.json"
SHAKE = 0.02  # of the height, how far the camera jumps (standard deviation)
HELD_FRAMES = 3  # for which each picture of a choppy shot stands
LIGHT = (0.6, 1.15)  # between which the light of a shot goes up or down
FLICKER = 0.05  # of the brightness, from frame to frame (standard deviation)


def write_footage(
    settings: FootageSettings,
    out: str | Path,
    *,
    num_workers: int = 1,
    on_file: Callable[[int], None] = lambda num_done: None,
) -> list[DrawnRecording]:
    """Draw all recordings to ``out``, whose finished files are kept; the truth comes last.
    ValueError for a folder of other settings."""
    checks.at_once("--workers", num_workers)
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; choose a folder")
    plans = plan_footage(settings)
    file, text = out / SETTINGS_FILE, json.dumps(dataclasses.asdict(settings), sort_keys=True)
    is_begun = any((out / plan.file).exists() for plan in plans)
    if file.read_text() != text if file.is_file() else is_begun:
        raise ValueError(f"{out} holds footage of other settings; choose another folder")
    out.mkdir(parents=True, exist_ok=True)
    write_text_atomically(file, text)
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
    write_truth(plans, out)
    return plans


def write_truth(plans: Sequence[DrawnRecording], out: Path) -> None:
    """What the files of a folder show."""
    lines = [json.dumps(_row(plan)) for plan in plans]
    write_text_atomically(out / TRUTH_FILE, "\n".join(lines) + "\n")


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
