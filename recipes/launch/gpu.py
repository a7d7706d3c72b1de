#!/usr/bin/env python
"""A rented GPU: what must be on it, and what is measured there, in order of worth.

Command:  python recipes/launch/gpu.py pack            here: the folder .carry, wheels in one file
          python recipes/launch/gpu.py agenda --out OUT [--before FOLDER]           there
          python recipes/launch/gpu.py agenda --out OUT --tiny                 its shape, on a CPU
There:    Python 3.12 with all of THERE. `agenda` and `unpack` bring the rest from .carry.
Leaves:   OUT/PART.json: commit, card, exit status, seconds, the last words and every result.
A part has a time of its own and is ended there; one that fails says so, and the next begins. A part
that has a good file of this commit, in OUT or in --before, is left out.
"""

import argparse
import ctypes
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CARRY, ARCHIVE, COMMIT = ROOT / ".carry", "site.tar.xz", "commit"
THERE = (
    "torch", "lightning", "transformers", "torchmetrics", "safetensors", "jaxtyping", "einops",
    "peft", "scipy", "matplotlib", "PIL", "yaml", "rich", "requests", "pytest",
)  # fmt: skip
PACKED = (
    "diffusers", "jsonargparse", "pydantic", "pydantic-core", "annotated-types",
    "typing-inspection", "webdataset", "braceexpand", "pyloudnorm", "python-speech-features",
    "docstring-parser", "typeshed-client", "importlib-metadata",
)  # fmt: skip
"""PyAV is left out: its wheel has 40 MB, and what runs there reads and writes no media files."""
UNUSED = re.compile(r"diffusers/(pipelines|modular_pipelines)/.+")
"""Of what is packed: diffusers imports a pipeline where one is asked for."""
MAX_TREE = 64 * 2**20
MODULES = (
    "diffusers", "jsonargparse", "pydantic", "webdataset", "pyloudnorm", "docstring_parser",
    "typeshed_client",
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A command, how long it may take, and what it is with ``--tiny``."""

    seconds: int
    words: tuple[str, ...]
    tiny: tuple[str, ...]


TESTS = (
    "-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider", "-q", "--strict-markers",
    "--continue-on-collection-errors",
)  # fmt: skip
WITH_GPU = (
    "tests/golden", "tests/numerics/test_attention_backends.py",
    "tests/unit/test_offload_networks.py", "tests/unit/test_world_render.py",
)  # fmt: skip
SPEED = ("-m", "avatar_v_eval.cli", "speed")
ON_CARD, CHUNK = (*SPEED, "device", "--rows"), (*SPEED, "full_size", "--rows")
TINY = ("--preset", "tiny")
SMALL = ("--preset", "small", "--grid", "8", "--latents", "13")
TINY_CARD = (*TINY, "--grid", "8", "--latents", "3", "--repeats", "1", "--no-compile")
TINY_CHUNK = (*TINY, "--side", "32", "--latents", "5")
PARTS = {
    "tests": Part(120, (*TESTS, "-m", "gpu", *WITH_GPU), (*TESTS, "tests/unit/test_words.py")),
    "train": Part(90, (*ON_CARD, "train"), (*ON_CARD, "train", *TINY_CARD)),
    "block": Part(120, (*ON_CARD, "block"), (*ON_CARD, "block", *TINY_CARD)),
    "reference": Part(
        90,
        (*ON_CARD, "reference", "switch", "--no-compile", "--latents", "5"),
        (*ON_CARD, "reference", "switch", *TINY_CARD),
    ),
    "generate": Part(100, (*CHUNK, "chunk", "student"), (*CHUNK, "chunk", *TINY_CHUNK)),
    "live": Part(80, (*CHUNK, "causal"), (*CHUNK, "causal", *TINY_CHUNK)),
    "kernels": Part(
        140,
        (*SPEED, "kernels", "--seconds", "80"),
        (*SPEED, "kernels", "--presets", "tiny", "--rows", "block", "scopes", *TINY_CARD[2:]),
    ),
    "small": Part(60, (*ON_CARD, "block", *SMALL), (*ON_CARD, "block", *TINY_CARD)),
    "offload": Part(80, (*CHUNK, "student", "--offload"), (*CHUNK, "student", *TINY_CHUNK)),
    "offload_14b": Part(
        150,
        (*CHUNK, "student", "--preset", "wan_14b", "--offload"),
        (*CHUNK, "student", *TINY_CHUNK),
    ),
}
"""In order of worth."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("pack", help="make .carry")
    commands.add_parser(
        "unpack", help="print the folder of what .carry brings, to be imported from"
    )
    agenda = commands.add_parser("agenda", help="measure")
    agenda.add_argument("--out", type=Path, required=True)
    agenda.add_argument("--before", type=Path, help="results that came back earlier")
    agenda.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    agenda.add_argument("--minutes", type=float, default=9.5, help="no part begins behind them")
    agenda.add_argument("--tiny", action="store_true", help="small sizes, on any machine")
    options = parser.parse_args()
    if options.command == "pack":
        return pack()
    if options.command == "unpack":
        print(site())
        return 0
    return run_agenda(options)


def pack() -> int:
    """Wheels of `PACKED` in the versions of this environment, for Linux and Python 3.12."""
    from importlib.metadata import version

    CARRY.mkdir(exist_ok=True)
    pip = [sys.executable, "-m", "pip", "-qq"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wanted = [f"{package}=={version(package)}" for package in PACKED]
        only = ["--python-version", "3.12", "--implementation", "cp", "--only-binary", ":all:"]
        for tag in ("manylinux_2_28", "manylinux_2_17", "manylinux2014"):
            only += ["--platform", f"{tag}_x86_64"]
        sources = [each for each in wanted if each.startswith("python-speech-features")]
        wheels = [each for each in wanted if each not in sources]
        wheel_words = [*pip, "wheel", "--no-deps", "-w", str(folder / "wheels"), *sources]
        subprocess.run(wheel_words, check=True)  # it has no wheel; pure Python
        download = [*pip, "download", "--no-deps", *only, "-d", str(folder / "wheels"), *wheels]
        subprocess.run(download, check=True)
        found = [str(path) for path in sorted((folder / "wheels").glob("*.whl"))]
        target = folder / "site"
        install = [*pip, "install", "--no-deps", "--no-compile", "--no-index", *only]
        subprocess.run([*install, "--target", str(target), *found], check=True)
        with tarfile.open(CARRY / ARCHIVE, "w:xz", preset=9) as tar:
            for path in sorted(target.rglob("*")):
                inside = path.relative_to(target).as_posix()
                if path.is_file() and not UNUSED.fullmatch(inside):
                    tar.add(path, inside)
    (CARRY / COMMIT).write_text(_commit())
    return weigh()


def weigh() -> int:
    """Say what travels; 1 where it is too much."""
    names = _git("ls-files", "-co", "--exclude-standard", "-z").split("\0")
    tree = sum((ROOT / name).lstat().st_size for name in names if name and (ROOT / name).exists())
    carried = sum(path.stat().st_size for path in CARRY.rglob("*") if path.is_file())
    total = tree + carried
    fits = "it fits" if total <= MAX_TREE else f"{total - MAX_TREE:,} too many"
    print(f"tree {tree:,} + {CARRY.name} {carried:,} = {total:,} bytes, of {MAX_TREE:,}: {fits}")
    return int(total > MAX_TREE)


def site() -> Path:
    """A folder with what .carry brings; what is there already needs none of it. ValueError for
    packages that are neither."""
    target = Path(tempfile.gettempdir()) / f"avatar_v_site_{os.getuid()}"
    archive = CARRY / ARCHIVE
    if archive.exists() and not all(map(importlib.util.find_spec, MODULES)):
        if sys.version_info[:2] != (3, 12):
            found = ".".join(map(str, sys.version_info[:2]))
            raise SystemExit(f"gpu.py: error: {CARRY.name} is for Python 3.12, and this is {found}")
        target.mkdir(mode=0o700, exist_ok=True)
        if target.stat().st_uid != os.getuid():
            raise SystemExit(f"gpu.py: error: {target} is another user's")
        with tarfile.open(archive) as tar:
            tar.extractall(target, filter="data")
        sys.path.append(str(target))
    absent = [name for name in (*THERE, *MODULES) if importlib.util.find_spec(name) is None]
    if absent:
        raise SystemExit(f"gpu.py: error: not installed: {', '.join(absent)} (see `gpu.py pack`)")
    return target


def run_agenda(options: argparse.Namespace) -> int:
    begin, commit = time.monotonic(), _commit()
    packages = [str(ROOT / package) for package in ("src", "data", "eval", "tests")]
    path = [*packages, str(site()), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    options.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    if commit.endswith("+"):
        print("this tree differs from its commit (git status): no part will count as done")
    for name in options.parts:
        part, file = PARTS[name], options.out / f"{name}.json"
        places = [folder for folder in (options.out, options.before) if folder]
        if any(_is_done(folder / file.name, commit) for folder in places):
            print(f"{name}: done for this commit", flush=True)
            continue
        left = 60 * options.minutes - (time.monotonic() - begin)
        if left <= 0:
            print(f"{name}: no time is left", flush=True)
            failed += 1
            continue
        words = part.tiny if options.tiny else part.words
        print(f"{name}: python {' '.join(words)}", flush=True)
        most = min(part.seconds * (6 if options.tiny else 1), left)  # a CPU may be busy
        row = carried_out(words, most, environment)
        partial = file.with_suffix(".part")
        partial.write_text(json.dumps({"part": name, "commit": commit, **row}, indent=1) + "\n")
        partial.replace(file)  # whole or not there
        failed += row["status"] != 0
        print(f"{name}: status {row['status']}, {row['took_s']} s", flush=True)
    return int(failed > 0)


def carried_out(words: tuple[str, ...], seconds: float, environment: dict[str, str]) -> dict:
    """Status (124: ended for its time), seconds, last words and results of ``python WORDS``."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name, open(Path(name) / "log", "w+") as log:
        out = ["--out", name, "--name", "result"] if "speed" in words else []
        process = subprocess.Popen(
            [sys.executable, *words, *out], cwd=ROOT, env=environment,
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=_die_with_parent,
        )  # fmt: skip
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = 124
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        log.seek(0)
        results = [json.loads(path.read_text()) for path in Path(name).glob("*.json")]
        return {
            "command": " ".join(["python", *words]),
            "status": status,
            "took_s": round(time.monotonic() - begin, 1),
            "results": results,
            "last_words": log.read()[-3000:],
        }


def _die_with_parent() -> None:
    """In a child: Linux kills it when its parent is gone, killed or not (prctl 1, PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _is_done(file: Path, commit: str) -> bool:
    if not file.exists() or not commit or commit.endswith("+"):
        return False  # nobody knows what was measured
    row = json.loads(file.read_text())
    return row["commit"] == commit and row["status"] == 0


def _commit() -> str:
    """Of this tree, with + where a tracked file differs; of a copy without its history what `pack`
    noted. "" where neither says."""
    try:
        return _git("rev-parse", "HEAD").strip() + "+" * bool(_git("status", "--porcelain", "-uno"))
    except (subprocess.CalledProcessError, FileNotFoundError):
        noted = CARRY / COMMIT
        return noted.read_text().strip() if noted.exists() else ""


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("gpu.py: stopped; the parts that are done stay")
