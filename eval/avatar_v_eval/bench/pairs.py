"""Cases from a user's own clips: one person in two scenes or more (Avatar V §7.1).

``FOLDER/PERSON/CLIP``: each clip of a person drives a case (its sound, its first frame, itself as
the truth), and the next clip of that person is the reference.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from avatar_v.generate.writer import Mp4Writer
from avatar_v.media import probe, read_audio, read_video
from avatar_v.types import FRAME_RATE_HZ, SAMPLES_PER_FRAME
from avatar_v_eval.bench.footage import Footage
from avatar_v_eval.bench.manifest import Case, Faces, Manifest, file_hashes, write_manifest
from avatar_v_eval.bench.systems import SUFFIXES
from avatar_v_eval.bench.world70 import write_png, write_wav


@dataclass(frozen=True)
class About:
    """What is true of all clips of a folder; "unknown" where nobody knows."""

    faces: Faces = "real"
    language: str = "unknown"
    licence: str = "unknown"
    consent: str = "unknown"
    max_s: float = 30.0  # of each clip


def build_cases(
    folder: Path,
    out: Path,
    about: About,
    on_clip: Callable[[int, int], None] = lambda done, total: None,
) -> Manifest:
    """Writes a manifest and its media to ``out``: 25 frames a second, 16 kHz, even sides.

    ValueError naming the file or the person: nobody there, a person with one clip, a clip without
    sound or that cannot be read, two clips of one name, an ``out`` that holds something.
    """
    out = out.resolve()
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; the cases want a folder of their own")
    people = _clips_of(folder)
    names = [name for clips in people.values() for name in map(_name, clips)]
    if twins := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{folder}: two clips would be case {', '.join(twins)}")
    cases = []
    for person, clips in people.items():
        for path in clips:
            on_clip(len(cases), len(names))
            _write_clip(path, _name(path), out, about)
            following = clips[(clips.index(path) + 1) % len(clips)]
            cases.append((_name(path), _name(following), person.name))
    done = tuple(_case(out, *names, about) for names in cases)
    manifest = Manifest(out, folder.resolve().name, about.faces, done)
    write_manifest(manifest)
    on_clip(len(cases), len(names))
    return manifest


def _clips_of(folder: Path) -> dict[Path, list[Path]]:
    """Person's folder → clips, both in order of names."""
    if not folder.is_dir():
        raise ValueError(f"no folder {folder}")
    people = {
        person: sorted(p for p in person.iterdir() if p.suffix.lower() in SUFFIXES)
        for person in sorted(path for path in folder.iterdir() if path.is_dir())
    }
    people = {person: clips for person, clips in people.items() if clips}
    if not people:
        raise ValueError(f"{folder}: expected PERSON/CLIP.mp4, two clips or more of a person")
    for person, clips in people.items():
        if len(clips) < 2:
            raise ValueError(f"{person} has one clip; a case needs one of another scene beside it")
    return people


def _write_clip(path: Path, name: str, out: Path, about: About) -> None:
    """The clip as a video, its sound and its first frame. The video is another's reference too."""
    if not probe(path).has_audio:
        raise ValueError(f"{path}: no sound in it")
    frames = read_video(path, max_frames=round(about.max_s * FRAME_RATE_HZ))
    audio = read_audio(path)
    num = min(len(frames), len(audio) // SAMPLES_PER_FRAME)
    if num < FRAME_RATE_HZ:
        raise ValueError(
            f"{path}: {num / FRAME_RATE_HZ:.2f} s with picture and sound, expected 1 s"
        )
    height, width = (side // 2 * 2 for side in frames.shape[2:])
    clip = Footage(frames[:num, :, :height, :width], audio[: num * SAMPLES_PER_FRAME])
    for kind in ("video", "audio", "image"):
        (out / kind).mkdir(parents=True, exist_ok=True)
    with Mp4Writer(out / "video" / f"{name}.mp4", clip.audio) as writer:
        writer.write(clip.frames)
    write_wav(out / "audio" / f"{name}.wav", clip.audio)
    write_png(out / "image" / f"{name}.png", clip.frames[0])


def _case(out: Path, name: str, reference: str, person: str, about: About) -> Case:
    files = {
        "reference": f"video/{reference}.mp4",
        "audio": f"audio/{name}.wav",
        "image": f"image/{name}.png",
        "truth": f"video/{name}.mp4",
    }
    return Case(
        id=name,
        condition="cross",
        person=person,
        language=about.language,
        licence=about.licence,
        consent=about.consent,
        sha256=file_hashes(out, files),
        **files,
    )


def _name(path: Path) -> str:
    """A case id of person and clip."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", f"{path.parent.name}_{path.stem}").strip("-_")
