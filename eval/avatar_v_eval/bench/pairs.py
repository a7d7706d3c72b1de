"""Cases from a user's own clips: two or more of each person (Avatar V §7.1).

``FOLDER/PERSON/SCENE/CLIP``: each clip of a person drives a case (its sound, its first frame,
itself as the truth), and the next clip of that person, in order of scenes and names, is the
reference: of the same scene, or across. Clips in ``FOLDER/PERSON`` itself have each a scene of
their own.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from avatar_v.media.reading import probe, read_audio, read_video
from avatar_v.media.writer import Mp4Writer, write_wav
from avatar_v.types import FRAME_RATE_HZ, SAMPLES_PER_FRAME
from avatar_v_eval.bench.manifest import (
    BenchManifest,
    CaseFiles,
    Faces,
    file_hashes,
    write_manifest,
)
from avatar_v_eval.bench.systems import SUFFIXES
from avatar_v_eval.files import write_png


@dataclass(frozen=True)
class About:
    """Facts about all clips of a folder; "unknown" where nobody knows."""

    faces: Faces = "real"
    language: str = "unknown"
    licence: str = "unknown"
    consent: str = "unknown"
    max_s: float = 30.0  # of each clip
    one_scene: bool = False  # clips beside each other in PERSON show one scene


@dataclass(frozen=True)
class CasePair:
    """Case ids of the driving clip, which names the case, and of its reference."""

    driving: str
    reference: str
    person: str
    condition: str


def build_cases(
    folder: Path,
    out: Path,
    about: About,
    on_clip: Callable[[int, int], None] = lambda done, total: None,
    *,
    name: str = "",
) -> BenchManifest:
    """Writes a manifest and its media to ``out``: 25 frames a second, 16 kHz, even sides. The
    benchmark is called ``name``, or as ``folder`` is.

    ValueError naming the file or the person: nobody there, a person with one clip, clips beside
    scenes, a clip without sound or that cannot be read, two clips of one name, an ``out`` that
    holds something.
    """
    out = out.resolve()
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; the cases want a folder of their own")
    people = _list_clips(folder)
    ids = [_id(path, person) for person, clips in people.items() for path in clips]
    if twins := sorted({one for one in ids if ids.count(one) > 1}):
        raise ValueError(f"{folder}: two clips would be case {', '.join(twins)}")
    pairs: list[CasePair] = []
    for person, clips in people.items():
        for path, following in zip(clips, [*clips[1:], clips[0]], strict=True):
            on_clip(len(pairs), len(ids))
            _write_clip(path, _id(path, person), out, about)
            condition = "same" if _is_one_scene(path, following, person, about) else "cross"
            pairs.append(
                CasePair(_id(path, person), _id(following, person), person.name, condition)
            )
    cases = tuple(_case(out, pair, about) for pair in pairs)
    manifest = BenchManifest(out, name or folder.resolve().name, about.faces, cases)
    write_manifest(manifest)
    on_clip(len(pairs), len(ids))
    return manifest


def _list_clips(folder: Path) -> dict[Path, list[Path]]:
    """Person's folder → clips, both in order of names."""
    if not folder.is_dir():
        raise ValueError(f"no folder {folder}")
    people = {person: [*_media(person), *_in_scenes(person)] for person in _folders(folder)}
    people = {person: clips for person, clips in people.items() if clips}
    if not people:
        raise ValueError(
            f"{folder}: expected PERSON/CLIP.mp4 or PERSON/SCENE/CLIP.mp4, two clips or more of a "
            "person"
        )
    for person, clips in people.items():
        if len(clips) < 2:
            raise ValueError(f"{person} has one clip; a case needs another as its reference")
        if _media(person) and _in_scenes(person):
            raise ValueError(f"{person} has clips beside folders of scenes; give all a scene")
    return people


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def _media(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def _in_scenes(person: Path) -> list[Path]:
    return [path for scene in _folders(person) for path in _media(scene)]


def _is_one_scene(a: Path, b: Path, person: Path, about: About) -> bool:
    """By their folders; clips beside each other in the person's own are as ``about`` says."""
    return about.one_scene if a.parent == person else a.parent == b.parent


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
    frames, audio = frames[:num, :, :height, :width], audio[: num * SAMPLES_PER_FRAME]
    for kind in ("video", "audio", "image"):
        (out / kind).mkdir(parents=True, exist_ok=True)
    with Mp4Writer(out / "video" / f"{name}.mp4", audio) as writer:
        writer.write(frames)
    write_wav(out / "audio" / f"{name}.wav", audio)
    write_png(out / "image" / f"{name}.png", frames[0])


def _case(out: Path, pair: CasePair, about: About) -> CaseFiles:
    files = {
        "reference": f"video/{pair.reference}.mp4",
        "audio": f"audio/{pair.driving}.wav",
        "image": f"image/{pair.driving}.png",
        "truth": f"video/{pair.driving}.mp4",
    }
    return CaseFiles(
        id=pair.driving,
        condition=pair.condition,
        person=pair.person,
        language=about.language,
        licence=about.licence,
        consent=about.consent,
        sha256=file_hashes(out, files),
        **files,
    )


def _id(path: Path, person: Path) -> str:
    """A case id of person, scene and clip."""
    parts = (*path.parent.relative_to(person.parent).parts, path.stem)
    return re.sub(r"[^A-Za-z0-9_-]+", "-", "_".join(parts)).strip("-_")
