"""What all commands share on the command line: their parser, and the line that --version prints.

Nothing heavy is imported, so that --help and --version answer at once. The commands themselves are
in `cli` and in the modules that it names.
"""

import argparse
import itertools
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

import avatar_v
from avatar_v.base.words import near, printable

PACKAGE = "avatar_v"


class Parser(argparse.ArgumentParser):
    """A parser, and by inheritance those of its commands, with one-line errors and all defaults.

    A wrong option is one line with the way to --help and exit status 2, not the whole usage; it
    names the option that a misspelt one is near to. Help shows the default of every option that has
    one, also where its text does not say so.
    """

    behind = ""
    """The name of the value that takes all words behind --; where empty, they are positional."""
    _words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The parser of a command refuses what it does not know itself: it knows its options."""
        self._words = words = sys.argv[1:] if args is None else list(args)
        end = words.index("--") if self.behind and "--" in words else len(words)
        found, rest = super().parse_known_args(words[:end], namespace)
        if self.behind:
            setattr(found, self.behind, words[end + 1 :])
        if rest and self._subparsers is None:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest

    def error(self, message: str) -> NoReturn:
        """End the process: the message in one line, status 2."""
        text = printable("; ".join([" ".join(message.split()), *self._near_options()]))
        self.exit(2, f"{self.prog}: error: {text}  ({self.prog} --help explains)\n")

    def _near_options(self) -> list[str]:
        """A question for each option that is none of this parser's, and near to one of them."""
        known = {option.lstrip("-"): option for option in self._option_string_actions}
        words = itertools.takewhile(lambda word: word != "--", self._words)
        if self._subparsers is not None:  # the words behind a command are the command's
            words = itertools.takewhile(lambda word: word.startswith("-"), words)
        names = (word.partition("=")[0] for word in words if word.startswith("--"))
        wrong = dict.fromkeys(name for name in names if not self._takes(name))
        alike = {name: near(name.lstrip("-"), known) for name in wrong}
        return [
            f"there is no {name}, did you mean {known[others[0]]}?"
            for name, others in alike.items()
            if others
        ]

    def _takes(self, name: str) -> bool:
        options = self._option_string_actions
        shortens = self.allow_abbrev and any(option.startswith(name) for option in options)
        return shortens or name in options

    def format_help(self) -> str:
        """The help with the defaults that its texts leave out."""
        for action in self._actions:
            if _is_shown(action) and "%(default)" not in (action.help or ""):
                action.help = f"{action.help or ''} (%(default)s)".strip()
        return super().format_help()


class _Help(argparse.HelpFormatter):
    """Help whose left column holds the longest command: Python 3.11 forgets that commands are
    indented more than options."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        for command in self._iter_indented_subactions(action):
            length = len(self._format_action_invocation(command)) + self._current_indent
            self._action_max_length = max(self._action_max_length, length)


def front_end(name: str, description: str) -> tuple[Parser, "argparse._SubParsersAction[Parser]"]:
    """The parser of the command ``name``, and the place where its subcommands are added."""
    parser = Parser(
        prog=name,
        description=description,
        formatter_class=_Help,
        epilog=f"{name} COMMAND --help explains a command; --debug anywhere shows tracebacks.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print version and commit")
    return parser, parser.add_subparsers(dest="command", metavar="COMMAND", required=True)


def version_line(name: str) -> str:
    """``name``, the version of the package, and the commit where a checkout of git runs."""
    try:
        number = version(PACKAGE)
    except PackageNotFoundError:  # a checkout that was never installed
        number = avatar_v.__version__
    commit = commit_of()
    return f"{name} {number}" + (f" (commit {commit})" if commit else "")


def commit_of(
    folder: Path | None = None,
    *,
    digits: int = 12,
    changes: Sequence[str] = ("--untracked-files=no",),
) -> str:
    """The commit of the checkout around ``folder`` (None: of this code), "+" behind it if `git
    status` tells any of the ``changes``; "" outside of a checkout, and without git."""
    own = Path(__file__).resolve().parents[3]
    if folder is None and not (own / ".git").exists():  # packages in another project's checkout
        return ""

    def git(*words: str) -> str:
        command = ["git", "-C", str(folder or own), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        commit = git("rev-parse", f"--short={digits}", "HEAD")
        return commit + ("+" if git("status", "--porcelain", *changes) else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def _is_shown(action: argparse.Action) -> bool:
    """Whether an option has a default that says something: no flag, and not nothing."""
    if not action.option_strings or action.help == argparse.SUPPRESS:
        return False
    default = action.default
    says_nothing = default is None or isinstance(default, bool) or default in ("", [], ())
    return not says_nothing and default != argparse.SUPPRESS
