"""avatar-v-eval: the front end of all measuring commands. It imports nothing heavy by itself.

Each command lives in a module with ``add_parser(subparsers)`` and ``run(args) -> int``; what is
slow to import is imported inside ``run``. A new command is one line in ``COMMANDS``.

A ValueError or OSError is a user's error: one line, exit status 2. ``--debug`` shows where.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

COMMANDS = {
    "cases": "avatar_v_eval.bench.cases_cli",
    "run": "avatar_v_eval.bench.cli",
    "merge": "avatar_v_eval.bench.cli",
    "metrics": "avatar_v_eval.bench.cli",
    "sensitivity": "avatar_v_eval.bench.cli",
    "rate": "avatar_v_eval.human.cli",
    "votes": "avatar_v_eval.human.votes_cli",
}
"""Command → module, in the order of --help."""

USER_ERRORS = (ValueError, OSError)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    args = build_parser().parse_args([word for word in words if word != "--debug"])
    try:
        return importlib.import_module(COMMANDS[args.command]).run(args)
    except USER_ERRORS as error:
        if debug:
            raise
        text = " ".join(str(error).split()) or type(error).__name__
        print(f"avatar-v-eval: error: {text}  (--debug shows where)", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("avatar-v-eval: interrupted", file=sys.stderr)
        return 130


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
