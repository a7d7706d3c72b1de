#!/usr/bin/env python
"""The whole model in minutes: every part on one GPU by one process, the world drawn beside it.

Command:  python recipes/launch/minutes.py --minutes 9 --out OUT          from nothing
          python recipes/launch/minutes.py --minutes 9 --out OUT --before FOLDER
                    goes on from what an earlier run left in its OUT, killed or not
          python recipes/launch/minutes.py --minutes 1 --size tiny --out OUT       on a CPU
          python recipes/launch/minutes.py unpack OUT FOLDER
                    weights of an OUT, for `avatar-v generate --weights FOLDER/student`
Leaves:   OUT: at most 8 files of at most 16 MiB (minutes_kept.py), written anew every half minute;
          runs/minutes, or --work: all runs, shards and latents of this machine.
Parts:    minutes_parts.py has each with its share of the time. One that fails says so, and the next
          begins; what time one leaves over, all behind it share.
The world is drawn in the order of the parts by --workers processes, and a part waits for the first
half of its clips at most. Optimisers begin anew in every run, warm-up included.
"""

import argparse
import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from minutes_beside import beside_this, draw, drawing, end
from minutes_overlay import How, device_name, overlay, place
from minutes_parts import PARTS, SETS, Part, drawn_sets, refused

ROOT = Path(__file__).resolve().parents[2]
GPU_SIZES = ("small.yaml", "minutes.yaml")
END_S = 8.0
"""Of the minutes: to keep what the last part left."""
FIRST_S = 4.0
"""To load, validate and write a part, before one was seen."""
LEAST_S = 1.0
"""Of training: with less a part is left out."""
ENOUGH = 0.5
"""Of the clips of a set, with which a part begins: sets are drawn so that these hold pairs."""


def main() -> int:
    options = parsed()
    begin = time.monotonic()
    out, work, before = checked_places(options)
    os.chdir(work)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    beside: list[subprocess.Popen] = []
    try:
        import minutes_kept as kept

        rows = kept.restore(before, work, options.size) if before else []
        beside.append(drawing(options, sum(row["part"] == "begin" for row in rows)))
        beside.append(beside_this("keep", str(out)))
        import avatar_v.recipe.lightning_cli  # noqa: F401  while the first clips are drawn

        run = Run(options, begin, rows, kept.names_there(work))
        run.note(part="begin", minutes=options.minutes, device=device_name(), size=options.size)
        run.all_parts()
        run.note(part="end", took_s=round(time.monotonic() - begin, 1))
        return int(any(row.get("error") for row in run.own_rows()))
    except KeyboardInterrupt:
        print(f"minutes.py: stopped; it goes on with --before {options.out}", file=sys.stderr)
        return 130
    finally:
        end(beside)
        keep_last(work, out)


