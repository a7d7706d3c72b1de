"""avatar-v: the front end of all commands. It imports nothing heavy, so --help answers at once.

Each command lives in a module with ``add_parser(subparsers)`` and ``run(args) -> int``; the module
imports torch only inside ``run``. The training commands take their options from the typed
constructors of the recipe, so they get the rest of the command line as it is.

A ValueError or OSError is a user's error: one line, exit status 2. ``--debug`` shows where.
"""

import argparse
import importlib
import os
import select
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, cast

from avatar_v.base.command_line import front_end, version_line
from avatar_v.base.interrupts import interrupted, interrupts_behind_imports
from avatar_v.base.words import printable, readable

COMMANDS = {
    "demo": "avatar_v.commands.demo",
    "generate": "avatar_v.commands.generate",
    "person": "avatar_v.commands.person",
    "voice": "avatar_v.commands.engines",
    "speak": "avatar_v.commands.engines",
    "scene": "avatar_v.commands.engines",
    "write": "avatar_v.commands.engines",
    "app": "avatar_v.commands.app",
    "serve": "avatar_v.commands.serve",
    "consent": "avatar_v.commands.safety",
    "watermark": "avatar_v.commands.safety",
    "shards": "avatar_v.commands.shards",
    "weights": "avatar_v.commands.weights",
    "plan": "avatar_v.commands.planning",
    "doctor": "avatar_v.commands.planning",
    "kernels": "avatar_v.commands.kernels",
    "launch": "avatar_v.commands.launch",
    "run": "avatar_v.recipe.cli",
    "fit": "avatar_v.recipe.cli",
    "validate": "avatar_v.recipe.cli",
}
"""Command → module, in the order of --help."""

TRAINING = ("run", "fit", "validate")
USER_ERRORS = (ValueError, OSError)
OURS = frozenset(("avatar_v", "avatar_v_data", "avatar_v_eval"))
READER_GONE = 128 + signal.SIGPIPE
"""The exit status of a program that SIGPIPE ends."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    return guarded("avatar-v", words, _dispatch)


def guarded(name: str, words: Sequence[str], run: Callable[[list[str]], int]) -> int:
    """``run(words without --debug)`` as the command ``name``; its exit status, 2 behind a user's
    error, which is one line, and 130 behind an interrupt. ``--version`` is answered here. Where
    the reader of the output has gone, as ``| head`` does, it ends without a word, as 141."""
    try:
        try:
            with interrupts_behind_imports(), _printable_output(name):
                status = _answered(name, words, run)
        except SystemExit:  # of --help
            _flush()
            raise
        _flush()
        return status
    except BrokenPipeError:
        if not _reader_has_gone():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is buffered
        return READER_GONE


def _answered(name: str, words: Sequence[str], run: Callable[[list[str]], int]) -> int:
    rest = [word for word in words if word != "--debug"]
    if rest[:1] == ["--version"]:
        print(version_line(name))
        return 0
    try:
        return run(rest)
    except USER_ERRORS as error:
        if "--debug" in words or (isinstance(error, BrokenPipeError) and _reader_has_gone()):
            raise
        text = readable(error)
        print(f"{name}: error: {text}  (--debug shows where)", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130


@contextmanager
def _printable_output(name: str) -> Iterator[None]:
    """Inside, a warning of ours is one line of the command ``name``, without a place in our code;
    and nothing that is printed or warned of steers the terminal (`printable`): names of
    files and people are often another person's. stderr is left to progress bars; errors, and what
    these write above themselves, are made printable where they are worded."""
    before = warnings.formatwarning

    def worded(message: Any, category: Any, filename: str, *args: Any, **more: Any) -> str:
        if not OURS.isdisjoint(Path(filename).parts):
            return printable(f"{name}: warning: {message}\n")
        return printable(before(message, category, filename, *args, **more))

    warnings.formatwarning = worded
    try:
        with redirect_stdout(cast(Any, _Printable(sys.stdout))):
            yield
    finally:
        warnings.formatwarning = before


class _Printable:
    """A stream that is written to in `printable` text, and otherwise the one behind it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(printable(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _flush() -> None:
    """Write what is buffered. Python does it at its end, too, where nothing catches its errors."""
    if sys.stdout is not None:
        sys.stdout.flush()


def _reader_has_gone() -> bool:
    """Whether stdout is a pipe that no one reads; a BrokenPipeError may be of another one."""
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):  # there is no stdout, or it is no file
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def build_parser(commands: Iterable[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """The parser of ``commands``; their modules alone are imported."""
    words = "Train, run and measure talking-avatar video models."
    parser, subparsers = front_end("avatar-v", words)
    for module in dict.fromkeys(COMMANDS[command] for command in commands):
        importlib.import_module(module).add_parser(subparsers)
    return parser


def _dispatch(words: list[str]) -> int:
    if words and words[0] in TRAINING:
        from avatar_v.recipe import cli as training

        return training.run_words(words[0], words[1:])
    if threading.current_thread() is threading.main_thread():
        # SIGTERM ends like Ctrl-C: whoever is writing cleans up. (Lightning has its own way.)
        signal.signal(signal.SIGTERM, interrupted)
    known = words[:1] if words and words[0] in COMMANDS else tuple(COMMANDS)
    args = build_parser(known).parse_args(words)
    return importlib.import_module(COMMANDS[args.command]).run(args)


if __name__ == "__main__":
    sys.exit(main())
