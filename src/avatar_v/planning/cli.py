"""`avatar-v plan` and `doctor`: what a run takes, and what is missing, before it starts."""

import argparse

from avatar_v import checks

DESCRIPTION = """Plans a recipe, with its overlays, or generation. The recipe is read as
`avatar-v run` reads it. Its networks are built and run without memory and without values, at their
true sizes: no GPU, no weights and no data are needed. Options of the recipe itself come last,
behind --."""

MAX_SECONDS = 86_400
"""Of a video that is planned: a day."""
LEAST_MFU = 1e-3


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
    add("--size", type=int, metavar="PX", help="side of the pictures; of the shards, else 480")
    add("--frames", type=int, metavar="N", help="frames of a clip; of the shards, else a window's")
    add("--measures", action="store_true", help="what would help, also where it fits")
    add("--seconds", type=float, metavar="S", help="of the video of a generation; 10")
    add("--reference-seconds", type=float, metavar="S", help="of its reference; 16")
    doctor = subparsers.add_parser(
        "doctor",
        help="what this machine has, and what a recipe lacks before it can start",
        description="Says what this machine has. With a recipe, its overlays and behind -- its "
        "options, checks all that `avatar-v run` reads: folders of weights, shards, devices, disk. "
        "Exit status 0 when nothing is missing, else 1.",
        allow_abbrev=False,
    )
    doctor.add_argument("recipes", nargs="*", metavar="RECIPE", help="a recipe and its overlays")


def run(args: argparse.Namespace) -> int:
    """Carry out the parsed command."""
    return _plan(args) if args.command == "plan" else _doctor(args)


def _doctor(args: argparse.Namespace) -> int:
    from avatar_v.planning.doctor import machine, recipe_findings

    found = [*machine(), *(recipe_findings(args.recipes) if args.recipes else [])]
    for finding in found:
        print(f"{finding.kind:<9}{finding.text}")
    return int(any(finding.missing for finding in found))


def _check_effect(args: argparse.Namespace) -> None:
    """ValueError for an option that the plan asked for would not look at."""
    of_generation = ("seconds", "reference_seconds")
    for name in ("size", "frames", "measures") if args.generate else of_generation:
        if getattr(args, name):
            other = "a recipe" if args.generate else "--generate"
            raise ValueError(f"--{name.replace('_', '-')} is for {other}")


def _plan(args: argparse.Namespace) -> int:
    checks.number("--mfu", args.mfu, least=LEAST_MFU, most=1)
    for name in ("gpus", "size", "frames"):
        if getattr(args, name) is not None:
            checks.count(f"--{name}", getattr(args, name))
    for name, value in {
        "--seconds": args.seconds, "--reference-seconds": args.reference_seconds
    }.items():  # fmt: skip
        if value is not None:
            checks.positive(name, value, most=MAX_SECONDS)
    if bool(args.recipes) == bool(args.generate):
        raise ValueError("plan needs a recipe, or --generate with weights or a preset")
    _check_effect(args)
    from avatar_v.planning.gpus import gpu_of
    from avatar_v.planning.report import Machine

    gpu = None if args.gpu is None else gpu_of(args.gpu)
    if args.generate:
        from avatar_v.planning.generating import generation_report

        machine = Machine(gpu or gpu_of("h100"), args.mfu)
        print(
            generation_report(
                args.generate, machine, devices=args.gpus or 1, seconds=args.seconds or 10.0,
                reference_s=args.reference_seconds or 16.0,
            )
        )  # fmt: skip
        return 0
    from avatar_v.planning.recipe import read_recipe
    from avatar_v.planning.report import clips_of, recipe_report
    from avatar_v.stages.base import Stage
    from avatar_v.stages.cli import split_recipes

    recipe = read_recipe(*split_recipes(args.recipes))
    if gpu is None and recipe.trainer["accelerator"] not in ("cpu", "auto"):
        gpu = gpu_of("h100")
    spread = recipe.spread if args.gpus is None else recipe.spread.over(args.gpus)
    clips = None
    if isinstance(recipe.model, Stage):
        clips = clips_of(recipe, args.size, args.frames)
    machine = Machine(gpu, args.mfu)
    print(recipe_report(recipe, machine, spread, clips, measures=args.measures))
    return 0
