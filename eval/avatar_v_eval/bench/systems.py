"""Systems under test, by the words that name them.

``name=FOLDER`` has videos named by case id, ``name=command:TEMPLATE`` is run once a case, and
``name=pipeline:WEIGHTS`` is our own generator. The real footage is a system like any other and is
scored in every run.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from avatar_v_eval.bench.delivery import BenchSystem, Delivery, place
from avatar_v_eval.bench.manifest import BenchManifest, CaseFiles
from avatar_v_eval.scoring.timing import SystemTiming, machine, reported, timing_path, write_timing

SUFFIXES = (".mp4", ".mov", ".mkv", ".webm", ".avi")
REFUSAL = ".txt"
"""``CASE.txt`` in a system's folder says that it refused the case, and why."""
TRUTH = "truth"
PLACES = ("reference", "audio", "image", "prompt", "out", "timing")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Truth:
    """The real videos that the manifest holds."""

    name: str = TRUTH
    source: str = "the manifest"

    def deliver(self, manifest: BenchManifest, case: CaseFiles) -> Delivery:
        if case.truth is None:
            return Delivery(reason="the manifest has no truth of this case")
        return Delivery(manifest.path(case, "truth"))


@dataclass(frozen=True)
class Folder:
    """Videos that are there already: ``FOLDER/CASE.mp4`` and the like."""

    name: str
    folder: Path
    suffixes: tuple[str, ...] = SUFFIXES

    @property
    def source(self) -> str:
        return str(self.folder)

    def deliver(self, manifest: BenchManifest, case: CaseFiles) -> Delivery:
        """One video of the case's name. Two are a reason, since either may be meant."""
        paths = [self.folder / f"{case.id}{suffix}" for suffix in self.suffixes]
        found = [path for path in paths if path.is_file()]
        if len(found) > 1:
            return Delivery(reason=f"two videos: {', '.join(path.name for path in found)}")
        if found:
            return Delivery(found[0], timing=reported(found[0]))
        refusal = self.folder / f"{case.id}{REFUSAL}"
        if refusal.is_file():
            words = " ".join(refusal.read_text(encoding="utf-8", errors="replace").split())
            return Delivery(reason=f"refused: {words or 'no reason given'}")
        return Delivery(reason=f"missing: no {case.id}{self.suffixes[0]}")


@dataclass(frozen=True)
class Command:
    """A program run once a case, without a shell; ``videos`` keeps what it made.

    Its wall time is taken, unless it writes a timing of its own to ``{timing}``
    (scoring/timing.py).
    """

    name: str
    template: str
    videos: Path
    timeout_s: float
    suffix: str = ".mp4"

    @property
    def source(self) -> str:
        return f"command:{self.template}"

    def deliver(self, manifest: BenchManifest, case: CaseFiles) -> Delivery:
        """A failure's reason is the last line that the program wrote; the next run tries again."""
        out = place(self.videos, self.source, manifest, case, self.suffix)
        if out.is_file():
            return Delivery(out, timing=reported(out))
        partial = out.with_name(f"{case.id}.partial{out.suffix}")
        own = timing_path(out)
        for path in (partial, own):
            path.unlink(missing_ok=True)
        values = {role: str(manifest.path(case, role)) for role in ("reference", "audio", "image")}
        values |= {"prompt": case.prompt, "out": str(partial), "timing": str(own)}
        words = _filled(self.template, values)
        begin = time.perf_counter()
        try:
            done = _run(words, self.timeout_s)
        except subprocess.TimeoutExpired:
            return Delivery(reason=f"the command took more than {self.timeout_s:g} s")
        except OSError as error:
            return Delivery(reason=f"the command could not be run: {error.strerror}")
        if done.returncode:
            return Delivery(reason=f"the command failed ({done.returncode}): {_last_line(done)}")
        if not partial.is_file():
            return Delivery(reason="the command ended well and wrote no {out}")
        if not own.is_file():
            total_s = round(time.perf_counter() - begin, 4)
            write_timing(
                out, SystemTiming(total_s, machine(), words="whole command, loading included")
            )
        partial.replace(out)
        return Delivery(out, timing=own)


def parse_system(text: str, videos: Path, timeout_s: float) -> BenchSystem:
    """A system from ``name=SOURCE``; ValueError for what cannot be one, before anything is run.

    ``videos`` is where commands and pipelines leave their videos.
    """
    name, equals, source = text.partition("=")
    if not equals or not source or not _NAME.fullmatch(name):
        raise ValueError(
            f"--system {text}: expected name=FOLDER, name=command:… or name=pipeline:…, with "
            "letters, digits, ., - and _ in the name"
        )
    if name == TRUTH:
        raise ValueError(f"--system {text}: {TRUTH} is the real footage, scored in every run")
    kind, colon, rest = source.partition(":")
    if colon and kind == "command":
        _check_template(rest)
        return Command(name, rest, videos, timeout_s)
    if colon and kind == "pipeline":
        from avatar_v.weights.card import weights_folder
        from avatar_v_eval.bench.own_system import Pipeline, parse_options

        weights, _, asked = rest.partition("?")
        weights_folder(weights)
        parse_options(asked)
        return Pipeline(name, weights, videos, asked)
    if not Path(source).is_dir():
        raise ValueError(f"--system {text}: no folder {source}")
    return Folder(name, Path(source).resolve())


def parse_systems(texts: list[str], videos: Path, timeout_s: float) -> list[BenchSystem]:
    """The real footage and all that are named; ValueError for a name given twice."""
    systems = [Truth(), *(parse_system(text, videos, timeout_s) for text in texts)]
    names = [system.name for system in systems]
    if twins := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"--system names given twice: {', '.join(twins)}")
    return systems


def _check_template(template: str) -> None:
    words = shlex.split(template)
    if not words or shutil.which(words[0]) is None:
        raise ValueError(f"command {template!r}: there is no program {words[0] if words else ''!r}")
    places = re.findall(r"\{(\w+)\}", template)
    if unknown := sorted(set(places) - set(PLACES)):
        raise ValueError(f"command {template!r}: unknown {unknown}, there are {list(PLACES)}")
    if "out" not in places:
        raise ValueError(f"command {template!r} names no {{out}}: where would its video be?")


def _filled(template: str, values: dict[str, str]) -> list[str]:
    """The words of the command; a value is never split and never read as a place again."""
    return [
        re.sub(r"\{(\w+)\}", lambda match: values[match[1]], word) for word in shlex.split(template)
    ]


def _run(words: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """To its end, or to that of its time: then what it has started ends with it."""
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            said = process.communicate(timeout=timeout_s)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(words, process.returncode, *said)


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "it said nothing"
