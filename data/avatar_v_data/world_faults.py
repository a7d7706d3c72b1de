"""Faults of footage that the world knows nothing of, drawn over it: what is written and shown over
a person, hands, turned heads, turned pictures, other sounds; copies and broken files.

Hands and turned heads are the world's own (a hand that may cover the face, up to 80 degrees of
yaw): a head is an ellipsoid with features, and from the side it has no profile of a nose. Writing
is in the typeface of Pillow.
"""

import dataclasses
import math
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

import av
import cv2
import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from avatar_v.media.outputs import build_output
from avatar_v.media.reading import read_audio, read_video
from avatar_v.media.writer import Writer
from avatar_v.types import FRAME_RATE_HZ, MOTION_NAMES, SAMPLE_RATE_HZ, SAMPLES_PER_FRAME
from avatar_v.world.clip import WorldClip, make_clip
from avatar_v.world.person import sample_person
from avatar_v.world.render import MIN_SIZE, render
from avatar_v.world.scene import sample_scene

Frames = UInt8[Tensor, "f 3 h w"]
Another = Callable[[int | None], tuple[Frames | None, Float[Tensor, " s"]]]
"""Another person, of this many pixels, and what they say; None: only that."""
Planted = Literal[
    "subtitle", "logo", "slides", "screencast", "bystander", "hand", "hand_on_face", "turned",
    "sideways", "tilted", "music", "voices",
]  # fmt: skip
"""Faults of a shot in which one person speaks."""
PlantedShot = Planted | Literal[""]
Altered = Literal["mirrored", "cropped", "slowed"]
"""How a copy differs."""
Broken = Literal["empty", "headless", "truncated", "mute"]
"""No bytes; half of them, the index missing; half of them behind the index; no sound."""
PLANTED, ALTERED, BROKEN = (get_args(kind) for kind in (Planted, Altered, Broken))
TURN = (0.75, 1.4)  # radians
COVERED, BESIDE = (0.75, 1.0), (0.35, 0.45)  # of the motion's cover
TILT_DEGREES = (20.0, 30.0)
MUSIC = (0.12, 0.5)  # of the speech's root mean square
COPIED_FRAMES = 500  # of a recording that an altered copy shows
TRUNCATED_FRAMES = 200  # before it is
CROP = (0.03, 0.12)  # off each side
SPEED = (0.6, 0.95)
INK, PAPER = (30, 30, 40), (240, 240, 235)


def draw_planted(
    fault: str, person: int, other: int, scene: int, speeches: Sequence[int], num: int,
    size: int, draw: random.Random,
) -> tuple[Frames, Float[Tensor, " s"], Float[Tensor, "f m"]]:  # fmt: skip
    """``num`` frames of a shot with a fault of `PLANTED` or "", their sound and motion. ``other``
    is a person who is heard or seen besides, with the second of the speeches."""
    clip = _posed(make_clip(person, scene, speeches[0], num_frames=num, size=size,
                            render_video=False), fault, size, draw)  # fmt: skip
    assert clip.video is not None

    def another(side: int | None) -> tuple[Frames | None, Float[Tensor, " s"]]:
        beside = make_clip(other, scene, speeches[1], num_frames=num, size=side or size,
                           render_video=side is not None)  # fmt: skip
        return beside.video, beside.audio

    video, sound = with_fault(fault, clip.video, clip.audio, clip.transcript.split(), another, draw)
    return video, sound, clip.motion


