"""`avatar-v kernels evolve`: search faster code for a scope of the fused kernels."""

import argparse
import os
from pathlib import Path

DESCRIPTION = """SPEC names a scope, its shapes, how exact a result has to be, the baseline and the
budget. Candidates come from a grammar, and with --endpoint every other one from a model. Each is
checked and timed beside the baseline in a process of its own. The same OUT continues a search. The
key of the endpoint is that of the environment's OPENAI_API_KEY, if there is one."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `kernels` and its action."""
    parser = subparsers.add_parser("kernels", help="search faster kernels", allow_abbrev=False)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    evolve = actions.add_parser(
        "evolve", help="a specification → an archive of candidates and the best",
        description=DESCRIPTION, allow_abbrev=False,
    )  # fmt: skip
    add = evolve.add_argument
    add("spec", metavar="SPEC", help="a file of YAML, as recipes/kernels/gated_add_norm.yaml")
    add("--out", metavar="OUT", required=True, help="folder of the archive")
    add("--endpoint", metavar="URL", help="https://HOST/v1 that answers chat completions")
    add("--model", metavar="NAME", help="that it is asked for")
    add("--unsafe", action="store_true", help="run code of the endpoint where this machine has no "
        "namespaces to shut it in")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Carry out the parsed command: 0 with a winner, 1 where no candidate was right."""
    if (args.endpoint is None) != (args.model is None):
        raise ValueError("--endpoint and --model go together")
    from avatar_v.kernels.evolve.endpoint import Endpoint
    from avatar_v.kernels.evolve.run import evolve
    from avatar_v.kernels.evolve.spec import read_spec

    spec, ask = read_spec(args.spec), None
    if args.endpoint is not None:
        key = os.environ.get("OPENAI_API_KEY", "")
        ask = Endpoint(args.endpoint, args.model, key, spec)
    found = evolve(spec, Path(args.out), ask, unsafe=args.unsafe)
    if found.winner is None or found.again is None:
        print(f"none of {len(found.records)} candidates is right")
        return 1
    again, best = found.again, Path(args.out) / "best.py"
    print(
        f"of {len(found.records)} candidates {found.winner.index} is the best: the time of "
        f"{spec.baseline} over its own is {again.speedup:.3f} ({again.low:.3f} to {again.high:.3f},"
        f" {again.starts} starts of {again.pairs // again.starts} pairs); {best}"
    )
    return 0
