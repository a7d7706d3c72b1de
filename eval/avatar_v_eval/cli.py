"""avatar-v-eval: the front end of all measuring commands. It imports nothing heavy by itself.

Each command lives in a module with ``add_parser(subparsers)`` and ``run(args) -> int``; what is
slow to import is imported inside ``run``. A new command is one line in ``COMMANDS``.

A ValueError or OSError is a user's error: one line, exit status 2. ``--debug`` shows where.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

from avatar_v.base.command_line import front_end
from avatar_v.cli import guarded
from avatar_v_eval.measure_cli import KINDS, run_words

COMMANDS = {
    "cases": "avatar_v_eval.bench.cases_cli",
    "study": "avatar_v_eval.measure_cli",
    "speed": "avatar_v_eval.measure_cli",
    "run": "avatar_v_eval.bench.cli",
    "merge": "avatar_v_eval.bench.cli",
    "metrics": "avatar_v_eval.bench.cli",
    "sensitivity": "avatar_v_eval.bench.cli",
    "report": "avatar_v_eval.report.cli",
    "cost": "avatar_v_eval.bench.cli",
    "rate": "avatar_v_eval.human.cli",
    "votes": "avatar_v_eval.human.votes_cli",
    "tables": "avatar_v_eval.tables_cli",
}
"""Command → module, in the order of --help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    return guarded("avatar-v-eval", words, _dispatch)


def _dispatch(words: list[str]) -> int:
    if words and words[0] in KINDS and words[1:] not in (["--help"], ["-h"]):
        return run_words(words[0], words[1:])
    args = build_parser().parse_args(words)
    return importlib.import_module(COMMANDS[args.command]).run(args)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    words = "Measure talking-avatar videos, with people and without."
    parser, subparsers = front_end("avatar-v-eval", words)
    for module in dict.fromkeys(COMMANDS.values()):
        importlib.import_module(module).add_parser(subparsers)
    return parser


if __name__ == "__main__":
    sys.exit(main())
