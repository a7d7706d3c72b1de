"""world70: 70 cross-scene cases of drawn people whom nothing was trained, tuned or chosen on.

Persons, scenes and words are of the TEST split, persons from number 3000 on. Each case shows a
person in one scene (the reference) who is to speak in another (scene image, sound, truth).

The set is frozen by its content: pixels, samples and prompts before encoding, the same from the
same seeds in any process of one processor. Another kind of processor rounds a few of them otherwise
(AMD and Intel do), so ``world70.json`` holds no hash of them but what a case is, in words and in
means that no rounding moves. Encoded bytes depend on the version of x264 too and are frozen only by
the manifest of one's own folder.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
from torch import Tensor

from avatar_v.media.writer import Mp4Writer, write_wav
from avatar_v.world.clip import WorldClip, make_clip
from avatar_v.world.splits import persons, scenes, sentences
from avatar_v_eval.bench.manifest import BenchManifest, CaseFiles, file_hashes, write_manifest
from avatar_v_eval.cases import Case, CaseIds, rendered_video
from avatar_v_eval.files import write_png

FROZEN = Path(__file__).with_suffix(".json")
NUM_PARTS = 8
"""Of a clip's length; the content of a case has a mean of each."""
TOLERANCE = 0.05
"""Between contents that are the same: grey levels, and thousandths of full scale. Rounding moves a
mean by less than a thousandth; the nearest two cases are farther apart by far."""


@dataclass(frozen=True)
class DrawnSet:
    """The recipe of a set of drawn cases."""

    name: str
    num_cases: int
    num_frames: int  # of the driving speech, and of the reference
    first: int  # number of the first TEST person; scenes and speeches from twice that on
    size: int  # pixels
    is_part: bool = False  # the first cases of a larger set, which name themselves after it


WORLD70 = DrawnSet(name="world70", num_cases=70, num_frames=201, first=3000, size=64)


@dataclass(frozen=True)
class CaseContent:
    """The content of a case before encoding, as far as no processor rounds it otherwise."""

    words: str  # 16 hex digits of the prompt and the shapes
    seen: tuple[float, ...]  # mean grey level of each part of the reference, then of the truth
    heard: tuple[float, ...]  # root mean square of their sounds, in thousandths of full scale

    def near(self, other: "CaseContent") -> bool:
        """Whether both are the same case."""
        return self.words == other.words and all(
            len(a) == len(b) and np.allclose(a, b, rtol=0, atol=TOLERANCE)
            for a, b in ((self.seen, other.seen), (self.heard, other.heard))
        )


def first_cases(num: int | None) -> DrawnSet:
    """world70, or its first cases under a name of their own; ValueError for more than there are."""
    if num is None or num == WORLD70.num_cases:
        return WORLD70
    if not 1 <= num <= WORLD70.num_cases:
        raise ValueError(f"--cases {num}: expected 1 to {WORLD70.num_cases}")
    return dataclasses.replace(WORLD70, num_cases=num, is_part=True)


def write_world(
    folder: Path,
    plan: DrawnSet = WORLD70,
    on_case: Callable[[int, int], None] = lambda done, total: None,
    frozen: Mapping[str, CaseContent] = MappingProxyType({}),
) -> tuple[BenchManifest, dict[str, CaseContent]]:
    """Renders a plan into an empty folder: the manifest, and the content of each case, which is
    the ``frozen`` one where it is near that.

    Videos are H.264 with AAC from the writer that our own generator uses, so that a codec does not
    tell them apart. ValueError for a folder that holds something.
    """
    folder = folder.resolve()
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty; the cases want a folder of their own")
    cases, contents = [], {}
    for index in range(plan.num_cases):
        on_case(index, plan.num_cases)
        drawn = drawn_case(plan, index)
        case = _write_case(folder, f"{plan.name}_{index:02d}", drawn)
        cases.append(case)
        content = case_content(drawn.reference, drawn.target)
        known = frozen.get(case.id)
        contents[case.id] = known if known is not None and content.near(known) else content
    on_case(plan.num_cases, plan.num_cases)
    name = f"{plan.name}_first{plan.num_cases}" if plan.is_part else plan.name
    manifest = BenchManifest(folder, name, "drawn", tuple(cases), content=_joined(contents))
    write_manifest(manifest)
    return manifest, contents


