"""`avatar-v plan` and `doctor`: what a run takes, and what is missing, before it starts."""

import argparse

from avatar_v.base import checks, trust
from avatar_v.base.video_format import VideoFormat

DESCRIPTION = """Plans a recipe, with its overlays, or generation. The recipe is read as
`avatar-v run` reads it. Its networks are built and run without memory and without values, at their
true sizes: no GPU, no weights and no data are needed. Options of the recipe itself come last,
behind --."""

MAX_SECONDS = 86_400
"""Of a video that is planned: a day."""
LEAST_MFU = 1e-3
TRUST = "recipes may name classes and functions of this module of yours; may be repeated"
OF_GENERATION = (
    "seconds", "reference_seconds", "refine", "steps", "passes", "text_only"
)  # fmt: skip


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `plan`."""
    parser = subparsers.add_parser(
        "plan",
        help="does a recipe fit, and how long is a step",
        description=DESCRIPTION,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("recipes", nargs="*", metavar="RECIPE", help="a recipe and its overlays")
    add("--generate", metavar="NAME|DIR|PRESET", help="plan generation by these weights instead")
    add(
        "--gpus",
        type=int,
        metavar="N",
        help="of all nodes; those of the recipe where not given, 1 for a generation",
    )
    add("--gpu", metavar="KIND", help="h100, h200, b200, a100, a100_40, l40s, rtx4090; h100 where "
        "the recipe asks for GPUs")  # fmt: skip
    add("--mfu", type=float, default=0.4, help="share of the GPU's bf16 peak that is reached")
    add("--size", metavar="WxH", help="of the pictures, as 832x480; of the shards, else 480, and "
        "of a generation that of the weights")  # fmt: skip
    add("--frames", type=int, metavar="N", help="frames of a clip; of the shards, else a window's; "
        "of a generation, whose video is then one chunk")  # fmt: skip
    add("--trust", action="append", default=[], metavar="MODULE", help=TRUST)
    add("--measures", action="store_true", help="what would help, also where it fits")
    add("--seconds", type=float, metavar="S", help="of the video of a generation; 10")
    add("--reference-seconds", type=float, metavar="S", help="of its reference; 16")
    add("--refine", type=float, metavar="FACTOR", help="with a refiner of the generator's size, "
        "which makes pictures of --size; 2.25: 1080 of 480")  # fmt: skip
    add("--steps", type=int, metavar="N", help="its denoising steps; those of the weights")
    add("--passes", type=int, metavar="N", help="of the network in a step; as guidance needs them")
    add("--text-only", action="store_true", help="as plain Wan: no sound, motion and reference")
    doctor = subparsers.add_parser(
        "doctor",
        help="what this machine has, and what a recipe lacks before it can start",
        description="Says what this machine has. With a recipe, its overlays and behind -- its "
        "options, checks all that `avatar-v run` reads: folders of weights, shards, devices, disk. "
        "Exit status 0 when nothing is missing, else 1.",
        allow_abbrev=False,
    )
    doctor.add_argument("recipes", nargs="*", metavar="RECIPE", help="a recipe and its overlays")
    doctor.add_argument("--trust", action="append", default=[], metavar="MODULE", help=TRUST)


def run(args: argparse.Namespace) -> int:
    """Carry out the parsed command."""
    trust.trust(args.trust)
    return _plan(args) if args.command == "plan" else _doctor(args)


def _doctor(args: argparse.Namespace) -> int:
    from avatar_v.planning.doctor import machine, recipe_findings

    found = [*machine(), *(recipe_findings(args.recipes) if args.recipes else [])]
    for finding in found:
        print(f"{finding.kind:<9}{finding.text}")
    return int(any(finding.missing for finding in found))


def _check_effect(args: argparse.Namespace) -> None:
    """ValueError for an option that the plan asked for would not look at."""
    for name in ("measures",) if args.generate else OF_GENERATION:
        if getattr(args, name):
            other = "a recipe" if args.generate else "--generate"
            raise ValueError(f"--{name.replace('_', '-')} is for {other}")
    for name, other in (("frames", "seconds"), ("text_only", "reference_seconds")):
        if args.generate and getattr(args, name) and getattr(args, other):
            words = (f"--{option.replace('_', '-')}" for option in (other, name))
            raise ValueError("{} says nothing beside {}".format(*words))


def _check_values(args: argparse.Namespace) -> None:
    checks.number("--mfu", args.mfu, least=LEAST_MFU, most=1)
    for name in ("gpus", "frames", "steps", "passes"):
        if getattr(args, name) is not None:
            checks.count(f"--{name}", getattr(args, name))
    if args.refine is not None:
        checks.number("--refine", args.refine, above=1, most=8)
    for name in ("seconds", "reference_seconds"):
        if getattr(args, name) is not None:
            option = f"--{name.replace('_', '-')}"
            checks.positive(option, getattr(args, name), most=MAX_SECONDS)


def _plan(args: argparse.Namespace) -> int:
    _check_values(args)
    if bool(args.recipes) == bool(args.generate):
        raise ValueError("plan needs a recipe, or --generate with weights or a preset")
    _check_effect(args)
    print(_generation(args) if args.generate else _training(args))
    return 0


def _generation(args: argparse.Namespace) -> str:
    from avatar_v.planning.generating import Video, generation_report
    from avatar_v.planning.gpus import gpu_of
    from avatar_v.planning.report import Machine

    machine = Machine(gpu_of(args.gpu or "h100"), args.mfu)
    video = Video(
        seconds=args.seconds or Video.seconds,
        reference_s=args.reference_seconds or Video.reference_s,
        size=args.size,
        factor=args.refine or Video.factor,
        num_frames=args.frames,
        num_steps=args.steps,
        num_passes=args.passes,
        text_only=args.text_only,
    )
    return generation_report(args.generate, machine, video, devices=args.gpus or 1)


def _training(args: argparse.Namespace) -> str:
    from avatar_v.planning.gpus import gpu_of
    from avatar_v.recipe.cli import merge_recipes, split_recipes

    gpu = None if args.gpu is None else gpu_of(args.gpu)
    recipes, options = split_recipes(args.recipes)
    merge_recipes(recipes)  # what is wrong with the files is said before torch is imported
    from avatar_v.planning.recipe import read_recipe
    from avatar_v.planning.report import Machine, clips_of, recipe_report
    from avatar_v.training.engine import trains_clips

    recipe = read_recipe(recipes, options)
    if gpu is None and recipe.trainer["accelerator"] not in ("cpu", "auto"):
        gpu = gpu_of("h100")
    spread = recipe.spread if args.gpus is None else recipe.spread.over(args.gpus)
    clips = None
    if trains_clips(recipe.model):
        video = None if args.size is None else VideoFormat.of(args.size)
        clips = clips_of(recipe, video, args.frames)
    machine = Machine(gpu, args.mfu)
    return recipe_report(recipe, machine, spread, clips, measures=args.measures)
