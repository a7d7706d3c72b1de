"""Hostile command lines of statements of consent, of names, and of commands that are refused before
they make a folder."""

from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from avatar_v.world.clip import make_clip
from avatar_v.world.splits import RANGES
from bad_inputs.case import ACCEPTED, REFUSED, Case
from clip_files import clip_file

NUM_FRAMES = 53
HIDDEN = {
    "escape": "\x1b]0;owned\x07",
    "clears the screen": "\x1b[2J",
    "turned round": "\u202egpj.exe",
    "no width": "A\u200bda",
    "line": "Ada\nBob",
    "C1": "\x9b31m",
}


def make_statements(folder: Path) -> None:
    """A statement of a drawn person, and clips that are none."""
    folder.mkdir()
    first = RANGES["validation"][0]
    clip = make_clip(first, first, first, num_frames=NUM_FRAMES, size=64)
    assert clip.video is not None
    video, sound = clip.video, clip.audio
    hum = 0.3 * torch.sin(torch.arange(len(sound)) * 0.2)
    clips: dict[str, tuple[Tensor, Tensor | None]] = {
        "said": (video, sound),
        "no_sound": (video, None),
        "silent": (video, torch.zeros_like(sound)),
        "hum": (video, hum),
        "still": (video[:1].expand_as(video), sound),
        "black": (torch.zeros_like(video), sound),
        "\x1b[2Jsilent": (video, None),
    }
    for name, (frames, heard) in clips.items():
        clip_file(folder / f"{name}.mkv", frames, heard)
    first_one, *rest = (Image.fromarray(frame.movedim(0, -1).numpy()) for frame in video)
    first_one.save(folder / "person.gif", save_all=True, append_images=rest, duration=40)


def consents() -> Iterator[Case]:
    whole = "avatar-v consent --drawn --expires 2127-12-31 --out ada.consent.json"
    ends = {
        "said.mkv": (ACCEPTED, ""),
        "no_sound.mkv": (REFUSED, "expected speech"),
        "silent.mkv": (REFUSED, "somebody speaks for 0.0 s"),
        "hum.mkv": (REFUSED, "somebody speaks for 0.0 s"),
        "still.mkv": (REFUSED, "does not move"),
        "black.mkv": (REFUSED, "does not move"),
        "person.gif": (REFUSED, "expected speech"),
        "is_not_there.mkv": (REFUSED, "is_not_there"),
        "'\x1b[2Jsilent.mkv'": (REFUSED, "\\x1b[2Jsilent"),
    }
    for name, (end, says) in ends.items():
        video = f"FILES/statements/{name}" if name[0] != "'" else f"'FILES/statements/{name[1:]}"
        yield Case(f"consent: {name!r}", f"{whole} --person Ada --video {video}", end, says)
    said = f"{whole} --video FILES/statements/said.mkv"
    for name, text in HIDDEN.items():
        yield Case(f"consent: a name, {name}", f"{said} --person 'Ada {text}'", says="person is")
        if name != "line":
            words = f"{said} --person Ada --uses 'shop {text}'"
            yield Case(f"consent: uses, {name}", words, says="uses is")
    yield Case("consent: no name", f"{said} --person ' '", says="person is")
    yield Case("consent: over", f"{said} --person Ada --expires 2020-01-01", says="is over")
    yield Case("consent: nowhere", f"{said} --person Ada --out no/where/a.consent.json")


def hidden_names() -> Iterator[Case]:
    """Names of files and options in errors (the judge refuses raw control characters)."""
    for name, text in HIDDEN.items():
        file = f"'FILES/{text}.mp4'"
        words = f"avatar-v generate --reference {file} --audio {file} --out out.mp4"
        yield Case(f"hidden: --reference, {name}", words)
        yield Case(f"hidden: watermark, {name}", f"avatar-v watermark read {file}")
        yield Case(f"hidden: an option, {name}", f"avatar-v watermark read {file} '--{text}'")
        yield Case(f"hidden: a folder, {name}", f"avatar-v-data curate {file} --out curated")
        yield Case(f"hidden: a report, {name}", f"avatar-v-eval report {file} --out report")


def refused_before_folders() -> Iterator[Case]:
    footage = "avatar-v-data footage --out a/footage --recordings 2"
    world = "avatar-v-data world --out a/world --clips 4 --frames 5 --size 32"
    for option in ("--workers=0", "--workers=-1", "--size=3", "--size=1000000", "--persons=0",
                   "--persons=1000000000", "--copies=3", "--first=-1"):  # fmt: skip
        yield Case(f"footage {option}", f"{footage} {option}")
    for option in ("--workers=0", "--workers=-1", "--seed=-1"):
        yield Case(f"world {option} in a new folder", f"{world} {option}")
    curate = "avatar-v-data curate FILES/media --out a/curated"
    for option in ("--workers=0", "--plan=is_not_there", "--plan=world --stages nothing"):
        yield Case(f"curate {option}", f"{curate} {option}")
