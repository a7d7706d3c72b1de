"""`avatar-v-eval run | merge | metrics`: measure systems on given cases."""

import argparse
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from avatar_v.base.options import at_once

if TYPE_CHECKING:
    from rich.progress import Progress

    from avatar_v_eval.bench.manifest import Faces
    from avatar_v_eval.bench.rows import BenchRun
    from avatar_v_eval.bench.score import Scoring

COMMAND_TIMEOUT_S = 3600.0


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register all commands of the benchmark."""
    _add_run(subparsers)
    merge = subparsers.add_parser(
        "merge", help="join the shards of a run, or runs of several systems", allow_abbrev=False
    )
    merge.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="folders that `run` wrote")
    merge.add_argument("--out", metavar="DIR", type=Path, required=True)
    merge.add_argument("--overwrite", action="store_true", help="replace the run in DIR")
    subparsers.add_parser("metrics", help="list the metrics that there are", allow_abbrev=False)


def run(args: argparse.Namespace) -> int:
    """Carry out the parsed command; ValueError where the extra [eval] is not installed."""
    if args.command in ("run", "merge") and importlib.util.find_spec("polars") is None:
        raise ValueError("the benchmark needs pip install 'avatar_v[eval]': polars is missing")
    commands = {"run": _run, "merge": _merge, "metrics": _metrics}
    return commands[args.command](args)


def passing_bar() -> "Progress":
    """A progress bar on stderr that leaves nothing, not even rich's empty line in a file."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)


def _add_run(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "run",
        help="measure systems on the cases of a manifest",
        description="Writes cases.parquet, frames.parquet and run.json. A case that cannot be "
        "measured is a row with a reason. Stop it at any time: the same command goes on.",
        allow_abbrev=False,
    )
    _add_common(parser)
    _add_systems(parser)
    add = parser.add_argument
    add("--out", metavar="DIR", type=Path, required=True, help="folder of the run")
    add(
        "--overwrite",
        action="store_true",
        help="replace results of other weights under a system's name, and drop left out systems",
    )
    add("--cache", metavar="DIR", type=Path, help="of measurements (OUT/cache)")
    add("--workers", type=at_once, default=1, help="processes (%(default)s)")
    add("--shard", default="1/1", metavar="I/N", help="this machine's part (%(default)s)")
    add(
        "--timeout",
        type=float,
        default=COMMAND_TIMEOUT_S,
        metavar="S",
        help="of a command (%(default)s)",
    )


def _add_systems(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", action="append", default=[], metavar="NAME=SOURCE",
        help="a folder of CASE.mp4; command:TEMPLATE with {reference} {audio} {image} {prompt} "
        "{out} {timing}; or pipeline:WEIGHTS[?num_steps=12&reference_s=0]. The true videos are "
        "scored in any case")  # fmt: skip


def _add_common(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("manifest", metavar="MANIFEST", type=Path, help="manifest.json or its folder")
    add(
        "--metrics", nargs="+", default=[], metavar="NAME", help="names or modules (all that apply)"
    )
    add("--weights", action="append", default=[], metavar="NAME=PATH", help="of a metric")
    add("--convert", action="store_true", help="take videos of other frame rates, on a 25 fps grid")


def _run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from avatar_v_eval.bench.manifest import load_manifest
    from avatar_v_eval.bench.rows import check_same_systems, write_run
    from avatar_v_eval.bench.run import parse_shard, run_benchmark
    from avatar_v_eval.bench.summary import counts, unmeasured
    from avatar_v_eval.bench.systems import TRUTH, parse_systems

    manifest, shard = load_manifest(args.manifest), parse_shard(args.shard)
    systems = parse_systems(args.system, args.out / "videos", args.timeout)
    if not args.overwrite:
        check_same_systems(args.out, {system.name: system.source for system in systems})
    scoring, left_out = _scoring(args, manifest.faces, args.cache or args.out / "cache")
    console = Console(stderr=True)
    for name, reason in left_out.items():
        console.print(f"left out: {name} {reason}", soft_wrap=True, markup=False)
    with passing_bar() as bar:
        tasks = {what: bar.add_task(what, total=None) for what in ("videos", "scores")}
        done = run_benchmark(
            manifest,
            systems,
            scoring,
            shard=shard,
            num_workers=args.workers,
            left_out=left_out,
            on_step=lambda what, n, total: bar.update(tasks[what], completed=n, total=total),
        )
    write_run(done, args.out)
    _show(done)
    print(args.out)
    has_truth = any(case.truth for case in manifest.cases)  # a manifest may have none
    absent = [
        name
        for name, one in counts(done, []).items()
        if one.delivered == 0 and (has_truth or name != TRUTH)
    ]
    if absent:
        raise ValueError(f"no video of {', '.join(absent)} was delivered; the rows say why")
    if done.cases["value"].is_null().all() and unmeasured(done):
        raise ValueError("no metric gave a number; the rows say why")
    return 0


def _merge(args: argparse.Namespace) -> int:
    from avatar_v_eval.bench.merge import merge_runs
    from avatar_v_eval.bench.rows import RUN, read_run, write_run

    if (args.out / RUN).exists() and not args.overwrite:
        raise ValueError(f"{args.out} holds a run; pass --overwrite to replace it")
    merged = merge_runs([read_run(folder) for folder in args.runs])
    write_run(merged, args.out)
    _show(merged)
    print(args.out)
    return 0


def _metrics(args: argparse.Namespace) -> int:
    from avatar_v.scoring.registry import scorer_classes
    from avatar_v_eval.scoring.scorers.sets import SetScorer

    for one in scorer_classes().values():
        print(f"{one.name} (version {one.version}, {' and '.join(one.faces)} faces): {one.judge}")
        if issubclass(one, SetScorer):
            print(f"    {one.distance.key}: {one.distance.label}, of whole sets")
        for output in one.outputs:
            print(f"    {output.key}: {output.label}")
        if one.needs_weights:
            print(f"    needs --weights {one.name}=PATH: {one.needs_weights}")
    return 0


def _scoring(
    args: argparse.Namespace, faces: "Faces", cache: Path
) -> "tuple[Scoring, dict[str, str]]":
    from avatar_v.scoring.registry import find_scorers
    from avatar_v_eval.bench.score import Scoring

    weights = {}
    for text in args.weights:
        name, equals, path = text.partition("=")
        if not equals or not path:
            raise ValueError(f"--weights {text}: expected NAME=PATH")
        weights[name] = path
    metrics, left_out = find_scorers(args.metrics, weights, faces)
    given = tuple(sorted(weights.items()))
    return Scoring(tuple(metrics), given, cache, args.convert), left_out


def _show(done: "BenchRun") -> None:
    from avatar_v.base.progress import results_console
    from avatar_v_eval.bench.summary import as_table, counts_table, summarise, unmeasured

    console = results_console()
    lines = summarise(done)
    console.print(as_table(lines))
    console.print(counts_table(done, lines))
    for system, reason, case, num in unmeasured(done):
        more = f" and {num - 1} more" if num > 1 else ""
        console.print(f"{system}, {case}{more}: {reason}", soft_wrap=True, markup=False)
