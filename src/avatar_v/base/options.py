"""The command line of a dataclass: each field is an option, with its type, default and help.

A field made by `option` says its flag and help once; its annotation says how the word on the
command line is read. Ranges are checked where the values are used (stored.converted). Options of
the first page of ``--help`` are marked, ``--help-all`` shows all. Nothing heavy is imported.
"""

import argparse
import dataclasses
import types
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from avatar_v.base import checks

_T = TypeVar("_T")
_KEY = "option"


@dataclass(frozen=True)
class Option:
    """The look of a field on the command line."""

    help: str
    flag: str  # "--steps"
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    on_first_page: bool = False
    required: bool = False
    bare: str | None = None  # the value of the flag alone


def option(
    help: str,
    *,
    flag: str,
    default: Any = MISSING,
    metavar: str | None = None,
    choices: tuple[str, ...] | None = None,
    first: bool = False,
    required: bool = False,
    bare: str | None = None,
) -> Any:
    """A field of a dataclass that is an option as well. ``first``: on the first page of help;
    ``bare``: the value of the flag with no word behind it."""
    look = Option(help, flag, metavar, choices, first, required or default is MISSING, bare)
    return dataclasses.field(default=default, metadata={_KEY: look})


def at_once(word: str) -> int:
    """The type of an option that counts processes or threads; see `checks.at_once`."""
    try:
        checks.at_once("it", int(word) if word.isdecimal() else word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return int(word)


def add_options(
    parser: argparse.ArgumentParser, cls: type, title: str, *, only: Sequence[str] = ()
) -> dict[argparse.Action, str]:
    """Add an option for each field of ``cls``, or for those of these names, in a group of this
    title. Returns the options that the first page of help leaves out, with their help."""
    left_out: dict[argparse.Action, str] = {}
    group = parser.add_argument_group(title)
    hints = get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        if only and field.name not in only:
            continue
        look: Option = field.metadata[_KEY]
        words = {"dest": field.name, **_reading(hints[field.name], field.default)}
        if look.choices is not None:
            words["choices"] = look.choices
        if look.metavar is not None:
            words["metavar"] = look.metavar
        if look.required:
            words["required"] = True
        if look.bare is not None:
            words |= {"nargs": "?", "const": look.bare}
        shown = look.help if look.on_first_page else argparse.SUPPRESS
        action = group.add_argument(look.flag, help=shown, **words)
        if not look.on_first_page:
            left_out[action] = look.help
    return left_out


def add_help_all(parser: argparse.ArgumentParser, left_out: dict[argparse.Action, str]) -> None:
    """Add ``--help-all``, which shows the options that the first page of help leaves out, too."""
    text = "show all options and exit"
    parser.add_argument("--help-all", action=_HelpAll, nargs=0, help=text, left_out=left_out)


def parsed(
    args: argparse.Namespace, cls: type[_T], *, only: Sequence[str] = (), **given: Any
) -> _T:
    """The ``cls`` that a command line asks for; where it has ``only`` some of the options, other
    fields are ``given``, or have their default."""
    names = only or [field.name for field in dataclasses.fields(cls)]  # pyright: ignore[reportArgumentType]
    values = {name: getattr(args, name) for name in names}
    return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}, **given)


def option_flag(cls: type, name: str) -> str:
    """The option of a field, for messages."""
    (field,) = (field for field in dataclasses.fields(cls) if field.name == name)
    return field.metadata[_KEY].flag


class _HelpAll(argparse.Action):
    def __init__(self, *args: Any, left_out: dict[argparse.Action, str], **named: Any) -> None:
        super().__init__(*args, **named)
        self.left_out = left_out

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        for action, text in self.left_out.items():
            action.help = text
        parser.print_help()
        parser.exit()


def _reading(hint: Any, default: Any) -> dict[str, Any]:
    """The words of argparse for a type: a switch is set by its flag, a tuple by repeating it."""
    default = None if default is MISSING else default
    kind, optional = _plain(hint)
    if kind is bool:
        if optional:
            return {"action": argparse.BooleanOptionalAction, "default": default}
        return {"action": "store_false" if default else "store_true", "default": default}
    if get_origin(kind) is tuple:
        return {"action": "append", "default": [], "type": get_args(kind)[0]}
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind), "default": default}
    return {"type": kind, "default": default}


def _plain(hint: Any) -> tuple[Any, bool]:
    """A type without its range and without None, and whether it may be None."""
    if get_origin(hint) is Annotated:
        return _plain(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [part for part in get_args(hint) if part is not type(None)]
        kind = str if str in kinds else kinds[0]  # a path is a word, too
        return _plain(kind)[0], type(None) in get_args(hint)
    return hint, False