def drawn_case(plan: DrawnSet, index: int) -> Case:
    """A case of a plan: one person, two scenes, two sentences."""
    (person,) = persons("test", 1, plan.first + index)
    here, there = scenes("test", 2, 2 * (plan.first + index))
    said, other = sentences("test", 2, 2 * (plan.first + index))
    clip = partial(make_clip, num_frames=plan.num_frames, size=plan.size)
    return Case(
        CaseIds(person, here, there, there, said, other),
        target=clip(person, here, said),
        reference=clip(person, there, other),
    )


def case_content(reference: WorldClip, driving: WorldClip) -> CaseContent:
    """The content of the case of these clips."""
    words, seen, heard = hashlib.sha256(driving.text.encode()), [], []
    for clip in (reference, driving):
        video, audio = rendered_video(clip), clip.audio
        words.update(str((tuple(video.shape), tuple(audio.shape))).encode())
        seen += [part.double().mean().item() for part in _parts(video)]
        heard += [1000 * part.double().square().mean().sqrt().item() for part in _parts(audio)]
    seen, heard = (tuple(round(x, 3) for x in numbers) for numbers in (seen, heard))
    return CaseContent(words.hexdigest()[:16], seen, heard)


def frozen_contents() -> dict[str, CaseContent]:
    """Case id → content, of the world70 that results are published on.

    ValueError where nobody has frozen it yet.
    """
    if not FROZEN.is_file():
        raise ValueError(f"{FROZEN.name} is missing: avatar-v-eval cases world70 DIR --freeze")
    raw = json.loads(FROZEN.read_text(encoding="utf-8"))
    return {
        name: CaseContent(one["words"], tuple(one["seen"]), tuple(one["heard"]))
        for name, one in raw.items()
    }


def freeze(contents: Mapping[str, CaseContent]) -> None:
    """Makes these contents the frozen ones; results published before count no more."""
    lines = [f" {json.dumps(name)}: {_json(content)}" for name, content in contents.items()]
    FROZEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def differing(contents: Mapping[str, CaseContent], frozen: Mapping[str, CaseContent]) -> list[str]:
    """Ids of cases that are not the frozen ones, of those ``write_world`` gave."""
    return [name for name in {**frozen, **contents} if contents.get(name) != frozen.get(name)]


def _write_case(folder: Path, name: str, case: Case) -> CaseFiles:
    files = {
        "reference": f"reference/{name}.mp4",
        "audio": f"audio/{name}.wav",
        "image": f"image/{name}.png",
        "truth": f"truth/{name}.mp4",
    }
    for path in files.values():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
    for role, clip in (("reference", case.reference), ("truth", case.target)):
        with Mp4Writer(folder / files[role], clip.audio) as writer:
            writer.write(rendered_video(clip))
    write_wav(folder / files["audio"], case.audio)
    write_png(folder / files["image"], case.image)
    return CaseFiles(
        id=name,
        condition="cross",
        person=str(case.person_id),
        language="world",
        licence="Apache-2.0",
        consent="not needed: a drawn person",
        prompt=case.prompt,
        sha256=file_hashes(folder, files),
        **files,
    )


def _json(content: CaseContent) -> str:
    return json.dumps(dataclasses.asdict(content))


def _joined(contents: Mapping[str, CaseContent]) -> str:
    text = json.dumps({name: _json(content) for name, content in contents.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _parts(clip: Tensor) -> list[Tensor]:
    """NUM_PARTS of a clip's length, or as many as it has entries."""
    return [part for part in clip.tensor_split(NUM_PARTS) if len(part)]
