"""The words of messages."""

import sys
import warnings

import pytest

from avatar_v.base.words import counted, is_hidden, notice, printable, readable
from avatar_v.cli import guarded


def test_one_is_singular() -> None:
    assert [counted(num, "frame") for num in (0, 1, 2, 3000)] == [
        "0 frames", "1 frame", "2 frames", "3,000 frames",
    ]  # fmt: skip


def test_what_is_printed_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a\x1b]0;x\x07b\u202ec\u200bd\x9be\ud800 ü口\té\n"
    shown = r"a\x1b]0;x\x07b\u202ec\u200bd\x9be\ud800 ü口" + "\té\n"
    assert printable(name) == shown
    assert readable(ValueError(name)) == " ".join(shown.split())
    missing = OSError(2, "No such file", "x\x1b[2J")
    assert readable(missing) == r"x\x1b[2J: no such file"

    worded: list[str] = []

    def run(words: list[str]) -> int:
        print(name, end="")
        warnings.warn(name, stacklevel=1)
        notice(name)
        places = "/lib/avatar_v/x.py", "/lib/other/avatar_v.py"
        worded.extend(warnings.formatwarning("late", UserWarning, place, 3) for place in places)
        raise ValueError(name)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda *args: print(
            warnings.formatwarning(*args[:4]), file=sys.stderr
        )
        assert guarded("avatar-v", [], run) == 2
    assert worded == [
        "avatar-v: warning: late\n", "/lib/other/avatar_v.py:3: UserWarning: late\n"
    ]  # fmt: skip
    said = capsys.readouterr()
    assert said.out == shown
    assert said.err.count(shown.strip()) == 2, "the warning and the notice"
    assert not any(is_hidden(c) for c in said.err if c not in "\n\t")
