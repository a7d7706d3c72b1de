"""`avatar-v-eval cases world70 | build | generated | check | controls`: make, check and mistreat
cases."""

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from avatar_v_eval.bench.cli import COMMAND_TIMEOUT_S, passing_bar

if TYPE_CHECKING:
    from avatar_v_eval.bench.manifest import BenchManifest


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `cases`."""
    parser = subparsers.add_parser(
        "cases", help="make or check the cases of a benchmark", allow_abbrev=False
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    world = actions.add_parser("world70", help="render the 70 cases of drawn people")
    world.add_argument("folder", metavar="FOLDER", type=Path, help="new or empty")
    world.add_argument("--cases", metavar="N", type=int, help="the first N alone (all)")
    world.add_argument("--freeze", action="store_true", help="for developers: a new frozen set")
    build = actions.add_parser(
        "build",
        help="cases from clips of people, two or more of each",
        description="FOLDER/PERSON/SCENE/CLIP.mp4: each clip gives sound, first frame and truth of "
        "a case, the next clip of that person the reference. FOLDER/PERSON/CLIP.mp4 has every clip "
        "in a scene of its own (condition cross), unless --one-scene (same).",
    )
    add = build.add_argument
    add("folder", metavar="FOLDER", type=Path)
    add("--out", metavar="DIR", type=Path, required=True, help="new or empty")
    add("--name", default="", help="of the benchmark (FOLDER's)")
    add("--one-scene", action="store_true", help="all clips of a PERSON show one scene")
    add("--drawn", action="store_true", help="people of the world, not real ones")
    add("--language", default="unknown", help="spoken in the clips (%(default)s)")
    add("--licence", default="unknown", help="of the clips, e.g. CC-BY-4.0 (%(default)s)")
    add("--consent", default="unknown", help="how the people shown agreed (%(default)s)")
    add("--seconds", type=float, default=30.0, help="of each clip at most (%(default)s)")
    generated = actions.add_parser(
        "generated",
        help="add cases whose scene is made of words and the person",
        description="Each case once more, with a scene image that --scenes makes of its prompt and "
        "its reference: a third condition beside same and cross.",
    )
    add = generated.add_argument
    add("manifest", metavar="MANIFEST", type=Path)
    add("--out", metavar="DIR", type=Path, required=True, help="new or empty, for all cases")
    add("--scenes", metavar="SOURCE", required=True, help="a folder of CASE.png; command:TEMPLATE "
        "with {reference} {prompt} {out}; or pipeline:WEIGHTS")  # fmt: skip
    add("--prompts", metavar="FILE", type=Path, help="a scene in words each line, dealt out in "
        "turn (the cases' own)")  # fmt: skip
    add("--candidates", metavar="N", type=int, default=8, help="of a pipeline, which the best is "
        "taken of (%(default)s)")  # fmt: skip
    add("--timeout", metavar="S", type=float, default=COMMAND_TIMEOUT_S, help="of a command "
        "(%(default)s)")  # fmt: skip
    controls = actions.add_parser(
        "controls",
        help="true videos made worse, or left alike: systems whose place is known",
        description="OUT/{blurred,unsynced,still,coded,late,cropped}/CASE.mp4, for `run --system "
        "NAME=OUT/NAME`. A metric should see the first three, and little of the others.",
    )
    controls.add_argument("manifest", metavar="MANIFEST", type=Path)
    controls.add_argument("--out", metavar="DIR", type=Path, required=True)
    check = actions.add_parser("check", help="check a manifest and all its files")
    check.add_argument("manifest", metavar="MANIFEST", type=Path)


def run(args: argparse.Namespace) -> int:
    """Carry out the parsed command."""
    actions = {
        "world70": _world70, "build": _build, "generated": _generated, "check": _check,
        "controls": _controls,
    }  # fmt: skip
    return actions[args.action](args)


def _world70(args: argparse.Namespace) -> int:
    from avatar_v_eval.bench.world70 import (
        differing,
        first_cases,
        freeze,
        frozen_contents,
        write_world,
    )

    if args.freeze and args.cases is not None:
        raise ValueError("--freeze takes all cases, not --cases")
    plan = first_cases(args.cases)
    frozen = {} if args.freeze else frozen_contents()
    with passing_bar() as bar:
        task = bar.add_task("rendering cases", total=None)
        manifest, contents = write_world(
            args.folder,
            plan,
            lambda n, total: bar.update(task, completed=n, total=total),
            frozen,
        )
    print(f"{manifest.root}: {len(manifest.cases)} cases, content {manifest.content}")
    if args.freeze:
        freeze(contents)
        return 0
    expected = {name: content for name, content in frozen.items() if name in contents}
    if other := differing(contents, expected):
        print(
            f"{len(other)} cases differ from the frozen world70 by more than rounding "
            f"({', '.join(other[:3])}, …); numbers on them must not be compared to published ones"
        )
        return 1
    print("the same content as the frozen world70")
    return 0


def _build(args: argparse.Namespace) -> int:
    from avatar_v_eval.bench.pairs import About, build_cases

    about = About(
        faces="drawn" if args.drawn else "real",
        language=args.language,
        licence=args.licence,
        consent=args.consent,
        max_s=args.seconds,
        one_scene=args.one_scene,
    )
    with passing_bar() as bar:
        task = bar.add_task("clips", total=None)
        manifest = build_cases(
            args.folder,
            args.out,
            about,
            on_clip=lambda n, total: bar.update(task, completed=n, total=total),
            name=args.name,
        )
    _tell(manifest)
    return 0


def _generated(args: argparse.Namespace) -> int:
    from avatar_v.base.outside import read_text
    from avatar_v_eval.bench.generated import add_generated, parse_scenes
    from avatar_v_eval.bench.manifest import load_manifest

    prompts = []
    if args.prompts is not None:
        lines = read_text(args.prompts, what="scenes in UTF-8").splitlines()
        prompts = [line.strip() for line in lines if line.strip()]
        if not prompts:
            raise ValueError(f"--prompts {args.prompts}: expected a scene in words each line")
    manifest = load_manifest(args.manifest)
    with tempfile.TemporaryDirectory() as made, passing_bar() as bar:
        scenes = parse_scenes(args.scenes, Path(made), args.timeout, args.candidates)
        task = bar.add_task("scenes", total=None)
        manifest = add_generated(
            manifest,
            args.out,
            scenes,
            prompts,
            on_case=lambda n, total: bar.update(task, completed=n, total=total),
        )
    _tell(manifest)
    return 0


def _tell(manifest: "BenchManifest") -> None:
    conditions = [case.condition for case in manifest.cases]
    told = ", ".join(f"{conditions.count(one)} {one}" for one in sorted(set(conditions)))
    print(f"{manifest.root}: {manifest.name}, {len(conditions)} cases ({told})")


def _controls(args: argparse.Namespace) -> int:
    from avatar_v_eval.bench.controls import write_controls
    from avatar_v_eval.bench.manifest import load_manifest

    with passing_bar() as bar:
        task = bar.add_task("videos", total=None)
        folders = write_controls(
            load_manifest(args.manifest),
            args.out,
            on_case=lambda n, total: bar.update(task, completed=n, total=total),
        )
    for folder in folders:
        print(folder)
    return 0


def _check(args: argparse.Namespace) -> int:
    from avatar_v_eval.bench.manifest import file_fault, load_manifest

    manifest = load_manifest(args.manifest)
    faults = {case.id: file_fault(manifest, case) for case in manifest.cases}
    for name, fault in faults.items():
        if fault:
            print(f"{name}: {fault}")
    num = sum(map(bool, faults.values()))
    print(f"{manifest.name}: {len(faults)} cases, {num} with a fault")
    return 1 if num else 0
