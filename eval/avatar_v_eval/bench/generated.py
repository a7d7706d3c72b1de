"""Cases of the third condition (Avatar V §7.1): a person speaks in a scene that was made of words.

Each case of a manifest comes once more, with the same person, reference and sound and a new scene
image: the first picture of what a maker of scenes delivers for the case's words and reference. A
maker is named as a system is (systems.py): a folder of pictures or videos, a command, or our own
network. There is no true video of such a case.
"""

import dataclasses
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from avatar_v.generate.scene import SceneMaker
from avatar_v.media.reading import iter_video
from avatar_v.models.base import hash_folder
from avatar_v.request.request import LIVE, Request, Weights
from avatar_v.weights.card import weights_folder
from avatar_v_eval.bench.delivery import BenchSystem, Delivery, place
from avatar_v_eval.bench.manifest import (
    BenchManifest,
    CaseFiles,
    file_fault,
    file_hashes,
    write_manifest,
)
from avatar_v_eval.bench.systems import SUFFIXES, Command, Folder, parse_system
from avatar_v_eval.files import write_png

CONDITION = "generated"
PICTURES = (".png", ".jpg", ".jpeg", ".webp")


@dataclass(frozen=True)
class OwnScenes:
    """The best of several first pictures that our network makes (generate/scene.py)."""

    weights: str
    pictures: Path
    num_candidates: int
    name: str = CONDITION

    @property
    def source(self) -> str:
        weights = hash_folder(weights_folder(self.weights))
        return f"pipeline:{self.weights}?num_candidates={self.num_candidates}:{weights}"

    @cached_property
    def maker(self) -> SceneMaker:
        return SceneMaker(Weights(self.weights))

    def deliver(self, manifest: BenchManifest, case: CaseFiles) -> Delivery:
        """Input that the network does not take is a reason."""
        out = place(self.pictures, self.source, manifest, case, ".png")
        if not out.is_file():
            request = Request.of(
                reference=str(manifest.path(case, "reference")), audio=LIVE, scene=case.prompt,
                num_candidates=self.num_candidates,
            )  # fmt: skip
            try:
                write_png(out, self.maker(request).pictures[0])
            except ValueError as error:
                return Delivery(reason=f"refused: {error}")
        return Delivery(out)


def parse_scenes(text: str, made: Path, timeout_s: float, num_candidates: int) -> BenchSystem:
    """A maker of scenes; ``made`` keeps what it makes. ValueError for what cannot be one."""
    system = parse_system(f"{CONDITION}={text}", made, timeout_s)
    if isinstance(system, Folder):
        return dataclasses.replace(system, suffixes=(*PICTURES, *SUFFIXES))
    if isinstance(system, Command):
        if "{image}" in system.template:
            raise ValueError(f"--scenes {text}: a scene is made of {{prompt}} and {{reference}}")
        return dataclasses.replace(system, suffix=".png")
    weights, _, options = text.removeprefix("pipeline:").partition("?")
    if options:
        raise ValueError(f"--scenes {text}: the network makes scenes without options")
    return OwnScenes(weights, made, num_candidates)


def add_generated(
    manifest: BenchManifest,
    out: Path,
    scenes: BenchSystem,
    prompts: list[str],
    on_case: Callable[[int, int], None] = lambda done, total: None,
) -> BenchManifest:
    """Write ``manifest`` to ``out`` with a case more for each, whose scene is made of the next of
    ``prompts``, or of the case's own words where there are none.

    ValueError, before a scene is made: an ``out`` that holds something, a case with a fault or
    without words; and for a scene that is not made.
    """
    out = out.resolve()
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; the cases want a folder of their own")
    asked = [
        dataclasses.replace(case, prompt=prompts[i % len(prompts)] if prompts else case.prompt)
        for i, case in enumerate(manifest.cases)
    ]
    for case in asked:
        fault = file_fault(manifest, case) or ("" if case.prompt else "no words: pass --prompts")
        if fault:
            raise ValueError(f"case {case.id}: {fault}")
    added = []
    for done, case in enumerate(asked):
        on_case(done, len(asked))
        found = scenes.deliver(manifest, case)
        if found.path is None:
            raise ValueError(f"the scene of case {case.id}: {found.reason}")
        picture = next(iter_video(found.path))
        height, width = (side // 2 * 2 for side in picture.shape[1:])
        name = f"{case.id}-{CONDITION}"
        image = f"image/{name}.png"
        for role, path in manifest.cases[done].files().items():
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(manifest.path(case, role), out / path)
        (out / image).parent.mkdir(parents=True, exist_ok=True)
        write_png(out / image, picture[:, :height, :width])
        case = dataclasses.replace(
            case, id=name, image=image, truth=None, condition=CONDITION, sha256={}
        )
        added.append(dataclasses.replace(case, sha256=file_hashes(out, case.files())))
    name, cases = f"{manifest.name}_{CONDITION}", (*manifest.cases, *added)
    whole = dataclasses.replace(manifest, root=out, name=name, cases=cases, content="")
    write_manifest(whole)
    on_case(len(asked), len(asked))
    return whole
