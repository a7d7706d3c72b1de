"""`avatar-v-eval study NAME | speed NAME`: one measurement, or the list of all measurements.

A measurement takes its options from its own module, which is imported only when it runs.
"""

import argparse
import importlib

from avatar_v.base.command_line import Parser
from avatar_v_eval.speed import SPEEDS
from avatar_v_eval.studies import STUDIES

KINDS = {"study": ("studies", STUDIES), "speed": ("speed", SPEEDS)}
"""Command → package of the modules, and name → line of the measurements."""
HELP = {"study": "measure the quality of what ships", "speed": "measure time and memory"}


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `study` and `speed`."""
    for command in KINDS:
        parser = subparsers.add_parser(
            command,
            help=HELP[command],
            epilog=listing(command),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        parser.add_argument("name", metavar="NAME", choices=list(KINDS[command][1]))


def run_words(command: str, words: list[str]) -> int:
    """Run a measurement by its name, or print the list without one; returns the exit status."""
    if not words:
        print(listing(command))
        return 0
    package, known = KINDS[command]
    if words[0] not in known:
        parser = Parser(prog=f"avatar-v-eval {command}")
        parser.error(
            f"argument NAME: invalid choice: {words[0]!r} (choose from {', '.join(known)})"
        )
    module = importlib.import_module(f"avatar_v_eval.{package}.{words[0]}")
    from avatar_v_eval.protocol import run_measurement

    return run_measurement(command, words[0], module, words[1:])


def listing(command: str) -> str:
    """Every measurement of a command in a line."""
    known = KINDS[command][1]
    width = max(map(len, known))
    lines = [f"  {name:{width}}  {line}" for name, line in known.items()]
    return "\n".join([f"avatar-v-eval {command} NAME --help explains its options.", *lines])
