"""Processes that are there at once: forks of a server without threads, which has imported what is
heavy. As a user's they have no run-time checks of shapes. They begin in the folder and with the
environment in which the tests began; those that the library would spawn, and which conftest.py has
forked as well, with those of now.
"""

import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "forked",
        "lightning",
        "transformers",
        "avatar_v.generate.run",
        "avatar_v_data.importer",
        "avatar_v.recipe.lightning_cli",
        "avatar_v.objectives.sft",
    ]
)


class _Spawned(ForkServerProcess):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._environment = dict(os.environ)

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        super().run()


class Spawning(ForkServerContext):
    """Takes what the context "spawn" takes, pickled as there."""

    Process = _Spawned


def spawn(work: Callable[..., None], args: tuple, num_ranks: int, *, join: bool = True) -> Any:
    """``work(rank, *args)`` in so many processes; an error of one is raised here."""
    from torch.multiprocessing.spawn import start_processes

    return start_processes(work, args, num_ranks, join, True, start_method="forkserver")


@dataclass(frozen=True)
class Ended:
    """How a script ended; the status is the negative signal where one ended it."""

    returncode: int
    stdout: str
    stderr: str


def run_script(script: str, *words: str, **environment: str) -> Ended:
    """Run it in this folder as `python -c` would."""
    return Script(script, *words, **environment).ended()


class Script:
    """A script that runs."""

    def __init__(self, script: str, *words: str, **environment: str) -> None:
        self._place = tempfile.TemporaryDirectory()
        self.out, self.err = (Path(self._place.name) / name for name in ("out", "err"))
        args = (script, words, environment, os.getcwd(), str(self.out), str(self.err))
        self.process = FORKS.Process(target=_run, args=args)
        self.process.start()
        assert self.process.pid is not None
        self.pid = self.process.pid

    def ended(self, most_s: float = 600.0) -> Ended:
        self.process.join(most_s)
        if self.process.exitcode is None:
            self.process.kill()
            raise TimeoutError(f"runs for more than {most_s:.0f} s: {self.err.read_text()}")
        with self._place:
            texts = [path.read_text(errors="replace") for path in (self.out, self.err)]
        return Ended(self.process.exitcode, *texts)


def _run(script: str, words: tuple[str, ...], more: dict[str, str], cwd: str, *outs: str) -> None:
    redirect(*outs)
    os.chdir(cwd)
    os.environ.update(more)
    sys.argv = ["-c", *words]
    end_with(lambda: exec(compile(script, "<script>", "exec"), {"__name__": "__main__"}))


def redirect(out: str, err: str) -> None:
    """Both streams to files, and nothing to read."""
    for path, stream in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def end_with(call: Callable[[], Any], at: Path | None = None) -> None:
    """End this process as Python does behind a script, with the status of ``call``, which is
    written to ``at`` behind the seconds of CPU that it took."""
    begin, status = time.process_time(), 1
    try:
        status = call() or 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if at is not None:
            at.write_text(f"{time.process_time() - begin} {status}")
        os._exit(status)
