#!/usr/bin/env python
"""The whole model in minutes: every part on one GPU by one process, the world drawn beside it.

Command:  python recipes/launch/minutes.py --minutes 9 --out OUT          from nothing
          python recipes/launch/minutes.py --minutes 9 --out OUT --before FOLDER
                    goes on from what an earlier run left in its OUT, killed or not
          python recipes/launch/minutes.py --minutes 1 --size tiny --out OUT       on a CPU
Leaves:   OUT: at most 8 files of at most 16 MiB (minutes_kept.py), written anew every half minute;
          runs/minutes, or --work: all runs, shards and latents of this machine.
Parts:    minutes_parts.py has each with its share of the time. One that fails says so, and the next
          begins; what time one leaves over, all behind it share.
The world is drawn in the order of the parts by --workers processes, and a part waits for the first
half of its clips at most. Optimisers begin anew in every run, warm-up included.
"""

import argparse
import gc
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from minutes_parts import CHAIN, CRITICS, FEW, PARTS, SETS, Part, drawn_sets

ROOT = Path(__file__).resolve().parents[2]
CLOCK = 1_000_000
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
    out = Path(options.out).resolve()
    before = Path(options.before).resolve() if options.before else None
    out.mkdir(parents=True, exist_ok=True)
    work = Path(options.work).resolve()
    work.mkdir(parents=True, exist_ok=True)
    os.chdir(work)
    if os.path.exists("log.jsonl"):
        raise SystemExit(f"minutes.py: error: {work} holds a run: name another --work")
    import minutes_kept as kept

    rows = kept.restore(before, work) if before else []
    beside = [drawing(options, sum(row["part"] == "begin" for row in rows))]
    beside.append(beside_this("keep", str(out)))
    import avatar_v.recipe.lightning_cli  # noqa: F401  while the first clips are drawn

    run = Run(options, begin, rows, kept.names_there(work))
    try:
        run.note(part="begin", minutes=options.minutes, device=device_name())
        run.all_parts()
    finally:
        for process in beside:
            os.killpg(process.pid, signal.SIGKILL)  # those that draw, too
            process.wait()
        kept.keep(work, out)
    run.note(part="end", took_s=round(time.monotonic() - begin, 1))
    kept.keep(work, out)
    return int(any(row.get("error") for row in run.own_rows()))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--minutes", type=float, required=True, help="of wall clock, all in all")
    add("--out", required=True, help="folder of what is kept")
    add("--before", help="the --out of an earlier run, to go on from")
    add("--work", default="runs/minutes", help="folder for the rest, empty (%(default)s)")
    add("--size", choices=("small", "tiny"), default="small")
    add("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART")
    add("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="that draw")
    add("--no-compile", action="store_true", help="networks as they are, without torch.compile")
    return parser.parse_args()


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
            file.writelines(json.dumps(row) + "\n" for row in ([row] if file.tell() else self.rows))

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
                while len(list(Path(folder).glob("*.index.json"))) < enough:
                    if time.monotonic() > self.end:
                        raise TimeoutError(f"{folder}: its clips came too late")
                    time.sleep(0.1)
        waited = time.monotonic() - begin
        for name in part.sets:
            self.encode(name)
        return waited

    def encode(self, name: str) -> None:
        how = SETS[name].encode
        if how is None or not self.place("0_vae").exists():
            return
        from avatar_v.shards.encode import encode_folder

        device = "cuda" if self.on_gpu else "cpu"
        for split in ("train", "validation"):
            encode_folder(
                f"shards/{name}/{split}", f"latents/{name}/{split}", self.place("0_vae"),
                drop_video=True, batch_size=32, device=device, **how,
            )  # fmt: skip

    def place(self, name: str) -> Path:
        """The weights of a part: of this run, or of the one before."""
        own = Path("runs") / name / PARTS[name].leaves
        return own if own.exists() else Path("before") / own

    def train(self, name: str, seconds: float) -> None:
        import yaml

        from avatar_v.recipe.cli import run_words

        overlay = Path("overlays") / f"{name}.yaml"
        overlay.parent.mkdir(exist_ok=True)
        overlay.write_text(yaml.safe_dump(self.overlay(name, seconds), sort_keys=False))
        sizes = [f"{self.options.size}.yaml"] if self.is_tiny or not self.on_gpu else GPU_SIZES
        sizes = () if name.startswith("critic") else sizes
        words = [str(ROOT / "recipes" / each) for each in (f"{name}.yaml", *sizes)]
        if run_words("run", [*words, str(overlay), "--overwrite"]):
            raise RuntimeError("the run ended early")

    def overlay(self, name: str, seconds: float) -> dict[str, Any]:
        """What of the recipe is of this run: its data, the weights it begins with, its time."""
        part = PARTS[name]
        box = {"seconds": seconds, "peak_tflops": peak_tflops()}
        classes = "avatar_v.callbacks."
        trainer: dict[str, Any] = {
            "default_root_dir": f"runs/{name}",
            "max_steps": CLOCK,
            "accelerator": "gpu" if self.on_gpu else "cpu",
            "logger": False,
            "enable_progress_bar": False,
        }
        known: dict[str, Any] = {"model": {"init_args": {"seed": len(self.rows)}}}
        if name.startswith("critic"):
            kind, folder = part.leaves, f"shards/{part.sets[0]}/train"
            model: dict[str, Any] = {"export": f"runs/{name}/{kind}"}
            data: dict[str, Any] = {"train": [folder], "validation": ["shards/critic/validation"]}
            if name == "critic_motion":
                data["vae"] = str(self.place("0_vae"))
            if self.is_tiny:
                data |= FEW[kind]
        else:
            folder = "latents" if SETS[part.sets[0]].encode is not None else "shards"
            folder = "shards" if part.leaves == "vae" else folder
            data = {s: f"{folder}/{part.sets[0]}/{s}" for s in ("train", "validation")}
            model = self.starting(name)
            trainer["val_check_interval"] = CLOCK
            silent = {"every_n_train_steps": CLOCK, "save_last": False}
            known["trainer"] = {
                "callbacks": [
                    {"class_path": f"{classes}samples.Samples", "init_args": {"videos": False}},
                    {
                        "class_path": f"{classes}refined_samples.RefinedSamples",
                        "init_args": {"videos": False},
                    },
                    {
                        "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
                        "init_args": silent,
                    },
                ]
            }
            if folder == "latents":
                data["decode_video"] = False
        trainer["callbacks"] = [{"class_path": f"{classes}time_box.TimeBox", "init_args": box}]
        return {
            "model": {"init_args": model},
            "data": {"init_args": data},
            "trainer": trainer,
            "every": known,
        }

    def starting(self, name: str) -> dict[str, Any]:
        """The networks that a part begins with: of the parts it follows, in this run, else its own
        of before, else the latest of the chain before. Refiner and decoder: first their own."""
        part = PARTS[name]
        now, before = Path("runs"), Path("before/runs")
        own = [before / name / part.leaves] if part.own else []
        this = [now / each / PARTS[each].leaves for each in part.start]
        older = [before / each / PARTS[each].leaves for each in (*part.start, *CHAIN)]
        places = [*this, *own, *older] if name in CHAIN else [*own, *this, *older]
        start = next((str(path) for path in places if path.exists()), None)
        if part.leaves == "vae":
            return {"init_from": start} if start else {}
        models = {"vae": str(self.place("0_vae")), "compile": self.compiles, "init_from": start}
        if name.startswith("3_"):
            models["motion_stats"] = self.motion_stats()
        model: dict[str, Any] = {"models": models, **part.model}
        if name == "1_t2v":
            model["objective"] = {"resolution": {0: 1.0}, "window_latents": {0: self.window()}}
        if name == "3_sft":
            terms = ("face_critic", "motion_meter", "sync_critic")
            found = {
                term: str(self.place(f"critic_{critic}"))
                for term, critic in zip(terms, CRITICS, strict=True)
                if self.place(f"critic_{critic}").exists()
            }
            if len(found) == len(terms):
                model["perceptual"] = found
        if name == "4e_self_forcing":
            tried = [self.place("4d_causal_forcing"), self.place(name)]
            causal = next((str(path) for path in tried if path.exists()), None)
            model["student"] = {"causal_weights": causal}
        return model

    def window(self) -> int:
        """Latents of stage 1's windows, from the first step on."""
        return 5 if self.is_tiny else 13

    def motion_stats(self) -> str:
        """Statistics of motion, of the clips that are there when they are first asked for; a run
        that goes on keeps them."""
        for path in (Path("motion.json"), Path("before/motion.json")):
            if path.exists():
                return str(path)
        from avatar_v.motion.stats import write_stats
        from avatar_v.shards.motion_stats import stats_of_folder

        write_stats(Path("motion.json"), stats_of_folder("shards/short/train"))
        return "motion.json"


def drawing(options: argparse.Namespace, turn: int) -> subprocess.Popen:
    needed = [name for part in options.parts for name in PARTS[part].sets]
    values = {"size": options.size, "workers": options.workers, "turn": turn}
    words = json.dumps({**values, "sets": list(dict.fromkeys(needed))})
    return beside_this("draw", words)


def beside_this(kind: str, words: str) -> subprocess.Popen:
    """A process of this file that ends behind this one, however that ends."""
    return subprocess.Popen([sys.executable, __file__, kind, words], start_new_session=True)


def draw(words: str) -> None:
    """Draw the sets, until the run that asked for it ends."""
    from avatar_v_data.world_set import write_worlds

    asked, parent = json.loads(words), os.getppid()
    sets = drawn_sets(asked["size"], asked["turn"])
    wanted = [each for name in asked["sets"] for each in sets[name]]

    def look(num_done: int) -> None:
        if os.getppid() != parent:
            raise KeyboardInterrupt

    write_worlds(wanted, num_workers=asked["workers"], on_clip=look)


def free_memory() -> None:
    """Of the networks of a part that has ended."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def device_name() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def peak_tflops() -> float | None:
    from avatar_v.planning.gpus import gpu_called

    gpu = gpu_called(device_name())
    return None if gpu is None else gpu.bf16_tflops


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
    else:
        sys.exit(main())
