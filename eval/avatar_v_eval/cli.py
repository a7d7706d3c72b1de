"""avatar-v-eval: the front end of all measuring commands. It imports nothing heavy by itself.

Each command lives in a module with ``add_parser(subparsers)`` and ``run(args) -> int``; what is
slow to import is imported inside ``run``. A new command is one line in ``COMMANDS``.

A ValueError or OSError is a user's error: one line, exit status 2. ``--debug`` shows where.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

from avatar_v.cli import guarded

COMMANDS = {
    "cases": "avatar_v_eval.bench.cases_cli",
    "run": "avatar_v_eval.bench.cli",
    "merge": "avatar_v_eval.bench.cli",
    "metrics": "avatar_v_eval.bench.cli",
    "sensitivity": "avatar_v_eval.bench.cli",
    "report": "avatar_v_eval.report.cli",
    "cost": "avatar_v_eval.bench.cli",
    "rate": "avatar_v_eval.human.cli",
    "votes": "avatar_v_eval.human.votes_cli",
}
"""Command → module, in the order of --help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    return guarded("avatar-v-eval", words, _dispatch)


def _dispatch(words: list[str]) -> int:
    args = build_parser().parse_args(words)
    return importlib.import_module(COMMANDS[args.command]).run(args)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="avatar-v-eval",
        description="Measure talking-avatar videos, with people and without.",
        epilog="avatar-v-eval COMMAND --help explains a command; --debug shows tracebacks.",
        allow_abbrev=False,
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in dict.fromkeys(COMMANDS.values()):
        importlib.import_module(module).add_parser(subparsers)
    return parser


if __name__ == "__main__":
    sys.exit(main())
