"""command_line.py: what the front ends have in common."""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from avatar_v import cli
from avatar_v.base import command_line
from avatar_v.base.command_line import Parser
from avatar_v_data import cli as data_cli
from avatar_v_eval import cli as eval_cli

FRONT_ENDS = {
    "avatar-v": cli.main,
    "avatar-v-data": data_cli.main,
    "avatar-v-eval": eval_cli.main,
}


@pytest.mark.parametrize("name", FRONT_ENDS)
def test_the_version_is_that_of_the_package_and_of_the_checkout(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert FRONT_ENDS[name](["--version"]) == 0
    said = capsys.readouterr().out
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    match = re.fullmatch(
        rf"{name} {re.escape(version('avatar_v'))}(?: \(commit (\w+)\+?\))?\n", said
    )
    assert match, said
    assert not head or head.startswith(match[1])


def test_outside_of_a_checkout_the_version_stands_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_line, "__file__", str(tmp_path / "a" / "b" / "c.py"))
    assert command_line.version_line("x") == f"x {version('avatar_v')}"
    assert command_line.commit_of(tmp_path) == ""


@pytest.mark.parametrize(
    ("name", "words", "told"),
    [
        ("avatar-v", [], "avatar-v: error: the following arguments are required: COMMAND"),
        ("avatar-v", ["gnerate"], "avatar-v: error: argument COMMAND: invalid choice: 'gnerate'"),
        ("avatar-v", ["generate", "--steps", "two"], "--steps: invalid int value: 'two'"),
        ("avatar-v-data", ["world", "--clips", "x"], "data world: error: argument --clips"),
        ("avatar-v", ["weights", "copy"], "avatar-v weights: error: argument ACTION"),
        ("avatar-v", ["app", "--port", "1", "--nope\nx"], "unrecognized arguments: --nope x"),
        ("avatar-v-eval", ["rate", "x", "--port", "y"], "argument --port: invalid int value: 'y'"),
        ("avatar-v-eval", ["votes", "burn", "x", "y"], "argument action: invalid choice: 'burn'"),
    ],
)
def test_a_wrong_option_is_one_line_that_leads_to_help(
    name: str, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        FRONT_ENDS[name](words)
    assert end.value.code == 2
    said = capsys.readouterr()
    assert not said.out
    assert said.err.count("\n") == 1
    assert told in said.err
    hint = re.search(rf"\(({name}.*) --help explains\)\n$", said.err)
    assert hint, said.err
    with pytest.raises(SystemExit) as end:  # and the hint is right
        FRONT_ENDS[name]([*hint[1].split()[1:], "--help"])
    assert end.value.code == 0


@pytest.mark.parametrize(
    ("name", "words", "question"),
    [
        ("avatar-v", "generate --refernce x --audio y --out z", "--refernce, did you mean --ref"),
        ("avatar-v", "demo --weigths=x", "there is no --weigths, did you mean --weights?"),
        ("avatar-v", "shards stats x --owt y", "there is no --owt, did you mean --out?"),
        ("avatar-v", "--versoin demo --out x", "there is no --versoin, did you mean --version?"),
        ("avatar-v-data", "world --clisp 3 --out x", "no --clisp, did you mean --clips?"),
        ("avatar-v-eval", "report x --ot y", "there is no --ot, did you mean --out?"),
        ("avatar-v", "generate --zzzz x", ""),
        ("avatar-v", "gnerate --versoin", ""),  # of a command that is none
        ("avatar-v", "plan x --gpus y -- --gpuss", ""),  # of the recipe
        ("avatar-v-data", "world --frame 25 --out x", ""),  # shortened
    ],
)
def test_a_misspelt_option_is_told_the_near_one(
    name: str, words: str, question: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        FRONT_ENDS[name](words.split())
    said = capsys.readouterr().err
    assert question in said
    assert ("did you mean" in said) == bool(question)
    assert said.count("\n") == 1


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from _parsers(one)


@pytest.mark.parametrize("build", [cli.build_parser, data_cli.build_parser, eval_cli.build_parser])
def test_the_help_of_every_command_shows_every_default(
    build: Callable[[], argparse.ArgumentParser],
) -> None:
    num_shown = 0
    for parser in _parsers(build()):
        assert isinstance(parser, Parser), f"{parser.prog} has other errors"
        text = " ".join(parser.format_help().split())
        assert text == " ".join(parser.format_help().split()), "a second look adds nothing"
        for action in parser._actions:
            if action.help == argparse.SUPPRESS:  # on --help-all
                continue
            if action.option_strings and isinstance(action.default, (int, float, str)):
                is_flag = isinstance(action.default, bool) or not str(action.default)
                if not is_flag and action.default != argparse.SUPPRESS:
                    num_shown += 1
                    name = action.option_strings[-1]
                    shown = text.split("options:")[1].split(f" {name} ")[1]
                    assert str(action.default) in shown.split(" --")[0], f"{parser.prog} {name}"
    assert num_shown >= 5


def test_help_shows_no_default_that_says_nothing() -> None:
    parser = Parser(prog="x")
    parser.add_argument("--flag", action="store_true", help="a flag")
    parser.add_argument("--none", help="nothing")
    parser.add_argument("--hidden", default=3, help=argparse.SUPPRESS)
    parser.add_argument("--many", default=[], nargs="*", help="a list")
    parser.add_argument("--zero", default=0, type=int)
    shown = parser.format_help().split("options:")[1]
    assert re.findall(r"\(.*?\)", shown) == ["(0)"]
    assert "hidden" not in shown


@pytest.mark.parametrize("command", ["cases", "run", "merge", "metrics", "report", "rate"])
def test_help_of_a_benchmark_and_of_a_study_imports_nothing_heavy(command: str) -> None:
    program = (
        "import sys\nfrom avatar_v_eval.cli import main\n"
        f"try:\n    main([{command!r}, '--help'])\nexcept SystemExit as end:\n"
        "    assert not end.code\n"
        "heavy = {'torch', 'numpy', 'polars', 'av', 'rich', 'fastapi', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"usage: avatar-v-eval {command}" in done.stdout


LONG = """
import sys
from avatar_v.cli import guarded
sys.exit(guarded("x", ["y"], lambda words: print("z" * 100_000) or 0))
"""
"""Says more than the buffer of stdout holds."""


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["-m", "avatar_v.cli", "--version"], 141),
        (["-m", "avatar_v_data.cli", "--version"], 141),
        (["-m", "avatar_v_eval.cli", "--version"], 141),
        (["-m", "avatar_v.cli", "--help"], 0),  # argparse takes no notice
        (["-c", LONG], 141),
    ],
)
def test_a_reader_that_leaves_ends_a_command_without_a_word(words: list[str], status: int) -> None:
    reads, writes = os.pipe()
    os.close(reads)  # before anything is written, as `| true` may
    with os.fdopen(writes) as gone:
        done = subprocess.run(
            [sys.executable, *words], stdout=gone, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (status, "")


@pytest.mark.parametrize("name", FRONT_ENDS)
def test_another_pipe_that_breaks_is_an_error(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(words: list[str]) -> int:
        raise BrokenPipeError("the server has gone")

    assert cli.guarded(name, ["x"], breaks) == 2
    assert f"{name}: error: the server has gone" in capsys.readouterr().err