def with_fault(
    fault: str,
    video: Frames,
    sound: Float[Tensor, " s"],
    words: Sequence[str],
    another: Another,
    draw: random.Random,
) -> tuple[UInt8[Tensor, "f 3 h wide"], Float[Tensor, " s"]]:
    """A video of one person who speaks, widened where it is square, and its sound, with a fault of
    `PLANTED` that is not in the person. ``words``: for what is written."""
    num, size = len(video), video.shape[2]
    if fault == "sideways":
        video = torch.rot90(middle(video), draw.choice((1, -1)), (2, 3))
    frames = widened(video) if video.shape[2] == video.shape[3] else video.clone()
    match fault:
        case "subtitle":
            frames = _subtitled(frames, words)
        case "logo":
            frames = _pasted(frames, *_logo(frames.shape[2:], draw))
        case "slides" | "screencast":
            frames = _slides(frames.shape, words, draw)
            if fault == "screencast":
                side = size * 3 // 8
                small = F.interpolate(middle(video).float(), size=(side, side), mode="area").byte()
                frames[:, :, -side:, draw.choice((slice(side), slice(-side, None)))] = small
        case "bystander":
            side = max(size // 16 * 8, MIN_SIZE)
            beside, _ = another(side)
            assert beside is not None
            frames[:, :, -side:, draw.choice((slice(side), slice(-side, None)))] = beside
        case "tilted":
            frames = _tilted(frames, draw.choice((-1, 1)) * draw.uniform(*TILT_DEGREES))
        case "music":
            sound = sound + draw.uniform(*MUSIC) * sound.square().mean().sqrt() * _music(num, draw)
        case "voices":
            _, voice = another(None)
            sound = sound + voice * (torch.arange(len(voice)) > draw.uniform(0, 0.5) * len(voice))
        case _:
            pass
    return frames, sound.clamp(-1, 1)


def middle(video: Frames) -> UInt8[Tensor, "f 3 s s"]:
    """Its largest square."""
    height, width = video.shape[2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return video[:, :, top : top + side, left : left + side]


def widened(square: UInt8[Tensor, "f 3 h h"]) -> UInt8[Tensor, "f 3 h w"]:
    """The square amid a stretched and dimmed copy of itself, as television shows narrow video."""
    size = square.shape[3]
    small = F.interpolate(square.float(), size=(size // 8, size // 8), mode="area")
    wide = F.interpolate(small, size=(size, 2 * size), mode="bilinear").mul(0.6).byte()
    wide[..., size // 2 : size // 2 + size] = square
    return wide


def write_altered(original: Path, copy: Path, how: Altered, amount: float) -> None:
    """A copy of a video, encoded anew. ``amount``: the share that is cropped off each side, or the
    speed."""
    frames = read_video(original, max_frames=COPIED_FRAMES)
    sound = read_audio(original)[: len(frames) * SAMPLES_PER_FRAME]
    if how == "mirrored":
        frames = frames.flip(3)
    elif how == "cropped":
        height, width = frames.shape[2:]
        top, left = round(amount * height), round(amount * width)
        frames = frames[:, :, top : height - top, left : width - left]
        frames = frames[:, :, : frames.shape[2] // 2 * 2, : frames.shape[3] // 2 * 2]
    else:
        frames = frames[(torch.arange(round(len(frames) / amount)) * amount).long()]
        at = np.arange(len(frames) * SAMPLES_PER_FRAME) * amount
        sound = torch.from_numpy(np.interp(at, np.arange(len(sound)), sound)).float()
    missing = len(frames) * SAMPLES_PER_FRAME - len(sound)
    with Writer(build_output(str(copy))) as writer:
        writer.write(frames, F.pad(sound, (0, missing)))


def write_broken(original: Path, copy: Path, how: Broken) -> None:
    """What the fault leaves of an mp4 file. What is truncated runs backwards, since it can be read
    and is no copy."""
    match how:
        case "empty":
            copy.touch()
        case "headless":  # the index is the last part
            copy.write_bytes(original.read_bytes()[: original.stat().st_size // 2])
        case "truncated":
            frames = read_video(original, max_frames=TRUNCATED_FRAMES).flip(0)
            sound = read_audio(original)[: len(frames) * SAMPLES_PER_FRAME]
            index_first = build_output(str(copy), growing=copy.with_suffix(".growing"))
            with Writer(index_first) as writer:
                writer.write(frames, sound)
            os.truncate(copy, copy.stat().st_size // 2)
        case "mute":
            with av.open(str(original)) as source, av.open(str(copy), "w", format="mp4") as target:
                stream = target.add_stream_from_template(source.streams.video[0])
                for packet in source.demux(video=0):
                    if packet.dts is not None:
                        packet.stream = stream
                        target.mux(packet)


def _posed(clip: WorldClip, fault: str, size: int, draw: random.Random) -> WorldClip:
    """The clip with its pictures, the head turned or a hand there where the fault says so. One ray
    a pixel: four take four times as long."""
    motion, scene = clip.motion.clone(), sample_scene(clip.scene_id)
    names = {name: motion[:, n] for n, name in enumerate(MOTION_NAMES)}
    names["cover"][:] = 0.0
    if fault == "turned":
        names["yaw"].mul_(0.3).add_(draw.choice((-1, 1)) * draw.uniform(*TURN))
    elif fault in ("hand", "hand_on_face"):
        scene = dataclasses.replace(scene, cover="hand")
        cover = draw.uniform(*(BESIDE if fault == "hand" else COVERED))
        wave = 0.05 * torch.sin(2 * math.pi * torch.arange(len(motion)) / FRAME_RATE_HZ)
        names["cover"][:] = cover + wave
    drawn = render(sample_person(clip.person_id), scene, motion,
                   size=size, seed=clip.seed, supersample=1)  # fmt: skip
    return dataclasses.replace(clip, video=drawn.video, motion=motion)


def _font(height: float) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(height)
    assert isinstance(font, ImageFont.FreeTypeFont)
    return font


def _subtitled(frames: Frames, words: Sequence[str]) -> Frames:
    """Four words at a time, two seconds each, white with a black edge."""
    height, width = frames.shape[2:]
    parts = []
    for number, part in enumerate(frames.split(2 * FRAME_RATE_HZ)):
        line = " ".join(words[n % len(words)] for n in range(4 * number, 4 * number + 4))
        picture = Image.new("RGBA", (width, height))
        ImageDraw.Draw(picture).text(
            (width / 2, 0.9 * height), line, "white", _font(0.09 * height), "mm",
            stroke_width=1, stroke_fill="black",
        )  # fmt: skip
        parts.append(_pasted(part, picture, (0, 0)))
    return torch.cat(parts)


def _logo(shape: Sequence[int], draw: random.Random) -> tuple[Image.Image, tuple[int, int]]:
    """A station's letters on a coloured field, and its place in a corner of a wide picture."""
    size, width = shape
    letters = "".join(draw.choices("ABCDEFGHKLMNPRSTVZ", k=3)) + draw.choice(("", " TV", " 24"))
    font = _font(0.1 * size)
    left, top, right, bottom = map(round, font.getbbox(letters))
    edge = size // 32
    picture = Image.new("RGB", (right - left + 2 * edge, bottom - top + 2 * edge),
                        tuple(draw.randrange(150) for _ in range(3)))  # fmt: skip
    ImageDraw.Draw(picture).text((edge - left, edge - top), letters, "white", font)
    x = draw.choice((2 * edge, width - 2 * edge - picture.width))
    y = draw.choice((2 * edge, size - 2 * edge - picture.height))
    return picture, (x, y)


def _pasted(frames: Frames, picture: Image.Image, at: tuple[int, int]) -> Frames:
    """The frames with a picture over them, transparent where it is."""
    values = torch.from_numpy(np.array(picture.convert("RGBA"))).permute(2, 0, 1).float()
    colour, share = values[:3], values[3:] / 255
    (x, y), (height, width) = at, values.shape[1:]
    frames = frames.clone()
    under = frames[:, :, y : y + height, x : x + width]
    under[:] = (under * (1 - share) + colour * share).byte()
    return frames


def _slides(shape: torch.Size, words: Sequence[str], draw: random.Random) -> Frames:
    """A page on which a line more is seen each second, and a pointer that moves."""
    num, _, height, width = shape
    title, text = _font(0.12 * height), _font(0.07 * height)
    page = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(page)
    pen.rectangle((0, 0, width, 0.2 * height), tuple(draw.randrange(60, 160) for _ in range(3)))
    pen.text((0.05 * width, 0.1 * height), " ".join(words[:3]), "white", title, "lm")
    frames, at = [], np.array([draw.uniform(0.2, 0.8), draw.uniform(0.3, 0.8)])
    for number in range(num):
        if number % FRAME_RATE_HZ == 0 and number // FRAME_RATE_HZ < 6:
            line = number // FRAME_RATE_HZ
            said = " ".join(draw.choices(words, k=6))
            pen.text((0.08 * width, (0.3 + 0.12 * line) * height), said, INK, text, "lm")
        at = (at + 0.02 * np.array([draw.gauss(0, 1), draw.gauss(0, 1)])).clip(0.05, 0.95)
        seen, (x, y), side = page.copy(), at * (width, height), 0.06 * height
        ImageDraw.Draw(seen).polygon([(x, y), (x, y + side), (x + 0.7 * side, y + 0.7 * side)], INK)
        frames.append(torch.from_numpy(np.array(seen)))
    return torch.stack(frames).permute(0, 3, 1, 2).contiguous()


def _tilted(frames: Frames, degrees: float) -> Frames:
    height, width = frames.shape[2:]
    turn = cv2.getRotationMatrix2D((width / 2, height / 2), degrees, 1.0)
    pictures = frames.permute(0, 2, 3, 1).contiguous().numpy()
    turned = [
        cv2.warpAffine(picture, turn, (width, height), borderMode=cv2.BORDER_REFLECT)
        for picture in pictures
    ]
    return torch.from_numpy(np.stack(turned)).permute(0, 3, 1, 2).contiguous()


def _music(num: int, draw: random.Random) -> Float[Tensor, " s"]:
    """Chords of four bars, three overtones a note, two notes a second; its root mean square is
    1."""
    at = torch.arange(num * SAMPLES_PER_FRAME) / SAMPLE_RATE_HZ
    sound, key = torch.zeros_like(at), draw.uniform(110, 220)
    for beat in range(math.ceil(2 * float(at[-1])) + 1):
        chord = draw.choice(((0, 4, 7), (5, 9, 12), (7, 11, 14), (9, 12, 16)))
        since = (at - beat / 2).clamp(min=0)
        fades = (1 - torch.exp(-since / 0.01)) * torch.exp(-since / 0.6)
        for step in chord:
            for overtone in (1, 2, 3):
                pitch = overtone * key * 2 ** (step / 12)
                sound += fades * torch.sin(2 * math.pi * pitch * since) / overtone
    return sound / sound.square().mean().sqrt()
