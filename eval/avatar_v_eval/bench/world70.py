"""world70: 70 cross-scene cases of drawn people whom nothing was trained, tuned or chosen on.

Persons, scenes and words are of the TEST split, persons from number 3000 on. Each case shows a
person in one scene (the reference) who is to speak in another (scene image, sound, truth).

The set is frozen by its content: pixels, samples and prompts before encoding, the same from the
same seeds in any process. ``world70.json`` holds the hash of every case. Encoded bytes depend on
the version of x264 and are frozen only by the manifest of one's own folder. Pixels are made by
torch in floating point: another kind of CPU may round one differently, and then the cases are
named.
"""

import dataclasses
import hashlib
import json
import wave
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from avatar_v.generate.writer import Mp4Writer
from avatar_v.types import SAMPLE_RATE_HZ
from avatar_v.world.clip import WorldClip, make_clip
from avatar_v.world.splits import persons, scenes, sentences
from avatar_v_eval.bench.manifest import Case, Manifest, file_hashes, write_manifest

FROZEN = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class Plan:
    """What a set of world cases is made of."""

    name: str
    num_cases: int
    num_frames: int  # of the driving speech, and of the reference
    first: int  # number of the first TEST person; scenes and speeches from twice that on
    size: int  # pixels
    is_part: bool = False  # the first cases of a larger set, which name themselves after it


WORLD70 = Plan(name="world70", num_cases=70, num_frames=201, first=3000, size=64)


def first_cases(num: int | None) -> Plan:
    """world70, or its first cases under a name of their own; ValueError for more than there are."""
    if num is None or num == WORLD70.num_cases:
        return WORLD70
    if not 1 <= num <= WORLD70.num_cases:
        raise ValueError(f"--cases {num}: expected 1 to {WORLD70.num_cases}")
    return dataclasses.replace(WORLD70, num_cases=num, is_part=True)


def write_world(
    folder: Path,
    plan: Plan = WORLD70,
    on_case: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Manifest, dict[str, str]]:
    """Renders a plan into an empty folder: the manifest, and the content hash of each case.

    Videos are H.264 with AAC from the writer that our own generator uses, so that a codec does not
    tell them apart. ValueError for a folder that holds something.
    """
    folder = folder.resolve()
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty; the cases want a folder of their own")
    cases, contents = [], {}
    for index in range(plan.num_cases):
        on_case(index, plan.num_cases)
        reference, driving = case_clips(plan, index)
        case = _write_case(folder, f"{plan.name}_{index:02d}", reference, driving)
        cases.append(case)
        contents[case.id] = content_hash(reference, driving)
    on_case(plan.num_cases, plan.num_cases)
    name = f"{plan.name}_first{plan.num_cases}" if plan.is_part else plan.name
    manifest = Manifest(folder, name, "drawn", tuple(cases), content=_joined(contents))
    write_manifest(manifest)
    return manifest, contents


def case_clips(plan: Plan, index: int) -> tuple[WorldClip, WorldClip]:
    """Reference and driving clip of a case: one person, two scenes, two speeches."""
    (person,) = persons("test", 1, plan.first + index)
    here, there = scenes("test", 2, 2 * (plan.first + index))
    said, other = sentences("test", 2, 2 * (plan.first + index))
    clip = partial(make_clip, num_frames=plan.num_frames, size=plan.size)
    return clip(person, there, other), clip(person, here, said)


def content_hash(reference: WorldClip, driving: WorldClip) -> str:
    """16 hex digits of all that a case shows and says, before encoding."""
    digest = hashlib.sha256(driving.text.encode())
    for clip in (reference, driving):
        for tensor in (_video(clip), clip.audio):
            digest.update(str(tuple(tensor.shape)).encode())
            digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def frozen_contents() -> dict[str, str]:
    """Case id → content hash, of the world70 that results are published on.

    ValueError where nobody has frozen it yet.
    """
    if not FROZEN.is_file():
        raise ValueError(f"{FROZEN.name} is missing: avatar-v-eval cases world70 DIR --freeze")
    return json.loads(FROZEN.read_text(encoding="utf-8"))


def freeze(contents: Mapping[str, str]) -> None:
    """Makes these contents the frozen ones; results published before count no more."""
    FROZEN.write_text(json.dumps(contents, indent=1) + "\n", encoding="utf-8")


def differing(contents: Mapping[str, str], frozen: Mapping[str, str]) -> list[str]:
    """Ids of cases whose content is not the frozen one."""
    return [name for name in {**frozen, **contents} if contents.get(name) != frozen.get(name)]


def write_wav(path: Path, audio: Float[Tensor, " s"]) -> None:
    """16-bit mono at 16 kHz."""
    samples = (audio.double() * 32768).round().clamp(-32768, 32767).numpy().astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE_HZ)
        file.writeframes(samples.tobytes())


def write_png(path: Path, picture: Tensor) -> None:
    """An uint8 picture "3 h w", exactly."""
    Image.fromarray(np.ascontiguousarray(picture.permute(1, 2, 0).numpy())).save(path)


def _write_case(folder: Path, name: str, reference: WorldClip, driving: WorldClip) -> Case:
    files = {
        "reference": f"reference/{name}.mp4",
        "audio": f"audio/{name}.wav",
        "image": f"image/{name}.png",
        "truth": f"truth/{name}.mp4",
    }
    for path in files.values():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
    for role, clip in (("reference", reference), ("truth", driving)):
        with Mp4Writer(folder / files[role], clip.audio) as writer:
            writer.write(_video(clip))
    write_wav(folder / files["audio"], driving.audio)
    write_png(folder / files["image"], _video(driving)[0])
    return Case(
        id=name,
        condition="cross",
        person=str(driving.person_id),
        language="world",
        licence="Apache-2.0",
        consent="not needed: a drawn person",
        prompt=driving.text,
        sha256=file_hashes(folder, files),
        **files,
    )


def _joined(contents: Mapping[str, str]) -> str:
    text = json.dumps(contents, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _video(clip: WorldClip) -> Tensor:
    assert clip.video is not None  # make_clip renders
    return clip.video