def keep_last(work: Path, out: Path) -> None:
    """What the last part left; nothing where the run had not begun. One line for a full disk."""
    if not (work / "log.jsonl").exists():
        return
    import minutes_kept as kept

    try:
        kept.keep(work, out)
    except OSError as error:
        raise refused(f"not kept: {error}") from error


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--minutes", type=float, required=True, help="of wall clock, all in all")
    add("--out", required=True, help="folder of what is kept")
    add("--before", help="the --out of an earlier run, to go on from")
    add("--work", help="empty folder for the rest (the first free one: runs/minutes, …_2 …)")
    add("--size", choices=("small", "tiny"), default="small")
    add("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART")
    add("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="that draw")
    add("--no-compile", action="store_true", help="networks as they are, without torch.compile")
    options = parser.parse_args()
    if not END_S / 60 < options.minutes < 1440:
        parser.error(f"--minutes is a number above {END_S / 60:.2f}, got {options.minutes}")
    if not 1 <= options.workers <= 64:
        parser.error(f"--workers is a whole number from 1 to 64, got {options.workers}")
    return options


def checked_places(options: argparse.Namespace) -> tuple[Path, Path, Path | None]:
    """The folders of --out and --work, made, and that of --before."""
    out = Path(options.out).resolve()
    before = Path(options.before).resolve() if options.before else None
    if before and not before.is_dir():
        raise refused(f"--before {options.before}: there is no such folder")
    if before == out or (out.is_dir() and any(out.glob("*.tar"))):
        raise refused(f"--out {options.out} holds a run: name another folder, and this as --before")
    if options.work is None:
        names = (Path(f"runs/minutes{'' if i == 1 else f'_{i}'}") for i in itertools.count(1))
        work = next(path for path in names if not (path / "log.jsonl").exists()).resolve()
    else:
        work = Path(options.work).resolve()
        if (work / "log.jsonl").exists():
            raise refused(f"{options.work} holds a run: name another --work")
    try:
        for folder in (out, work):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refused(f"{error.filename}: {error.strerror}") from error
    return out, work, before


class Run:
    """The parts, one behind the other, against the clock. In the folder of the run."""

    def __init__(
        self, options: argparse.Namespace, begin: float, rows: list[dict], there: set[str]
    ) -> None:
        import torch

        self.options, self.rows, self.there = options, rows, there
        self.first = len(rows)
        self.is_tiny, self.on_gpu = options.size == "tiny", torch.cuda.is_available()
        self.compiles = self.on_gpu and not options.no_compile
        self.end = begin + 60 * options.minutes - END_S
        self.overhead_s = FIRST_S
        done = {row["part"] for row in rows if row.get("done")}
        self.todo = [
            name for name in options.parts if name not in done & there or PARTS[name].again
        ]

    def own_rows(self) -> list[dict]:
        return self.rows[self.first :]

    def note(self, **row: Any) -> None:
        self.rows.append(row)
        print(json.dumps(row), flush=True)
        with open("log.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def all_parts(self) -> None:
        for index, name in enumerate(self.todo):
            begin = time.monotonic()
            try:
                waited = self.ready(PARTS[name])
                seconds = self.seconds_for(self.todo[index:])
                if seconds < LEAST_S:
                    self.note(part=name, error="no time is left")
                    continue
                self.train(name, seconds)
                found = json.loads(Path(f"runs/{name}/time_box.json").read_text())
            except Exception as error:  # the next part begins
                traceback.print_exc()
                self.note(part=name, error=f"{type(error).__name__}: {error}"[:500])
                if self.compiles:
                    self.compiles = False
                    self.note(part=name, note="from here on without torch.compile")
                continue
            free_memory()
            took = time.monotonic() - begin
            self.overhead_s = max(took - waited - found["fit_s"], 0.7 * self.overhead_s)
            share = round(seconds, 1)
            times = {"waited_s": round(waited, 1), "share_s": share, "took_s": round(took, 1)}
            self.note(part=name, done=True, **times, **found)

    def seconds_for(self, parts: list[str]) -> float:
        """Of training for the first of ``parts``: its share of what is left to them all."""
        left = self.end - time.monotonic()
        share = PARTS[parts[0]].share / sum(PARTS[name].share for name in parts)
        fair = share * (left - self.overhead_s * len(parts))
        return min(max(fair, LEAST_S), left - self.overhead_s)  # what others begin with comes first

    def ready(self, part: Part) -> float:
        """Wait for enough clips, encode those that are there; the seconds waited."""
        begin = time.monotonic()
        for name in part.sets:
            wanted = drawn_sets(self.options.size, 0)[name]
            for settings, folder in wanted:
                half = max(settings.num_shards * ENOUGH, settings.clips_per_person)
                enough = settings.num_shards if settings.split == "validation" else int(half)
                said = time.monotonic()
                while (there := len(list(Path(folder).glob("*.index.json")))) < enough:
                    if time.monotonic() > self.end:
                        raise TimeoutError(f"{folder}: its clips came too late")
                    if time.monotonic() > said + 10:
                        said = time.monotonic()
                        print(f"{folder}: waits for {there} of {enough} shards", flush=True)
                    time.sleep(0.1)
        waited = time.monotonic() - begin
        for name in part.sets:
            self.encode(name)
        return waited

    def encode(self, name: str) -> None:
        how = SETS[name].encode
        if how is None or not place("0_vae").exists():
            return
        from avatar_v.shards.encode import encode_folder

        device = "cuda" if self.on_gpu else "cpu"
        for split in ("train", "validation"):
            encode_folder(
                f"shards/{name}/{split}", f"latents/{name}/{split}", place("0_vae"),
                drop_video=True, batch_size=32, device=device, **how,
            )  # fmt: skip

    def train(self, name: str, seconds: float) -> None:
        import yaml

        from avatar_v.recipe.cli import run_words

        file = Path("overlays") / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        how = How(len(self.rows), self.is_tiny, self.on_gpu, self.compiles)
        file.write_text(yaml.safe_dump(overlay(name, seconds, how), sort_keys=False))
        sizes = [f"{self.options.size}.yaml"] if self.is_tiny or not self.on_gpu else GPU_SIZES
        sizes = () if name.startswith("critic") else sizes
        words = [str(ROOT / "recipes" / each) for each in (f"{name}.yaml", *sizes)]
        print(f"{name}: {seconds:.0f} s from its first step on", flush=True)
        if status := run_words("run", [*words, str(file), "--overwrite"]):
            if status == 130:
                raise KeyboardInterrupt
            raise RuntimeError("the run ended early")


def free_memory() -> None:
    """Of the networks of a part that has ended."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    from gpu import site

    packages = [*(str(ROOT / package) for package in ("src", "data", "eval")), str(site())]
    sys.path[:0] = packages
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*packages, *([before] if before else [])])
    if sys.argv[1:2] == ["draw"]:
        draw(sys.argv[2])
    elif sys.argv[1:2] == ["keep"]:
        import minutes_kept

        minutes_kept.keep_on(Path.cwd(), Path(sys.argv[2]))
    elif sys.argv[1:2] == ["unpack"]:
        import minutes_kept

        sys.exit(minutes_kept.unpack(sys.argv[2:]))
    else:
        sys.exit(main())
