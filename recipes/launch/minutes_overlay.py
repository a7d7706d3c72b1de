"""What of a part's recipe a run of minutes.py decides: data, weights to begin with, time.

Paths are of the folder of the run.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minutes_parts import CHAIN, CRITICS, FEW, PARTS, SETS

CLOCK = 1_000_000


@dataclass(frozen=True)
class How:
    """The run that a part is of."""

    seed: int
    is_tiny: bool
    on_gpu: bool
    compiles: bool


def overlay(name: str, seconds: float, how: How) -> dict[str, Any]:
    """What of the recipe is of this run: its data, the weights it begins with, its time."""
    part = PARTS[name]
    box = {"seconds": seconds, "peak_tflops": peak_tflops()}
    classes = "avatar_v.callbacks."
    trainer: dict[str, Any] = {
        "default_root_dir": f"runs/{name}",
        "max_steps": CLOCK,
        "accelerator": "gpu" if how.on_gpu else "cpu",
        "logger": False,
        "enable_progress_bar": False,
    }
    known: dict[str, Any] = {"model": {"init_args": {"seed": how.seed}}}
    if name.startswith("critic"):
        kind, folder = part.leaves, f"shards/{part.sets[0]}/train"
        model: dict[str, Any] = {"export": f"runs/{name}/{kind}"}
        data: dict[str, Any] = {"train": [folder], "validation": ["shards/critic/validation"]}
        if name == "critic_motion":
            data["vae"] = str(place("0_vae"))
        if how.is_tiny:
            data |= FEW[kind]
    else:
        folder = "latents" if SETS[part.sets[0]].encode is not None else "shards"
        folder = "shards" if part.leaves == "vae" else folder
        data = {s: f"{folder}/{part.sets[0]}/{s}" for s in ("train", "validation")}
        model = starting(name, how)
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


def starting(name: str, how: How) -> dict[str, Any]:
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
    models = {"vae": str(place("0_vae")), "compile": how.compiles, "init_from": start}
    if name.startswith("3_"):
        models["motion_stats"] = motion_stats()
    model: dict[str, Any] = {"models": models, **part.model}
    if name == "1_t2v":
        model["objective"] = {"resolution": {0: 1.0}, "window_latents": {0: window(how.is_tiny)}}
    if name == "3_sft":
        terms = ("face_critic", "motion_meter", "sync_critic")
        found = {
            term: str(place(f"critic_{critic}"))
            for term, critic in zip(terms, CRITICS, strict=True)
            if place(f"critic_{critic}").exists()
        }
        if len(found) == len(terms):
            model["perceptual"] = found
    if name == "4e_self_forcing":
        tried = [place("4d_causal_forcing"), place(name)]
        causal = next((str(path) for path in tried if path.exists()), None)
        model["student"] = {"causal_weights": causal}
    return model


def window(is_tiny: bool) -> int:
    """Latents of stage 1's windows, from the first step on."""
    return 5 if is_tiny else 13


def motion_stats() -> str:
    """Statistics of motion, of the clips that are there when they are first asked for; a run
    that goes on keeps them."""
    for path in (Path("motion.json"), Path("before/motion.json")):
        if path.exists():
            return str(path)
    from avatar_v.motion.stats import write_stats
    from avatar_v.shards.motion_stats import stats_of_folder

    write_stats(Path("motion.json"), stats_of_folder("shards/short/train"))
    return "motion.json"


def place(name: str) -> Path:
    """The weights of a part: of this run, or of the one before."""
    own = Path("runs") / name / PARTS[name].leaves
    return own if own.exists() else Path("before") / own


def device_name() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def peak_tflops() -> float | None:
    from avatar_v.planning.gpus import gpu_called

    gpu = gpu_called(device_name())
    return None if gpu is None else gpu.bf16_tflops
