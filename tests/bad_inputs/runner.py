"""One command line in a process of its own, and the judgement of its end.

Each case runs in a fork of a server that has imported the heavy packages already, in a fresh
working folder, with a time limit. The process is a user's: it has no run-time shape checks.
"""

import importlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from avatar_v.base.words import is_hidden
from forked import FORKS, end_with, redirect

LIMIT_S = 60.0
"""A process that runs longer is killed and counts as a hang. Busy machines are slow."""
REFUSED_CPU_S = 10.0
"""CPU time within which a refusal must come."""
ERROR = re.compile(r"^avatar-v(-data|-eval)?( [a-z0-9_-]+)*: error: .+$")
MAX_LINE = 500
"""Characters of an error that a person still reads."""
FRONTS = {
    "avatar-v": "avatar_v.cli",
    "avatar-v-data": "avatar_v_data.cli",
    "avatar-v-eval": "avatar_v_eval.cli",
}


@dataclass(frozen=True)
class End:
    """The end of one command."""

    status: int | None  # None: killed at the time limit
    stdout: str
    stderr: str
    left: tuple[str, ...]  # files and folders that are new in the working folder
    cpu_s: float

    @property
    def fault(self) -> str | None:
        """The reason why no command may end so, whatever it was given; None for a fair end."""
        text = self.stdout + self.stderr
        if self.status is None:
            return "hangs"
        if "Traceback (most recent call last)" in text:
            return "traceback"
        if any(is_hidden(character) for character in text if character not in "\n\t\r"):
            return "prints characters that steer a terminal or show nothing"
        if self.status not in (0, 1, 2):
            return f"exit status {self.status}"
        if self.status != 2:
            return None
        errors = [line for line in self.stderr.splitlines() if ERROR.match(line)]
        if len(errors) != 1:
            return f"{len(errors)} lines of error"
        if len(errors[0]) > MAX_LINE:
            return f"an error of {len(errors[0])} characters"
        if self.left:
            return f"leaves {', '.join(self.left)}"
        return f"refused after {self.cpu_s:.0f} s" if self.cpu_s > REFUSED_CPU_S else None

    @property
    def outcome(self) -> str:
        """``refused``, ``warned`` or ``accepted``; or the fault."""
        if self.fault is not None:
            return self.fault
        if self.status != 0:
            return "refused"
        return "warned" if "warning" in self.stderr.lower() else "accepted"


def run(words: list[str], folder: Path, *, limit_s: float = LIMIT_S) -> End:
    """Run ``words`` ("avatar-v", …) in ``folder``; files that lie there before do not count."""
    before = _names(folder)
    with _Logs(folder) as logs:
        process = FORKS.Process(target=_child, args=(words, str(folder), *logs.paths))
        process.start()
        process.join(limit_s)
        hangs = process.is_alive()
        if hangs:
            process.kill()
            process.join()
        stdout, stderr, cpu_s, status = logs.read()
    if hangs:
        status = None
    elif status is None:
        status = process.exitcode
    return End(status, stdout, stderr, tuple(sorted(_names(folder) - before)), cpu_s)


class _Logs:
    """The two streams, the CPU time and the exit status of a process, in files beside its folder.

    ``Process.exitcode`` is 255 where two threads ask the server for it at once, which
    ``Process.start`` of another thread does: a command's own word comes first.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.with_name(folder.name + ".logs")

    def __enter__(self) -> "_Logs":
        self._folder.mkdir()
        return self

    def __exit__(self, *exc: object) -> None:
        shutil.rmtree(self._folder)

    @property
    def paths(self) -> tuple[str, str, str]:
        out, err, end = (str(self._folder / name) for name in ("out", "err", "end"))
        return out, err, end

    def read(self) -> tuple[str, str, float, int | None]:
        """Without CPU time and status (0, None) where a signal ended the process."""
        texts = [Path(path).read_text(errors="replace") for path in self.paths[:2]]
        end = Path(self.paths[2])
        words = end.read_text().split() if end.exists() else []
        cpu_s, status = (float(words[0]), int(words[1])) if len(words) == 2 else (0.0, None)
        return texts[0], texts[1], cpu_s, status


def _child(words: list[str], folder: str, out: str, err: str, end: str) -> None:
    import torch

    redirect(out, err)
    os.chdir(folder)
    torch.set_num_threads(1)
    end_with(lambda: importlib.import_module(FRONTS[words[0]]).main(words[1:]), Path(end))


def _names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
