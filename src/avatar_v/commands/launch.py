"""`avatar-v launch`: a recipe on this machine, Slurm, Kubernetes or SkyPilot, and what becomes of
it."""

import argparse
import importlib
import os
from dataclasses import fields
from pathlib import Path
from types import ModuleType

from avatar_v.base.command_line import Parser

ENGINES = ("local", "slurm", "kubernetes", "skypilot")
VERBS = ("status", "logs", "stop")
DESCRIPTION = """Writes what the engine reads (launch.sh or launch.yaml, in the folder of the run)
and submits it. The run goes on from its last checkpoint, so the same command starts it again, on
any number of nodes. `launch status`, `launch logs` and `launch stop` take the folder of the run.
Options of the recipe come last, behind --."""


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    """Register `launch`."""
    parser = subparsers.add_parser(
        "launch",
        help="start a recipe on this machine, Slurm, Kubernetes or SkyPilot",
        description=DESCRIPTION,
        usage="avatar-v launch RECIPE [OVERLAY ...] [--on ENGINE] [options] [-- --KEY VALUE ...]\n"
        "       avatar-v launch status|logs|stop FOLDER",
        allow_abbrev=False,
    )
    parser.behind = "options"
    add = parser.add_argument
    add("words", nargs="+", metavar="RECIPE", help="a recipe and its overlays; or what to do")
    add("--on", choices=ENGINES, default="local", help="what runs it (%(default)s)")
    add("--nodes", default="", metavar="N", help="machines; LEAST-MOST on Slurm; the recipe's")
    add("--gpus", type=int, metavar="N", help="of a node, processes on a CPU; the recipe's")
    add("--priority", default="", choices=("", "inference", "training", "data"),
        help="a QOS of Slurm, a class of Kueue")  # fmt: skip
    add("--team", default="", metavar="NAME", help="who pays")
    add("--time", default="", metavar="LIMIT", help="of Slurm, as 24:00:00")
    add("--gpu", default="", metavar="KIND", help="for SkyPilot, as H100")
    add("--image", default="", metavar="IMAGE", help="a container with avatar-v, in a cloud")
    add("--volume", default="", metavar="NAME", help="the claim or volume with recipes, shards, "
        "weights and runs/, in a cloud")  # fmt: skip
    add("--queue", default="", metavar="NAME", help="Kueue's LocalQueue; default")
    add("--topology", default="", metavar="LABEL", help="of Kueue's Topology: the level that all "
        "nodes should share")  # fmt: skip
    add("--dry-run", action="store_true", help="print what would be submitted, and end")
    add("--follow", action="store_true", help="of logs: go on showing what comes")


def run(args: argparse.Namespace) -> int:
    """Carry out the parsed command."""
    if args.words[0] in VERBS:
        return _about(args.words[0], args.words[1:], follow=args.follow)
    from avatar_v.launch.job import Asked, keep, kept, read_job

    asked = Asked(**{field.name: getattr(args, field.name) for field in fields(Asked)})
    job = read_job(args.words, args.options, asked)
    engine = _engine(args.on)
    engine.check(job)
    text = engine.text(job)
    if args.dry_run:
        print(text, end="")
        return 0
    before = kept(job.root)
    if before is not None and _engine(before.on).is_there(before):
        raise ValueError(f"{job.root}: {before.on} has this run as {before.job}; avatar-v launch "
                         f"stop {job.root} ends it behind a checkpoint")  # fmt: skip
    job.root.mkdir(parents=True, exist_ok=True)
    path = job.root / f"launch{engine.SUFFIX}"
    path.write_text(text, encoding="utf-8")
    handle = engine.submit(job, path)
    keep(job, handle)
    print(f"{job.id}: {args.on} has it as {handle}; avatar-v launch status {job.root}")
    return 0


def _about(verb: str, folders: list[str], *, follow: bool) -> int:
    from avatar_v.launch.job import kept

    if len(folders) != 1:
        raise ValueError(f"launch {verb} takes the folder of one run, got {len(folders)}")
    root = Path(folders[0])
    run = kept(root)
    if run is None:
        raise ValueError(f"{root} holds no run that was launched")
    engine = _engine(run.on)
    if verb == "logs":
        command = engine.logs(run, root, follow=follow)
        os.execvp(command[0], command)
    if verb == "stop":
        engine.stop(run)
    print(f"{run.id} on {run.on}, {run.job}: {engine.status(run)}")
    return 0


def _engine(name: str) -> ModuleType:
    if name not in ENGINES:
        raise ValueError(f"an engine is one of {', '.join(ENGINES)}, got {name}")
    return importlib.import_module(f"avatar_v.launch.{name}")
